"""A measurement from beginning to end: when, where, and under which load."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence

from gluonlab.bench.harness.machine import Others, about
from gluonlab.bench.harness.record import Record, Series
from gluonlab.errors import GluonlabWarning
from gluonlab.host import cores

BUSY_CORES = 0.2  # what other processes may take before a table comes with a warning


class Session:
    """Begin it, measure, then `record` what was found."""

    def __init__(self) -> None:
        self.turns = secrets.token_hex(8)
        self._began, self._clock = time.time(), time.monotonic()
        self._load, self._others = os.getloadavg()[0], Others()

    def record(
        self,
        bench: str,
        options: Mapping[str, Any],
        rounds: int,
        series: Sequence[Series],
        checkout: "Path | None" = None,
        restart_every: "int | None" = None,
    ) -> Record:
        """The numbers together with what they depend on; ``checkout``: whose they are, when not
        this gluonlab's.
        """
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began))
        busy: Dict[str, Any] = {
            "load": round(self._load, 2),
            "others": round(self._others.cores(), 2),
        }
        seconds = round(time.monotonic() - self._clock, 1)
        found = {**about(checkout), "began": when, "seconds": seconds, **busy}
        if restart_every is not None:
            found["restart_every"] = restart_every
        return Record(bench, options, rounds, self.turns, found, tuple(series))

    def warn_if_busy(self) -> None:
        """Say so when the machine had other work meanwhile: what others take is missing in every
        rate.
        """
        others = self._others.cores()
        if others > BUSY_CORES:
            message = (
                f"other processes kept {others:.1f} of {cores.available()} cores busy "
                "meanwhile: measure again when they do not"
            )
            warnings.warn(message, GluonlabWarning, stacklevel=2)
