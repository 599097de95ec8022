"""Shared formatting of all measurements' tables, which fit into a terminal."""

from __future__ import annotations

import textwrap
from typing import Iterable, Optional

WIDTH = 80


def format_table(lines: Iterable[str], *notes: str) -> str:
    """Return the lines of a table, then each note as a paragraph."""
    return "\n\n".join(["\n".join(lines), *(textwrap.fill(note, WIDTH) for note in notes)])


def missing_row(label: str, reason: Optional[str]) -> str:
    """Return the line of a row without numbers: its label, and as much of the reason as fits."""
    shortened = textwrap.shorten(reason or "not measured", WIDTH - len(label), placeholder="...")
    return f"{label}{shortened}"


def rounds_text(rounds: int) -> str:
    """Return ``9 interleaved rounds``."""
    return f"{rounds} interleaved round{'s' * (rounds > 1)}"


def format_microseconds(seconds: Optional[float]) -> str:
    """Return ``12.3`` or, from a millisecond on, ``1,234``; ``-`` for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.1f}"


def format_factor(factor: Optional[float]) -> str:
    """Return ``1.01 x``, or ``12 x`` from ten on; ``-`` for None."""
    if factor is None:
        return "-"
    return f"{factor:,.0f} x" if factor >= 10 else f"{factor:.2f} x"


def outcome_line(claim: str, shown: Optional[str], reached: bool) -> str:
    """Return ``claim: 1.60x reached``, ``claim: 1.59x not reached`` or ``claim: not measured``."""
    if shown is None:
        return f"{claim}: not measured"
    return f"{claim}: {shown} {'reached' if reached else 'not reached'}"
