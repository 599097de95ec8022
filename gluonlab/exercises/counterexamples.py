"""Counterexamples in both languages, and the known mistakes that explain wrong answers.

In a single case different mistakes often give the same number, and a sentence about the wrong one
sends a student astray. So `find_mistake` names a mistake only if it gives every wrong result, and two
at least; otherwise the counterexample stands alone.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.exercises.checkers import Wrong

TextPair = Tuple[str, str]  # the same in English and in Japanese
Fault = Tuple[Any, str, str]  # whether it is so, and what is said then

NO_TEXT: TextPair = ("", "")
NUMBER_TYPES = (int, float, np.number)


class CaseText(NamedTuple):
    """What an answer was given, in words: the beginning of every counterexample about it."""

    en: str
    ja: str

    def with_texts(self, en: str, ja: str) -> TextPair:
        """The case, and these words about it."""
        return f"{self.en}: {en}", f"{self.ja}: {ja}"

    def counterexample(self, en: str, ja: str, why: TextPair = NO_TEXT) -> Wrong:
        """The counterexample that goes on with these words, and ends with what it looks like."""
        return counterexample(*self.with_texts(en, ja), why)

    def check_faults(self, *faults: Fault) -> None:
        """Raise Wrong for the first fault that is there."""
        check_faults(*((is_so, *self.with_texts(en, ja)) for is_so, en, ja in faults))


def counterexample(en: str, ja: str, why: TextPair = NO_TEXT) -> Wrong:
    """A counterexample, and what it looks like, if that is known."""
    return Wrong(en=f"{en}: {why[0]}", ja=f"{ja}。{why[1]}") if any(why) else Wrong(en=en, ja=ja)


def check_faults(*faults: Fault) -> None:
    """Raise Wrong for the first fault that is there."""
    found = pick_explanation(*faults)
    if found is not NO_TEXT:
        raise counterexample(*found)


def pick_explanation(*looks: Fault) -> TextPair:
    """What is said of the first that is so; NOTHING if none is."""
    return next(((en, ja) for is_so, en, ja in looks if is_so), NO_TEXT)


def wrong_result_texts(call: str, got: Any, want: Any) -> TextPair:
    """What is said of a call that gave another number; ``got`` and ``want`` as shown."""
    ja = f"{call} の答えは {got} でしたが、正しくは {want} です"
    return f"{call} gave {got}, expected {want}", ja


def wrong_value_texts(call: str, got: Any, want: Any) -> TextPair:
    """What is said of a call whose value is another one; both as shown."""
    ja = f"{call} は {got} でしたが、正しくは {want} です"
    return f"{call} is {got}, expected {want}", ja


def wrong_return(got: Any, call: str, en: str, ja: str) -> Wrong:
    """The counterexample of a call that gave nothing, or no ``en``, ``ja``: what it should."""
    hint, hint_ja = pick_explanation(
        (got is None, " (is `return` missing?)", " (`return` を忘れていませんか)")
    )
    return Wrong(
        en=f"{call} returned {got!r}{hint}: return {en}",
        ja=f"{call} の戻り値は {got!r} でした{hint_ja}。{ja}を返してください",
    )


def check_number(got: Any, call: str) -> None:
    """Raise Wrong for what is no number."""
    if not isinstance(got, NUMBER_TYPES):
        raise wrong_return(got, call, "a number", "数値")


def is_close_number(got: Any, want: float, rel: float = 1e-6) -> bool:
    """Whether ``got`` is a number, and this one but for rounding."""
    return isinstance(got, NUMBER_TYPES) and math.isclose(got, want, rel_tol=rel)


def count_in_english(count: int, thing: str) -> str:
    """``1 device``, ``2 devices``, ``0 devices``."""
    return f"{count} {thing}" + "s" * (count != 1)


MIN_WRONG_RESULTS = 2  # wrong results that a mistake has to explain
# a mistake: whether it gives this result in this case, and its name in both languages
Mistake = Tuple[Callable[..., bool], str, str]


class AnswerResult(NamedTuple):
    """What an answer gave in one case, and what is right there."""

    case: Tuple[Any, ...]
    got: Any
    want: Any


class AnswerResults(List[AnswerResult]):
    """What an answer gave, case by case, until it raised ``error``, if it did."""

    error: Optional[Exception] = None

    def find_wrong(self, right: Callable[[Any, Any], bool]) -> List[AnswerResult]:
        """Those of which ``right(got, want)`` is false. Raises ``error`` where there are none."""
        found = [each for each in self if not right(each.got, each.want)]
        if not found:
            self.raise_error()
        return found

    def check_results(
        self,
        same: Callable[[Any, Any], bool],
        mistakes: Sequence[Mistake],
        said: Callable[..., TextPair],
    ) -> None:
        """Raise Wrong for the first case in which the answer gave something else than is right.

        ``said(*case, got, want)``: the counterexample, to which the mistake that explains it is
        added; it may raise a Wrong of its own, for a result of another kind.
        """
        mistaken = self.find_wrong(same)
        if mistaken:
            case, got, want = mistaken[0]
            raise counterexample(*said(*case, got, want), find_mistake(self, same, *mistakes))

    def raise_error(self) -> None:
        """Raise ``error``, if there is one: all that came before it is right."""
        if self.error is not None:
            raise self.error


def run_cases(
    answer: Callable[..., Any], cases: Iterable[Tuple[Any, ...]], want: Callable[..., Any]
) -> AnswerResults:
    """The answer in every case, beside ``want`` of the same case; lists are given as copies."""
    found = AnswerResults()
    for case in cases:
        given = [deepcopy(one) if isinstance(one, (list, dict)) else one for one in case]
        try:
            found.append(AnswerResult(case, answer(*given), want(*case)))
        except Exception as error:  # whatever a student's code raises
            found.error = error
            break
    return found


def find_mistake(
    found: Sequence[AnswerResult], right: Callable[[Any, Any], bool], *mistakes: Mistake
) -> TextPair:
    """What is said of the mistake that explains the results; NOTHING if none does.

    One that gives all of them goes before one that gives the wrong ones alone, as where an answer
    knows a special case; if those are all None, which many mistakes may give, none is named.
    """
    mistaken = [each for each in found if not right(each.got, each.want)]
    if found and all(each.got is None for each in found):  # somewhere None may be right
        return "the function returns nothing", "関数が何も返していません"
    if len(mistaken) < MIN_WRONG_RESULTS:
        return NO_TEXT
    numbers = any(each.got is not None for each in mistaken)
    for some in (found, mistaken) if numbers else (found,):
        for gives, en, ja in mistakes:
            if all(gives(*each.case, got=each.got) for each in some):
                return en, ja
    return NO_TEXT


def is_same_number(got: Any, want: Any) -> bool:
    """Whether it is a number, and exactly this one."""
    return isinstance(got, NUMBER_TYPES) and bool(got == want)


def matches_formula(
    formula: Callable[..., Any], same: Callable[[Any, Any], bool] = is_close_number
) -> Callable[..., bool]:
    """A mistake that gives what a formula gives; None: nothing."""

    def gives(*case: Any, got: Any) -> bool:
        value = formula(*case)
        return value is not None and same(got, value)

    return gives
