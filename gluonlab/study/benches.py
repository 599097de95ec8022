"""Bench's measurements as those of a sweep: each round by itself, and all put together.

None is made here: a study asks `gluonlab.bench`, and keeps what it says.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Dict, Iterable, List, Mapping, Sequence

from gluonlab.bench.harness.record import Series


def as_values(series: Iterable[Series]) -> Dict[str, Any]:
    """Plain values of what a round of a measurement gave."""
    return {"series": [{**asdict(one), "values": list(one.values)} for one in series]}


def together(rounds: Sequence[Mapping[str, Any]]) -> List[Series]:
    """The series of all rounds; what failed in one has no values, but that one's reason."""
    found: Dict[str, Series] = {}
    for of_round in rounds:
        for plain in of_round["series"]:
            one = Series(**{**plain, "values": tuple(plain["values"])})
            before = found.get(one.name)
            if before is not None:
                reason = before.reason or one.reason
                values = () if reason else before.values + one.values
                one = replace(one, values=values, reason=reason)
            found[one.name] = one
    return list(found.values())
