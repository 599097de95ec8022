"""Rounds of bench scaling with several stores and splits: images/s, and seconds to the end of the
first step.

Does not import MXNet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple

from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Subject, image_rates, measure
from gluonlab.bench.scaling import ONE_PROCESS, WEAK, Way, make_ways, subjects
from gluonlab.bench.splits import CHANNELS, LAYERS, MICROBATCHES, PIPELINES, SUMS, run_options
from gluonlab.study.benches import as_values

SPLITS = (LAYERS, CHANNELS, *PIPELINES)
DEVICE = "device"  # MXNet's store, which also stands for one device: it calls none


class Case(NamedTuple):
    """A way of `gluonlab.bench.scaling`, and ``how`` its process's devices share the work.

    ``how``: the store that sums their gradients, or one of SPLITS, which spreads one copy of the
    network over them.
    """

    how: str
    kind: str
    way: Way

    @property
    def name(self) -> str:
        """Of its series of images/s."""
        return f"{self.kind} {self.how} {self.way.devices}"


def cases(options: Mapping[str, Any]) -> List[Case]:
    """One device once for each kind, then each store and each split with several."""
    ways = hows(options)
    return [
        Case(how, kind, way)
        for kind in options["kinds"]
        for way in make_ways(options["network"], kind, [1], options["devices"], [])
        for how in ways
        if way.backend == ONE_PROCESS and (way.devices > 1 or how == ways[0])
    ]


def hows(options: Mapping[str, Any]) -> List[str]:
    """The stores, of which there is one at least, and the splits."""
    return [*options["stores"], *options["splits"]]


def one_round(settings: Mapping[str, Any], number: int) -> Dict[str, Any]:
    """Images/s of every case, and its start: one round of bench's measurement."""
    wanted = cases(settings)
    found = measure([_subject(case, settings["network"]) for case in wanted], rounds=1)
    series = image_rates(found)
    starts = (
        Series(f"start {one.name}", one.name, "s", tuple(each.starts) if one.values else (),
               one.reason)
        for one, each in zip(series, found)
    )  # fmt: skip
    return as_values([*series, *starts])


def _subject(case: Case, network: str) -> Subject:
    [subject] = subjects(network, [case.way])
    if case.how in SPLITS:
        options = {**subject.options, "split": run_options(case.how, MICROBATCHES), "kvstore": SUMS}
    else:
        options = {**subject.options, "kvstore": case.how}
    name = case.name.replace(" ", "-")  # of a file, too
    return replace(subject, name=name, label=name, options=options)


def kinds_of(wanted: List[Case]) -> Iterator[str]:
    """Weak before strong."""
    yield from sorted({case.kind for case in wanted}, key=lambda kind: kind != WEAK)
