"""python -m gluonlab.bench scaling: its options, and the measurement."""

from __future__ import annotations

from functools import partial

from gluonlab.bench.harness import rates
from gluonlab.bench.harness.backends import BACKENDS
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
    """Measure the same training by more devices and more processes.

    The devices are CPU devices of this host.
    Each device has one thread. A slow result is a result: it does not change the exit status.
    """
    options = {"network": network, "scaling": scaling, "processes": processes, "gpus": gpus}
    options["backends"] = backends
    ways = _ways.asked_for(options)
    measured = partial(measure, _ways.subjects(network, ways))
    _, record = asked.record(("scaling", options), measured, rates.series)
    asked.say(record, _table.text(network, scaling, ways, record.series, asked.rounds))


if __name__ == "__main__":
    scaling()
