"""What is wrong with a source: where, what, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import List

from gluonlab.errors import UsageError


class SourceError(UsageError):
    """A fault of a source; ``str()`` is one line: the file, the line, the fault and the remedy."""


class Faults:
    """The faults of one file, gathered so that all can be mended at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: List[str] = []

    def add(self, line: int, text: str) -> None:
        """``line`` counts from 1."""
        here = Path.cwd()
        path = self.path.relative_to(here) if here in self.path.parents else self.path
        self.lines.append(f"{path}:{line}: {text}")


def raise_if_any(lines: List[str]) -> None:
    """Raise SourceError with all of them, one a line."""
    if lines:
        raise SourceError("\n".join(lines))
