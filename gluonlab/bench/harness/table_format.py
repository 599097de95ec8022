"""What the tables of all measurements have in common; none is wider than a terminal."""

from __future__ import annotations

import textwrap
from typing import Iterable, Optional

WIDTH = 80


def table(lines: Iterable[str], *notes: str) -> str:
    """The lines of a table, then what its columns mean: each note is a paragraph."""
    return "\n\n".join(["\n".join(lines), *(textwrap.fill(note, WIDTH) for note in notes)])


def missing(label: str, reason: Optional[str]) -> str:
    """The line of a row that has no numbers: its label, and as much of the reason as fits."""
    why = textwrap.shorten(reason or "not measured", WIDTH - len(label), placeholder="...")
    return f"{label}{why}"


def interleaved(rounds: int) -> str:
    """``9 interleaved rounds``."""
    return f"{rounds} interleaved round{'s' * (rounds > 1)}"


def microseconds(seconds: Optional[float]) -> str:
    """``12.3`` or, from a millisecond on, ``1,234``; ``-`` for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.1f}"


def times(factor: Optional[float]) -> str:
    """``1.01 x``, or ``12 x`` from ten on; ``-`` for None."""
    if factor is None:
        return "-"
    return f"{factor:,.0f} x" if factor >= 10 else f"{factor:.2f} x"


def outcome(claim: str, shown: Optional[str], reached: bool) -> str:
    """``claim: 1.60x reached``, ``claim: 1.59x not reached`` or ``claim: not measured``."""
    if shown is None:
        return f"{claim}: not measured"
    return f"{claim}: {shown} {'reached' if reached else 'not reached'}"
