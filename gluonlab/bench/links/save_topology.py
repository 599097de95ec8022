"""The topology of what was measured or of what the driver reports, with a note of how."""

from __future__ import annotations

import re
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Optional, Sequence

import gluonlab
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.bench.harness.measurement_command import gpu_names, in_words
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.bench.links import infer_topology
from gluonlab.bench.links.measure_links import LinkMeasurement
from gluonlab.collectives.named_topologies import Topology, nvml_numbers, nvml_topology
from gluonlab.collectives.topology_file import write_topology
from gluonlab.errors import DeviceError
from gluonlab.files.atomic_files import new_file
from gluonlab.gpu import nvml
from gluonlab.host import resources
from gluonlab.performance_model.gpu_specifications import GPUS
from gluonlab.plain_text import escape_unprintable, json_text
from gluonlab.plain_text import format_size as size_in_words

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


def topology_of(found: LinkMeasurement, ctxs: Sequence[Any], name: str) -> Topology:
    """What was measured of ``ctxs``, as prices and placements take it."""
    note = _note(found, ctxs)
    if found.speeds is not None:
        shared = found.speeds.topology(len(ctxs))
        return replace(shared, name=name, note=f"{note}; {shared.note}")
    parts = "; ".join(
        [note, *infer_topology.in_words(infer_topology.shared_links(found.measured)), INFERRED]
    )
    return infer_topology.topology_of(found.measured, name, parts, kind_of(gpu_names(ctxs)) or "")


def _note(found: LinkMeasurement, ctxs: Sequence[Any]) -> str:
    sizes = " to ".join(size_in_words(size) for size in (min(found.sizes), max(found.sizes)))
    return escape_unprintable(
        f"measured on {time.strftime('%Y-%m-%d', time.gmtime())} by gluonlab "
        f"{gluonlab.__version__}, bench links, {found.rounds} rounds of {sizes}, on {cpu_model()}, "
        f"{resources.available_cores()} cores, {in_words(ctxs)}"
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


# --- nominal links, as the driver reports them

OTHERWISE = (
    "measure the devices, without --nvml, or write a file by hand, as docs/topologies.md shows one"
)


def save_reported(save: str, as_json: bool) -> str:
    """Write all GPUs of this machine and their links to the new file ``save``; say what they are.

    Raises DeviceError where the driver reports fewer than two GPUs, or not all of them.
    """
    topology = reported(nvml.known(), Path(save).stem)
    with new_file("--save", Path(save)) as temporary:
        write_topology(topology, temporary)
    if as_json:
        head = {"topology": topology.name, "world_size": topology.world_size}
        return json_text({**head, "gpu": topology.gpu, "note": topology.note})
    what = f"{topology.name}: {topology.world_size} GPUs, {topology.gpu or 'of an unknown kind'}"
    lines = [what, *textwrap.wrap(f"{topology.note}.", WIDTH)]
    use = f"written to {save}: python -m gluonlab.bench allreduce --simulate {save}"
    return "\n".join([*lines, "", use])


def reported(driver: nvml.Driver, name: str) -> Topology:
    """Device i is nvidia-smi's GPU i."""
    if driver.error:
        raise DeviceError(f"--nvml: NVML reports no links ({driver.error}): {OTHERWISE}")
    if driver.silent:
        number, reason = driver.silent[0]
        raise DeviceError(f"--nvml: GPU {number} does not answer ({reason}): see nvidia-smi")
    if len(driver.gpus) < 2:
        raise DeviceError(
            f"--nvml: NVML reports {len(driver.gpus)} GPU, and links are between two: {OTHERWISE}"
        )
    topology = nvml_topology(driver, sorted(gpu.index for gpu in driver.gpus))
    kind = kind_of([gpu.name for gpu in driver.gpus]) or ""
    return replace(topology, name=name, gpu=kind)
