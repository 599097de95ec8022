"""Describe wrong answers in English and Japanese, and recognize known mistakes in them.

In a single case, several mistakes often lead to the same number, and the name of the wrong mistake
would mislead the student. Therefore, `find_mistake` names a mistake only if there are at least two
wrong results, and the mistake leads to all of them. Otherwise, it returns no explanation.
"""

from __future__ import annotations

import math
import sys
from copy import deepcopy
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.exercises.exercise_registry import Wrong

TextPair = Tuple[str, str]  # a text in English, and the same text in Japanese
Fault = Tuple[Any, str, str]  # whether the fault is present, its English text, and its Japanese text

NO_TEXT: TextPair = ("", "")


class CaseText(NamedTuple):
    """The description of a case, in English and Japanese, with which counterexamples start."""

    en: str
    ja: str

    def with_texts(self, en: str, ja: str) -> TextPair:
        """Return the description and the given text, in both languages."""
        return f"{self.en}: {en}", f"{self.ja}: {ja}"

    def counterexample(self, en: str, ja: str, why: TextPair = NO_TEXT) -> Wrong:
        """Return a counterexample: the description, this text, and the likely mistake ``why``."""
        return counterexample(*self.with_texts(en, ja), why)

    def check_faults(self, *faults: Fault) -> None:
        """Raise Wrong with the description and the text of the first present fault, if any."""
        check_faults(*((is_there, *self.with_texts(en, ja)) for is_there, en, ja in faults))


def counterexample(en: str, ja: str, why: TextPair = NO_TEXT) -> Wrong:
    """Return a counterexample. ``why``: the likely mistake, or NO_TEXT if it is unknown."""
    return Wrong(en=f"{en}: {why[0]}", ja=f"{ja}。{why[1]}") if any(why) else Wrong(en=en, ja=ja)


def check_faults(*faults: Fault) -> None:
    """Raise Wrong with the texts of the first fault that is present, if any.

    A fault is a tuple (whether it is present, English text, Japanese text).
    """
    texts = pick_explanation(*faults)
    if texts is not NO_TEXT:
        raise counterexample(*texts)


def pick_explanation(*faults: Fault) -> TextPair:
    """Return the texts of the first fault that is present, or NO_TEXT."""
    return next(((en, ja) for is_there, en, ja in faults if is_there), NO_TEXT)


def wrong_result_texts(call: str, got: Any, want: Any) -> TextPair:
    """Return the texts ``call gave got, expected want`` for values that are already formatted."""
    ja = f"{call} の答えは {got} でしたが、正しくは {want} です"
    return f"{call} gave {got}, expected {want}", ja


def wrong_value_texts(call: str, got: Any, want: Any) -> TextPair:
    """Return the texts ``call is got, expected want`` for values that are already formatted."""
    ja = f"{call} は {got} でしたが、正しくは {want} です"
    return f"{call} is {got}, expected {want}", ja


def wrong_return(got: Any, call: str, en: str, ja: str) -> Wrong:
    """Return the counterexample for a call that returned None or a value of the wrong type.

    ``en`` and ``ja`` describe the value that the call should return.
    """
    hint, hint_ja = pick_explanation((got is None, " (is `return` missing?)", " (`return` を忘れていませんか)"))
    return Wrong(
        en=f"{call} returned {got!r}{hint}: return {en}",
        ja=f"{call} の戻り値は {got!r} でした{hint_ja}。{ja}を返してください",
    )


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a number of Python or NumPy."""
    return isinstance(value, (int, float)) or _is_numpy_instance(value, "number")


def is_integer(value: Any) -> bool:
    """Return whether ``value`` is an integer of Python or NumPy."""
    return isinstance(value, int) or _is_numpy_instance(value, "integer")


def _is_numpy_instance(value: Any, type_name: str) -> bool:
    numpy = sys.modules.get("numpy")  # has been imported if there is a value of its types
    return numpy is not None and isinstance(value, getattr(numpy, type_name))


def check_number(got: Any, call: str) -> None:
    """Raise Wrong if ``got`` is not a number."""
    if not is_number(got):
        raise wrong_return(got, call, "a number", "数値")


def is_close_number(got: Any, want: float, rel: float = 1e-6) -> bool:
    """Return whether ``got`` is a number that equals ``want`` up to rounding errors."""
    return is_number(got) and math.isclose(got, want, rel_tol=rel)


def count_in_english(count: int, thing: str, plural_end: str = "s") -> str:
    """Return a count and its noun, such as ``1 device``, ``2 devices`` or ``0 devices``."""
    return f"{count} {thing}" + plural_end * (count != 1)


MIN_WRONG_RESULTS = 2  # a mistake is named only if it explains this many wrong results
# A known mistake: a predicate, and the mistake's texts in English and Japanese. predicate(*case,
# got) returns whether the mistake leads to the result ``got`` in this case.
Mistake = Tuple[Callable[..., bool], str, str]


class AnswerResult(NamedTuple):
    """The arguments passed to an answer in one case, the answer's result, and the right result."""

    case: Tuple[Any, ...]
    got: Any
    want: Any


