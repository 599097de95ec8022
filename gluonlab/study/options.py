"""Whether what stands in study.json is what a study would have written there."""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Mapping

Fits = Callable[[Any], bool]
LARGEST = 2**31  # of any number of things


def check(options: Mapping[str, Any], fits: Mapping[str, Fits]) -> None:
    """Raise ValueError unless the options have these names, and each value fits."""
    if set(options) != set(fits):
        raise ValueError(f"not {', '.join(fits)}")
    for name, value in options.items():
        if not fits[name](value):
            raise ValueError(name)


def whole(least: int, most: int = LARGEST) -> Fits:
    """A whole number within these bounds."""
    return lambda value: type(value) is int and least <= value <= most


def positive(most: float = math.inf) -> Fits:
    """A finite number above 0, of ``most`` at most."""
    return lambda value: type(value) is float and 0 < value <= most and math.isfinite(value)


def one_of(names: Collection[str]) -> Fits:
    """One of these names."""
    return lambda value: isinstance(value, str) and value in names


def ascending(each: Fits, count: int = 1) -> Fits:
    """A list of ``count`` or more, none twice, in ascending order."""
    return lambda value: (
        isinstance(value, list) and all(map(each, value)) and sorted({*value}) == value
        and len(value) >= count
    )  # fmt: skip


def some_of(names: Collection[str]) -> Fits:
    """A list of one or more of these names, none twice."""
    fits = any_of(names)
    return lambda value: fits(value) and bool(value)


def any_of(names: Collection[str]) -> Fits:
    """A list of these names, none twice, which may be empty."""
    fits = one_of(names)
    return lambda value: (
        isinstance(value, list) and all(map(fits, value)) and len({*value}) == len(value)
    )
