"""Data sheets of GPUs, and the machines for which training can be predicted.

All numbers come from data sheets, not from measurements. `gluonlab.collectives.named_topologies`
contains the links between GPUs and between hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, NamedTuple

from gluonlab.collectives.named_topologies import MAX_HOSTS, NETWORKS, Topology, make_topology
from gluonlab.collectives.topology_file import is_file_name
from gluonlab.errors import ConfigError, ScheduleError, unknown

FLOAT32, TF32, FLOAT16 = "float32", "TF32", "float16"


@dataclass(frozen=True)
class GpuSpec:
    """The specification of a GPU.

    Attributes:
        name: the key in `GPUS`.
        generation: NVIDIA's name for the architecture.
        capability: the compute capability.
        flops: peak FLOP/s by kind of arithmetic: FLOAT32, TF32, FLOAT16.
        bytes_per_s: bandwidth of the memory, in bytes/s.
        memory_bytes: size of the memory, in bytes.
        cores: number of CUDA cores.
        data_sheet: the source of these numbers.
    """

    name: str
    generation: str
    capability: float
    flops: Dict[str, float]
    bytes_per_s: float
    memory_bytes: float
    cores: int
    data_sheet: str

    def arithmetic(self, dtype: str, tf32: bool = True) -> str:
        """Return the arithmetic that MXNet 1.9.1 cu112 uses for matrix products of ``dtype``.

        From compute capability 8.0 on, cuDNN and cuBLAS of CUDA 11 use TF32 for float32, unless
        NVIDIA_TF32_OVERRIDE=0 is set. gluonlab sets the variable unless --tf32 is given. From
        compute capability 7.0 on, float16 products use tensor cores.
        """
        return TF32 if tf32 and dtype == FLOAT32 and TF32 in self.flops else dtype


GPUS: Dict[str, GpuSpec] = {
    gpu.name: gpu
    for gpu in (
        GpuSpec(
            "K80", "Kepler", 3.7, {FLOAT32: 4.37e12, FLOAT16: 4.37e12}, 240e9, 12e9, 2496,
            "Tesla K80 data sheet: 8.74 TFLOP/s with boost, 480 GB/s, 4992 cores, 24 GB for its two "
            "GPUs; these are the figures of one GPU",
        ),
        GpuSpec(
            "M60", "Maxwell", 5.2, {FLOAT32: 4.825e12, FLOAT16: 4.825e12}, 160e9, 8e9, 2048,
            "Tesla M60 data sheet: 9.65 TFLOP/s with boost, 320 GB/s, 4096 cores, 16 GB for its two "
            "GPUs; these are the figures of one GPU",
        ),
        GpuSpec(
            "V100", "Volta", 7.0, {FLOAT32: 15.7e12, FLOAT16: 125e12}, 900e9, 16e9, 5120,
            "Tesla V100 data sheet, SXM2: 15.7 TFLOP/s, 125 with tensor cores, 900 GB/s, "
            "5120 cores",
        ),
        GpuSpec(
            "T4", "Turing", 7.5, {FLOAT32: 8.1e12, FLOAT16: 65e12}, 320e9, 16e9, 2560,
            "T4 data sheet: 8.1 TFLOP/s, 65 with tensor cores, 320 GB/s, 2560 cores",
        ),
        GpuSpec(
            "A10G", "Ampere", 8.6, {FLOAT32: 35e12, TF32: 35e12, FLOAT16: 70e12}, 600e9, 24e9,
            10240,
            "A10G data sheet: 35 TFLOP/s, 35 in TF32 and 70 in float16 with tensor cores, dense, 600 "
            "GB/s; 80 multiprocessors with 128 cores each: Amazon's page of G5",
        ),
        GpuSpec(
            "A100", "Ampere", 8.0, {FLOAT32: 19.5e12, TF32: 156e12, FLOAT16: 312e12}, 1555e9, 40e9,
            6912,
            "A100 data sheet, 40 GB SXM: 19.5 TFLOP/s, 156 in TF32 and 312 in float16 with tensor "
            "cores, dense, 1555 GB/s, 6912 cores",
        ),
        GpuSpec(
            "A100-80GB", "Ampere", 8.0, {FLOAT32: 19.5e12, TF32: 156e12, FLOAT16: 312e12}, 2039e9,
            80e9, 6912, "A100 data sheet, 80 GB SXM: like 40 GB, but 2039 GB/s",
        ),
    )
}  # fmt: skip


# --- machines

# EC2 instance type -> key of GPUS
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
    """A machine of one host, or of several identical hosts.

    ``name``: as the user wrote it, such as ``p3.16xlarge*4``. ``kind``: the name without the number
    of hosts. ``nominal``: whether the speeds of the links come from data sheets instead of a
    topology file.
    """

    name: str
    kind: str
    gpu: GpuSpec
    topology: Topology
    nominal: bool = True

    @property
    def hosts(self) -> int:
        """Return the number of hosts."""
        return len(self.topology.hosts)

    @property
    def gpus_each(self) -> int:
        """Return the number of GPUs of each host."""
        return self.topology.world_size // self.hosts


def find_machine(name: str) -> Machine:
    """Return the machine with this name.

    ``name``: an instance type such as ``p3.16xlarge``; several hosts of a type, such as
    ``p3.16xlarge*4``; or a topology file, such as ``m.json``. Raises ConfigError, which lists the
    choices, for other names.
    """
    kind = name.partition("*")[0].strip()
    if is_file_name(kind):
        return _read_machine_file(name)
    if kind not in MACHINES:
        several = f"; for up to {MAX_HOSTS} hosts, use NAME*HOSTS, such as p3.16xlarge*4"
        file = "; for your own machine, pass a topology file, such as m.json"
        raise ConfigError(unknown("machine", kind, MACHINES) + several + file)
    try:
        topology = make_topology(name)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None
    assert kind in NETWORKS
    return Machine(name, kind, GPUS[MACHINES[kind]], topology)


def _read_machine_file(name: str) -> Machine:
    """Read a machine from a topology file. The file's ``gpu`` must be a key of GPUS."""
    try:
        topology = make_topology(name)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None
    if not topology.gpu:
        raise ConfigError(
            f"{name} does not name the type of its GPUs, which a prediction needs: "
            f'add "gpu": "V100" or another of these types: {", ".join(GPUS)}'
        )
    if topology.gpu not in GPUS:
        raise ConfigError(f"{name}: {unknown('gpu', topology.gpu, GPUS)}")
    if len(topology.hosts) > 1:
        raise ConfigError(
            f"{name} describes {len(topology.hosts)} hosts, but predictions support only files that describe one "
            "host: pass NAME*HOSTS, such as p3.16xlarge*4, or a file that describes one host"
        )
    return Machine(name, name, GPUS[topology.gpu], topology, nominal=False)
