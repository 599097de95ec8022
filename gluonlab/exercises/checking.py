"""check(): run the checker on an answer, and turn whatever happens into a verdict."""

from __future__ import annotations

import dis
import json
import os
import reprlib
import sys
from pathlib import Path
from types import CodeType
from typing import Any, Dict, Optional

from gluonlab.exercises.cases import other_cases, seed_of_grader
from gluonlab.exercises.exercise import Exercise, Score, Wrong, find
from gluonlab.exercises.faults import message_of, place_of
from gluonlab.exercises.languages import Texts, language
from gluonlab.exercises.limits import OutOfTime, time_limit
from gluonlab.exercises.verdict import PASSED, RAISED, TOO_SLOW, UNWRITTEN, WRONG, Verdict

GRADES = "GLUONLAB_GRADES"  # a file to which every verdict is added, one JSON object a line


def check(id: str, answer: Any) -> Verdict:
    """The verdict on ``answer`` to the exercise ``id``: passed, or the first counterexample.

    ``answer`` is a function or a value, as the exercise's stub has it.
    Raises ExerciseError for an id that is no exercise's; nothing that the answer does raises
    anything but KeyboardInterrupt.
    """
    verdict = judge(find(id), answer)
    if os.environ.get(GRADES):
        _note(verdict, answer)
    return verdict


def _note(verdict: Verdict, answer: Any) -> None:
    """Add the verdict to the grader's file, after a look at cases that the student is not shown."""
    seed, hidden = seed_of_grader(), False
    if verdict and seed is not None:
        with other_cases(seed):
            verdict = judge(find(verdict.exercise), answer)
        hidden = not verdict
    line: Dict[str, Any] = dict(
        exercise=verdict.exercise, status=verdict.status, message=verdict.message
    )
    if verdict.micros is not None:
        line["micros"] = verdict.micros
    with Path(os.environ[GRADES]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "hidden": hidden}) + "\n")


def judge(exercise: Exercise, answer: Any) -> Verdict:
    """The verdict on an answer, within the exercise's time."""

    def verdict(status: str, texts: Texts) -> Verdict:
        return Verdict(exercise.id, status, texts, language())

    if answer is ...:
        return verdict(
            UNWRITTEN,
            _both("put your answer in place of `...`", "`...` を自分の答えに書き換えてください"),
        )
    if _does_nothing(answer):
        return verdict(UNWRITTEN, _write(answer.__name__))
    try:
        with time_limit(exercise.seconds):
            _wait()
            score = exercise.checker(answer)
            _wait()
    except Wrong as wrong:
        return verdict(WRONG, wrong.texts)
    except OutOfTime:
        return verdict(TOO_SLOW, _too_slow(exercise.seconds))
    except NotImplementedError as error:
        unwritten = _unwritten(error, exercise, answer)
        return verdict(*(unwritten or (RAISED, _fault(error, exercise, answer))))
    except (Exception, SystemExit) as error:
        return verdict(RAISED, _fault(error, exercise, answer))
    if isinstance(score, Score):
        return Verdict(exercise.id, PASSED, score.texts, language(), score.micros)
    return verdict(PASSED, _both("", ""))


def _wait() -> None:
    """Wait for MXNet, which raises the errors of queued operations only when they run."""
    mxnet = sys.modules.get("mxnet")
    if mxnet is not None and hasattr(mxnet, "nd"):
        mxnet.nd.waitall()


def _does_nothing(answer: Any) -> bool:
    """Whether it is a function whose body is a docstring, ``...`` or ``pass`` alone."""
    code = getattr(answer, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    steps = [
        step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP", "CACHE")
    ]
    loads = [step for step in steps if step.opname.startswith("LOAD_CONST")]
    returns_none = steps[-1].opname == "RETURN_CONST" or bool(loads)
    return len(steps) <= 2 and returns_none and all(step.argval is None for step in loads or steps)


def _unwritten(
    error: NotImplementedError, exercise: Exercise, answer: Any
) -> "Optional[tuple[str, Texts]]":
    """What to write if a stub raised NotImplementedError, of this exercise or of one it needs."""
    place = place_of(error, exercise.checker)
    if place is None or not place.last:
        return None
    name = place.code.co_name
    if place.code is getattr(answer, "__code__", place.code):
        return UNWRITTEN, _write(name)
    return UNWRITTEN, _both(
        f"`{name}`, which it calls, is not written yet",
        f"ここから呼ばれる `{name}` がまだ書かれていません",
    )


def _write(name: str) -> Texts:
    return _both(
        f"write the body of `{name}`, run its cell, then this one again",
        f"`{name}` の中身を書いてそのセルを実行し、このセルをもう一度実行してください",
    )


def _too_slow(seconds: float) -> Texts:
    return _both(
        f"it was stopped after {seconds:g} s; a right answer takes less than a tenth of that: "
        "look for a loop that does not end, or one that goes through far too many possibilities",
        f"{seconds:g} 秒で打ち切りました。正しい答えならその 10 分の 1 もかかりません。"
        "終わらないループや、膨大な数の場合を調べているループがないか確かめてください",
    )


def _fault(error: BaseException, exercise: Exercise, answer: Any) -> Texts:
    """An exception, and the student's line that raised it.

    If none of their lines did, the answer itself is of the wrong kind.
    """
    place, message = place_of(error, exercise.checker), message_of(error)
    if place is None:
        given = reprlib.repr(answer)
        return _both(
            f"{message}\n"
            f"your answer, {given}, cannot be used as the exercise says: compare it with the stub",
            f"{message}\n"
            f"答え {given} は演習で求められている形になっていません。元のセルと見比べてください",
        )
    source = f": `{place.source}`" if place.source else ""
    return _both(
        f"{message}\nin line {place.line} of the cell of `{place.code.co_name}`{source}",
        f"{message}\n`{place.code.co_name}` のセルの {place.line} 行目{source}",
    )


def _both(en: str, ja: str) -> Texts:
    return {"en": en, "ja": ja}
