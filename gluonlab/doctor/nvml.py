"""The driver and its GPUs as NVML tells them (nvidia-ml-py's pynvml), taken down once, in a process of its own."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from gluonlab.doctor.process import Outcome, ask, tell

Pair = Tuple[int, int]
TIMEOUT_S = 30.0  # a driver that is being set up takes seconds for each GPU


class Process(NamedTuple):
    """A process that has memory of a GPU; ``used_bytes`` is None where the driver does not tell (containers)."""

    pid: int
    name: str
    used_bytes: "int | None"


@dataclass(frozen=True)
class Gpu:
    """A GPU under its NVML number, which is nvidia-smi's: in the order of the PCI bus."""

    index: int
    name: str
    uuid: str
    bus_id: str
    capability: Tuple[int, int]
    memory_bytes: int
    used_bytes: int
    processes: Tuple[Process, ...] = ()


@dataclass(frozen=True)
class Driver:
    """``error``: why there is nothing to tell. ``nvlinks``: (a, b), a < b -> number of links.

    ``switched``: GPUs whose NVLinks go to switches. ``no_peers``: pairs without access to each other's memory.
    """

    error: str = ""
    version: str = ""
    gpus: Tuple[Gpu, ...] = ()
    nvlinks: Dict[Pair, int] = field(default_factory=dict)
    switched: Tuple[int, ...] = ()
    no_peers: Tuple[Pair, ...] = ()

    @classmethod
    def of(cls, told: Dict[str, Any]) -> Driver:
        """From the answer of the process."""
        gpus = []
        for gpu in told["gpus"]:
            processes = tuple(Process(*process) for process in gpu["processes"])
            gpus.append(Gpu(**{**gpu, "capability": tuple(gpu["capability"]), "processes": processes}))
        links = {(a, b): count for a, b, count in told["nvlinks"]}
        pairs = tuple((a, b) for a, b in told["no_peers"])
        return cls("", told["version"], tuple(gpus), links, tuple(told["switched"]), pairs)


def look() -> Driver:
    """What the driver of this machine tells."""
    return understand(ask("gluonlab.doctor.nvml", timeout_s=TIMEOUT_S))


def understand(outcome: Outcome) -> Driver:
    """A Driver from what the process told; its ``error`` when it came to no end."""
    told, refused = outcome.answer("version"), outcome.answer("error")
    if told is not None:
        return Driver.of(told)
    return Driver(error=refused["error"] if refused else f"NVML {outcome.ended or 'told nothing'}")


def read(pynvml: Any) -> Dict[str, Any]:
    """Everything that NVML tells, as plain values. Raises pynvml.NVMLError when the driver does not answer."""
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        buses = [_text(pynvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
        links, switched = _nvlinks(pynvml, handles, buses)
        pairs = [(a, b) for a in range(len(handles)) for b in range(a + 1, len(handles))]
        return {
            "version": _text(pynvml.nvmlSystemGetDriverVersion()),
            "gpus": [_gpu(pynvml, index, handle, buses[index]) for index, handle in enumerate(handles)],
            "nvlinks": [[a, b, count] for (a, b), count in sorted(links.items())],
            "switched": switched,
            "no_peers": [pair for pair in pairs if _lacks_access(pynvml, handles[pair[0]], handles[pair[1]])],
        }
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, index: int, handle: Any, bus_id: str) -> Dict[str, Any]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "index": index,
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
        "bus_id": bus_id,
        "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "memory_bytes": int(memory.total),
        "used_bytes": int(memory.used),
        "processes": [
            [process.pid, _process_name(pynvml, process.pid), process.usedGpuMemory] for process in _processes(pynvml, handle)
        ],
    }


def _processes(pynvml: Any, handle: Any) -> List[Any]:
    # the plain name asks for version 3 only, which drivers before 510 lack
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        found = _if_told(pynvml, lambda name=name: getattr(pynvml, name)(handle))  # type: ignore[misc]
        if found is not None:
            return list(found)
    return []


def _process_name(pynvml: Any, pid: int) -> str:
    return _text(_if_told(pynvml, lambda: pynvml.nvmlSystemGetProcessName(pid)) or "?").rpartition("/")[2].split(" ")[0]


def _nvlinks(pynvml: Any, handles: List[Any], buses: List[str]) -> Tuple[Dict[Pair, int], List[int]]:
    """Links between two GPUs, each of which both of them report; and the GPUs that have links to something else."""
    ends: Dict[Pair, int] = {}
    switched = []
    for index, handle in enumerate(handles):
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = _if_told(pynvml, lambda handle=handle, link=link: pynvml.nvmlDeviceGetNvLinkState(handle, link))  # type: ignore[misc]
            if state is None:
                break  # no link of this number, nor of a higher one
            if state != pynvml.NVML_FEATURE_ENABLED:
                continue
            remote = _text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
            if remote in buses:
                other = buses.index(remote)
                pair = (min(index, other), max(index, other))
                ends[pair] = ends.get(pair, 0) + 1
            elif index not in switched:
                switched.append(index)
    return {pair: count // 2 for pair, count in ends.items()}, switched


def _lacks_access(pynvml: Any, one: Any, other: Any) -> bool:
    def status() -> Any:
        return pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_WRITE)

    told = _if_told(pynvml, status)
    return told is not None and told != pynvml.NVML_P2P_STATUS_OK


def _if_told(pynvml: Any, question: Callable[[], Any]) -> Any:
    """None for what this driver or this GPU does not tell."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    """Answer with `read`, or with ``error``."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        tell(error="nvidia-ml-py is not installed")
        return
    try:
        tell(**read(pynvml))
    except pynvml.NVMLError as error:
        tell(error=_text(error))


if __name__ == "__main__":
    main()
