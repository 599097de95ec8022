"""A measurement from beginning to end: when, where, and under which load."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any, Mapping, Sequence, Tuple

from gluonlab.bench.harness.machine import BUSY_CORES, HERE, Others, about
from gluonlab.bench.harness.record import Record, Series
from gluonlab.errors import warn
from gluonlab.host import resources

Title = Tuple[str, Mapping[str, Any]]  # a measurement's name and its options


class Session:
    """Begin it, measure, then `record` the numbers."""

    def __init__(self) -> None:
        self.turns = secrets.token_hex(8)
        self._began, self._clock = time.time(), time.monotonic()
        self._load, self._others = os.getloadavg()[0], Others()

    def record(
        self,
        title: Title,
        rounds: int,
        series: Sequence[Series],
        checkout: Path = HERE,
        **more: Any,
    ) -> Record:
        """The numbers of the gluonlab in ``checkout`` with what they depend on, and ``more``."""
        found = {
            **about(checkout),
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began)),
            "seconds": round(time.monotonic() - self._clock, 1),
            "load": round(self._load, 2),
            "others": round(self._others.cores(), 2),
            **more,
        }
        return Record(*title, rounds, self.turns, found, tuple(series))

    def warn_if_busy(self) -> None:
        """Warn when the machine had other work meanwhile, which makes every rate lower."""
        others = self._others.cores()
        if others > BUSY_CORES:
            message = (
                f"other processes kept {others:.1f} of {resources.available_cores()} cores busy: "
                "measure again when they are idle"
            )
            warn(message)
