"""All trials, one after the other, within a time; what they came to, as one object that holds
nothing of its owner's.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, NamedTuple, Protocol

from gluonlab.doctor.findings import FAULT
from gluonlab.doctor.prove.verdict import Verdict, wrong
from gluonlab.gpu.process import Outcome, ask

FORMAT = 1
TOTAL_S = 300.0


class Trial(Protocol):
    """A module of this package.

    Not imported here by name: each loads MXNet, and they run in processes of their own.
    """

    NAME: str

    def judge(self, outcome: Outcome) -> List[Verdict]:
        """At least one verdict."""

    def numbers(self, outcome: Outcome) -> List[Dict[str, Any]]:
        """What was measured: flat objects."""


class Tried(NamedTuple):
    """A trial that has ended. ``numbers``: flat objects, which the page shows as a table."""

    name: str
    seconds: float
    verdicts: List[Verdict]
    numbers: List[Dict[str, Any]]


# The trial, and the longest that it may take; speeds come last, because they are what may be left
# out.
TRIALS = {
    "copies": 60.0,
    "arithmetic": 60.0,
    "stores": 120.0,
    "bits": 120.0,
    "counts": 60.0,
    "speeds": 90.0,
}


def try_all(devices: str, done: Callable[[Tried], None]) -> List[Tried]:
    """Try everything on ``devices``, as --devices names them; ``done`` is called after each."""
    ends, tried = time.monotonic() + TOTAL_S, []
    for name, longest_s in TRIALS.items():
        tried.append(_try(name, devices, min(longest_s, ends - time.monotonic())))
        done(tried[-1])
    return tried


def _try(name: str, devices: str, timeout_s: float) -> Tried:
    if timeout_s < 1:
        return Tried(
            name, 0.0, [wrong(name, f"there was no time left: all trials have {TOTAL_S:g} s")], []
        )
    began = time.monotonic()
    module = f"gluonlab.doctor.prove.{name}"
    outcome = ask(module, devices, timeout_s=timeout_s)
    trial = trial_of(name)
    return Tried(name, time.monotonic() - began, trial.judge(outcome), trial.numbers(outcome))


def trial_of(name: str) -> Trial:
    """The module of a trial."""
    import importlib

    found: Any = importlib.import_module(f"gluonlab.doctor.prove.{name}")
    trial: Trial = found
    return trial


def as_object(machine: Dict[str, Any], tried: List[Tried]) -> Dict[str, Any]:
    """For a file: format, machine, and each trial with verdicts and numbers."""
    trials = [
        {
            "trial": one.name,
            "seconds": round(one.seconds, 1),
            "verdicts": [
                {"status": verdict.status, "what": verdict.what} for verdict in one.verdicts
            ],
            "numbers": one.numbers,
        }
        for one in tried
    ]
    return {"format": FORMAT, "faults": faults(tried), "machine": machine, "trials": trials}


def faults(tried: List[Tried]) -> int:
    """How many verdicts are faults."""
    return sum(verdict.status == FAULT for one in tried for verdict in one.verdicts)
