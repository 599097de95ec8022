"""The groups of processes and devices that ``bench scaling`` compares.

Imports neither MXNet nor Horovod.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from gluonlab.bench.harness.backends import HOROVOD, PATIENCE, missing, parse_backends
from gluonlab.bench.harness.rounds import Subject
from gluonlab.bench.peers.work import TASKS
from gluonlab.config.values import whole
from gluonlab.errors import ConfigError, unknown

NETWORKS = ("lenet", "resnet18")
WEAK, STRONG = "weak", "strong"
PROCESSES, DEVICES = "1,2", "1,2"
MOST = 64  # processes on a host, and devices of one
ONE_PROCESS = ""  # the backend of a process alone


class Way(NamedTuple):
    """So many ``processes`` with ``devices`` each, over a ``backend``, on one global batch."""

    processes: int
    devices: int
    backend: str
    global_batch_size: int

    @property
    def name(self) -> str:
        """``2x1 dist_sync``, or ``1x2`` for a process alone."""
        return f"{self.processes}x{self.devices} {self.backend}".strip()

    @property
    def all_devices(self) -> int:
        """Those of all processes together."""
        return self.processes * self.devices


def check_network(name: str) -> str:
    """The name. Raises ConfigError, with the choices, for another one."""
    if name not in NETWORKS:
        raise ConfigError(unknown("network", name, NETWORKS))
    return name


def parse_counts(option: str, text: str) -> List[int]:
    """Numbers, separated by commas, in ascending order. Raises ConfigError."""
    check = whole(1, MOST)
    return sorted({check(option, part.strip()) for part in text.split(",")})


def check_kind(kind: str) -> str:
    """The name. Raises ConfigError for another one."""
    if kind not in (WEAK, STRONG):
        raise ConfigError(unknown("scaling", kind, (WEAK, STRONG)))
    return kind


def usual_batch(network: str) -> int:
    """Images per device with weak scaling: half of what two devices share in ``bench peers``."""
    return TASKS[network].global_batch_size // 2


def make_ways(
    network: str,
    kind: str,
    processes: Sequence[int],
    devices: Sequence[int],
    backends: Sequence[str],
) -> List[Way]:
    """One device first, then those with more, each beside one process with as many devices.

    With ``WEAK`` scaling each device has the usual batch; with ``STRONG``, all share that of two.
    """
    per_device = usual_batch(network)

    def way(processes: int, devices: int, backend: str) -> Way:
        batch = per_device * (processes * devices if kind == WEAK else 2)
        return Way(processes, devices, backend, batch)

    many = [
        way(count, each, backend)
        for count in processes
        for each in devices
        for backend in backends
        if count > 1
    ]
    alone = {1, *(devices if 1 in processes else ()), *(each.all_devices for each in many)}
    ways = [*(way(1, count, ONE_PROCESS) for count in sorted(alone)), *many]
    return sorted(ways, key=lambda each: (each.all_devices, each.processes, each.backend))


def asked_for(options: Mapping[str, str]) -> List[Way]:
    """The ways of a measurement, by its options. Raises ConfigError."""
    return make_ways(
        check_network(options["network"]),
        check_kind(options["scaling"]),
        parse_counts("--processes", options["processes"]),
        parse_counts("--gpus", options["gpus"]),
        parse_backends(options["backends"]),
    )


def subjects(network: str, ways: Sequence[Way]) -> List[Subject]:
    """What is measured: processes on this host, whose devices are CPU devices of one thread."""
    return [_subject(network, each) for each in ways]


def _subject(network: str, way: Way) -> Subject:
    options: Dict[str, Any] = {
        "task": network,
        "device_count": way.devices,
        "threads": 1,
        "global_batch_size": way.global_batch_size,
    }
    job = "gluonlab"
    if way.processes > 1:
        job, options = "member", {**options, "backend": way.backend, "processes": way.processes}
    images, reason = way.global_batch_size, missing(way.backend)
    variables = PATIENCE.get(way.backend, {})
    # Horovod's processes talk to each other all the time
    pauses = way.backend == HOROVOD
    return Subject(
        way.name, way.name, job, options, variables, reason, images=images, pauses=pauses
    )
