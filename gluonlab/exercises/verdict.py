"""What a check came to, as text and as a box in a notebook."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from gluonlab.exercises.languages import Texts

PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW = "passed", "wrong", "unwritten", "raised", "too slow"

_NAME = {"en": "Exercise", "ja": "演習"}
_HEADINGS = {
    PASSED: {"en": "correct", "ja": "正解です"},
    WRONG: {"en": "not right yet", "ja": "まだ正しくありません"},
    UNWRITTEN: {"en": "not written yet", "ja": "まだ書かれていません"},
    RAISED: {"en": "stopped by an error", "ja": "エラーで止まりました"},
    TOO_SLOW: {"en": "not finished in time", "ja": "時間内に終わりませんでした"},
}
_COLOURS = {
    PASSED: "#1a7f37",
    WRONG: "#bc4c00",
    UNWRITTEN: "#8c959f",
    RAISED: "#cf222e",
    TOO_SLOW: "#cf222e",
}


@dataclass(frozen=True)
class Verdict:
    """What came of a check; true if the answer passed.

    ``status``: passed, wrong, unwritten, raised or too slow; ``texts``: what there is to say, in
    each language.
    """

    exercise: str
    status: str
    texts: Texts
    language: str = "en"

    def __bool__(self) -> bool:
        return self.status == PASSED

    @property
    def heading(self) -> str:
        """Which exercise, and how it went."""
        return f"{_NAME[self.language]} {self.exercise}: {_HEADINGS[self.status][self.language]}"

    @property
    def message(self) -> str:
        """What to look at; empty for a right answer."""
        return self.texts[self.language]

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.heading, self.message]))

    def _repr_html_(self) -> str:
        """A box with a coloured edge, in the colours that the page has."""
        message = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self.message))
        body = f'<div style="white-space: pre-wrap">{message}</div>' if message else ""
        edge = (
            f"border-left: 4px solid {_COLOURS[self.status]}; padding: 0.3em 0.9em; margin: 0.3em 0"
        )
        return (
            f'<div lang="{self.language}" '
            f'style="{edge}"><strong>{html.escape(self.heading)}</strong>{body}</div>'
        )
