"""OpenMP settings for loading MXNet: one thread per team, and a short spin time.

MXNet 1.9.1 computes with libgomp, GCC's OpenMP library. MXNet and libgomp each read the environment
once, when they are loaded. Idle threads of a team first check for work in a loop (they spin), and
then sleep.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, NamedTuple, Optional

from gluonlab.errors import warn

# Number of times that an idle thread of an OpenMP team checks for work before it sleeps.
# - libgomp's default, 300,000, takes milliseconds. On a busy machine, the spinning thread then
#   occupies a core that the working threads of its team need.
# - With 0, a thread takes tens of microseconds to wake up, several times in every operator.
# - 1,000 checks cover the time from one operator to the next.
SPIN_COUNT = "1000"
# Variables that users export for other programs, and the harm that each would do to MXNet. MXNet is
# loaded without these variables.
_SMALLER_TEAM_HARM = "oneDNN computes wrong sums and NaN if it gets fewer threads than it expects"
_BOUND_THREADS_HARM = "all of MXNet's workers would share one core"
HARMFUL_VARIABLES = {
    **dict.fromkeys(("OMP_DYNAMIC", "OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"), _SMALLER_TEAM_HARM),
    **dict.fromkeys(("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"), _BOUND_THREADS_HARM),
}
SHORT_SPIN_COMMAND = f"export GOMP_SPINCOUNT={SPIN_COUNT}"
_UNIT_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SPIN_VARIABLES: Dict[str, Callable[[str], bool]] = {
    "GOMP_SPINCOUNT": lambda value: parse_spin_count(value) >= 0,
    "OMP_WAIT_POLICY": lambda value: value.lower() in ("active", "passive"),
}

# Whether MXNet or torch had loaded libgomp before gluonlab could configure it.
openmp_loaded_first = False


@contextmanager
def openmp_settings_for_mxnet() -> Iterator[None]:
    """In this with block, set one thread and a short spin time for loading MXNet and OpenMP.

    Two CPU devices with more threads would hang. For a single device, `gluonlab.engine.cpu_threads`
    later sets the user's number of threads. The variables are restored after the block, so that
    child processes, such as PyTorch in a benchmark, start as they would without gluonlab.
    """
    global openmp_loaded_first
    openmp_loaded_first = _is_library_loaded("libgomp.so.1")
    # If OpenMP was loaded earlier, it no longer reads OMP_NUM_THREADS. Then MXNET_OMP_MAX_THREADS
    # has to set the number of threads of MXNet's workers.
    variables: Dict[str, Optional[str]] = {"OMP_NUM_THREADS": None, "MXNET_OMP_MAX_THREADS": "1"}
    if not openmp_loaded_first:
        variables = {"OMP_NUM_THREADS": "1"}
        if not user_spin_settings():
            variables["GOMP_SPINCOUNT"] = SPIN_COUNT
        for setting, effect in harmful_user_settings().items():
            variables[setting.split("=")[0]] = None
            warn(f"{setting} is overridden for MXNet, because {effect}")
    with temporary_variables(variables):
        yield


@contextmanager
def temporary_variables(variables: Dict[str, Optional[str]]) -> Iterator[None]:
    """Set environment variables in the with block, and restore them afterwards."""
    user_values = {name: os.environ.get(name) for name in variables}
    set_variables(variables)
    try:
        yield
    finally:
        set_variables(user_values)


def set_variables(variables: Dict[str, Optional[str]]) -> None:
    """Set environment variables of this process, and unset variables whose new value is None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _is_library_loaded(library: str) -> bool:
    """Check if this process has loaded a shared library, without loading it."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def user_spin_settings() -> Dict[str, str]:
    """Return the user's values of GOMP_SPINCOUNT and OMP_WAIT_POLICY, by variable.

    Values that libgomp ignores because it cannot parse them are omitted. If the result is empty,
    gluonlab sets SPIN_COUNT.
    """
    values = {name: os.environ.get(name, "").strip() for name in _SPIN_VARIABLES}
    return {name: value for name, value in values.items() if _SPIN_VARIABLES[name](value)}


def parse_spin_count(value: str) -> float:
    """Return the number in a value of GOMP_SPINCOUNT, such as ``300k``; -1 if it is invalid."""
    text = value.strip().lower()
    if text in ("infinite", "infinity"):
        return float("inf")
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)", text)
    return int(match[1]) * _UNIT_FACTORS[match[2]] if match else -1


def harmful_user_settings() -> Dict[str, str]:
    """Return the user's harmful settings with their effects: ``{"OMP_DYNAMIC=true": effect}``."""
    values = {name: os.environ.get(name, "").strip() for name in HARMFUL_VARIABLES}
    unbound = values["OMP_PROC_BIND"].lower() == "false"  # disables the other two binding variables
    return {
        f"{name}={value}": HARMFUL_VARIABLES[name]
        for name, value in values.items()
        if value
        and _is_harmful(name, value.lower())
        and not (unbound and HARMFUL_VARIABLES[name] == _BOUND_THREADS_HARM)
    }


def _is_harmful(name: str, value: str) -> bool:
    """Check if ``value``, in lower case, is harmful for a variable in HARMFUL_VARIABLES."""
    return value == "0" if name == "OMP_MAX_ACTIVE_LEVELS" else value != "false"


class ExportedThreads(NamedTuple):
    """A number of threads, and the environment variable that sets it."""

    name: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name}={self.threads}"


def exported_thread_count() -> Optional[int]:
    """Return the number of threads that the user has exported; None if no number is exported."""
    exported = exported_threads()
    return None if exported is None else exported.threads


def exported_threads() -> Optional[ExportedThreads]:
    """Return the user's OMP_NUM_THREADS, or else MXNET_OMP_MAX_THREADS; None if neither is set."""
    for name in ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return ExportedThreads(name, int(first))
    return None


def uses_openmp(system: str = sys.platform) -> bool:
    """Return whether MXNet's wheel computes with OpenMP; the wheel for macOS does not."""
    return system == "linux"


def spins_by_default() -> bool:
    """Check if idle threads spin for long, because OpenMP was loaded before gluonlab's settings."""
    return openmp_loaded_first and not user_spin_settings()
