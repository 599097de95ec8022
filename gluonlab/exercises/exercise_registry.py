"""The registry of exercises, and `check`, which judges a student's answer.

A checker is a function that takes the answer. It raises `Wrong` with the first counterexample, or
returns if the answer is right. If right answers differ in cost, the checker returns an
`AnswerCost`. For example::

    @exercise("02-1")
    def check_allreduce(answer):
        \"\"\"Replace the arrays of all devices by their sum, in place.\"\"\"
        ...
        raise Wrong(en="allreduce of [1] and [2] left [1] on the second device, expected [3]: ...",
        ja="...")

The module ``labNN_TOPIC.py`` contains the checkers of lab NN. Checkers draw random cases with
`case_rng`, and append random cases to a fixed list with `extra_cases`::

    for size in [2, 3, 4, *extra_cases(3, lambda random: int(random.randint(5, 13)))]:

If no seed is set, as in the students' notebooks, the cases are always the same. A grader sets a
seed to draw other cases. An answer that works only for the known cases then fails.
"""

from __future__ import annotations

import dis
import html
import importlib
import json
import os
import re
import reprlib
import signal
import sys
import sysconfig
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, TypeVar, Union

from gluonlab.errors import ExerciseError, unknown
from gluonlab.exercises.case_integers import CaseIntegers
from gluonlab.exercises.languages import Texts, choose_text, language

if TYPE_CHECKING:
    import numpy as np

CHECK_SECONDS = 20.0  # time limit of one check; a right answer needs less than a tenth of this time

Checker = Callable[[Any], Any]
C = TypeVar("C", bound=Checker)
T = TypeVar("T")


class Wrong(Exception):
    """The error for a wrong answer. Its texts describe a counterexample.

    The texts contain the input, the result, the expected result, and the likely mistake.
    """

    def __init__(self, *, en: str, ja: str) -> None:
        super().__init__(en)
        self.texts = {"en": en, "ja": ja}


class AnswerCost:
    """The cost of a right answer, with a text about the cost.

    ``micros``: the cost in microseconds, or None to keep the answer out of the leaderboard.
    """

    def __init__(self, micros: Optional[float], *, en: str, ja: str) -> None:
        self.micros, self.texts = micros, {"en": en, "ja": ja}


class Exercise(NamedTuple):
    """An exercise: its ``id`` such as ``"02-1"``, a summary, its checker, and its time limit."""

    id: str
    summary: str
    checker: Checker
    seconds: float


EXERCISES: Dict[str, Exercise] = {}  # filled when the labs' modules are imported


def exercise(id: str, seconds: float = CHECK_SECONDS) -> Callable[[C], C]:
    """Return a decorator that registers the checker of an exercise, as in ``@exercise("02-1")``.

    The docstring of the checker must be a single line. It becomes the summary of the exercise.
    ``seconds``: the time limit for a check.
    """

    def register(checker: C) -> C:
        """Add ``checker`` to EXERCISES, with its docstring as the summary, and return it.

        Raises ExerciseError if ``id`` is malformed, or if it belongs to a different lab than the
        checker's module.
        """
        module = getattr(checker, "__module__", "")
        of_other_lab = module.startswith(f"{__package__}.lab") and module != lab_modules().get(id[:2])
        if of_other_lab or not re.fullmatch(r"\d\d-[1-9]\d*", id):
            raise ExerciseError(
                f"{id!r} is not a valid id for an exercise of {module}: use the lab's two digits, a dash and a number, "
                "such as 01-2"
            )
        EXERCISES[id] = Exercise(id, (checker.__doc__ or "").strip(), checker, seconds)
        return checker

    return register


@lru_cache(maxsize=None)
def lab_modules() -> Dict[str, str]:
    """Return each lab's module of checkers, as in ``{"01": "gluonlab.exercises.lab01_..."}``."""
    files = sorted(Path(__file__).parent.glob("lab[0-9][0-9]_*.py"))
    return {path.name[3:5]: f"{__package__}.{path.stem}" for path in files}


def import_lab(number: str) -> None:
    """Import a lab's module, which registers the lab's exercises and guesses."""
    importlib.import_module(lab_modules()[number])


def all_registered(registry: Dict[str, T]) -> List[T]:
    """Return all registered exercises, or all guesses, ordered by id.

    ``registry``: EXERCISES or GUESSES.
    """
    for lab in lab_modules():
        import_lab(lab)
    return [registry[id] for id in sorted(registry, key=id_sort_key)]


def all_exercises() -> List[Exercise]:
    """Return the exercises of all labs, ordered by id."""
    return all_registered(EXERCISES)


