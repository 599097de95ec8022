"""The links that the driver reports, written down: nominal speeds, and nothing is measured."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

from gluonlab.bench.harness.text import WIDTH
from gluonlab.bench.links.saved import kind_of
from gluonlab.collectives.nvml_links import nvml_topology
from gluonlab.collectives.topology import Topology
from gluonlab.collectives.topology_file import write_topology
from gluonlab.errors import DeviceError
from gluonlab.files.whole import new_file
from gluonlab.gpu import nvml
from gluonlab.plain import json_text

OTHERWISE = (
    "measure the devices, without --nvml, or write a file by hand, as docs/topologies.md shows one"
)


def saved(save: str, as_json: bool) -> str:
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
