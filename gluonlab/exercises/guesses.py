"""Record learners' guesses before measurements, and compare them with the results.

The method is "predict, observe, explain". A guess has an id, such as ``"01-a"``. The module
``labNN_TOPIC.py`` registers each guess of lab NN with the form of its answer, and with its question
in English and Japanese::

    register_guess("01-a", NumberForm(0, 1, example=0.5, within=0.1), "what fraction ...?", "...")

The notebook makes four calls, in this order, each in its own cell::

    predict("01-a", ...)                    # the learner writes the guess in place of ...

    with observe("01-a", queued / done):    # without a guess, the output of the block is hidden
        print(f"queued after {queued:.3f} s")

    because("01-a", ...)                    # the learner writes an explanation in words

    surprises()                             # at the end of the lab: lists the wrong guesses
"""

from __future__ import annotations

import math
import os
import re
import reprlib
import sys
import unicodedata
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import zip_longest
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

from gluonlab.errors import ExerciseError
from gluonlab.exercises.exercise_registry import all_registered, find_registered
from gluonlab.exercises.explain_wrong_answers import TextPair
from gluonlab.exercises.languages import Texts, choose_text
from gluonlab.plain_text import column_width, pad_to_columns

Key = Union[str, int]


class AnswerForm:
    """The form of the answer to a guess."""

    def describe(self) -> TextPair:
        """Return a description of a valid answer, such as "a number", in both languages."""
        raise NotImplementedError

    def read(self, given: Any) -> Any:
        """Convert an answer to built-in Python types. Raises ValueError for an invalid answer."""
        raise NotImplementedError

    def matches(self, guessed: Any, measured: Any) -> bool:
        """Return whether the guess counts as right. Both values were returned by `read`."""
        return bool(guessed == measured)

    def format(self, value: Any) -> str:
        """Return a short text for a value that `read` returned."""
        return str(value)