def find_registered(registry: Dict[str, T], id: object, kind: str, kind_ja: str) -> T:
    """Return the exercise or guess with this id.

    ``kind``, ``kind_ja``: "exercise" or "guess" in English and Japanese, for the error message. If
    the id is unknown, raises an ExerciseError that lists the valid ids.
    """
    if isinstance(id, str) and id[:2] in lab_modules():
        import_lab(id[:2])
    if not isinstance(id, str) or id not in registry:
        all_registered(registry)  # imports all labs
        ids = sorted(registry, key=id_sort_key)
        in_same_lab = [choice for choice in ids if choice[:2] == str(id)[:2]]
        text = unknown(kind, id, in_same_lab or ids)
        raise ExerciseError(choose_text(en=text, ja=f"{kind_ja} {id!r} はありません ({text})"))
    return registry[id]


def find_exercise(id: object) -> Exercise:
    """Return the exercise with this id.

    If the id is unknown, raises an ExerciseError that lists the valid ids.
    """
    return find_registered(EXERCISES, id, "exercise", "演習")


def id_sort_key(id: str) -> "tuple[str, int, str]":
    """Return a key that sorts ``"02-10"`` after ``"02-9"``."""
    return id[:2], len(id), id


# --- Verdicts


PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW = "passed", "wrong", "unwritten", "raised", "too slow"

_NAME = {"en": "Exercise", "ja": "演習"}
_STATUSES = {  # the edge color and the text of each status
    PASSED: ("#1a7f37", {"en": "correct", "ja": "正解です"}),
    WRONG: ("#bc4c00", {"en": "not right yet", "ja": "まだ正しくありません"}),
    UNWRITTEN: ("#8c959f", {"en": "not written yet", "ja": "まだ書かれていません"}),
    RAISED: ("#cf222e", {"en": "stopped by an error", "ja": "エラーで止まりました"}),
    TOO_SLOW: ("#cf222e", {"en": "not finished in time", "ja": "時間内に終わりませんでした"}),
}


@dataclass(frozen=True)
class Verdict:
    """The result of a check. A verdict is true if the answer passed.

    Attributes:
        exercise: the id of the exercise.
        status: ``passed``, ``wrong``, ``unwritten``, ``raised`` or ``too slow``.
        texts: the message in each language.
        language: the language of `heading` and `message`.
        micros: the cost of a right answer in microseconds, or None if there is no cost.
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
        """The message to the student: a counterexample, an error, or a hint about the next step.

        For a right answer, the message is the text about its cost, or an empty string.
        """
        return self.texts[self.language]

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.heading, self.message]))

    def _repr_html_(self) -> str:
        """Return the verdict as an HTML box with a colored edge."""
        message = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self.message))
        body = f'<div style="white-space: pre-wrap">{message}</div>' if message else ""
        edge = f"border-left: 4px solid {_STATUSES[self.status][0]}"
        return (
            f'<div lang="{self.language}" style="{edge}; padding: 0.3em 0.9em; margin: 0.3em 0">'
            f"<strong>{html.escape(self.heading)}</strong>{body}</div>"
        )


# --- Random cases


SEED_VARIABLE = "GLUONLAB_CASES"  # environment variable with the grader's seed
LARGEST_SEED = 2**32 - 1  # the largest seed that NumPy accepts

_seed: Optional[int] = None


def case_rng(number: Union[int, Sequence[int]]) -> np.random.RandomState:
    """Return the random generator for a checker's cases.

    ``number``: one or more seeds that differ between checkers. If there is a grader's seed, it is
    appended to them.
    """
    import numpy as np  # imported here, because a browser has no NumPy

    return np.random.RandomState(_add_grader_seed(number))


def case_integers(number: Union[int, Sequence[int]]) -> CaseIntegers:
    """Return a generator of the same integers as `case_rng`, which does not need NumPy."""
    return CaseIntegers(_add_grader_seed(number))


def _add_grader_seed(number: Union[int, Sequence[int]]) -> Union[int, Sequence[int]]:
    if _seed is None:
        return number
    numbers = list(number) if isinstance(number, Sequence) else [number]
    return [*numbers, _seed]


def extra_cases(count: int, draw: Callable[[np.random.RandomState], T], number: int = 0) -> List[T]:
    """Return ``count`` cases from ``draw`` if there is a grader's seed, or else an empty list.

    ``number``: a part of the random seed that differs between lists of cases.
    """
    if _seed is None:
        return []
    random = case_rng([number, 1])
    return [draw(random) for _ in range(count)]


@contextmanager
def reseeded_cases(seed: int) -> Iterator[None]:
    """Draw all cases with this seed inside the ``with`` block."""
    global _seed
    previous, _seed = _seed, seed
    try:
        yield
    finally:
        _seed = previous


def grader_seed() -> Optional[int]:
    """Return the seed that the grader has set for this process, or None."""
    text = os.environ.get(SEED_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) <= LARGEST_SEED else None


# --- Time limit and errors of an answer


class TimeLimitExceeded(BaseException):
    """Raised if an answer exceeds its time limit. An ``except Exception`` does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitExceeded in the ``with`` block after ``seconds``, and then every second.

    Python code is interrupted at once. A call to a C library is interrupted only when it returns.
    There is no limit outside the main thread, because only the main thread receives signals. In a
    browser, Python has no timers, and the page stops the answer.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    running = True

    def raise_if_running(number: int, frame: object) -> None:
        if running:  # false if the signal arrives after the block, but before the timer is stopped
            raise TimeLimitExceeded

    previous = signal.signal(signal.SIGALRM, raise_if_running)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


