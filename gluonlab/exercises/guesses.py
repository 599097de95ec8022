"""Predict, observe, explain: a guess before a measurement, and why it came otherwise.

A guess has an id, such as ``"01-a"``, and is registered in ``labNN.py`` with the form of its answer
and its question in both languages::

    guess("01-a", a_number(0, 1, such_as=0.5, within=0.1), "what fraction ...?", "...")

In the notebook it takes four calls, in this order and in cells of their own::

    predict("01-a", ...)                    # the learner replaces ...

    with observe("01-a", queued / done):    # what the block shows is held back without a guess
        print(f"queued after {queued:.3f} s")

    because("01-a", ...)                    # the learner says why, in words

    surprises()                             # at the end of the lab
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
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from gluonlab.errors import ExerciseError, unknown
from gluonlab.exercises.checkers import ids_in_same_lab, import_lab, lab_numbers
from gluonlab.exercises.counterexamples import TextPair
from gluonlab.exercises.languages import Texts, choose_text
from gluonlab.plain_text import padded, width

Key = Union[str, int]


class AnswerForm:
    """What a guess may be."""

    def describe(self) -> TextPair:
        """What to write, in English and in Japanese, as the object of "write"."""
        raise NotImplementedError

    def read(self, given: Any) -> Any:
        """The guess as Python's own type. Raises ValueError for one of another form."""
        raise NotImplementedError

    def matches(self, guessed: Any, measured: Any) -> bool:
        """Whether they count as the same; both as `read` gives them."""
        return bool(guessed == measured)

    def format(self, value: Any) -> str:
        """A value that `read` gave, in a few characters."""
        return str(value)


@dataclass(frozen=True)
class NumberForm(AnswerForm):
    """A number in a range; it agrees within a factor, or within a difference, else if equal.

    ``such_as``: the example that learners are shown; choose one that does not give it away.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    example: float = 1.0
    factor: float = 1.0
    within: float = 0.0

    def describe(self) -> TextPair:
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
        value = _to_python_scalar(given)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise ValueError
        if not self.minimum <= value <= self.maximum:
            raise ValueError
        return value

    def matches(self, guessed: Any, measured: Any) -> bool:
        if abs(guessed - measured) <= self.within:
            return True
        small, large = sorted((guessed, measured))
        return bool(small > 0 and large <= small * self.factor)

    def format(self, value: Any) -> str:
        if isinstance(value, int) or (abs(value) < 1e15 and value == round(value)):
            return f"{int(value):,}"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


@dataclass(frozen=True)
class ChoiceForm(AnswerForm):
    """One of several words or whole numbers."""

    options: Tuple[Key, ...]

    def describe(self) -> TextPair:
        *others, last = map(repr, self.options)
        return (
            f"{', '.join(others)} or {last}".replace("'", '"'),
            f"{'、'.join([*others, last])} のどれか".replace("'", '"'),
        )

    def read(self, given: Any) -> Key:
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
        value = _to_python_scalar(given)
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True)
class ListForm(AnswerForm):
    """A list of so many of one form; it agrees if each does."""

    form: AnswerForm
    count: int

    def describe(self) -> TextPair:
        en, ja = self.form.describe()
        return f"a list of {self.count}: each {en}", f"{self.count} 個のリスト。それぞれ {ja}"

    def read(self, given: Any) -> Any:
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


@dataclass(frozen=True)
class DictForm(AnswerForm):
    """A dictionary with these keys, whose values have one form; it agrees if each does."""

    form: AnswerForm
    keys: Tuple[Key, ...]

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


a_number, yes_or_no, list_of = NumberForm, YesNoForm, ListForm


def one_of(*options: Key) -> ChoiceForm:
    """One of these words or whole numbers."""
    return ChoiceForm(options)


def each_of(form: AnswerForm, *keys: Key) -> DictForm:
    """A dictionary with these keys, whose values have one form."""
    return DictForm(form, keys)


def _is_unwritten(given: Any) -> bool:
    """Whether it is ``...``, or a list or dictionary with ``...`` still in it."""
    values = given.values() if isinstance(given, dict) else given
    several = isinstance(given, (list, tuple, dict))
    return given is ... or (several and any(value is ... for value in values))


def _to_python_scalar(given: Any) -> Any:
    """Python's own number or truth value for one of NumPy or MXNet."""
    if getattr(given, "size", None) != 1:
        return given
    value = given.asscalar() if hasattr(given, "asscalar") else given
    return value.item() if hasattr(value, "item") else value


