"""The exercises and their checkers, and `check`, which judges an answer.

A checker gets the student's answer. It raises `Wrong` with the first counterexample, or returns if
the answer is right; a `AnswerCost` where right answers differ in what they cost::

    @exercise("02-1")
    def allreduce(answer):
        \"\"\"The arrays of all devices end with their sum, in place.\"\"\"
        ...
        raise Wrong(en="allreduce of [1] and [2] left [1] on the second device, expected [3]: ...",
        ja="...")

It is found by the exercise's id in the module of its lab. Its random cases come from `case_rng`, and a
list that is written down in it is followed by `extra_cases`::

    for size in [2, 3, 4, *more(3, lambda random: int(random.randint(5, 13)))]:

While students work there is no seed, and all of them see the same cases. Graders give a seed: an
answer that was written for the cases that it has seen then fails.
"""

from __future__ import annotations

import dis
import html
import importlib
import json
import os
import pkgutil
import re
import reprlib
import signal
import sys
import sysconfig
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    TypeVar,
    Union,
)

import numpy as np

from gluonlab.errors import ExerciseError, unknown
from gluonlab.exercises.languages import Texts, choose_text, language

CHECK_SECONDS = 20.0  # for one check: ten times what a right answer may take

Checker = Callable[[Any], Any]
C = TypeVar("C", bound=Checker)


class Wrong(Exception):
    """The first counterexample: the input, the result, the expected one, and the likely fault."""

    def __init__(self, *, en: str, ja: str) -> None:
        super().__init__(en)
        self.texts = {"en": en, "ja": ja}


class AnswerCost:
    """What a right answer costs, in microseconds, and that in words.

    ``micros``: None for one that is in no leaderboard.
    """

    def __init__(self, micros: Optional[float], *, en: str, ja: str) -> None:
        self.micros, self.texts = micros, {"en": en, "ja": ja}


class Exercise(NamedTuple):
    """An exercise: an ``id`` such as ``"02-1"``, one line about it, its checker, its time limit."""

    id: str
    summary: str
    checker: Checker
    seconds: float


EXERCISES: Dict[str, Exercise] = {}  # filled as the labs' modules are imported


def exercise(id: str, seconds: float = CHECK_SECONDS) -> Callable[[C], C]:
    """``@exercise("02-1")`` makes a function the checker of that exercise.

    Its docstring, of one line, is the exercise's summary.
    """

    def register(checker: C) -> C:
        own = getattr(checker, "__module__", "")
        foreign = own.startswith(f"{__package__}.lab") and own != f"{__package__}.lab{id[:2]}"
        if foreign or not re.fullmatch(r"\d\d-[1-9]\d*", id):
            raise ExerciseError(
                f"{id!r} names no exercise of {own}: write the two digits of the lab, "
                "a dash and a number"
            )
        EXERCISES[id] = Exercise(id, (checker.__doc__ or "").strip(), checker, seconds)
        return checker

    return register


