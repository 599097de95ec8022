"""04-2: which transfer of a broken schedule is wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from gluonlab.collectives.algorithms import double_tree, halving_doubling, ring
from gluonlab.collectives.check import check as prove
from gluonlab.collectives.schedule import OPS, Schedule, Transfer
from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import Case, looks_like, wrong

Spot = Tuple[int, int]  # (step, transfer), both from 0


def _changed(name: str, schedule: Schedule, spot: Spot, **changes: Any) -> Schedule:
    steps = [list(step) for step in schedule.steps]
    steps[spot[0]][spot[1]] = steps[spot[0]][spot[1]]._replace(**changes)
    return replace(schedule, name=name, steps=tuple(map(tuple, steps)))


BROKEN: Dict[str, Schedule] = {
    "A": _changed("A", ring(4), (1, 1), op="copy"),
    "B": _changed("B", double_tree(4), (0, 1), chunk=1),
    "C": _changed("C", halving_doubling(4), (1, 0), dst=3),
}


@exercise("04-2")
def wrong_transfers(answer: Mapping[str, Spot]) -> None:
    """Which transfer of three broken schedules is wrong."""
    for name, schedule in BROKEN.items():
        if not isinstance(answer, Mapping) or name not in answer:
            raise wrong(
                f"there is no answer for schedule {name}: "
                f"give a dictionary with the keys {', '.join(BROKEN)}",
                f"スケジュール {name} の答えがありません。"
                f"キーが {', '.join(BROKEN)} の辞書にしてください",
            )
        spot = answer[name]
        spot = tuple(spot) if isinstance(spot, (list, np.ndarray)) else spot
        if not _is_spot(schedule, spot):
            last = len(schedule.steps) - 1
            raise Case(name, name).wrong(
                f"{spot!r} is not a place: give (step, transfer) "
                f"with a step from 0 to {last}, both counted from 0",
                f"{spot!r} という場所はありません。(ステップ, 転送) の組で、"
                f"ステップは 0 から {last}、どちらも 0 から数えます",
            )
        if not _mends(schedule, spot):
            transfer = schedule.steps[spot[0]][spot[1]]
            raise Case(name, name).wrong(
                f"whatever replaces `{transfer}`, the schedule stays wrong",
                f"`{transfer}` を何に置き換えても、スケジュールは正しくなりません",
                looks_like(
                    (_noticed(schedule) == spot,
                     "that is where `prove` noticed it: what is sent there was wrong already, "
                     "so go back",
                     "そこは `prove` が誤りを見つけた場所です。"
                     "送られる中身がすでに間違っているので、さかのぼってください"),
                ),
            )  # fmt: skip


def _is_spot(schedule: Schedule, spot: Any) -> bool:
    if (
        not isinstance(spot, tuple)
        or [isinstance(n, (int, np.integer)) for n in spot] != [True] * 2
    ):
        return False
    step, transfer = spot
    return step in range(len(schedule.steps)) and transfer in range(len(schedule.steps[step]))


def _mends(schedule: Schedule, spot: Spot) -> bool:
    """Whether some other transfer in this place makes the schedule right."""
    ranks = range(schedule.world_size)
    return any(
        _noticed(_changed(schedule.name, schedule, spot, **Transfer(*one)._asdict())) is None
        for one in product(ranks, ranks, range(schedule.chunks), OPS)
    )


def _noticed(schedule: Schedule) -> Optional[Spot]:
    """The transfer that the proof names; None for a right schedule."""
    try:
        prove(schedule)
    except ScheduleError as error:
        return (error.step, error.transfer)  # type: ignore[return-value]
    return None
