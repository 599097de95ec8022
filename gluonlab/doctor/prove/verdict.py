"""What a trial has come to."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from gluonlab.doctor.findings import FAULT, OK, one_line
from gluonlab.gpu.process import Outcome


class Verdict(NamedTuple):
    """``trial``: its name.

    ``status``: OK or FAULT. ``what``: in words; devices are CUDA's numbers.
    """

    trial: str
    status: str
    what: str


def right(trial: str, what: str) -> Verdict:
    """As it should be."""
    return Verdict(trial, OK, what)


def wrong(trial: str, what: str) -> Verdict:
    """Not as it should be."""
    return Verdict(trial, FAULT, what)


def unfinished(trial: str, outcome: Outcome) -> List[Verdict]:
    """A process that crashed, hung or gave up, and what it was about to do; nothing for one that
    told all.
    """
    refused = outcome.answer("error")
    reason = one_line(refused["error"]) if refused else outcome.ended
    if not reason:
        return []
    doing = last(outcome.answers, "trying")
    return [wrong(trial, f"{doing['trying'] if doing else 'its start'}: {reason}")]


def last(answers: List[Dict[str, Any]], key: str) -> Optional[Dict[str, Any]]:
    """The last answer that has this key."""
    return next((answer for answer in reversed(answers) if key in answer), None)


def all_of(outcome: Outcome, key: str) -> List[Dict[str, Any]]:
    """Every answer that has this key, in order."""
    return [answer for answer in outcome.answers if key in answer]
