"""Collect the faults of a source: the place, the fault and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import List

from gluonlab.errors import UsageError


class SourceError(UsageError):
    """A fault of a source in one line: the file, the line, the fault and the remedy."""


class Faults:
    """The faults of one file, collected so that the author can fix all at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: List[str] = []

    def add(self, line: int, text: str) -> None:
        """Add a fault; ``line`` counts from 1."""
        here = Path.cwd()
        path = self.path.relative_to(here) if here in self.path.parents else self.path
        self.lines.append(f"{path}:{line}: {text}")


def raise_faults(lines: List[str]) -> None:
    """Raise SourceError with all faults, one a line, if there are any."""
    if lines:
        raise SourceError("\n".join(lines))
