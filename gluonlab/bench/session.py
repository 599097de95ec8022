"""A measurement from beginning to end: when, where, under which load, and alone or in turns with another checkout."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from gluonlab import engine
from gluonlab.bench.machine import Others, about
from gluonlab.bench.record import Record, Series
from gluonlab.bench.rounds import Measurement, Subject, measure
from gluonlab.errors import ConfigError, GluonlabWarning

BUSY_CORES = 0.2  # what other processes may take before a table comes with a warning
BESIDE = "@beside"  # behind the name of a subject of the other checkout

ToSeries = Callable[[Sequence[Measurement]], List[Series]]


class Session:
    """Begin it, measure, then `record` what was found."""

    def __init__(self) -> None:
        self.turns = secrets.token_hex(8)
        self._began, self._clock = time.time(), time.monotonic()
        self._load, self._others = os.getloadavg()[0], Others()

    def record(
        self, bench: str, options: Mapping[str, Any], rounds: int, series: Sequence[Series], checkout: "Path | None" = None
    ) -> Record:
        """The numbers together with what they depend on; ``checkout``: whose they are, when not this gluonlab's."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began))
        busy: Dict[str, Any] = {"load": round(self._load, 2), "others": round(self._others.cores(), 2)}
        seconds = round(time.monotonic() - self._clock, 1)
        return Record(
            bench, options, rounds, self.turns, {**about(checkout), "began": when, "seconds": seconds, **busy}, tuple(series)
        )

    def warn_if_busy(self) -> None:
        """Say so when the machine had other work meanwhile: what others take is missing in every rate."""
        others = self._others.cores()
        if others > BUSY_CORES:
            message = f"other processes kept {others:.1f} of {engine.cores()} cores busy meanwhile: measure again when they do not"
            warnings.warn(message, GluonlabWarning, stacklevel=2)


def check_checkout(path: Path) -> Path:
    """The folder of another gluonlab, whole. Raises ConfigError for one that holds none."""
    if not (path / "gluonlab" / "bench" / "worker.py").is_file():
        raise ConfigError(f"--beside {path}: there is no gluonlab/bench in it: give the folder of another checkout of gluonlab")
    return path.resolve()


def measure_beside(subjects: Sequence[Subject], rounds: int, checkout: Path) -> Tuple[List[Measurement], List[Measurement]]:
    """Measure every subject here and of ``checkout``, one right after the other in each round; the two lists."""
    theirs = [dataclasses.replace(one, name=one.name + BESIDE, label=f"{one.label}, beside", checkout=checkout) for one in subjects]
    found = measure([each for pair in zip(subjects, theirs) for each in pair], rounds)
    for measurement in found[1::2]:
        measurement.subject = dataclasses.replace(measurement.subject, name=measurement.subject.name[: -len(BESIDE)])
    return found[::2], found[1::2]
