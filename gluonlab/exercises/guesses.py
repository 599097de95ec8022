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
from gluonlab.exercises.checkers import import_lab, labs, of_its_lab
from gluonlab.exercises.counterexamples import Pair
from gluonlab.exercises.languages import Texts, say
from gluonlab.plain_text import column_width, pad_to_columns

Key = Union[str, int]


class Form:
    """What a guess may be."""

    def words(self) -> Pair:
        """What to write, in English and in Japanese, as the object of "write"."""
        raise NotImplementedError

    def read(self, given: Any) -> Any:
        """The guess as Python's own type. Raises ValueError for one of another form."""
        raise NotImplementedError

    def agree(self, guessed: Any, measured: Any) -> bool:
        """Whether they count as the same; both as `read` gives them."""
        return bool(guessed == measured)

    def shown(self, value: Any) -> str:
        """A value that `read` gave, in a few characters."""
        return str(value)


@dataclass(frozen=True)
class NumberForm(Form):
    """A number in a range; it agrees within a factor, or within a difference, else if equal.

    ``such_as``: the example that learners are shown; choose one that does not give it away.
    """

    least: float = -math.inf
    most: float = math.inf
    such_as: float = 1.0
    factor: float = 1.0
    within: float = 0.0

    def words(self) -> Pair:
        example = self.shown(self.such_as)
        en = {
            (False, False): "a number",
            (True, False): f"a number, at least {self.least:g}",
            (False, True): f"a number, at most {self.most:g}",
            (True, True): f"a number from {self.least:g} to {self.most:g}",
        }[math.isfinite(self.least), math.isfinite(self.most)]
        ja = {
            (False, False): "数",
            (True, False): f"{self.least:g} 以上の数",
            (False, True): f"{self.most:g} 以下の数",
            (True, True): f"{self.least:g} から {self.most:g} までの数",
        }[math.isfinite(self.least), math.isfinite(self.most)]
        return f"{en}, such as {example}", f"{ja} (例: {example})"

    def read(self, given: Any) -> float:
        value = _plain(given)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise ValueError
        if not self.least <= value <= self.most:
            raise ValueError
        return value

    def agree(self, guessed: Any, measured: Any) -> bool:
        if abs(guessed - measured) <= self.within:
            return True
        small, large = sorted((guessed, measured))
        return bool(small > 0 and large <= small * self.factor)

    def shown(self, value: Any) -> str:
        if isinstance(value, int) or (abs(value) < 1e15 and value == round(value)):
            return f"{int(value):,}"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


@dataclass(frozen=True)
class ChoiceForm(Form):
    """One of several words or whole numbers."""

    options: Tuple[Key, ...]

    def words(self) -> Pair:
        *others, last = map(repr, self.options)
        return (
            f"{', '.join(others)} or {last}".replace("'", '"'),
            f"{'、'.join([*others, last])} のどれか".replace("'", '"'),
        )

    def read(self, given: Any) -> Key:
        value = _plain(given)
        for option in self.options:
            if type(value) is type(option) and value == option:
                return option
        raise ValueError


@dataclass(frozen=True)
class YesOrNo(Form):
    """True or False."""

    def words(self) -> Pair:
        return "True or False", "True か False"

    def read(self, given: Any) -> bool:
        value = _plain(given)
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True)
class ListForm(Form):
    """A list of so many of one form; it agrees if each does."""

    form: Form
    count: int

    def words(self) -> Pair:
        en, ja = self.form.words()
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

    def agree(self, guessed: Any, measured: Any) -> bool:
        return all(map(self.form.agree, guessed, measured))

    def shown(self, value: Any) -> str:
        return ", ".join(map(self.form.shown, value))


@dataclass(frozen=True)
class Each(Form):
    """A dictionary with these keys, whose values have one form; it agrees if each does."""

    form: Form
    keys: Tuple[Key, ...]

    def words(self) -> Pair:
        en, ja = self.form.words()
        keys = ", ".join(f"{key!r}: ..." for key in self.keys).replace("'", '"')
        return f"{{{keys}}}, each {en}", f"{{{keys}}}。それぞれ {ja}"

    def read(self, given: Any) -> Any:
        if not isinstance(given, dict) or set(given) != set(self.keys):
            raise ValueError
        return {key: self.form.read(given[key]) for key in self.keys}

    def agree(self, guessed: Any, measured: Any) -> bool:
        return all(self.form.agree(guessed[key], measured[key]) for key in self.keys)

    def shown(self, value: Any) -> str:
        return ", ".join(f"{key}: {self.form.shown(value[key])}" for key in self.keys)


a_number, yes_or_no, list_of = NumberForm, YesOrNo, ListForm


def one_of(*options: Key) -> ChoiceForm:
    """One of these words or whole numbers."""
    return ChoiceForm(options)


def each_of(form: Form, *keys: Key) -> Each:
    """A dictionary with these keys, whose values have one form."""
    return Each(form, keys)


def _is_unwritten(given: Any) -> bool:
    """Whether it is ``...``, or a list or dictionary with ``...`` still in it."""
    values = given.values() if isinstance(given, dict) else given
    several = isinstance(given, (list, tuple, dict))
    return given is ... or (several and any(value is ... for value in values))


