"""OpenMP's settings before MXNet loads: teams of one thread, and idle threads that soon sleep.

MXNet 1.9.1 computes with GCC's libgomp. It and MXNet read the environment once, when they are
loaded.
"""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, NamedTuple, Optional

from gluonlab.errors import warn

# How often an idle thread of an OpenMP team looks for work before it sleeps. libgomp's own number
# is 300,000, milliseconds in which it keeps a core from the very threads that it waits for, once
# anything else computes. A thread that sleeps at once takes tens of microseconds to wake up,
# several times in every operator. This many looks cover the way from one operator to the next.
SPIN_COUNT = "1000"
# What is exported for other programs, and what it would do here. MXNet is loaded without.
_SMALLER = "with fewer threads than it expects, oneDNN computes wrong sums and NaN"
_BOUND = "all of MXNet's workers would share one core"
HARMFUL = {
    "OMP_DYNAMIC": _SMALLER, "OMP_THREAD_LIMIT": _SMALLER, "OMP_MAX_ACTIVE_LEVELS": _SMALLER,
    "OMP_PROC_BIND": _BOUND, "OMP_PLACES": _BOUND, "GOMP_CPU_AFFINITY": _BOUND,
}  # fmt: skip
SLEEP_SOON = f"export GOMP_SPINCOUNT={SPIN_COUNT}"
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SPINNING: Dict[str, Callable[[str], bool]] = {
    "GOMP_SPINCOUNT": lambda value: spins(value) >= 0,
    "OMP_WAIT_POLICY": lambda value: value.lower() in ("active", "passive"),
}

# Whether libgomp, which MXNet computes with, had been loaded before gluonlab could set it: by MXNet
# itself, or by torch.
came_first = False


@contextmanager
def as_mxnet_needs_it() -> Iterator[None]:
    """Have MXNet and OpenMP, loaded in this block, begin with one thread that soon sleeps if idle.

    They read their variables once. Two CPU devices with more threads would hang; a device alone
    gets more from `gluonlab.engine.cpu_threads`, as many as the user's variables say. The variables
    are
    restored afterwards, so that processes started from here, such as PyTorch in a benchmark, begin
    as they would without gluonlab.
    """
    global came_first
    came_first = _is_loaded("libgomp.so.1")
    # An OpenMP that is there already reads nothing more. MXNet then gives its workers a number of
    # its own, unless this one is set.
    wanted: Dict[str, Optional[str]] = {"OMP_NUM_THREADS": None, "MXNET_OMP_MAX_THREADS": "1"}
    if not came_first:
        wanted = {"OMP_NUM_THREADS": "1"}
        if not users_spinning():
            wanted["GOMP_SPINCOUNT"] = SPIN_COUNT
        for setting, effect in harmful().items():
            wanted[setting.split("=")[0]] = None
            message = f"{setting} is overridden for MXNet: {effect}"
            warn(message)
    with variables(wanted):
        yield


@contextmanager
def variables(wanted: Dict[str, Optional[str]]) -> Iterator[None]:
    """In this block the environment has these values, and then the user's again."""
    users = {name: os.environ.get(name) for name in wanted}
    set_variables(wanted)
    try:
        yield
    finally:
        set_variables(users)


def set_variables(variables: Dict[str, Optional[str]]) -> None:
    """Set these in the environment of this process, and unset those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def users_spinning() -> Dict[str, str]:
    """The user's settings for threads that wait for work; if empty, gluonlab sets SPIN_COUNT.

    A value that libgomp does not understand, and so ignores, is left out.
    """
    found = {name: os.environ.get(name, "").strip() for name in _SPINNING}
    return {name: value for name, value in found.items() if _SPINNING[name](value)}


def spins(value: str) -> float:
    """GOMP_SPINCOUNT's text as a number: how often idle threads look for work; -1 if it is none."""
    text = value.strip().lower()
    if text in ("infinite", "infinity"):
        return float("inf")
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)", text)
    return int(found[1]) * _THOUSANDS[found[2]] if found else -1


def harmful() -> Dict[str, str]:
    """The variables of HARMFUL that the user exports: ``{"OMP_DYNAMIC=true": its effect}``."""
    users = {name: os.environ.get(name, "").strip() for name in HARMFUL}
    unbound = users["OMP_PROC_BIND"].lower() == "false"  # puts the two others out of force
    return {
        f"{name}={value}": HARMFUL[name]
        for name, value in users.items()
        if value and _does_harm(name, value.lower()) and not (unbound and HARMFUL[name] == _BOUND)
    }


def _does_harm(name: str, value: str) -> bool:
    return value == "0" if name == "OMP_MAX_ACTIVE_LEVELS" else value != "false"


class Exported(NamedTuple):
    """A number of threads, and the variable that it comes from."""

    name: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name}={self.threads}"


def omp_num_threads() -> Optional[int]:
    """The number of threads that `exported_threads` asks for; None without one."""
    exported = exported_threads()
    return None if exported is None else exported.threads


def exported_threads() -> Optional[Exported]:
    """OMP_NUM_THREADS, else MXNET_OMP_MAX_THREADS, which MXNet reads where that is no number."""
    for name in ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return Exported(name, int(first))
    return None


def spins_as_it_came() -> bool:
    """Whether OpenMP came before gluonlab and the user has set nothing: then it spins for long."""
    return came_first and not users_spinning()
