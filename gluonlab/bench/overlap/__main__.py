"""python -m gluonlab.bench overlap: its options, and the measurement."""

from __future__ import annotations

from functools import partial
from typing import Optional

from gluonlab.bench.harness.command import INTERRUPTED, ON, Asked, measurement, option
from gluonlab.bench.harness.rounds import measure
from gluonlab.bench.overlap import table as _table
from gluonlab.cli.command import command


@command("python -m gluonlab.bench overlap", INTERRUPTED)
@measurement(_table.ROUNDS, beside=False)
@option("--network", "NAME", f"one of {', '.join(_table.NETWORKS)}", "resnet18")
@ON
def overlap(asked: Asked, network: str, devices: Optional[str]) -> None:
    """Measure what --overlap costs and brings.

    It runs on two CPU devices, or on those named.
    A slow result is a result: it does not change the exit status.
    """
    network, on = _table.check_network(network), _table.on_devices(devices)
    title = ("overlap", {"network": network, **on.title()})
    measured = partial(measure, _table.subjects(network, on))
    _, record = asked.record(title, measured, _table.series)
    asked.say(record, _table.text(network, record.series, asked.rounds), on)


if __name__ == "__main__":
    overlap()