@dataclass(frozen=True)
class NumberForm(AnswerForm):
    """A number from ``minimum`` to ``maximum``.

    A guess is right if it differs from the measurement by at most ``within``, or by at most a
    factor of ``factor``. Learners see ``example``, so it must not reveal the answer.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    example: float = 1.0
    factor: float = 1.0
    within: float = 0.0

    def describe(self) -> TextPair:
        """Describe the number by its range and an example, in both languages."""
        example = self.format(self.example)
        en = {
            (False, False): "a number",
            (True, False): f"a number, at least {self.minimum:g}",
            (False, True): f"a number, at most {self.maximum:g}",
            (True, True): f"a number from {self.minimum:g} to {self.maximum:g}",
        }[math.isfinite(self.minimum), math.isfinite(self.maximum)]
        ja = {
            (False, False): "数",
            (True, False): f"{self.minimum:g} 以上の数",
            (False, True): f"{self.maximum:g} 以下の数",
            (True, True): f"{self.minimum:g} から {self.maximum:g} までの数",
        }[math.isfinite(self.minimum), math.isfinite(self.maximum)]
        return f"{en}, such as {example}", f"{ja} (例: {example})"

    def read(self, given: Any) -> float:
        """Convert ``given`` to a number. Raises ValueError for other types or invalid numbers."""
        value = _to_python_scalar(given)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise ValueError
        if not self.minimum <= value <= self.maximum:
            raise ValueError
        return value

    def matches(self, guessed: Any, measured: Any) -> bool:
        """Return whether the guess is close enough to the measurement."""
        if abs(guessed - measured) <= self.within:
            return True
        small, large = sorted((guessed, measured))
        return bool(small > 0 and large <= small * self.factor)

    def format(self, value: Any) -> str:
        if isinstance(value, int) or (abs(value) < 1e15 and value == round(value)):
            return f"{int(value):,}"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


class ChoiceForm(AnswerForm):
    """One of several words or whole numbers."""

    def __init__(self, *options: Key) -> None:
        self.options = options

    def describe(self) -> TextPair:
        """Return the list of options, such as ``1, 2 or 3``, in both languages."""
        *others, last = map(repr, self.options)
        return (
            f"{', '.join(others)} or {last}".replace("'", '"'),
            f"{'、'.join([*others, last])} のどれか".replace("'", '"'),
        )

    def read(self, given: Any) -> Key:
        """Return the option that equals ``given``. Raises ValueError if there is none."""
        value = _to_python_scalar(given)
        for option in self.options:
            if type(value) is type(option) and value == option:
                return option
        raise ValueError


@dataclass(frozen=True)
class YesNoForm(AnswerForm):
    """True or False."""

    def describe(self) -> TextPair:
        return "True or False", "True か False"

    def read(self, given: Any) -> bool:
        """Return ``given`` as a Python bool. Raises ValueError for other types."""
        value = _to_python_scalar(given)
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True)
class ListForm(AnswerForm):
    """A list of ``count`` values of one form. A guess is right if all its values are right."""

    form: AnswerForm
    count: int

    def describe(self) -> TextPair:
        en, ja = self.form.describe()
        return f"a list of {self.count}: each {en}", f"{self.count} 個のリスト。それぞれ {ja}"

    def read(self, given: Any) -> Any:
        """Convert the items with ``form.read``. Raises ValueError for a wrong number of items."""
        if isinstance(given, (str, bytes, dict)):
            raise ValueError
        try:
            values = list(given)
        except TypeError:
            raise ValueError from None
        if len(values) != self.count:
            raise ValueError
        return [self.form.read(value) for value in values]

    def matches(self, guessed: Any, measured: Any) -> bool:
        return all(map(self.form.matches, guessed, measured))

    def format(self, value: Any) -> str:
        return ", ".join(map(self.form.format, value))


class DictForm(AnswerForm):
    """A dictionary with the given keys. A guess is right if all its values are right.

    ``form``: the form of each value.
    """

    def __init__(self, form: AnswerForm, *keys: Key) -> None:
        self.form, self.keys = form, keys

    def describe(self) -> TextPair:
        en, ja = self.form.describe()
        keys = ", ".join(f"{key!r}: ..." for key in self.keys).replace("'", '"')
        return f"{{{keys}}}, each {en}", f"{{{keys}}}。それぞれ {ja}"

    def read(self, given: Any) -> Any:
        if not isinstance(given, dict) or set(given) != set(self.keys):
            raise ValueError
        return {key: self.form.read(given[key]) for key in self.keys}

    def matches(self, guessed: Any, measured: Any) -> bool:
        return all(self.form.matches(guessed[key], measured[key]) for key in self.keys)

    def format(self, value: Any) -> str:
        return ", ".join(f"{key}: {self.form.format(value[key])}" for key in self.keys)


def _is_unwritten(given: Any) -> bool:
    """Return whether the answer is ``...``, or a list or dictionary that contains ``...``."""
    values = given.values() if isinstance(given, dict) else given
    several = isinstance(given, (list, tuple, dict))
    return given is ... or (several and any(value is ... for value in values))


def _to_python_scalar(given: Any) -> Any:
    """Convert a NumPy or MXNet number or boolean to a built-in Python type."""
    if getattr(given, "size", None) != 1:
        return given
    value = given.asscalar() if hasattr(given, "asscalar") else given
    return value.item() if hasattr(value, "item") else value


class Guess(NamedTuple):
    """A guess: its ``id`` such as ``"01-a"``, the form of its answer, and its question."""

    id: str
    form: AnswerForm
    question: Texts


GUESSES: Dict[str, Guess] = {}  # filled when the labs' modules are imported


def register_guess(id: str, form: AnswerForm, en: str, ja: str) -> None:
    """Register a guess. ``en``, ``ja``: its question in each language, as a short sentence.

    Raises ExerciseError if the id does not look like ``"01-a"``, or is already registered.
    """
    if not re.fullmatch(r"\d\d-[a-z]", id) or id in GUESSES:
        raise ExerciseError(
            f"{id!r} is not a valid id for a guess, or is already used: use the lab's two digits, a dash and the "
            "next letter, such as 01-b"
        )
    GUESSES[id] = Guess(id, form, {"en": en, "ja": ja})


def all_guesses() -> List[Guess]:
    """Return the guesses of all labs, ordered by id."""
    return all_registered(GUESSES)


def find_guess(id: object) -> Guess:
    """Return the guess with this id.

    If the id is unknown, raises an ExerciseError that lists the valid ids.
    """
    return find_registered(GUESSES, id, "guess", "予想")


TABLE_WIDTH = 80
# Japanese punctuation and closing brackets, which must not start a line.
_NOT_AT_LINE_START = "\u3001\u3002\uff09\u300d\u300f\uff1a\uff01\uff1f"
_COLUMN_WIDTHS = (6, 38, 17, 17)  # id, question, guess, measured; each includes two blank columns


def _format_table_row(cells: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table row, as many as its longest cell needs."""
    columns = [wrap_text(cell, size - 2) for cell, size in zip(cells, _COLUMN_WIDTHS)]
    for parts in zip_longest(*columns, fillvalue=""):
        yield "".join(map(pad_to_columns, parts, _COLUMN_WIDTHS)).rstrip()


