"""Counterexamples in English and Japanese: what was given, what came out, what it looks like."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Tuple

import numpy as np

from gluonlab.exercises.exercise import Wrong

Pair = Tuple[str, str]  # the same in English and in Japanese
Look = Tuple[Any, str, str]  # whether it is so, and what is said then

NOTHING: Pair = ("", "")
NUMBERS = (int, float, np.number)


class Case(NamedTuple):
    """What an answer was given, in words: the beginning of every counterexample about it."""

    en: str
    ja: str

    def wrong(self, en: str, ja: str, why: Pair = NOTHING) -> Wrong:
        """The counterexample that goes on with these words, and ends with what it looks like."""
        return wrong(f"{self.en}: {en}", f"{self.ja}: {ja}", why)

    def check(self, *faults: Look) -> None:
        """Raise Wrong for the first fault that is there."""
        check(*((is_so, f"{self.en}: {en}", f"{self.ja}: {ja}") for is_so, en, ja in faults))


def wrong(en: str, ja: str, why: Pair = NOTHING) -> Wrong:
    """A counterexample, and what it looks like, if that is known."""
    return Wrong(en=f"{en}: {why[0]}", ja=f"{ja}。{why[1]}") if any(why) else Wrong(en=en, ja=ja)


def check(*faults: Look) -> None:
    """Raise Wrong for the first fault that is there."""
    found = looks_like(*faults)
    if found is not NOTHING:
        raise wrong(*found)


def looks_like(*looks: Look) -> Pair:
    """What is said of the first that is so; NOTHING if none is."""
    return next(((en, ja) for is_so, en, ja in looks if is_so), NOTHING)


def gave(call: str, got: Any, want: Any, why: Pair = NOTHING) -> Wrong:
    """The counterexample of a call that gave another number; ``got`` and ``want`` as shown."""
    return wrong(
        f"{call} gave {got}, expected {want}",
        f"{call} の答えは {got} でしたが、正しくは {want} です",
        why,
    )


def is_not(call: str, got: Any, want: Any, why: Pair = NOTHING) -> Wrong:
    """The counterexample of a call whose value is another one; both as shown."""
    return wrong(
        f"{call} is {got}, expected {want}", f"{call} は {got} でしたが、正しくは {want} です", why
    )


def returned(got: Any, call: str, en: str, ja: str) -> Wrong:
    """The counterexample of a call that gave nothing, or no ``en``, ``ja``: what it should."""
    hint, hint_ja = looks_like(
        (got is None, " (is `return` missing?)", " (`return` を忘れていませんか)")
    )
    return Wrong(
        en=f"{call} returned {got!r}{hint}: return {en}",
        ja=f"{call} の戻り値は {got!r} でした{hint_ja}。{ja}を返してください",
    )


def near(got: Any, want: float, rel: float = 1e-6) -> bool:
    """Whether ``got`` is a number, and this one but for rounding."""
    return isinstance(got, NUMBERS) and math.isclose(got, want, rel_tol=rel)


def in_english(count: int, thing: str) -> str:
    """``1 device``, ``2 devices``, ``0 devices``."""
    return f"{count} {thing}" + "s" * (count != 1)
