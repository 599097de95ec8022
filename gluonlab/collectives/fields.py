"""The keys of a JSON object that a person has written, each checked as it is taken."""

from __future__ import annotations

import math
from typing import Any, Callable, List, Mapping, NoReturn, Optional, Sequence, TypeVar

from gluonlab.errors import ScheduleError, unknown

SCHEDULES = "gluonlab schedules 1"  # the format of a file of schedules that were found
LONGEST_NAME, LONGEST_TEXT = 100, 4000  # characters
# What can be: within it no price overflows. The least, the most, and an example.
SPEEDS, SECONDS = (1, 1e18, "25e9"), (0, 1e6, "1e-5")
_T = TypeVar("_T")


class Fields:
    """One JSON object; ``where``: the file, and the object's place in it, for error messages.

    Raises ScheduleError for what is no object, and for keys that are not ``known``; its methods
    raise it for values that are not what they should be, and for keys that are missing.
    """

    def __init__(self, where: str, content: Any, known: Sequence[str]) -> None:
        self.where = where
        if not isinstance(content, dict):
            self.refuse(f"{shown(content)} is no object: give {{...}} with {', '.join(known)}")
        for key in content:
            if key not in known:
                self.refuse(unknown("key", key[:LONGEST_NAME], known))
        self._content: Mapping[str, Any] = content

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def refuse(self, why: str) -> NoReturn:
        """Raise the ScheduleError that says why, and where it stands."""
        raise ScheduleError(f"{self.where}: {why}")

    def value(self, key: str, wanted: str) -> Any:
        """What stands under ``key``; ``wanted``: what to give where nothing does."""
        if key not in self._content:
            self.refuse(f"{key} is missing: give {wanted}")
        return self._content[key]

    def number(self, key: str, otherwise: Optional[float] = None, *, zero: bool = False) -> float:
        """A number of bytes/s, or of seconds, which may be ``zero``.

        ``otherwise``: where the key is left out.
        """
        if otherwise is not None and key not in self._content:
            return otherwise
        least, most, example = SECONDS if zero else SPEEDS
        wanted = f"a number from {least:g} to {most:g}"
        value = self.value(key, wanted)
        number = _as_float(value)
        if not least <= number <= most:
            self.refuse(f"{key} is {shown(value)}: give {wanted}, such as {example}")
        return number

    def count(self, key: str, most: int) -> int:
        """A whole number from 1 to ``most``."""
        value = self.value(key, f"a whole number, 1 to {most}")
        if not (type(value) is int and 1 <= value <= most):
            self.refuse(f"{key} is {shown(value)}: give a whole number, 1 to {most}")
        return value

    def text(self, key: str, otherwise: str, longest: int = LONGEST_NAME) -> str:
        """Text on one line, or ``otherwise``, where the key is left out."""
        value = self._content.get(key, otherwise)
        if not (isinstance(value, str) and value.isprintable() and len(value) <= longest):
            self.refuse(
                f"{key} is {shown(value)}: give text on one line, up to {longest} characters"
            )
        return value

    def items(self, key: str, read: Callable[[str, Any], _T], most: int) -> List[_T]:
        """A list of up to ``most``, empty where the key is left out.

        ``read(where, item)`` makes each.
        """
        value = self._content.get(key, [])
        if not isinstance(value, list):
            self.refuse(f"{key} is {shown(value)}: give a list, [...]")
        if len(value) > most:
            self.refuse(f"{key} has {len(value)} entries: give up to {most}")
        return [read(f"{self.where}: {key}[{place}]", item) for place, item in enumerate(value)]


def _as_float(value: Any) -> float:
    """NaN for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


def shown(value: Any) -> str:
    """A value of a file in an error message, where it need not be whole."""
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else str(type(value))
    if isinstance(value, (dict, list)):
        text = ("an object" if isinstance(value, dict) else "a list") + f" of {len(value)}"
    return text if len(text) <= 60 else f"{text[:40]}..."