MAX_MESSAGE_CHARS = 400  # longer error messages are shortened

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = tuple(
    {
        _PACKAGE,
        str(Path(traceback.__file__).parent),  # in a browser, a zip archive outside the paths below
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)
# These lines are removed from messages, because MXNet's messages contain its C++ stack.
_NOISE = re.compile(r'\s*(Traceback \(|Stack trace|File "|\[bt\])')


class ErrorLocation(NamedTuple):
    """The line of the student's code that led to an error.

    ``source``: the text of the line. ``raised_error``: whether the line itself raised the error,
    rather than a function that the line calls.
    """

    code: CodeType
    line: int
    source: str
    raised_error: bool


def find_error_location(error: BaseException, checker: Callable[..., object]) -> Optional[ErrorLocation]:
    """Return the innermost line of the student's code in an error's traceback, or None.

    The search ignores code of Python, its libraries and gluonlab, and all callers of ``checker``.
    """
    frames: List[TracebackType] = []
    frame = error.__traceback__
    while frame is not None:
        is_checker = frame.tb_frame.f_code is getattr(checker, "__code__", None)
        frames = [] if is_checker else [*frames, frame]
        frame = frame.tb_next
    for frame in reversed(frames):
        code = frame.tb_frame.f_code
        # MXNet compiles its operators' Python functions from strings, so they have no file
        if not code.co_filename.startswith((*_LIBRARIES, "<frozen", "<string>")):
            source = traceback.extract_tb(frame, limit=1)[0].line or ""
            return ErrorLocation(code, frame.tb_lineno, source.strip(), frame is frames[-1])
    return None


def format_error(error: BaseException) -> str:
    """Return an error as one line, such as ``ValueError: message``. Long messages are shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not _NOISE.match(line)]
    name = type(error).__name__
    text = " ".join(lines)
    text = text[len(name) + 2 :] if text.startswith(f"{name}: ") else text
    text = text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 3] + "..."
    return f"{name}: {text}" if text else name


# --- Judging


# Environment variable with the path of the file that the grader reads, with a JSON verdict per
# line.
VERDICTS_VARIABLE = "GLUONLAB_GRADES"


def check(id: str, answer: Any) -> Verdict:
    """Check an answer to an exercise, and return the verdict.

    Args:
        id: the id of the exercise, such as ``"02-1"``.
        answer: the function or the value that the exercise asks for.

    Returns:
        The verdict, with the first counterexample if the answer is wrong. If the answer raises an
        error, the verdict describes this error. Only KeyboardInterrupt is not caught.

    Raises:
        ExerciseError: there is no exercise with this id.
    """
    verdict = judge_answer(find_exercise(id), answer)
    if os.environ.get(VERDICTS_VARIABLE):
        _record_verdict(verdict, answer)
    return verdict


def _record_verdict(verdict: Verdict, answer: Any) -> None:
    """Append the verdict to the file that the grader reads.

    If the grader set a seed, a right answer is checked a second time, with this seed. The field
    ``hidden`` is true if the answer failed only the second check.
    """
    seed, hidden = grader_seed(), False
    if verdict and seed is not None:
        with reseeded_cases(seed):
            verdict = judge_answer(find_exercise(verdict.exercise), answer)
        hidden = not verdict
    record: Dict[str, Any] = dict(exercise=verdict.exercise, status=verdict.status, message=verdict.message)
    if verdict.micros is not None:
        record["micros"] = verdict.micros
    with Path(os.environ[VERDICTS_VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**record, "hidden": hidden}) + "\n")


def judge_answer(exercise: Exercise, answer: Any) -> Verdict:
    """Run the checker of an exercise on an answer, within the exercise's time limit."""

    def make_verdict(status: str, texts: Texts) -> Verdict:
        return Verdict(exercise.id, status, texts, language())

    if answer is ...:
        return make_verdict(
            UNWRITTEN, _texts("put your answer in place of `...`", "`...` を自分の答えに書き換えてください")
        )
    if _is_stub(answer):
        return make_verdict(UNWRITTEN, unwritten_texts(answer.__name__))
    try:
        with time_limit(exercise.seconds):
            _wait_for_mxnet()
            cost = exercise.checker(answer)
            _wait_for_mxnet()
    except Wrong as wrong:
        return make_verdict(WRONG, wrong.texts)
    except TimeLimitExceeded:
        return make_verdict(TOO_SLOW, _too_slow_texts(exercise.seconds))
    except (Exception, SystemExit) as error:
        texts = _stub_texts(error, exercise, answer) if isinstance(error, NotImplementedError) else None
        if texts is not None:
            return make_verdict(UNWRITTEN, texts)
        return make_verdict(RAISED, _error_texts(error, exercise, answer))
    if isinstance(cost, AnswerCost):
        return Verdict(exercise.id, PASSED, cost.texts, language(), cost.micros)
    return make_verdict(PASSED, _texts("", ""))


def _wait_for_mxnet() -> None:
    """Wait for MXNet's queued operations, because their errors are raised only when they run."""
    mxnet = sys.modules.get("mxnet")
    if mxnet is not None and hasattr(mxnet, "nd"):
        mxnet.nd.waitall()


def _is_stub(answer: Any) -> bool:
    """Return whether the answer is a function with only a docstring, ``...`` or ``pass``."""
    code = getattr(answer, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("RESUME", "NOP", "CACHE")]
    loads = [instruction for instruction in instructions if instruction.opname.startswith("LOAD_CONST")]
    returns_constant = instructions[-1].opname == "RETURN_CONST" or bool(loads)
    has_no_value = all(instruction.argval is None for instruction in loads or instructions)
    return len(instructions) <= 2 and returns_constant and has_no_value


def _stub_texts(error: NotImplementedError, exercise: Exercise, answer: Any) -> Optional[Texts]:
    """Return the message about an unwritten function (a stub) that raised the error, or None.

    The stub is the answer itself, or a function of another exercise that the answer calls.
    """
    location = find_error_location(error, exercise.checker)
    if location is None or not location.raised_error:
        return None
    name = location.code.co_name
    if location.code is getattr(answer, "__code__", location.code):
        return unwritten_texts(name)
    return _texts(
        f"your code calls `{name}`, which is not written yet", f"ここから呼ばれる `{name}` がまだ書かれていません"
    )


def unwritten_texts(name: str) -> Texts:
    """Return a message that asks the student to write the body of the function ``name``."""
    return _texts(
        f"write the body of `{name}`, run its cell, then run this cell again",
        f"`{name}` の中身を書いてそのセルを実行し、このセルをもう一度実行してください",
    )


def _too_slow_texts(seconds: float) -> Texts:
    """Return the message that the answer exceeded its time limit of ``seconds``."""
    return _texts(
        f"your code was stopped after {seconds:g} s; a correct answer takes less than a tenth of that. Look for a "
        "loop that never ends, or one that tries far too many possibilities",
        f"{seconds:g} 秒で打ち切りました。正しい答えならその 10 分の 1 もかかりません。"
        "終わらないループや、膨大な数の場合を調べているループがないか確かめてください",
    )


def _error_texts(error: BaseException, exercise: Exercise, answer: Any) -> Texts:
    """Return the message about an exception, with the student's line that led to it."""
    location, message = find_error_location(error, exercise.checker), format_error(error)
    if location is None:  # no line of the student's code failed, so the answer has the wrong type
        shown = reprlib.repr(answer)
        return _texts(
            f"{message}\nyour answer {shown} does not have the form that the exercise asks for: compare it with the "
            "stub",
            f"{message}\n答え {shown} は演習で求められている形になっていません。元のセルと見比べてください",
        )
    source = f": `{location.source}`" if location.source else ""
    return _texts(
        f"{message}\nin line {location.line} of the cell of `{location.code.co_name}`{source}",
        f"{message}\n`{location.code.co_name}` のセルの {location.line} 行目{source}",
    )


def _texts(en: str, ja: str) -> Texts:
    return {"en": en, "ja": ja}
