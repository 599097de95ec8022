"""Which device plays which rank of a store's schedule, by the links between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.nvml_links import nvml_topology
from gluonlab.collectives.placing import best_order
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.topology import Topology, make_topology
from gluonlab.gpu import nvml
from gluonlab.gpu.cuda import pci_bus_ids

if TYPE_CHECKING:
    from mxnet import Context

FEWEST = 3  # two devices have one way of being neighbours


class Placement(NamedTuple):
    """Rank r is played by ``ctxs[order[r]]``; ``why`` says by what it was chosen.

    It is empty where there was nothing to choose. ``schedules``: where they were made for the
    links, which of them sums from how many bytes on.
    """

    order: Tuple[int, ...]
    why: str = ""
    schedules: Tuple[str, ...] = ()

    def settings(self, ctxs: "Sequence[Context]") -> Dict[str, Any]:
        """As plain values, for config.json."""
        if self.schedules:
            return {"placed": self.why, "schedules": list(self.schedules)}
        return {"placed": self.why, "order": [str(ctxs[device]) for device in self.order]}

    def in_words(self, ctxs: "Sequence[Context]") -> str:
        """``order gpu(0) gpu(3) ..., by the links that NVML reports``.

        The text is empty where there was nothing to choose.
        """
        if self.schedules:
            return f"{', '.join(self.schedules)}, {self.why}"
        devices = " ".join(str(ctxs[device]) for device in self.order)
        return f"order {devices}, {self.why}" if self.why else ""


class Ground(NamedTuple):
    """The topology of some devices, if it is known, and why it is that one, or unknown."""

    topology: Optional[Topology]
    why: str


def ground_of(ctxs: "Sequence[Context]", topology: Optional[str] = None) -> Ground:
    """The topology of ``ctxs``: of the machine named ``topology``, or as NVML reports the links.

    The name may be a file's, ``m.json``. GPU i of a named machine is nvidia-smi's GPU i here; of
    CPU devices the first stands for its GPU 0, and so on. Without a name nothing is asked for CPU
    devices. Raises ScheduleError for an unknown name, and for devices that the named machine has
    not.
    """
    on_gpus = all(ctx.device_type == "gpu" for ctx in ctxs)
    if topology is not None:
        machine = make_topology(topology)
        numbers = nvml_numbers(ctxs) if on_gpus else None
        if numbers is None:  # NVML does not answer: as MXNet counts them
            numbers = [ctx.device_id for ctx in ctxs] if on_gpus else list(range(len(ctxs)))
        if max(numbers) >= machine.world_size:  # of pcie and nvswitch there may be more
            machine = make_topology(topology, max(numbers) + 1)
        return Ground(machine.subset(numbers), f"by the links of {topology}")
    if not on_gpus or len(ctxs) < FEWEST:
        return Ground(None, "")
    driver, numbers = nvml.known(), nvml_numbers(ctxs)
    if numbers is None:
        reason = driver.error or f"it does not know {' '.join(map(str, ctxs))}"
        return Ground(None, f"as numbered: NVML reports no links ({reason})")
    return Ground(nvml_topology(driver, numbers), "by the links that NVML reports")


def place(schedule: Schedule, ground: Ground) -> Placement:
    """The cheapest order found for ``schedule``; as numbered if the topology is unknown."""
    if ground.topology is None or schedule.world_size < FEWEST:
        return Placement(tuple(range(schedule.world_size)), ground.why)
    return Placement(tuple(best_order(schedule, ground.topology)), ground.why)


def nvml_numbers(ctxs: "Sequence[Context]") -> Optional[List[int]]:
    """NVML's number of each GPU, by its place on the PCI bus.

    CUDA numbers GPUs in its own way. None where NVML does not know them all.
    """
    at = {_bus(gpu.bus_id): gpu.index for gpu in nvml.known().gpus}
    numbers = [at.get(_bus(bus_id)) for bus_id in pci_bus_ids(ctxs)] if at else [None]
    return [number for number in numbers if number is not None] if None not in numbers else None


def _bus(bus_id: str) -> Tuple[int, str]:
    """``0000:00:1b.0`` of CUDA and ``00000000:00:1B.0`` of NVML are the same."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return int(domain, 16), rest
    except ValueError:  # CUDA did not tell
        return -1, bus_id