def lab_numbers() -> List[str]:
    """The numbers of the labs that have checkers: ``["01", "02", ...]``."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name[3:] for module in modules if re.fullmatch(r"lab\d\d", module.name))


def import_lab(number: str) -> None:
    """Fill EXERCISES, and the guesses, with those of a lab."""
    importlib.import_module(f"gluonlab.exercises.lab{number}")


def all_exercises() -> List[Exercise]:
    """Every exercise of every lab, in order."""
    for lab in lab_numbers():
        import_lab(lab)
    return [EXERCISES[id] for id in sorted(EXERCISES, key=id_sort_key)]


def find_exercise(id: object) -> Exercise:
    """The exercise of this id. Raises ExerciseError, with the choices."""
    if isinstance(id, str) and id[:2] in lab_numbers():
        import_lab(id[:2])
    if not isinstance(id, str) or id not in EXERCISES:
        text = unknown("exercise", id, ids_in_same_lab(id, [one.id for one in all_exercises()]))
        raise ExerciseError(choose_text(en=text, ja=f"演習 {id!r} はありません ({text})"))
    return EXERCISES[id]


def ids_in_same_lab(id: object, choices: List[str]) -> List[str]:
    """Those of the lab that an unknown id begins with; all, where there is no such lab."""
    return [one for one in choices if one[:2] == str(id)[:2]] or choices


def id_sort_key(id: str) -> "tuple[int, ...]":
    """``"02-10"`` comes after ``"02-9"``."""
    return tuple(map(int, id.split("-")))


# --- What is said of an answer


PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW = "passed", "wrong", "unwritten", "raised", "too slow"

_NAME = {"en": "Exercise", "ja": "演習"}
_STATUSES = {  # its colour, and what it is called
    PASSED: ("#1a7f37", {"en": "correct", "ja": "正解です"}),
    WRONG: ("#bc4c00", {"en": "not right yet", "ja": "まだ正しくありません"}),
    UNWRITTEN: ("#8c959f", {"en": "not written yet", "ja": "まだ書かれていません"}),
    RAISED: ("#cf222e", {"en": "stopped by an error", "ja": "エラーで止まりました"}),
    TOO_SLOW: ("#cf222e", {"en": "not finished in time", "ja": "時間内に終わりませんでした"}),
}


@dataclass(frozen=True)
class Verdict:
    """The result of a check; true if the answer passed.

    ``status``: passed, wrong, unwritten, raised or too slow; ``texts``: what there is to say, in
    each language; ``micros``: what a right answer costs, where that counts.
    """

    exercise: str
    status: str
    texts: Texts
    language: str = "en"
    micros: Optional[float] = None

    def __bool__(self) -> bool:
        return self.status == PASSED

    @property
    def heading(self) -> str:
        """The exercise and its status."""
        _, names = _STATUSES[self.status]
        return f"{_NAME[self.language]} {self.exercise}: {names[self.language]}"

    @property
    def message(self) -> str:
        """The counterexample, or what to do; of a right answer what it costs, or nothing."""
        return self.texts[self.language]

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.heading, self.message]))

    def _repr_html_(self) -> str:
        """A box with a coloured edge, in the colours that the page has."""
        message = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self.message))
        body = f'<div style="white-space: pre-wrap">{message}</div>' if message else ""
        edge = f"border-left: 4px solid {_STATUSES[self.status][0]}"
        return (
            f'<div lang="{self.language}" style="{edge}; padding: 0.3em 0.9em; margin: 0.3em 0">'
            f"<strong>{html.escape(self.heading)}</strong>{body}</div>"
        )


# --- The random cases


SEED_VARIABLE = "GLUONLAB_CASES"  # the environment's variable that holds the seed, where one grades
LARGEST_SEED = 2**32 - 1  # that numpy takes

T = TypeVar("T")
_seed: Optional[int] = None


def case_rng(number: Union[int, Sequence[int]]) -> np.random.RandomState:
    """The generator of a checker's cases; ``number`` is the checker's own."""
    if _seed is None:
        return np.random.RandomState(number)
    own = list(number) if isinstance(number, Sequence) else [number]
    return np.random.RandomState([*own, _seed])


def extra_cases(count: int, draw: Callable[[np.random.RandomState], T], number: int = 0) -> List[T]:
    """``count`` more cases where there is a seed, none where a student works."""
    random = case_rng([number, 1])
    return [draw(random) for _ in range(0 if _seed is None else count)]


@contextmanager
def reseeded_cases(seed: int) -> Iterator[None]:
    """Draw other cases in this block."""
    global _seed
    before, _seed = _seed, seed
    try:
        yield
    finally:
        _seed = before


def grader_seed() -> Optional[int]:
    """The seed that the grader has given to this process, if it has."""
    text = os.environ.get(SEED_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) <= LARGEST_SEED else None


# --- The time that an answer may take, and what it raises


class TimeLimitExceeded(BaseException):
    """The time is over. No Exception, which code that runs too long might catch."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in this block after ``seconds``, and every second from then on until it ends.

    Python code is interrupted wherever it is, a call of a library when it returns. Without effect
    outside the main thread, the only one that signals reach.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def over(number: int, frame: object) -> None:
        if running:  # it may also come between the end of the block and that of the timer
            raise TimeLimitExceeded

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


MAX_MESSAGE_CHARS = 400  # characters of an error's own message

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = tuple(
    {
        _PACKAGE,
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)
# MXNet's messages hold its C++ stack
_NOISE = re.compile(r'\s*(Traceback \(|Stack trace|File "|\[bt\])')


class ErrorLocation(NamedTuple):
    """The line of the student's code that led to an error; ``last``: it raised the error itself."""

    code: CodeType
    line: int
    source: str
    raised_error: bool


def find_error_location(
    error: BaseException, checker: Callable[..., object]
) -> Optional[ErrorLocation]:
    """The innermost line below ``checker`` that is not Python's, a library's or gluonlab's."""
    frames: List[TracebackType] = []
    step = error.__traceback__
    while step is not None:
        is_checker = step.tb_frame.f_code is getattr(checker, "__code__", None)
        frames = [] if is_checker else [*frames, step]
        step = step.tb_next
    for frame in reversed(frames):
        code = frame.tb_frame.f_code
        # MXNet makes its operators of text, which has no file
        if not code.co_filename.startswith((*_LIBRARIES, "<frozen", "<string>")):
            source = traceback.extract_tb(frame, limit=1)[0].line or ""
            return ErrorLocation(code, frame.tb_lineno, source.strip(), frame is frames[-1])
    return None


def format_error(error: BaseException) -> str:
    """``ValueError: what it says``, short."""
    lines = [
        line.strip() for line in str(error).splitlines() if line.strip() and not _NOISE.match(line)
    ]
    name = type(error).__name__
    text = " ".join(lines)
    text = text[len(name) + 2 :] if text.startswith(f"{name}: ") else text
    text = text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 3] + "..."
    return f"{name}: {text}" if text else name


# --- Judging


VERDICTS_VARIABLE = (
    "GLUONLAB_GRADES"  # a file to which every verdict is added, one JSON object a line
)


