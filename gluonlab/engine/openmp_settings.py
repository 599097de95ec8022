"""OpenMP settings before MXNet loads: teams of one thread, and idle threads that sleep soon.

MXNet 1.9.1 computes with GCC's libgomp. Both read the environment once, when they are loaded.
"""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, NamedTuple, Optional

from gluonlab.errors import warn

# How often an idle thread of an OpenMP team checks for work before it sleeps. libgomp's default of
# 300,000 takes milliseconds. If anything else computes, the idle thread then occupies a core that
# the threads it waits for need. A thread that sleeps at once takes tens of microseconds to wake up,
# several times in every operator. 1,000 checks cover the time from one operator to the next.
SPIN_COUNT = "1000"
# Variables that users export for other programs, and their harm to MXNet, which is loaded without.
_SMALLER = "with fewer threads than it expects, oneDNN computes wrong sums and NaN"
_BOUND = "all of MXNet's workers would share one core"
HARMFUL_VARIABLES = {
    "OMP_DYNAMIC": _SMALLER, "OMP_THREAD_LIMIT": _SMALLER, "OMP_MAX_ACTIVE_LEVELS": _SMALLER,
    "OMP_PROC_BIND": _BOUND, "OMP_PLACES": _BOUND, "GOMP_CPU_AFFINITY": _BOUND,
}  # fmt: skip
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
    """Configure MXNet and OpenMP, loaded in this block, for one thread that sleeps soon if idle.

    Two CPU devices with more threads would hang. A single device later gets the user's number of
    threads from `gluonlab.engine.cpu_threads`. The variables are restored after the block, so that
    child processes, such as PyTorch in a benchmark, start as they would without gluonlab.
    """
    global openmp_loaded_first
    openmp_loaded_first = _is_library_loaded("libgomp.so.1")
    # A loaded OpenMP reads no more variables. Without MXNET_OMP_MAX_THREADS, MXNet would then
    # choose the number of its workers' threads.
    variables: Dict[str, Optional[str]] = {"OMP_NUM_THREADS": None, "MXNET_OMP_MAX_THREADS": "1"}
    if not openmp_loaded_first:
        variables = {"OMP_NUM_THREADS": "1"}
        if not user_spin_settings():
            variables["GOMP_SPINCOUNT"] = SPIN_COUNT
        for setting, effect in harmful_user_settings().items():
            variables[setting.split("=")[0]] = None
            warn(f"{setting} is overridden for MXNet: {effect}")
    with temporary_variables(variables):
        yield


@contextmanager
def temporary_variables(variables: Dict[str, Optional[str]]) -> Iterator[None]:
    """Set environment variables in this block, and restore them afterwards."""
    user_values = {name: os.environ.get(name) for name in variables}
    set_variables(variables)
    try:
        yield
    finally:
        set_variables(user_values)


def set_variables(variables: Dict[str, Optional[str]]) -> None:
    """Set variables in the environment of this process, and unset those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _is_library_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def user_spin_settings() -> Dict[str, str]:
    """Return the user's settings of idle threads. If there are none, gluonlab sets SPIN_COUNT.

    Values that libgomp ignores, because it cannot parse them, are omitted.
    """
    values = {name: os.environ.get(name, "").strip() for name in _SPIN_VARIABLES}
    return {name: value for name, value in values.items() if _SPIN_VARIABLES[name](value)}


def parse_spin_count(value: str) -> float:
    """Return the number that a text of GOMP_SPINCOUNT stands for; -1 if it is not a number."""
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
        and not (unbound and HARMFUL_VARIABLES[name] == _BOUND)
    }


def _is_harmful(name: str, value: str) -> bool:
    return value == "0" if name == "OMP_MAX_ACTIVE_LEVELS" else value != "false"


class ExportedThreads(NamedTuple):
    """A number of threads, and the environment variable that sets it."""

    name: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name}={self.threads}"


def exported_thread_count() -> Optional[int]:
    """Return the number of threads that the user has exported; None without one."""
    exported = exported_threads()
    return None if exported is None else exported.threads


def exported_threads() -> Optional[ExportedThreads]:
    """Return the setting of OMP_NUM_THREADS, or else of MXNET_OMP_MAX_THREADS."""
    for name in ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return ExportedThreads(name, int(first))
    return None


def spins_by_default() -> bool:
    """Check if OpenMP uses its default SPIN_COUNT, because it was loaded before gluonlab."""
    return openmp_loaded_first and not user_spin_settings()
