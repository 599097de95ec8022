"""MACHINES: which GPU each known machine has. How GPUs and hosts are linked: `collectives`."""

from __future__ import annotations

from typing import Dict, NamedTuple

from gluonlab.collectives.topology import MOST_HOSTS, NETWORKS, Topology, make_topology
from gluonlab.collectives.topology_file import is_file_name
from gluonlab.errors import ConfigError, ScheduleError, unknown
from gluonlab.prediction.gpus import GPUS, Gpu

MACHINES: Dict[str, str] = {
    "p2.16xlarge": "K80",
    "p3.2xlarge": "V100",
    "p3.8xlarge": "V100",
    "p3.16xlarge": "V100",
    "p3dn.24xlarge": "V100",
    "p4d.24xlarge": "A100",
    "g4dn.12xlarge": "T4",
    "g5.12xlarge": "A10G",
    "g5.48xlarge": "A10G",
}


class Machine(NamedTuple):
    """One machine, or several alike: ``name`` as given, and ``kind`` without their number.

    ``nominal``: whether its links have the speeds that its makers name, and not those of a file.
    """

    name: str
    kind: str
    gpu: Gpu
    topology: Topology
    nominal: bool = True

    @property
    def hosts(self) -> int:
        """How many."""
        return len(self.topology.hosts)

    @property
    def gpus_each(self) -> int:
        """GPUs of each host."""
        return self.topology.world_size // self.hosts


def find_machine(name: str) -> Machine:
    """The machine ``p3.16xlarge``, or four of them, ``p3.16xlarge*4``, or a file's, ``m.json``.

    Raises ConfigError, with what is possible, for others.
    """
    kind = name.partition("*")[0].strip()
    if is_file_name(kind):
        return _written(name)
    if kind not in MACHINES:
        several = f"; several hosts are NAME*HOSTS, up to {MOST_HOSTS}, as in p3.16xlarge*4"
        file = "; a machine of your own is a file, m.json"
        raise ConfigError(unknown("machine to predict", kind, MACHINES) + several + file)
    try:
        topology = make_topology(name)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None
    assert kind in NETWORKS
    return Machine(name, kind, GPUS[MACHINES[kind]], topology)


def _written(name: str) -> Machine:
    """The machine of a file, which says the kind of its GPUs."""
    try:
        topology = make_topology(name)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None
    if not topology.gpu:
        raise ConfigError(
            f"{name} does not say which GPUs it has, which a prediction needs: add "
            f'"gpu": "V100", or one of {", ".join(GPUS)}'
        )
    if topology.gpu not in GPUS:
        raise ConfigError(f"{name}: {unknown('gpu', topology.gpu, GPUS)}")
    if len(topology.hosts) > 1:
        raise ConfigError(
            f"{name} has {len(topology.hosts)} hosts, and a prediction takes files of one: "
            "choose NAME*HOSTS, as in p3.16xlarge*4, or write a file of one host"
        )
    return Machine(name, name, GPUS[topology.gpu], topology, nominal=False)
