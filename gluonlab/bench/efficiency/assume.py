"""What a prediction of efficiency assumes, in sentences, for the table and for the picture."""

from __future__ import annotations

from typing import List, Mapping

from gluonlab.bench.efficiency.predict import NETWORK, SERVER_ADDS, Step
from gluonlab.collectives.topology import GBIT, NETWORKS, make_topology


def describe(machine: str, step: Step) -> str:
    """``p3.16xlarge: 8 x V100 a host, 25 Gb/s, a step of one GPU 186.5 ms``."""
    return (
        f"{machine}: {host_in_words(machine, step)}, a step of one GPU {step.seconds * 1e3:.1f} ms"
    )


def host_in_words(machine: str, step: Step) -> str:
    """``8 x V100 a host, 25 Gb/s``: its GPUs, and the speed of its network in each direction."""
    network, count = NETWORKS[machine], make_topology(machine).world_size
    gigabits = f"{network.bytes_per_s / GBIT:g} Gb/s"
    several = f"{network.nics} x {gigabits}" if network.nics > 1 else gigabits
    return f"{count} x {step.gpu} a host, {several}"


def assumptions(steps: Mapping[str, Step], gradient_bytes: float, network: bool) -> List[str]:
    """Sentences, paragraph by paragraph; ``network``: whether the gradients are ResNet-50's."""
    known = {step.gpu: step for step in steps.values()}
    times = "; ".join(
        f"{gpu} {step.seconds * 1e3:.1f} ms ({step.origin})" for gpu, step in known.items()
    )
    latencies = sorted({NETWORKS[name].latency_s * 1e6 for name in steps})
    messages = " or ".join(f"{latency:g}" for latency in latencies)
    whose = f"{NETWORK}, {gradient_bytes / 1e6:.1f}" if network else f"{gradient_bytes / 1e6:,.1f}"
    return [
        "Predicted, not measured. Efficiency is images/s by one GPU's times their number; each "
        "keeps its batch (weak scaling).",
        f"{whose} MB of gradients, summed once a step. A step of one GPU: {times}. Two thirds of "
        "it are backward.",
        f"Networks at nominal speed and otherwise idle; {messages} µs a message between hosts "
        "(inferred), one after the other on a NIC; a barrier after each step of a schedule. Links "
        "of GPUs: gluonlab's topologies, partly inferred.",
        "hierarchical: rings within hosts, then across. flat ring: one through all GPUs. parameter "
        "server: a server on each host; a ring within hosts, one GPU's copies to memory and back "
        f"over PCIe, additions at {SERVER_ADDS / 1e9:g} GB/s (inferred); none for one host.",
        "Not counted: reading images, updates, unequal GPUs, other traffic.",
    ]
