"""The result of a check, as text and as a box in a notebook."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Optional

from gluonlab.exercises.languages import Texts

PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW = "passed", "wrong", "unwritten", "raised", "too slow"

_NAME = {"en": "Exercise", "ja": "演習"}
_STATUSES = {  # its colour, and what it is called
    PASSED: ("#1a7f37", {"en": "correct", "ja": "正解です"}),
    WRONG: ("#bc4c00", {"en": "not right yet", "ja": "まだ正しくありません"}),
    UNWRITTEN: ("#8c959f", {"en": "not written yet", "ja": "まだ書かれていません"}),
    RAISED: ("#cf222e", {"en": "stopped by an error", "ja": "エラーで止まりました"}),
    TOO_SLOW: ("#cf222e", {"en": "not finished in time", "ja": "時間内に終わりませんでした"}),
}


@dataclass(frozen=True)
class Verdict:
    """The result of a check; true if the answer passed.

    ``status``: passed, wrong, unwritten, raised or too slow; ``texts``: what there is to say, in
    each language; ``micros``: what a right answer costs, where that counts.
    """

    exercise: str
    status: str
    texts: Texts
    language: str = "en"
    micros: Optional[float] = None

    def __bool__(self) -> bool:
        return self.status == PASSED

    @property
    def heading(self) -> str:
        """The exercise and its status."""
        _, names = _STATUSES[self.status]
        return f"{_NAME[self.language]} {self.exercise}: {names[self.language]}"

    @property
    def message(self) -> str:
        """The counterexample, or what to do; of a right answer what it costs, or nothing."""
        return self.texts[self.language]

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.heading, self.message]))

    def _repr_html_(self) -> str:
        """A box with a coloured edge, in the colours that the page has."""
        message = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self.message))
        body = f'<div style="white-space: pre-wrap">{message}</div>' if message else ""
        edge = f"border-left: 4px solid {_STATUSES[self.status][0]}"
        return (
            f'<div lang="{self.language}" style="{edge}; padding: 0.3em 0.9em; margin: 0.3em 0">'
            f"<strong>{html.escape(self.heading)}</strong>{body}</div>"
        )