class Guess(NamedTuple):
    """A guess: an ``id`` such as ``"01-a"``, the form of its answer, its question."""

    id: str
    form: AnswerForm
    question: Texts


GUESSES: Dict[str, Guess] = {}  # filled as the labs' modules are imported


def register_guess(id: str, form: AnswerForm, en: str, ja: str) -> None:
    """Register a guess; ``en`` and ``ja``: its question, in one short sentence.

    Raises ExerciseError for an id of another form, or one that is taken.
    """
    if not re.fullmatch(r"\d\d-[a-z]", id) or id in GUESSES:
        raise ExerciseError(
            f"{id!r} cannot name a guess, or is taken: write the two digits of the lab, a dash, "
            "and the next letter"
        )
    GUESSES[id] = Guess(id, form, {"en": en, "ja": ja})


def all_guesses() -> List[Guess]:
    """Every guess of every lab, in order."""
    for lab in lab_numbers():
        import_lab(lab)
    return [GUESSES[id] for id in sorted(GUESSES)]


def find_guess(id: object) -> Guess:
    """The guess of this id. Raises ExerciseError, with the choices."""
    if isinstance(id, str) and id[:2] in lab_numbers():
        import_lab(id[:2])
    if not isinstance(id, str) or id not in GUESSES:
        text = unknown("guess", id, ids_in_same_lab(id, [one.id for one in all_guesses()]))
        raise ExerciseError(choose_text(en=text, ja=f"予想 {id!r} はありません ({text})"))
    return GUESSES[id]


TABLE_WIDTH = 80
_NOT_AT_LINE_START = "\u3001\u3002\uff09\u300d\u300f\uff1a\uff01\uff1f"  # commas, closing brackets
_COLUMN_WIDTHS = (6, 38, 17, 17)  # id, question, guess, measured; two of each are left empty


def _format_table_row(cells: Sequence[str]) -> Iterator[str]:
    """The cells side by side, each on as many lines as it needs."""
    columns = [wrap_text(cell, size - 2) for cell, size in zip(cells, _COLUMN_WIDTHS)]
    for parts in zip_longest(*columns, fillvalue=""):
        yield "".join(map(padded, parts, _COLUMN_WIDTHS)).rstrip()


def wrap_text(text: str, most: int) -> List[str]:
    """The text in lines of at most ``most`` columns; Japanese may break anywhere but before 、。"""
    lines, line = [], ""
    for piece in _unbreakable_pieces(text):
        if line and width((line + piece).rstrip()) > most:
            lines.append(line.rstrip())
            line = ""
        piece = piece if line else piece.lstrip()
        while width(piece.rstrip()) > most:  # one word that is longer than a line
            end = next(i for i in range(len(piece), 0, -1) if width(piece[:i]) <= most)
            lines.append(piece[:end])
            piece = piece[end:]
        line += piece
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _unbreakable_pieces(text: str) -> Iterator[str]:
    """What no line may break: words with their space, and Japanese characters."""
    piece = ""
    for character in text:
        wide = unicodedata.east_asian_width(character) in "WF"
        closing = character in _NOT_AT_LINE_START
        if piece and not closing and (wide or piece[-1] == " " or width(piece[-1]) == 2):
            yield piece
            piece = ""
        piece += character
    if piece:
        yield piece


