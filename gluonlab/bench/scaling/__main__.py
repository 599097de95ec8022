"""python -m gluonlab.bench scaling: its options, and the measurement."""

from __future__ import annotations

from functools import partial

from gluonlab.bench.harness import rates
from gluonlab.bench.harness.backends import BACKENDS, parse_backends
from gluonlab.bench.harness.command import INTERRUPTED, Asked, measurement, option
from gluonlab.bench.harness.rounds import measure
from gluonlab.bench.scaling import table as _table
from gluonlab.bench.scaling import ways as _ways
from gluonlab.cli.command import command

ROUNDS = 7


@command("python -m gluonlab.bench scaling", INTERRUPTED)
@measurement(ROUNDS, beside=False)
@option("--network", "NAME", f"one of {', '.join(_ways.NETWORKS)}", "lenet")
@option("--scaling", "KIND", "weak: a batch for each device; strong: one for all", _ways.WEAK)
@option("--processes", "N,N", "numbers of processes", _ways.PROCESSES)
@option("--gpus", "N,N", "numbers of devices of each process", _ways.DEVICES)
@option("--backends", "NAMES", "what carries the sums between them", ",".join(BACKENDS))
def scaling(
    asked: Asked, network: str, scaling: str, processes: str, gpus: str, backends: str
) -> None:
    """Measure the same training by more devices and more processes, on CPU devices of this host.

    Each device has one thread. A slow result is a result: it does not change the exit status.
    """
    kind = _ways.check_kind(scaling)
    ways = _ways.make_ways(
        _ways.check_network(network),
        kind,
        _ways.parse_counts("--processes", processes),
        _ways.parse_counts("--gpus", gpus),
        parse_backends(backends),
    )
    title = ("scaling", {"network": network, "scaling": kind, "processes": processes,
                         "gpus": gpus, "backends": backends})  # fmt: skip
    measured = partial(measure, _ways.subjects(network, ways))
    _, record = asked.record(title, measured, rates.series)
    asked.say(record, _table.text(network, kind, ways, record.series, asked.rounds))


if __name__ == "__main__":
    scaling()
