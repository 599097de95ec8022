"""08-4: how stale each push to an asynchronous parameter server is."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import is_not, returned
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results

Event = Tuple[int, str, str]  # worker, "pull" or "push", key
PULL, PUSH = "pull", "push"


@exercise("08-4")
def staleness(answer: Callable[[List[Event]], List[int]]) -> None:
    """How many updates of other workers each push meets that its worker has not seen."""
    cases: List[List[Event]] = [
        [(0, PULL, "w"), (0, PUSH, "w")],
        [(0, PULL, "w"), (1, PULL, "w"), (0, PUSH, "w"), (1, PUSH, "w")],
        [(0, PULL, "w"), (0, PUSH, "w"), (0, PUSH, "w")],
        [(0, PULL, "w"), (0, PULL, "b"), (1, PULL, "b"), (1, PUSH, "b"), (0, PUSH, "w"),
         (0, PUSH, "b")],
        [(1, PUSH, "w"), (1, PUSH, "w"), (0, PUSH, "w")],
        [(0, PULL, "w"), (1, PUSH, "w"), (0, PULL, "b"), (0, PUSH, "w")],
        [(2, PUSH, "b"), (0, PULL, "w"), (0, PUSH, "b"), (1, PUSH, "b"), (1, PULL, "w"),
         (2, PUSH, "b")],
        [(0, PULL, "w"), (1, PUSH, "w"), (2, PUSH, "w"), (0, PUSH, "w"), (1, PUSH, "w"),
         (0, PUSH, "w"), (2, PULL, "w"), (2, PUSH, "w")],
    ]  # fmt: skip
    random = draws(84)
    for _ in range(8):
        workers, keys = int(random.randint(2, 5)), ["w", "b", "v"][: random.randint(1, 4)]
        cases.append(
            [
                (
                    int(random.randint(workers)),
                    [PULL, PUSH][random.randint(2)],
                    keys[random.randint(len(keys))],
                )
                for _ in range(int(random.randint(8, 24)))
            ]
        )
    found = results(
        lambda events: _as_list(answer(list(events))), [(events,) for events in cases], _right
    )
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (events,), got, want = mistaken[0]
    call = f"staleness({events})"
    if not isinstance(got, list):
        raise returned(got, call, "a list with a number for each push", "push ごとの数のリスト")
    why = "", ""
    if len(got) != len(want):
        why = (
            f"pushes: {len(want)}, numbers: {len(got)}",
            f"push は {len(want)} 回ですが、数が {len(got)} 個あります",
        )
    why = why if any(why) else explains(found, _alike, *MISTAKES)
    raise is_not(call, got, want, why)


def _as_list(given: Any) -> Any:
    if not isinstance(given, Iterable) or isinstance(given, (str, dict)):
        return given
    return [one.item() if isinstance(one, np.generic) else one for one in given]


def _alike(got: Any, want: List[int]) -> bool:
    return isinstance(got, list) and got == want


def _count(
    events: List[Event],
    updates_by_key: bool = True,
    pulls_by_key: bool = True,
    own: bool = False,
    begin: Tuple[str, ...] = (PULL,),
    workers: bool = False,
    unpulled: bool = True,
) -> List[int]:
    """Of each push: updates since its worker's last pull.

    ``updates_by_key``, ``pulls_by_key``: those of its key alone; ``own``: with the worker's own;
    ``begin``: since which events of the worker, () for the beginning; ``workers``: how many have
    made them; ``unpulled``: also of a worker that has not pulled yet.
    """
    pushes: List[Tuple[int, str]] = []  # so far
    since: Dict[Tuple[int, str], int] = {}  # how many there were then
    found = []
    for worker, what, key in events:
        place = worker, key if pulls_by_key else ""
        if what == PUSH:
            met = pushes[since.get(place, 0) :] if unpulled or place in since else []
            counted = [
                other
                for other, its in met
                if (own or other != worker) and (its == key or not updates_by_key)
            ]
            found.append(len(set(counted) if workers else counted))
            pushes.append((worker, key))
        if what in begin:
            since[place] = len(pushes)
    return found


def _right(events: List[Event]) -> List[int]:
    return _count(events)


def _by(**how: Any) -> Callable[..., bool]:
    return lambda events, got: _alike(got, _count(events, **how))


MISTAKES: List[Mistake] = [
    (_by(own=True),
     "the worker's own updates are counted, too, but it has sent them itself",
     "自分の更新も数えています。自分の更新は古さには入りません"),
    (_by(updates_by_key=False),
     "updates of other keys are counted", "ほかのキーの更新も数えています"),
    (_by(pulls_by_key=False),
     "a pull of another key does not bring this one",
     "別のキーを pull しても、このキーは新しくなりません"),
    (_by(updates_by_key=False, pulls_by_key=False),
     "updates of other keys are counted", "ほかのキーの更新も数えています"),
    (_by(begin=(PUSH,)),
     "it is counted since the worker's last push: what it has pulled since then is new",
     "最後の push から数えています。その後に pull した分は古くありません"),
    (_by(begin=(PULL, PUSH)),
     "a push brings no weight to its worker: only a pull does",
     "push しても新しい重みは届きません。届くのは pull したときだけです"),
    (_by(workers=True),
     "that is how many other workers have pushed: every update counts",
     "push したワーカーの数ではなく、更新の回数を数えます"),
    (_by(unpulled=False),
     "a worker that has not pulled yet has the initial weight, and has seen no update",
     "まだ pull していないワーカーが持つのは最初の重みで、どの更新も見ていません"),
    (_by(begin=()),
     "it is counted from the beginning: a pull brings the newest weight",
     "最初から数えています。pull すれば最新の重みになります"),
    (_by(updates_by_key=False, pulls_by_key=False, own=True),
     "the updates of all workers and keys are counted",
     "すべてのワーカーとキーの更新を数えています"),
]  # fmt: skip