def wrap_text(text: str, max_width: int) -> List[str]:
    """Break the text into lines of at most ``max_width`` columns.

    Japanese text may break anywhere except before punctuation and closing brackets.
    """
    lines, line = [], ""
    for piece in _unbreakable_pieces(text):
        if line and column_width((line + piece).rstrip()) > max_width:
            lines.append(line.rstrip())
            line = ""
        piece = piece if line else piece.lstrip()
        while column_width(piece.rstrip()) > max_width:  # a single word is longer than a line
            end = next(i for i in range(len(piece), 0, -1) if column_width(piece[:i]) <= max_width)
            lines.append(piece[:end])
            piece = piece[end:]
        line += piece
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _unbreakable_pieces(text: str) -> Iterator[str]:
    """Yield the words and Japanese characters of a text. A line may break between any of them."""
    piece = ""
    for character in text:
        wide = unicodedata.east_asian_width(character) in "WF"
        closing = character in _NOT_AT_LINE_START
        if piece and not closing and (wide or piece[-1] == " " or column_width(piece[-1]) == 2):
            yield piece
            piece = ""
        piece += character
    if piece:
        yield piece


# Environment variable that is set while handouts are generated. Results then need no guess.
HANDOUT_VARIABLE = "GLUONLAB_HANDOUT"
_MIN_EXPLANATION_CHARS = 8


@dataclass
class _GuessRecord:
    """The state of one guess in this notebook. A field is None until the learner does its step."""

    guess: Guess
    prediction: Optional[Any] = None
    measurement: Optional[Any] = None
    explanation: Optional[str] = None

    @property
    def was_measured(self) -> bool:
        """Whether there are both a guess and a measurement."""
        return self.prediction is not None and self.measurement is not None

    @property
    def is_surprise(self) -> bool:
        """Whether the measurement differs from the guess."""
        return self.was_measured and not self.guess.form.matches(self.prediction, self.measurement)

    def format_lines(self) -> Iterator[str]:
        """Yield the lines about this guess in the table that `surprises` prints."""
        id, form, question = self.guess
        values = map(form.format, (self.prediction, self.measurement))
        yield from _format_table_row((id, choose_text(**question), *values))
        indent = " " * _COLUMN_WIDTHS[0]
        explanation = self.explanation or choose_text(en="(not explained yet)", ja="(まだ書かれていません)")
        explanation = choose_text(en="because: ", ja="理由: ") + explanation
        yield from (indent + line for line in wrap_text(explanation, TABLE_WIDTH - len(indent)))


_records: Dict[str, _GuessRecord] = {}  # id -> record, for this notebook


def _find_record(id: str) -> _GuessRecord:
    guess = find_guess(id)
    return _records.setdefault(guess.id, _GuessRecord(guess))


def predict(id: str, guessed: Any) -> None:
    """Record a guess before the measurement. If ``guessed`` is ``...``, print the question.

    If the guess has the wrong form, print a line about the right form. After the measurement, the
    guess can no longer be changed.

    Args:
        id: the id of the guess, such as ``"01-a"``.
        guessed: the learner's guess, in the form that the question asks for, or ``...``.

    Raises:
        ExerciseError: there is no guess with this id.
    """
    record = _find_record(id)
    form = record.guess.form
    if _is_unwritten(guessed):
        en, ja = form.describe()
        _print_about_guess(id, **record.guess.question)
        line = choose_text(en=f"Replace ... with {en}.", ja=f"... の代わりに書くもの: {ja}")
        print("\n".join(wrap_text(line, TABLE_WIDTH)))
        return
    try:
        value = form.read(guessed)
    except ValueError:
        shown_guess, (en, ja) = reprlib.repr(guessed), form.describe()
        _print_about_guess(
            id,
            en=f"{shown_guess} is not a possible answer: write {en}",
            ja=f"{shown_guess} は書けません。書けるもの: {ja}",
        )
        return
    if record.measurement is None or record.prediction is None:
        record.prediction = value
    if record.prediction != value:
        first_guess = form.format(record.prediction)
        _print_about_guess(
            id,
            en=f"you already know the result, so your first guess counts: {first_guess}",
            ja=f"もう結果を見たので、最初の予想のままにします: {first_guess}",
        )
        return
    shown_guess = form.format(value)
    _print_about_guess(
        id, en=f"your guess is {shown_guess}. Now measure.", ja=f"{shown_guess} ですね。では測りましょう。"
    )


