"""Formats the measurements' tables, which are at most WIDTH characters wide."""

from __future__ import annotations

import textwrap
from typing import Iterable, Optional

WIDTH = 80


def format_table(lines: Iterable[str], *notes: str) -> str:
    """Return the lines of a table, followed by each note as a paragraph."""
    return "\n\n".join(["\n".join(lines), *(textwrap.fill(note, WIDTH) for note in notes)])


def missing_row(label: str, reason: Optional[str]) -> str:
    """Return the line of a row without numbers: its label, and as much of the reason as fits."""
    shortened = textwrap.shorten(reason or "not measured", WIDTH - len(label), placeholder="...")
    return f"{label}{shortened}"


def rounds_text(rounds: int) -> str:
    """Return text such as ``9 interleaved rounds``."""
    return f"{rounds} interleaved round{'s' * (rounds > 1)}"


def format_microseconds(seconds: Optional[float]) -> str:
    """Format a time in microseconds: ``12.3``, or ``1,234`` from 1 ms upward; ``-`` for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.1f}"


def format_factor(factor: Optional[float]) -> str:
    """Format a factor: ``1.01 x``, or ``12 x`` from ten upward; ``-`` for None."""
    if factor is None:
        return "-"
    return f"{factor:,.0f} x" if factor >= 10 else f"{factor:.2f} x"


def outcome_line(claim: str, shown: Optional[str], reached: bool) -> str:
    """Return ``claim: 1.60x reached``, ``claim: 1.59x not reached`` or ``claim: not measured``."""
    if shown is None:
        return f"{claim}: not measured"
    return f"{claim}: {shown} {'reached' if reached else 'not reached'}"