def check(id: str, answer: Any) -> Verdict:
    """The verdict on ``answer`` to the exercise ``id``: passed, or the first counterexample.

    ``answer`` is a function or a value, as the exercise's stub has it.
    Raises ExerciseError for an id that is no exercise's; nothing that the answer does raises
    anything but KeyboardInterrupt.
    """
    verdict = judge_answer(find_exercise(id), answer)
    if os.environ.get(VERDICTS_VARIABLE):
        _record_verdict(verdict, answer)
    return verdict


def _record_verdict(verdict: Verdict, answer: Any) -> None:
    """Add the verdict to the grader's file, after a look at cases that the student is not shown."""
    seed, hidden = grader_seed(), False
    if verdict and seed is not None:
        with reseeded_cases(seed):
            verdict = judge_answer(find_exercise(verdict.exercise), answer)
        hidden = not verdict
    line: Dict[str, Any] = dict(
        exercise=verdict.exercise, status=verdict.status, message=verdict.message
    )
    if verdict.micros is not None:
        line["micros"] = verdict.micros
    with Path(os.environ[VERDICTS_VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "hidden": hidden}) + "\n")


def judge_answer(exercise: Exercise, answer: Any) -> Verdict:
    """The verdict on an answer, within the exercise's time."""

    def verdict(status: str, texts: Texts) -> Verdict:
        return Verdict(exercise.id, status, texts, language())

    if answer is ...:
        return verdict(
            UNWRITTEN,
            _texts("put your answer in place of `...`", "`...` を自分の答えに書き換えてください"),
        )
    if _is_stub(answer):
        return verdict(UNWRITTEN, _unwritten_texts(answer.__name__))
    try:
        with time_limit(exercise.seconds):
            _wait_for_mxnet()
            score = exercise.checker(answer)
            _wait_for_mxnet()
    except Wrong as wrong:
        return verdict(WRONG, wrong.texts)
    except TimeLimitExceeded:
        return verdict(TOO_SLOW, _too_slow_texts(exercise.seconds))
    except NotImplementedError as error:
        unwritten = _unwritten_verdict(error, exercise, answer)
        return verdict(*(unwritten or (RAISED, _error_texts(error, exercise, answer))))
    except (Exception, SystemExit) as error:
        return verdict(RAISED, _error_texts(error, exercise, answer))
    if isinstance(score, AnswerCost):
        return Verdict(exercise.id, PASSED, score.texts, language(), score.micros)
    return verdict(PASSED, _texts("", ""))


def _wait_for_mxnet() -> None:
    """Wait for MXNet, which raises the errors of queued operations only when they run."""
    mxnet = sys.modules.get("mxnet")
    if mxnet is not None and hasattr(mxnet, "nd"):
        mxnet.nd.waitall()


def _is_stub(answer: Any) -> bool:
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


def _unwritten_verdict(
    error: NotImplementedError, exercise: Exercise, answer: Any
) -> "Optional[tuple[str, Texts]]":
    """What to write if a stub raised NotImplementedError, of this exercise or of one it needs."""
    place = find_error_location(error, exercise.checker)
    if place is None or not place.raised_error:
        return None
    name = place.code.co_name
    if place.code is getattr(answer, "__code__", place.code):
        return UNWRITTEN, _unwritten_texts(name)
    return UNWRITTEN, _texts(
        f"`{name}`, which it calls, is not written yet",
        f"ここから呼ばれる `{name}` がまだ書かれていません",
    )


def _unwritten_texts(name: str) -> Texts:
    return _texts(
        f"write the body of `{name}`, run its cell, then this one again",
        f"`{name}` の中身を書いてそのセルを実行し、このセルをもう一度実行してください",
    )


def _too_slow_texts(seconds: float) -> Texts:
    return _texts(
        f"it was stopped after {seconds:g} s; a right answer takes less than a tenth of that: "
        "look for a loop that does not end, or one that goes through far too many possibilities",
        f"{seconds:g} 秒で打ち切りました。正しい答えならその 10 分の 1 もかかりません。"
        "終わらないループや、膨大な数の場合を調べているループがないか確かめてください",
    )


def _error_texts(error: BaseException, exercise: Exercise, answer: Any) -> Texts:
    """An exception, and the student's line that raised it.

    If none of their lines did, the answer itself is of the wrong kind.
    """
    place, message = find_error_location(error, exercise.checker), format_error(error)
    if place is None:
        given = reprlib.repr(answer)
        return _texts(
            f"{message}\n"
            f"your answer, {given}, cannot be used as the exercise says: compare it with the stub",
            f"{message}\n"
            f"答え {given} は演習で求められている形になっていません。元のセルと見比べてください",
        )
    source = f": `{place.source}`" if place.source else ""
    return _texts(
        f"{message}\nin line {place.line} of the cell of `{place.code.co_name}`{source}",
        f"{message}\n`{place.code.co_name}` のセルの {place.line} 行目{source}",
    )


def _texts(en: str, ja: str) -> Texts:
    return {"en": en, "ja": ja}