# set while pages are made for people who read and do not run: results are shown without a guess
HANDOUT_VARIABLE = "GLUONLAB_HANDOUT"
_MIN_EXPLANATION_CHARS = 8  # characters of an explanation


@dataclass
class _GuessRecord:
    """One guess of this notebook; None: not made, not measured, not explained."""

    guess: Guess
    prediction: Optional[Any] = None
    measurement: Optional[Any] = None
    explanation: Optional[str] = None

    @property
    def was_measured(self) -> bool:
        return self.prediction is not None and self.measurement is not None

    @property
    def is_surprise(self) -> bool:
        return self.was_measured and not self.guess.form.matches(self.prediction, self.measurement)

    def format_lines(self) -> Iterator[str]:
        """Its rows of the table of surprises."""
        id, form, question = self.guess
        yield from _format_table_row(
            (
                id,
                choose_text(**question),
                form.format(self.prediction),
                form.format(self.measurement),
            )
        )
        indent = " " * _COLUMN_WIDTHS[0]
        why = self.explanation or choose_text(en="(not explained yet)", ja="(まだ書かれていません)")
        why = choose_text(en="because: ", ja="理由: ") + why
        yield from (indent + line for line in wrap_text(why, TABLE_WIDTH - len(indent)))


_records: Dict[str, _GuessRecord] = {}  # of this notebook, by their guesses' ids


def _find_record(id: str) -> _GuessRecord:
    asked = find_guess(id)
    return _records.setdefault(asked.id, _GuessRecord(asked))


def predict(id: str, guessed: Any) -> None:
    """Write down a guess, before the measurement; ``...``: print the question.

    ``guessed``: of the form that the question asks for; what is wrong with it is printed in one
    line. Raises ExerciseError for an id that is no guess's.
    """
    entry = _find_record(id)
    form = entry.guess.form
    if _is_unwritten(guessed):
        en, ja = form.describe()
        _print_about_guess(id, **entry.guess.question)
        line = choose_text(en=f"In place of ... write {en}.", ja=f"... の代わりに書くもの: {ja}")
        print("\n".join(wrap_text(line, TABLE_WIDTH)))
        return
    try:
        value = form.read(guessed)
    except ValueError:
        given, (en, ja) = reprlib.repr(guessed), form.describe()
        _print_about_guess(
            id, en=f"{given} is no answer: write {en}", ja=f"{given} は書けません。書けるもの: {ja}"
        )
        return
    if entry.measurement is None or entry.prediction is None:
        entry.prediction = value
    if entry.prediction != value:
        kept = form.format(entry.prediction)
        _print_about_guess(
            id,
            en=f"you know the result by now, so your first guess stays: {kept}",
            ja=f"もう結果を見たので、最初の予想のままにします: {kept}",
        )
        return
    shown = form.format(entry.prediction)
    _print_about_guess(
        id, en=f"you say {shown}. Now measure.", ja=f"{shown} ですね。では測りましょう。"
    )


def observe(id: str, measured: Any) -> "AbstractContextManager[None]":
    """Show what was measured, in a ``with`` block, and compare it with the guess.

    Without a guess the block runs, and one line stands in place of what it shows.
    ``measured``: of the form that the guess has. Raises ExerciseError for an id that is no
    guess's, or a measurement of another form.
    """
    entry = _find_record(id)
    try:
        value = entry.guess.form.read(measured)
    except ValueError:
        wanted = entry.guess.form.describe()[0]
        raise ExerciseError(
            f"guess {id}: {reprlib.repr(measured)} was measured, which is not {wanted}"
        ) from None
    return _compare_with_guess(entry, value)


