"""What a learner guessed, what was measured, and why: kept while the notebook's process lives."""

from __future__ import annotations

import os
import reprlib
import sys
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Dict, Iterator, Optional

from gluonlab.errors import ExerciseError
from gluonlab.exercises.guesses.forms import is_unwritten
from gluonlab.exercises.guesses.register import Guess, find
from gluonlab.exercises.guesses.table import Row, as_table, wrapped
from gluonlab.exercises.languages import say

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
    def is_surprise(self) -> bool:
        seen = self.guessed is not None and self.measured is not None
        return seen and not self.asked.form.agree(self.guessed, self.measured)


@dataclass
class _Notebook:
    entries: Dict[str, _Entry] = field(default_factory=dict)

    def entry(self, id: str) -> _Entry:
        asked = find(id)
        return self.entries.setdefault(asked.id, _Entry(asked))


_notebook = _Notebook()


def predict(id: str, guessed: Any) -> None:
    """Write down a guess, before the measurement; ``...``: print the question.

    ``guessed``: of the form that the question asks for; what is wrong with it is printed in one
    line. Raises ExerciseError for an id that is no guess's.
    """
    entry = _notebook.entry(id)
    form = entry.asked.form
    if is_unwritten(guessed):
        _ask(entry.asked)
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
    entry = _notebook.entry(id)
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
        print(
            say(
                en=f"Guess {id} comes first: write it above, run its cell, then this one.",
                ja=f"先に予想 {id} を上のセルに書いて実行し、その後でこのセルを実行してください。",
            )
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
    entry = _notebook.entry(id)
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
    entries = [entry for _, entry in sorted(_notebook.entries.items())]
    seen = [entry for entry in entries if entry.guessed is not None and entry.measured is not None]
    if not seen:
        print(
            say(
                en="Here your notebook lists the guesses of yours that came out otherwise.",
                ja="ここに、予想と違った測定が一覧になります。",
            )
        )
        return
    rows = [_row(entry) for entry in seen if entry.is_surprise]
    print(
        say(
            en=f"{len(seen)} of {len(entries)} guesses measured, {len(rows)} surprises",
            ja=f"{len(entries)} 個の予想のうち {len(seen)} 個を測り、{len(rows)} 個が予想外でした",
        )
    )
    if rows:
        print(as_table(rows))


def _row(entry: _Entry) -> Row:
    form, question = entry.asked.form, entry.asked.question
    return Row(
        entry.asked.id,
        say(**question),
        form.shown(entry.guessed),
        form.shown(entry.measured),
        entry.why or say(en="(not explained yet)", ja="(まだ書かれていません)"),
    )


def _ask(asked: Guess) -> None:
    en, ja = asked.form.words()
    _print(asked.id, **asked.question)
    line = say(en=f"In place of ... write {en}.", ja=f"... の代わりに書くもの: {ja}")
    print("\n".join(wrapped(line, 80)))


def _print(id: str, *, en: str, ja: str) -> None:
    line = say(en=f"Guess {id}: {en}", ja=f"予想 {id}: {ja}")
    print("\n".join(wrapped(line, 80)))


def _held_back() -> "AbstractContextManager[Any]":
    """What is printed, and in a notebook what is drawn, is dropped."""
    if "IPython" in sys.modules:
        from IPython.utils.capture import capture_output

        held: AbstractContextManager[Any] = capture_output(stderr=False)
        return held
    return redirect_stdout(StringIO())
