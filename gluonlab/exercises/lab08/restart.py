"""08-5: at which step a killed run goes on."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NUMBERS, Case, returned
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results

STEPS_AN_EPOCH = 5


class Killed(NamedTuple):
    """A run that was killed: its log, and its checkpoints, each with whether it is whole."""

    metrics: str
    checkpoints: Dict[int, bool]

    @property
    def steps(self) -> List[int]:
        """Those whose lines are whole."""
        lines = [json.loads(line) for line in self.metrics.splitlines() if line.endswith("}")]
        return [line["step"] for line in lines if line["kind"] == "step"]

    @property
    def last(self) -> int:
        """The last step whose line is whole; 0: none is."""
        return max(self.steps, default=0)

    def best(self, whole: bool = True, logged: bool = True) -> int:
        """The newest checkpoint that is ``whole``, and whose lines are ``logged``; 0: none."""
        return max(
            (
                step
                for step, is_whole in self.checkpoints.items()
                if (is_whole or not whole) and (step <= self.last or not logged)
            ),
            default=0,
        )


@exercise("08-5")
def goes_on(answer: Callable[[str, Dict[int, bool]], Tuple[int, int]]) -> None:
    """The step that a killed run goes on from, and how many steps are made again."""
    cases = [
        _killed(12, {5: True, 10: True}),
        _killed(13, {5: True, 10: False}),
        _killed(9, {5: True, 10: True}),
        _killed(3, {}),
        _killed(10, {5: True, 10: True}),
        _killed(0, {}, cut='{"kind": "st'),
        _killed(7, {5: True}, cut='{"kind": "step", "step": 8, "lo'),
        _killed(14, {4: True, 8: False, 12: False}, resumed=4),
        _killed(13, {10: True, 5: True}),
        _killed(8, {4: True, 8: True}, cut='{"kind": "step", "step": 9, "lo'),
        _killed(9, {8: True, 6: True, 10: True, 2: True}),
    ]
    randint = draws(85).randint
    for _ in range(8):
        last, every = int(randint(4, 40)), int(randint(2, 8))
        checkpoints = {step: bool(randint(4)) for step in range(every, last + 2 * every, every)}
        cut = f'{{"kind": "step", "step": {last + 1}, "lo' if randint(2) else ""
        cases.append(_killed(last, checkpoints, cut, resumed=every if randint(2) else None))
    found = results(lambda *case: _as_pair(answer(case[0], dict(case[1]))), cases, _right)
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (metrics, checkpoints), got, want = mistaken[0]
    killed = Killed(metrics, checkpoints)
    if not isinstance(got, tuple) or len(got) != 2:
        en = "two numbers: the step it goes on from, and how many steps are made again"
        raise returned(got, "goes_on(...)", en, "2 つの数 (再開するステップと、やり直す回数) ")
    tail = ("", "")
    if not metrics.endswith("\n") and metrics:
        tail = " and a line that is cut", "と途中で切れた 1 行"
    case = Case(
        f"a log of {len(killed.steps)} steps{tail[0]}, checkpoints {checkpoints}",
        f"{len(killed.steps)} ステップのログ{tail[1]}、チェックポイント {checkpoints}",
    )
    why = explains(found, _alike, *MISTAKES)
    raise case.wrong(f"{got}, expected {want}", f"{got} でしたが、正しくは {want} です", why)


def _killed(
    last: int, checkpoints: Dict[int, bool], cut: str = "", resumed: Optional[int] = None
) -> Killed:
    """A run that was killed after ``last`` steps, and had gone on once from ``resumed``."""
    lines: List[Dict[str, Any]] = []
    for step in range(1, last + 1):
        lines.append({"kind": "step", "step": step, "loss": round(2 / step, 4)})
        if step % STEPS_AN_EPOCH == 0:
            epoch = step // STEPS_AN_EPOCH
            lines.append({"kind": "epoch", "epoch": epoch, "step": step, "accuracy": 0.9})
        if step == resumed:
            lines.append({"kind": "event", "event": "resumed", "step": step})
    return Killed("".join(json.dumps(line) + "\n" for line in lines) + cut, checkpoints)


def _right(metrics: str, checkpoints: Dict[int, bool]) -> Tuple[int, int]:
    killed = Killed(metrics, checkpoints)
    return killed.best(), killed.last - killed.best()


def _as_pair(given: Any) -> Any:
    if not isinstance(given, Iterable) or isinstance(given, (str, dict, set)):
        return given
    values = tuple(one.item() if isinstance(one, np.generic) else one for one in given)
    return values if all(isinstance(one, NUMBERS) for one in values) else given


def _alike(got: Any, want: Tuple[int, int]) -> bool:
    return isinstance(got, tuple) and got == want


def _by(formula: Callable[[Killed], Tuple[int, int]]) -> Callable[..., bool]:
    return lambda *case, got: _alike(got, formula(Killed(*case)))


def _to_the_last(killed: Killed, last: int) -> Tuple[int, int]:
    """As if the log ended with this step."""
    usable = [step for step, whole in killed.checkpoints.items() if whole and step <= last]
    return max(usable, default=0), last - max(usable, default=0)


def _with_the_cut_line(killed: Killed) -> Tuple[int, int]:
    return _to_the_last(killed, killed.last + ("step" in killed.metrics.split("\n")[-1]))


def _last_entry(killed: Killed) -> Tuple[int, int]:
    """The usable checkpoint that comes last in the dictionary."""
    usable = [s for s, whole in killed.checkpoints.items() if whole and s <= killed.last]
    start = usable[-1] if usable else 0
    return start, killed.last - start


def _earlier_than_the_last(killed: Killed) -> Tuple[int, int]:
    start = max(
        (s for s, whole in killed.checkpoints.items() if whole and s < killed.last), default=0
    )
    return start, killed.last - start


def _from(**how: bool) -> Callable[..., bool]:
    return _by(lambda killed: (killed.best(**how), killed.last - killed.best(**how)))


MISTAKES: List[Mistake] = [
    (_from(whole=False, logged=False),
     "the newest checkpoint is taken, though it may be damaged, or ahead of the log",
     "最新のチェックポイントを、壊れていないか、ログより先でないかを確かめずに使っています"),
    (_from(whole=False),
     "a damaged checkpoint is taken", "壊れたチェックポイントを使っています"),
    (_from(logged=False),
     "a checkpoint is taken that is ahead of the log",
     "ログより先のステップのチェックポイントを使っています"),
    (_by(lambda killed: (killed.last, 0)),
     "what is logged is not saved: only a checkpoint has the weights",
     "ログにあっても保存されたわけではありません。重みはチェックポイントにしかありません"),
    (_by(lambda killed: (killed.best() + 1, killed.last - killed.best())),
     "a checkpoint of step 5 has that step done: it is where the run goes on from",
     "ステップ 5 のチェックポイントには、そのステップの結果まで入っています。"
     "再開するのはそこからです"),
    (_by(lambda killed: (killed.best(), max(0, killed.last - killed.best() - 1))),
     "the last logged step is made again, too",
     "ログの最後のステップもやり直します"),
    (_by(lambda killed: (killed.last - killed.best(), killed.best())),
     "the two numbers are the other way round", "2 つの数の順序が逆です"),
    (_by(_last_entry),
     "that is the last one in the dictionary, which need not be the newest",
     "これは辞書の最後にあるものです。最も新しいとは限りません"),
    (_by(_earlier_than_the_last),
     "a checkpoint of the last logged step is not ahead of the log",
     "ログの最後のステップのチェックポイントは、ログより先ではありません"),
    (_by(_with_the_cut_line),
     "the line that is cut counts as a step", "途中で切れた行を 1 ステップと数えています"),
    (_by(lambda killed: (killed.best(), len(killed.metrics.splitlines()) - killed.best())),
     "lines are counted, and not every line is a step",
     "行数を数えていますが、すべての行がステップではありません"),
]  # fmt: skip
