"""Answers that are a number for each device."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

from gluonlab.exercises.exercise import Wrong
from gluonlab.exercises.shared.counterexamples import (
    NUMBERS,
    gave,
    in_english,
    near,
    returned,
    wrong,
)
from gluonlab.exercises.shared.diagnosis import Mistake, Results, explains


def listed(given: Any) -> Any:
    """A list, where an answer is a list, a tuple, an array or a generator; else the answer."""
    if isinstance(given, (str, bytes, dict)):
        return given
    try:
        return list(given)
    except TypeError:
        return given


def same_list(got: Any, want: Sequence[float]) -> bool:
    """Whether ``got`` has these numbers, but for rounding."""
    return (
        isinstance(got, list)
        and len(got) == len(want)
        and all(_same(one, other) for one, other in zip(got, want))
    )


def _same(got: Any, want: float) -> bool:
    if isinstance(got, bool) or not isinstance(got, NUMBERS):
        return False
    return near(got, want) or abs(float(got) - want) < 1e-9


def by_list(formula: Callable[..., Optional[Sequence[float]]]) -> Callable[..., bool]:
    """A mistake that gives the numbers that a formula gives; None: none."""

    def gives(*case: Any, got: Any) -> bool:
        value = formula(*case)
        return value is not None and same_list(got, value)

    return gives


def fault(found: Results, call: Callable[..., str], mistakes: Sequence[Mistake]) -> Optional[Wrong]:
    """The first counterexample among results that should have a number for each device."""
    mistaken = found.wrong(same_list)
    if not mistaken:
        return None
    case, got, want = mistaken[0]
    text, devices = call(*case), len(want)
    if not isinstance(got, list) or not all(isinstance(one, NUMBERS) for one in got):
        en, ja = "a list with a number for each device", "デバイスごとに 1 個の数を持つリスト"
        return returned(got, text, en, ja)
    if len(got) != devices:
        return wrong(
            f"{text} gave {in_english(len(got), 'number')}, expected {devices}: "
            "one for each device",
            f"{text} の答えには数が {len(got)} 個あります。デバイスごとに 1 個、"
            f"全部で {devices} 個のはずです",
        )
    return gave(text, shown(got), shown(want), explains(found, same_list, *mistakes))


def shown(numbers: Sequence[float]) -> str:
    """``[0.25, 0.5]``"""
    return f"[{', '.join(_shown(number) for number in numbers)}]"


def _shown(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() else f"{number:.4g}"


def drawn(random: Any, count: int, least: int, most: int) -> List[int]:
    """Whole numbers from ``least`` to ``most - 1``, as Python's own."""
    return [int(number) for number in random.randint(least, most, count)]
