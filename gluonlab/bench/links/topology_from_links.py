"""Makes topologies from measured links, or from the links that the driver reports.

The topology's note describes where the numbers come from.
"""

from __future__ import annotations

import re
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Optional, Sequence

import gluonlab
from gluonlab.bench.harness.machine_info import cpu_model
from gluonlab.bench.harness.measurement_command import describe_devices, gpu_names
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
from gluonlab.plain_text import escape_unprintable, format_size, json_text

LARGE_A100 = "A100-80GB"  # NVML's name has the memory at its end
INFERENCE_NOTE = (
    "inferred: speeds and latencies less than 10 % apart are treated as equal, and all devices add "
    "like the slowest; not detected: links that only some pairs share, such as the uplink of a "
    "PCIe switch"
)


def order_devices(ctxs: Sequence[Any]) -> List[Any]:
    """Return the devices in the order for a saved topology, which is nvidia-smi's order for GPUs.

    Raises DeviceError if the GPUs are not nvidia-smi's GPUs 0, 1, ... without gaps.
    """
    if ctxs[0].device_type != "gpu":
        return list(ctxs)
    numbers = nvml_numbers(ctxs)
    if numbers is None:  # NVML does not answer: use MXNet's numbers
        numbers = [ctx.device_id for ctx in ctxs]
    if sorted(numbers) != list(range(len(ctxs))):
        raise DeviceError(
            f"--save: the chosen devices are GPUs {', '.join(map(str, sorted(numbers)))} of nvidia-smi, but a "
            "topology requires GPUs 0, 1, ... without gaps: unset CUDA_VISIBLE_DEVICES, and measure "
            "all GPUs with --devices gpu:*"
        )
    return [ctx for _, ctx in sorted(zip(numbers, ctxs), key=lambda numbered: numbered[0])]


def topology_from_measurement(measurement: LinkMeasurement, ctxs: Sequence[Any], name: str) -> Topology:
    """Return the topology of the measured links, named ``name``."""
    note = _measurement_note(measurement, ctxs)
    if measurement.speeds is not None:
        cpu_topology = measurement.speeds.topology(len(ctxs))
        return replace(cpu_topology, name=name, note=f"{note}; {cpu_topology.note}")
    shared_links = infer_topology.find_shared_links(measurement.measured)
    note = "; ".join([note, *infer_topology.describe_shared_links(shared_links), INFERENCE_NOTE])
    return infer_topology.build_topology(measurement.measured, name, note, common_gpu_kind(gpu_names(ctxs)) or "")


def _measurement_note(measurement: LinkMeasurement, ctxs: Sequence[Any]) -> str:
    """Return a note about when, how and on which machine the links were measured."""
    sizes = " to ".join(format_size(size) for size in (min(measurement.sizes), max(measurement.sizes)))
    return escape_unprintable(
        f"measured on {time.strftime('%Y-%m-%d', time.gmtime())} by gluonlab "
        f"{gluonlab.__version__}, bench links, {measurement.rounds} rounds of {sizes}, "
        f"on {cpu_model()}, {resources.available_cores()} cores, {describe_devices(ctxs)}"
    )


def common_gpu_kind(names: Sequence[str]) -> Optional[str]:
    """Return the key in `GPUS` for GPUs with these names.

    The result is None if the GPUs are of an unknown kind or of several kinds.

    >>> common_gpu_kind(["Tesla V100-SXM2-16GB"] * 2), common_gpu_kind(["NVIDIA A100-SXM4-80GB"])
    ('V100', 'A100-80GB')
    """
    kinds = set()
    for name in names:
        words = re.split(r"[^A-Za-z0-9]+", name)
        known = [kind for kind in GPUS if kind in words]
        kinds.add(LARGE_A100 if known == ["A100"] and "80GB" in words else "".join(known[:1]))
    return kinds.pop() or None if len(kinds) == 1 else None


# --- nominal links, as the driver reports them

NVML_HINT = "measure the links without --nvml, or write a topology file as described in docs/topologies.md"


def save_reported_topology(save: str, as_json: bool) -> str:
    """Save the links between GPUs that the driver reports, and return a description.

    ``save``: the new file.

    Raises DeviceError if the driver reports fewer than two GPUs, or cannot read one of the GPUs.
    """
    topology = topology_from_driver(nvml.cached_driver(), Path(save).stem)
    with new_file("--save", Path(save)) as temporary:
        write_topology(topology, temporary)
    if as_json:
        head = {"topology": topology.name, "world_size": topology.world_size}
        return json_text({**head, "gpu": topology.gpu, "note": topology.note})
    summary = f"{topology.name}: {topology.world_size} GPUs, {topology.gpu or 'of an unknown kind'}"
    lines = [summary, *textwrap.wrap(f"{topology.note}.", WIDTH)]
    usage = f"written to {save}: use it with gluonlab allreduce simulate {save}"
    return "\n".join([*lines, "", usage])


def topology_from_driver(driver: nvml.Driver, name: str) -> Topology:
    """Return the topology that NVML reports, in which device i is nvidia-smi's GPU i."""
    if driver.error:
        raise DeviceError(f"--nvml: NVML reports no links ({driver.error}): {NVML_HINT}")
    if driver.unreadable_gpus:
        number, reason = driver.unreadable_gpus[0]
        raise DeviceError(f"--nvml: GPU {number} does not answer ({reason}): check it with nvidia-smi")
    if len(driver.gpus) < 2:
        raise DeviceError(
            f"--nvml: NVML reports only {len(driver.gpus)} GPU, but a link connects two GPUs: {NVML_HINT}"
        )
    topology = nvml_topology(driver, sorted(gpu.index for gpu in driver.gpus))
    kind = common_gpu_kind([gpu.name for gpu in driver.gpus]) or ""
    return replace(topology, name=name, gpu=kind)