@contextmanager
def _compare_with_guess(entry: _GuessRecord, value: Any) -> Iterator[None]:
    id, form = entry.guess.id, entry.guess.form
    if os.environ.get(HANDOUT_VARIABLE):
        yield
        return
    if entry.prediction is None:
        with _suppress_output():
            yield
        _print_text(
            en=f"Guess {id} comes first: write it above, run its cell, then this one.",
            ja=f"先に予想 {id} を上のセルに書いて実行し、その後でこのセルを実行してください。",
        )
        return
    yield
    if entry.measurement is not None and form.format(entry.measurement) != form.format(value):
        was, now = form.format(entry.measurement), form.format(value)
        _print_about_guess(
            id, en=f"{now} this time, {was} at first", ja=f"今回は {now}、最初は {was} でした"
        )
        return
    entry.measurement = value
    guessed, found = form.format(entry.prediction), form.format(value)
    if entry.is_surprise:
        _print_about_guess(
            id,
            en=f"your guess {guessed}, measured {found}: a surprise. Why?",
            ja=f"{guessed} と予想し、結果は {found} でした。予想外です。なぜでしょうか。",
        )
    else:
        _print_about_guess(
            id,
            en=f"your guess {guessed}, measured {found}: as you expected. Why?",
            ja=f"{guessed} と予想し、結果は {found} でした。予想どおりです。なぜでしょうか。",
        )


def because(id: str, why: Any) -> None:
    """Write down in words why the measurement came out as it did; ``...``: ask for it.

    Raises ExerciseError for an id that is no guess's.
    """
    entry = _find_record(id)
    if why is ...:
        _print_about_guess(
            id,
            en="why did it come out so? Write a sentence in quotes, in place of ...",
            ja="なぜこの結果になったのでしょうか。... の代わりに、理由を引用符で囲んで書きます。",
        )
    elif not isinstance(why, str) or len(why.strip()) < _MIN_EXPLANATION_CHARS:
        _print_about_guess(
            id,
            en=f"{reprlib.repr(why)} explains little: write a sentence in quotes",
            ja=f"{reprlib.repr(why)} では説明になりません。引用符の中に一文を書いてください",
        )
    elif entry.measurement is None and not os.environ.get(HANDOUT_VARIABLE):
        _print_about_guess(
            id, en="measure first, then explain", ja="先に測ってから、説明を書いてください"
        )
    else:
        entry.explanation = " ".join(why.split())
        _print_about_guess(
            id,
            en="noted. Compare it with what follows.",
            ja="書き留めました。次の説明と比べてください。",
        )


def surprises() -> None:
    """Print the guesses that came out otherwise, each with its explanation, in 80 columns."""
    entries = [entry for _, entry in sorted(_records.items())]
    seen = [entry for entry in entries if entry.was_measured]
    if not seen:
        _print_text(
            en="Here your notebook lists the guesses of yours that came out otherwise.",
            ja="ここに、予想と違った測定が一覧になります。",
        )
        return
    surprising = [entry for entry in seen if entry.is_surprise]
    count, all_of_them, surprised = len(seen), len(entries), len(surprising)
    _print_text(
        en=f"{count} of {all_of_them} guesses measured, {surprised} surprises",
        ja=f"{all_of_them} 個の予想のうち {count} 個を測り、{surprised} 個が予想外でした",
    )
    if surprising:
        heading = (
            "",
            "",
            choose_text(en="your guess", ja="予想"),
            choose_text(en="measured", ja="測定"),
        )
        rows = [line for entry in surprising for line in entry.format_lines()]
        print("\n".join([*_format_table_row(heading), "-" * TABLE_WIDTH, *rows]))


def _print_about_guess(id: str, *, en: str, ja: str) -> None:
    print(
        "\n".join(
            wrap_text(choose_text(en=f"Guess {id}: {en}", ja=f"予想 {id}: {ja}"), TABLE_WIDTH)
        )
    )


def _print_text(*, en: str, ja: str) -> None:
    print(choose_text(en=en, ja=ja))


def _suppress_output() -> "AbstractContextManager[Any]":
    """What is printed, and in a notebook what is drawn, is dropped."""
    if "IPython" in sys.modules:
        from IPython.utils.capture import capture_output

        held: AbstractContextManager[Any] = capture_output(stderr=False)
        return held
    return redirect_stdout(StringIO())