def _plain(given: Any) -> Any:
    """Python's own number or truth value for one of NumPy or MXNet."""
    if getattr(given, "size", None) != 1:
        return given
    value = given.asscalar() if hasattr(given, "asscalar") else given
    return value.item() if hasattr(value, "item") else value


class Guess(NamedTuple):
    """A guess: an ``id`` such as ``"01-a"``, the form of its answer, its question."""

    id: str
    form: Form
    question: Texts


GUESSES: Dict[str, Guess] = {}  # filled as the labs' modules are imported


def guess(id: str, form: Form, en: str, ja: str) -> None:
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
    for lab in labs():
        import_lab(lab)
    return [GUESSES[id] for id in sorted(GUESSES)]


def find(id: object) -> Guess:
    """The guess of this id. Raises ExerciseError, with the choices."""
    if isinstance(id, str) and id[:2] in labs():
        import_lab(id[:2])
    if not isinstance(id, str) or id not in GUESSES:
        text = unknown("guess", id, of_its_lab(id, [one.id for one in all_guesses()]))
        raise ExerciseError(say(en=text, ja=f"予想 {id!r} はありません ({text})"))
    return GUESSES[id]


WIDTH = 80
_NEVER_FIRST = "\u3001\u3002\uff09\u300d\u300f\uff1a\uff01\uff1f"  # commas, closing brackets
_COLUMNS = (6, 38, 17, 17)  # id, question, guess, measured; two of each are left empty


def _line(cells: Sequence[str]) -> Iterator[str]:
    """The cells side by side, each on as many lines as it needs."""
    columns = [wrapped(cell, size - 2) for cell, size in zip(cells, _COLUMNS)]
    for parts in zip_longest(*columns, fillvalue=""):
        yield "".join(map(pad_to_columns, parts, _COLUMNS)).rstrip()


def wrapped(text: str, most: int) -> List[str]:
    """The text in lines of at most ``most`` columns; Japanese may break anywhere but before 、。"""
    lines, line = [], ""
    for piece in _pieces(text):
        if line and column_width((line + piece).rstrip()) > most:
            lines.append(line.rstrip())
            line = ""
        piece = piece if line else piece.lstrip()
        while column_width(piece.rstrip()) > most:  # one word that is longer than a line
            end = next(i for i in range(len(piece), 0, -1) if column_width(piece[:i]) <= most)
            lines.append(piece[:end])
            piece = piece[end:]
        line += piece
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _pieces(text: str) -> Iterator[str]:
    """What no line may break: words with their space, and Japanese characters."""
    piece = ""
    for character in text:
        wide = unicodedata.east_asian_width(character) in "WF"
        closing = character in _NEVER_FIRST
        if piece and not closing and (wide or piece[-1] == " " or column_width(piece[-1]) == 2):
            yield piece
            piece = ""
        piece += character
    if piece:
        yield piece


# set while pages are made for people who read and do not run: results are shown without a guess
HANDOUT = "GLUONLAB_HANDOUT"
_SHORTEST = 8  # characters of an explanation


@dataclass
class _Entry:
    """One guess of this notebook; None: not made, not measured, not explained."""

    asked: Guess
    guessed: Optional[Any] = None
    measured: Optional[Any] = None
    why: Optional[str] = None

    @property
    def was_measured(self) -> bool:
        return self.guessed is not None and self.measured is not None

    @property
    def is_surprise(self) -> bool:
        return self.was_measured and not self.asked.form.agree(self.guessed, self.measured)

    def lines(self) -> Iterator[str]:
        """Its rows of the table of surprises."""
        id, form, question = self.asked
        yield from _line((id, say(**question), form.shown(self.guessed), form.shown(self.measured)))
        indent = " " * _COLUMNS[0]
        why = self.why or say(en="(not explained yet)", ja="(まだ書かれていません)")
        why = say(en="because: ", ja="理由: ") + why
        yield from (indent + line for line in wrapped(why, WIDTH - len(indent)))


_entries: Dict[str, _Entry] = {}  # of this notebook, by their guesses' ids


def _entry(id: str) -> _Entry:
    asked = find(id)
    return _entries.setdefault(asked.id, _Entry(asked))


def predict(id: str, guessed: Any) -> None:
    """Write down a guess, before the measurement; ``...``: print the question.

    ``guessed``: of the form that the question asks for; what is wrong with it is printed in one
    line. Raises ExerciseError for an id that is no guess's.
    """
    entry = _entry(id)
    form = entry.asked.form
    if _is_unwritten(guessed):
        en, ja = form.words()
        _print(id, **entry.asked.question)
        line = say(en=f"In place of ... write {en}.", ja=f"... の代わりに書くもの: {ja}")
        print("\n".join(wrapped(line, WIDTH)))
        return
    try:
        value = form.read(guessed)
    except ValueError:
        given, (en, ja) = reprlib.repr(guessed), form.words()
        _print(
            id, en=f"{given} is no answer: write {en}", ja=f"{given} は書けません。書けるもの: {ja}"
        )
        return
    if entry.measured is None or entry.guessed is None:
        entry.guessed = value
    if entry.guessed != value:
        kept = form.shown(entry.guessed)
        _print(
            id,
            en=f"you know the result by now, so your first guess stays: {kept}",
            ja=f"もう結果を見たので、最初の予想のままにします: {kept}",
        )
        return
    shown = form.shown(entry.guessed)
    _print(id, en=f"you say {shown}. Now measure.", ja=f"{shown} ですね。では測りましょう。")