def observe(id: str, measured: Any) -> "AbstractContextManager[None]":
    """Compare a measurement with the learner's guess, after a ``with`` block shows the measurement.

    If there is no guess, the block runs, but a line about the missing guess replaces its output.

    Args:
        id: the id of the guess, such as ``"01-a"``.
        measured: the measured value, in the same form as the guess.

    Raises:
        ExerciseError: there is no guess with this id, or the measurement has a different form.
    """
    record = _find_record(id)
    try:
        value = record.guess.form.read(measured)
    except ValueError:
        en, _ = record.guess.form.describe()
        raise ExerciseError(f"guess {id}: the measured value, {reprlib.repr(measured)}, is not {en}") from None
    return _compare_with_guess(record, value)


@contextmanager
def _compare_with_guess(record: _GuessRecord, value: Any) -> Iterator[None]:
    """Run the ``with`` block, then record the measurement ``value``, and print the comparison."""
    id, form = record.guess.id, record.guess.form
    if os.environ.get(HANDOUT_VARIABLE):
        yield
        return
    if record.prediction is None:
        with _suppress_output():
            yield
        _print_text(
            en=f"Guess {id} comes first: write it above, run its cell, then this one.",
            ja=f"先に予想 {id} を上のセルに書いて実行し、その後でこのセルを実行してください。",
        )
        return
    yield
    if record.measurement is not None and form.format(record.measurement) != form.format(value):
        first, latest = form.format(record.measurement), form.format(value)
        _print_about_guess(id, en=f"{latest} this time, {first} at first", ja=f"今回は {latest}、最初は {first} でした")
        return
    record.measurement = value
    shown_guess, shown_measurement = form.format(record.prediction), form.format(value)
    en, ja = ("a surprise", "予想外") if record.is_surprise else ("as you expected", "予想どおり")
    _print_about_guess(
        id,
        en=f"your guess {shown_guess}, measured {shown_measurement}: {en}. Why?",
        ja=f"{shown_guess} と予想し、結果は {shown_measurement} でした。{ja}です。なぜでしょうか。",
    )


def because(id: str, why: Any) -> None:
    """Record the learner's explanation of a result. If ``why`` is ``...``, ask for an explanation.

    Args:
        id: the id of the guess, such as ``"01-a"``.
        why: the explanation, as a sentence, or ``...``.

    Raises:
        ExerciseError: there is no guess with this id.
    """
    record = _find_record(id)
    if why is ...:
        _print_about_guess(
            id,
            en="why did this happen? Replace ... with a sentence in quotes",
            ja="なぜこの結果になったのでしょうか。... の代わりに、理由を引用符で囲んで書きます。",
        )
    elif not isinstance(why, str) or len(why.strip()) < _MIN_EXPLANATION_CHARS:
        _print_about_guess(
            id,
            en=f"{reprlib.repr(why)} does not explain much: write a sentence in quotes",
            ja=f"{reprlib.repr(why)} では説明になりません。引用符の中に一文を書いてください",
        )
    elif record.measurement is None and not os.environ.get(HANDOUT_VARIABLE):
        _print_about_guess(id, en="measure first, then explain", ja="先に測ってから、説明を書いてください")
    else:
        record.explanation = " ".join(why.split())
        _print_about_guess(
            id, en="saved. Compare it with the explanation below.", ja="書き留めました。次の説明と比べてください。"
        )


def surprises() -> None:
    """Print the guesses that differed from the measurement, with their explanations."""
    records = [entry for _, entry in sorted(_records.items())]
    measured = [entry for entry in records if entry.was_measured]
    if not measured:
        _print_text(en="Your notebook lists your wrong guesses here.", ja="ここに、予想と違った測定が一覧になります。")
        return
    surprising = [entry for entry in measured if entry.is_surprise]
    _print_text(
        en=f"{len(measured)} of {len(records)} guesses measured, {len(surprising)} surprises",
        ja=f"{len(records)} 個の予想のうち {len(measured)} 個を測り、{len(surprising)} 個が予想外でした",
    )
    if surprising:
        heading = ("", "", choose_text(en="your guess", ja="予想"), choose_text(en="measured", ja="測定"))
        rows = [line for entry in surprising for line in entry.format_lines()]
        print("\n".join([*_format_table_row(heading), "-" * TABLE_WIDTH, *rows]))


def _print_about_guess(id: str, *, en: str, ja: str) -> None:
    text = choose_text(en=f"Guess {id}: {en}", ja=f"予想 {id}: {ja}")
    print("\n".join(wrap_text(text, TABLE_WIDTH)))


def _print_text(*, en: str, ja: str) -> None:
    print(choose_text(en=en, ja=ja))


def _suppress_output() -> "AbstractContextManager[Any]":
    """Return a context manager that suppresses printed text and, in a notebook, images."""
    if "IPython" in sys.modules:
        from IPython.utils.capture import capture_output

        held: AbstractContextManager[Any] = capture_output(stderr=False)
        return held
    return redirect_stdout(StringIO())
