"""The forms that a guess may have: what can be written, and when it agrees with a measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Sequence, Tuple, Union

from gluonlab.exercises.shared.counterexamples import Pair

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
class Number(Form):
    """A number in a range. `number` makes it."""

    least: float
    most: float
    such_as: float
    factor: float
    within: float

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
class Choice(Form):
    """One of several words or numbers. `choice` makes it."""

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
    """True or False. `yes_or_no` makes it."""

    def words(self) -> Pair:
        return "True or False", "True か False"

    def read(self, given: Any) -> bool:
        value = _plain(given)
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True)
class Listed(Form):
    """So many of one form. `listed` makes it."""

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
    """One of a form for each key. `each` makes it."""

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


def number(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    such_as: float,
    factor: float = 1.0,
    within: float = 0.0,
) -> Form:
    """A number in a range; it agrees within a factor, or within a difference, else if equal.

    ``such_as``: the example that learners are shown; choose one that does not give it away.
    """
    return Number(least, most, such_as, factor, within)


def choice(*options: Key) -> Form:
    """One of these words or whole numbers."""
    return Choice(options)


def yes_or_no() -> Form:
    """True or False."""
    return YesOrNo()


def listed(form: Form, count: int) -> Form:
    """A list of so many of the same form; it agrees if each does."""
    return Listed(form, count)


def each(form: Form, *keys: Key) -> Form:
    """A dictionary with these keys, whose values have one form; it agrees if each does."""
    return Each(form, keys)


def is_unwritten(given: Any) -> bool:
    """Whether it is ``...``, or a list or dictionary with ``...`` still in it."""
    values: Sequence[Any] = ()
    if isinstance(given, (list, tuple)):
        values = given
    elif isinstance(given, dict):
        values = list(given.values())
    return given is ... or any(value is ... for value in values)


def _plain(given: Any) -> Any:
    """Python's own number or truth value for one of NumPy or MXNet."""
    if getattr(given, "size", None) != 1:
        return given
    value = given.asscalar() if hasattr(given, "asscalar") else given
    return value.item() if hasattr(value, "item") else value
