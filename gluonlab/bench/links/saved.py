"""The topology of what was measured, with a note of where, when and how."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any, List, Optional, Sequence

import gluonlab
from gluonlab.bench.harness.machine import cpu_model
from gluonlab.bench.harness.measured_on import gpu_names, in_words
from gluonlab.bench.links import infer
from gluonlab.bench.links.measure import Found
from gluonlab.collectives.topology import Topology
from gluonlab.errors import DeviceError
from gluonlab.host import cores
from gluonlab.kvstores.placement import nvml_numbers
from gluonlab.plain import in_words as size_in_words
from gluonlab.plain import printable
from gluonlab.prediction.gpus import GPUS

LARGE = "A100-80GB"  # whose name has its memory at the end
INFERRED = (
    "inferred: that speeds and latencies less than 10 % apart are the same, and that all devices "
    "add like the slowest; not looked for: links that only some pairs share, such as the way up "
    "from a PCIe switch"
)


def in_order(ctxs: Sequence[Any]) -> List[Any]:
    """The devices in the order in which a topology numbers them, which is nvidia-smi's for GPUs.

    Raises DeviceError for GPUs that are not the first ones of the machine.
    """
    if ctxs[0].device_type != "gpu":
        return list(ctxs)
    numbers = nvml_numbers(ctxs)
    if numbers is None:  # NVML does not answer: as MXNet counts them
        numbers = [ctx.device_id for ctx in ctxs]
    if sorted(numbers) != list(range(len(ctxs))):
        raise DeviceError(
            f"--save: these are nvidia-smi's GPUs {', '.join(map(str, sorted(numbers)))}, and a "
            "topology has GPUs 0, 1, ... without a gap: measure all of the machine, with --devices "
            "gpu:* and without CUDA_VISIBLE_DEVICES"
        )
    return [ctx for _, ctx in sorted(zip(numbers, ctxs), key=lambda both: both[0])]


def topology_of(found: Found, ctxs: Sequence[Any], name: str) -> Topology:
    """What was measured of ``ctxs``, as prices and placements take it."""
    note = _note(found, ctxs)
    if found.speeds is not None:
        shared = found.speeds.topology(len(ctxs))
        return replace(shared, name=name, note=f"{note}; {shared.note}")
    parts = "; ".join([note, *infer.in_words(infer.shared_links(found.measured)), INFERRED])
    return infer.topology_of(found.measured, name, parts, kind_of(gpu_names(ctxs)) or "")


def _note(found: Found, ctxs: Sequence[Any]) -> str:
    sizes = " to ".join(size_in_words(size) for size in (min(found.sizes), max(found.sizes)))
    return printable(
        f"measured on {time.strftime('%Y-%m-%d', time.gmtime())} by gluonlab "
        f"{gluonlab.__version__}, bench links, {found.rounds} rounds of {sizes}, on {cpu_model()}, "
        f"{cores.available()} cores, {in_words(ctxs)}"
    )


def kind_of(names: Sequence[str]) -> Optional[str]:
    """The one of GPUS that all of these are, by NVML's names; None for others, and for a mixture.

    >>> kind_of(["Tesla V100-SXM2-16GB"] * 2), kind_of(["NVIDIA A100-SXM4-80GB"])
    ('V100', 'A100-80GB')
    """
    kinds = set()
    for name in names:
        words = re.split(r"[^A-Za-z0-9]+", name)
        known = [kind for kind in GPUS if kind in words]
        kinds.add(LARGE if known == ["A100"] and "80GB" in words else "".join(known[:1]))
    return kinds.pop() or None if len(kinds) == 1 else None
