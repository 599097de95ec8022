"""Which known mistake a wrong answer makes: told by all of its wrong results, never by one.

In a single case different mistakes often give the same number, and a sentence about the wrong one
sends a student astray. So a mistake is named only if it explains every wrong result, and two at
least; otherwise the counterexample stands alone.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.exercises.shared.counterexamples import NOTHING, NUMBERS, Pair, near

LEAST = 2  # wrong results that a mistake has to explain
# a mistake: whether it gives this result in this case, and its name in both languages
Mistake = Tuple[Callable[..., bool], str, str]


class Result(NamedTuple):
    """What an answer gave in one case, and what is right there."""

    case: Tuple[Any, ...]
    got: Any
    want: Any


class Results(List[Result]):
    """What an answer gave, case by case, until it raised ``error``, if it did."""

    error: Optional[Exception] = None

    def wrong(self, right: Callable[[Any, Any], bool]) -> List[Result]:
        """Those of which ``right(got, want)`` is false. Raises ``error`` where there are none."""
        found = _wrong(self, right)
        if not found:
            self.end()
        return found

    def end(self) -> None:
        """Raise ``error``, if there is one: all that came before it is right."""
        if self.error is not None:
            raise self.error


def results(
    answer: Callable[..., Any], cases: Iterable[Tuple[Any, ...]], want: Callable[..., Any]
) -> Results:
    """The answer in every case, beside ``want`` of the same case."""
    found = Results()
    for case in cases:
        try:
            found.append(Result(case, answer(*case), want(*case)))
        except Exception as error:  # whatever a student's code raises
            found.error = error
            break
    return found


def _wrong(found: Sequence[Result], right: Callable[[Any, Any], bool]) -> List[Result]:
    return [each for each in found if not right(each.got, each.want)]


def explains(
    found: Sequence[Result], right: Callable[[Any, Any], bool], *mistakes: Mistake
) -> Pair:
    """What is said of the mistake that explains the results; NOTHING if none does.

    One that gives all of them goes before one that gives the wrong ones alone, as where an answer
    knows a special case; if those are all None, which many mistakes may give, none is named.
    """
    mistaken = _wrong(found, right)
    if found and all(each.got is None for each in found):  # somewhere None may be right
        return "the function returns nothing", "関数が何も返していません"
    if len(mistaken) < LEAST:
        return NOTHING
    numbers = any(each.got is not None for each in mistaken)
    for some in (found, mistaken) if numbers else (found,):
        for gives, en, ja in mistakes:
            if all(gives(*each.case, got=each.got) for each in some):
                return en, ja
    return NOTHING


def same_number(got: Any, want: Any) -> bool:
    """Whether it is a number, and exactly this one."""
    return isinstance(got, NUMBERS) and bool(got == want)


def by(formula: Callable[..., Any]) -> Callable[..., bool]:
    """A mistake that gives the number that a formula gives; None: none."""

    def gives(*case: Any, got: Any) -> bool:
        value = formula(*case)
        return value is not None and isinstance(got, NUMBERS) and near(got, value)

    return gives