class AnswerResults(List[AnswerResult]):
    """The results of an answer, one per case. ``error``: the exception that stopped the answer."""

    error: Optional[Exception] = None

    def find_wrong(self, right: Callable[[Any, Any], bool]) -> List[AnswerResult]:
        """Return the results for which ``right(got, want)`` is false.

        If all results are right and the answer raised an exception, raise this exception.
        """
        mistaken = [result for result in self if not right(result.got, result.want)]
        if not mistaken:
            self.raise_error()
        return mistaken

    def check_results(
        self, right: Callable[[Any, Any], bool], mistakes: Sequence[Mistake], describe: Callable[..., TextPair]
    ) -> None:
        """Raise Wrong for the first wrong result, with the mistake that explains all wrong results.

        Args:
            right: ``right(got, want)`` returns whether a result is right.
            mistakes: the known mistakes of this exercise.
            describe: ``describe(*case, got, want)`` returns the texts of the counterexample. It may
                raise Wrong itself for a result of the wrong type.
        """
        mistaken = self.find_wrong(right)
        if mistaken:
            case, got, want = mistaken[0]
            raise counterexample(*describe(*case, got, want), find_mistake(self, right, *mistakes))

    def raise_error(self) -> None:
        """Raise ``error`` unless it is None. Call this if all results are right."""
        if self.error is not None:
            raise self.error


def run_cases(answer: Callable[..., Any], cases: Iterable[Tuple[Any, ...]], want: Callable[..., Any]) -> AnswerResults:
    """Call ``answer(*case)`` for each case, and return its results with the right results.

    ``want(*case)`` returns the right result. The answer receives copies of lists and dictionaries.
    If the answer raises an exception, the remaining cases are skipped.
    """
    results = AnswerResults()
    for case in cases:
        arguments = [deepcopy(arg) if isinstance(arg, (list, dict)) else arg for arg in case]
        try:
            results.append(AnswerResult(case, answer(*arguments), want(*case)))
        except Exception as error:  # a student's code may raise any exception
            results.error = error
            break
    return results


def find_mistake(results: Sequence[AnswerResult], right: Callable[[Any, Any], bool], *mistakes: Mistake) -> TextPair:
    """Return the texts of the known mistake that explains the wrong results, or NO_TEXT.

    A mistake that explains all results takes precedence over a mistake that explains only the wrong
    results. ``right(got, want)`` returns whether a result is right.
    """
    mistaken = [result for result in results if not right(result.got, result.want)]
    # None may be the right result of some cases, so this tests whether all results are None.
    if results and all(result.got is None for result in results):
        return "the function returns nothing", "関数が何も返していません"
    if len(mistaken) < MIN_WRONG_RESULTS:
        return NO_TEXT
    # The second group recognizes a mistake in an answer that handles special cases correctly. It is
    # not used if all wrong results are None, because many mistakes lead to None.
    numbers = any(result.got is not None for result in mistaken)
    for group in (results, mistaken) if numbers else (results,):
        for gives, en, ja in mistakes:
            if all(gives(*result.case, got=result.got) for result in group):
                return en, ja
    return NO_TEXT


def is_same_number(got: Any, want: Any) -> bool:
    """Return whether ``got`` is a number that equals ``want`` exactly."""
    return is_number(got) and bool(got == want)


def matches_formula(
    formula: Callable[..., Any], same: Callable[[Any, Any], bool] = is_close_number
) -> Callable[..., bool]:
    """Return a predicate that tests whether an answer returned ``formula(*case)``.

    The predicate recognizes a known mistake. It returns False if ``formula`` returns None.
    ``same(got, value)`` compares the two results.
    """

    def gives(*case: Any, got: Any) -> bool:
        value = formula(*case)
        return value is not None and same(got, value)

    return gives


def formula_mistakes(
    matches: Callable[[Any], Callable[..., bool]], rows: Sequence[Tuple[Any, str, str]]
) -> List[Mistake]:
    """Return a mistake for each row (wrong formula, English text, Japanese text).

    ``matches(formula)`` returns the predicate that recognizes the mistake.
    """
    return [(matches(formula), en, ja) for formula, en, ja in rows]


def to_list(value: Any) -> Any:
    """Convert a list, tuple, array or generator to a list. Return other values unchanged."""
    if isinstance(value, (str, bytes, dict)):
        return value
    try:
        return list(value)
    except TypeError:
        return value