def observe(id: str, measured: Any) -> "AbstractContextManager[None]":
    """Show what was measured, in a ``with`` block, and compare it with the guess.

    Without a guess the block runs, and one line stands in place of what it shows.
    ``measured``: of the form that the guess has. Raises ExerciseError for an id that is no
    guess's, or a measurement of another form.
    """
    entry = _entry(id)
    try:
        value = entry.asked.form.read(measured)
    except ValueError:
        wanted = entry.asked.form.words()[0]
        raise ExerciseError(
            f"guess {id}: {reprlib.repr(measured)} was measured, which is not {wanted}"
        ) from None
    return _observing(entry, value)


@contextmanager
def _observing(entry: _Entry, value: Any) -> Iterator[None]:
    id, form = entry.asked.id, entry.asked.form
    if os.environ.get(HANDOUT):
        yield
        return
    if entry.guessed is None:
        with _held_back():
            yield
        _say(
            en=f"Guess {id} comes first: write it above, run its cell, then this one.",
            ja=f"先に予想 {id} を上のセルに書いて実行し、その後でこのセルを実行してください。",
        )
        return
    yield
    if entry.measured is not None and form.shown(entry.measured) != form.shown(value):
        was, now = form.shown(entry.measured), form.shown(value)
        _print(id, en=f"{now} this time, {was} at first", ja=f"今回は {now}、最初は {was} でした")
        return
    entry.measured = value
    guessed, found = form.shown(entry.guessed), form.shown(value)
    if entry.is_surprise:
        _print(
            id,
            en=f"your guess {guessed}, measured {found}: a surprise. Why?",
            ja=f"{guessed} と予想し、結果は {found} でした。予想外です。なぜでしょうか。",
        )
    else:
        _print(
            id,
            en=f"your guess {guessed}, measured {found}: as you expected. Why?",
            ja=f"{guessed} と予想し、結果は {found} でした。予想どおりです。なぜでしょうか。",
        )


def because(id: str, why: Any) -> None:
    """Write down in words why the measurement came out as it did; ``...``: ask for it.

    Raises ExerciseError for an id that is no guess's.
    """
    entry = _entry(id)
    if why is ...:
        _print(
            id,
            en="why did it come out so? Write a sentence in quotes, in place of ...",
            ja="なぜこの結果になったのでしょうか。... の代わりに、理由を引用符で囲んで書きます。",
        )
    elif not isinstance(why, str) or len(why.strip()) < _SHORTEST:
        _print(
            id,
            en=f"{reprlib.repr(why)} explains little: write a sentence in quotes",
            ja=f"{reprlib.repr(why)} では説明になりません。引用符の中に一文を書いてください",
        )
    elif entry.measured is None and not os.environ.get(HANDOUT):
        _print(id, en="measure first, then explain", ja="先に測ってから、説明を書いてください")
    else:
        entry.why = " ".join(why.split())
        _print(
            id,
            en="noted. Compare it with what follows.",
            ja="書き留めました。次の説明と比べてください。",
        )


def surprises() -> None:
    """Print the guesses that came out otherwise, each with its explanation, in 80 columns."""
    entries = [entry for _, entry in sorted(_entries.items())]
    seen = [entry for entry in entries if entry.was_measured]
    if not seen:
        _say(
            en="Here your notebook lists the guesses of yours that came out otherwise.",
            ja="ここに、予想と違った測定が一覧になります。",
        )
        return
    surprising = [entry for entry in seen if entry.is_surprise]
    count, all_of_them, surprised = len(seen), len(entries), len(surprising)
    _say(
        en=f"{count} of {all_of_them} guesses measured, {surprised} surprises",
        ja=f"{all_of_them} 個の予想のうち {count} 個を測り、{surprised} 個が予想外でした",
    )
    if surprising:
        heading = ("", "", say(en="your guess", ja="予想"), say(en="measured", ja="測定"))
        rows = [line for entry in surprising for line in entry.lines()]
        print("\n".join([*_line(heading), "-" * WIDTH, *rows]))


def _print(id: str, *, en: str, ja: str) -> None:
    print("\n".join(wrapped(say(en=f"Guess {id}: {en}", ja=f"予想 {id}: {ja}"), WIDTH)))


def _say(*, en: str, ja: str) -> None:
    print(say(en=en, ja=ja))


def _held_back() -> "AbstractContextManager[Any]":
    """What is printed, and in a notebook what is drawn, is dropped."""
    if "IPython" in sys.modules:
        from IPython.utils.capture import capture_output

        held: AbstractContextManager[Any] = capture_output(stderr=False)
        return held
    return redirect_stdout(StringIO())
