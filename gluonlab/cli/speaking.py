"""How a command that trains speaks: all the while, or with --quiet and --json at its end only."""

from __future__ import annotations

import sys
from typing import Optional, TextIO

from gluonlab.cli.streams import why_unread
from gluonlab.training.reporter import CLOSED, ConsoleReporter, Reporter


class QuietReporter(Reporter):
    """Says nothing, but looks after each epoch whether anybody could read the result.

    ``stream``: standard output; None where it was closed before Python began.
    """

    def __init__(self, stream: Optional[TextIO]) -> None:
        self._stream = stream
        self._look()

    def epoch_ends(self, line: str) -> None:
        self._look()

    def _look(self) -> None:
        if self.unheard is None:
            self.unheard = CLOSED if self._stream is None else why_unread(self._stream)


def make_reporter(silent: bool) -> Reporter:
    """That of a command's training. ``silent``: with --quiet or --json."""
    return QuietReporter(sys.stdout) if silent else ConsoleReporter()
