"""The driver and its GPUs as NVML (nvidia-ml-py's pynvml) reports them, in its own process."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.gpu.isolated_process import ProcessExit, ask, tell

BINDINGS = "nvidia-ml-py"
Pair = Tuple[int, int]
# the widest of nvmlGpuTopologyLevel_t: below PCIe switches of one root; below one CPU
SAME_SWITCHES, SAME_CPU = 20, 40
TIMEOUT_S = 30.0  # a driver that is being set up takes seconds for each GPU


class GpuProcess(NamedTuple):
    """A process with memory of a GPU; ``used_bytes``: None if the driver does not report it."""

    pid: int
    name: str
    used_bytes: "int | None"


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU under its NVML number, which is nvidia-smi's: in the order of the PCI bus.

    ``used_bytes``: None where the driver does not report it. ``parts``: the UUIDs of its parts
    under MIG; None for a GPU that is whole.
    """

    index: int
    name: str
    uuid: str
    bus_id: str
    capability: Tuple[int, int]
    memory_bytes: int
    used_bytes: "int | None"
    processes: Tuple[GpuProcess, ...] = ()
    parts: "Tuple[str, ...] | None" = None


@dataclass(frozen=True)
class Driver:
    """The driver and its GPUs, as NVML reports them.

    ``error``: why NVML reports nothing. ``nvlinks``: (a, b), a < b -> number of links.
    ``switched``: GPUs whose NVLinks go to switches. ``no_peers``: pairs without access to each
    other's memory. ``apart``: (a, b), a < b -> where their ways over PCIe meet, one of the levels
    below; empty where the driver does not report it. ``silent``: (number, reason) of the GPUs that
    are there, but do not answer.
    """

    error: str = ""
    version: str = ""
    gpus: Tuple[NvmlGpu, ...] = ()
    nvlinks: Dict[Pair, int] = field(default_factory=dict)
    switched: Tuple[int, ...] = ()
    no_peers: Tuple[Pair, ...] = ()
    silent: Tuple[Tuple[int, str], ...] = ()
    apart: Dict[Pair, int] = field(default_factory=dict)

    @classmethod
    def of(cls, told: Dict[str, Any]) -> Driver:
        """From the answer of the process."""
        gpus = []
        for gpu in told["gpus"]:
            gpu = {**gpu, "capability": tuple(gpu["capability"])}
            gpu["processes"] = tuple(GpuProcess(*process) for process in gpu["processes"])
            gpu["parts"] = None if gpu["parts"] is None else tuple(gpu["parts"])
            gpus.append(NvmlGpu(**gpu))
        return cls(
            version=told["version"],
            gpus=tuple(gpus),
            nvlinks={(a, b): count for a, b, count in told["nvlinks"]},
            switched=tuple(told["switched"]),
            no_peers=tuple((a, b) for a, b in told["no_peers"]),
            silent=tuple((index, reason) for index, reason in told["silent"]),
            apart={(a, b): level for a, b, level in told["apart"]},
        )


@lru_cache(maxsize=1)
def known() -> Driver:
    """`look` of the first call: links do not change while a process runs."""
    return look()


def look() -> Driver:
    """What the driver of this machine reports."""
    return understand(ask("gluonlab.gpu.nvml", timeout_s=TIMEOUT_S))


def understand(outcome: ProcessExit) -> Driver:
    """A Driver from what the process told; its ``error`` when it came to no end."""
    told, refused = outcome.answer("version"), outcome.answer("error")
    if told is not None:
        return Driver.of(told)
    return Driver(
        error=refused["error"] if refused else f"NVML {outcome.ended or 'gave no answer'}"
    )


def read(pynvml: Any) -> Dict[str, Any]:
    """Everything that NVML reports, as plain values.

    Raises pynvml.NVMLError when the driver does not answer.
    """
    pynvml.nvmlInit()
    try:
        handles, gpus, silent = {}, [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            # one that has fallen off the bus, or belongs to another job of this machine, must not
            # silence the others
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(_gpu(pynvml, index, handle))
                handles[index] = handle
            except pynvml.NVMLError as error:
                silent.append((index, _text(error)))
        places = {gpu["bus_id"].lower(): gpu["index"] for gpu in gpus}
        links, switched = _nvlinks(pynvml, handles, places)
        pairs = [(a, b, handles[a], handles[b]) for a in handles for b in handles if a < b]
        levels = [(a, b, _level(pynvml, one, other)) for a, b, one, other in pairs]
        return {
            "version": _text(pynvml.nvmlSystemGetDriverVersion()),
            "gpus": gpus,
            "nvlinks": [[a, b, count] for (a, b), count in sorted(links.items())],
            "switched": switched,
            "no_peers": [(a, b) for a, b, *ends in pairs if _lacks_access(pynvml, *ends)],
            "silent": silent,
            "apart": [[a, b, level] for a, b, level in levels if level is not None],
        }
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, index: int, handle: Any) -> Dict[str, Any]:
    # of a GPU with parts not everybody may know it
    memory = _if_told(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    return {
        "index": index,
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
        "bus_id": _text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "memory_bytes": int(memory.total) if memory else 0,
        "used_bytes": int(memory.used) if memory else None,
        "processes": [
            [process.pid, _process_name(pynvml, process.pid), process.usedGpuMemory]
            for process in _processes(pynvml, handle)
        ],
        "parts": _parts(pynvml, handle),
    }


def _parts(pynvml: Any, handle: Any) -> Optional[List[str]]:
    # the present one, and the one after a reset
    mode = _if_told(pynvml, "nvmlDeviceGetMigMode", handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    most = _if_told(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    by_index = "nvmlDeviceGetMigDeviceHandleByIndex"
    parts = [_if_told(pynvml, by_index, handle, number) for number in range(most)]
    uuids = [_if_told(pynvml, "nvmlDeviceGetUUID", part) for part in parts if part is not None]
    return [_text(uuid) for uuid in uuids if uuid is not None]


def _processes(pynvml: Any, handle: Any) -> List[Any]:
    # the plain name asks for version 3 only, which drivers before 510 lack
    for version in (3, 2):
        found = _if_told(pynvml, f"nvmlDeviceGetComputeRunningProcesses_v{version}", handle)
        if found is not None:
            return list(found)
    return []


def _process_name(pynvml: Any, pid: int) -> str:
    """The program's name alone: NVML reports its arguments, too, which may have slashes."""
    words = _text(_if_told(pynvml, "nvmlSystemGetProcessName", pid) or "?").split(" ")
    return words[0].rpartition("/")[2]


def _nvlinks(
    pynvml: Any, handles: Dict[int, Any], number_at: Dict[str, int]
) -> Tuple[Dict[Pair, int], List[int]]:
    """Links between two GPUs, which both of them report; and the GPUs with links to switches."""
    ends: Dict[Pair, int] = {}
    switched = []
    for index, handle in handles.items():
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = _if_told(pynvml, "nvmlDeviceGetNvLinkState", handle, link)
            if state != pynvml.NVML_FEATURE_ENABLED:
                continue
            remote = _if_told(pynvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            other = number_at.get(_text(remote.busId).lower()) if remote else None
            if other is not None:
                pair = (min(index, other), max(index, other))
                ends[pair] = ends.get(pair, 0) + 1
            elif index not in switched and not _ends_at_a_gpu(pynvml, handle, link):
                switched.append(index)
    return {pair: count // 2 for pair, count in ends.items()}, switched


def _ends_at_a_gpu(pynvml: Any, handle: Any, link: int) -> bool:
    """One that is hidden here, as in a container that has some of the machine's GPUs."""
    kind = _if_told(pynvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    return kind is not None and kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU


def _lacks_access(pynvml: Any, one: Any, other: Any) -> bool:
    told = _if_told(pynvml, "nvmlDeviceGetP2PStatus", one, other, pynvml.NVML_P2P_CAPS_INDEX_WRITE)
    return told is not None and told != pynvml.NVML_P2P_STATUS_OK


def _level(pynvml: Any, one: Any, other: Any) -> Optional[int]:
    told = _if_told(pynvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    return None if told is None else int(told)


def _if_told(pynvml: Any, name: str, *arguments: Any) -> Any:
    """None for what this driver, this GPU, or this release of nvidia-ml-py does not report."""
    try:
        return getattr(pynvml, name)(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    """Answer with `read`, or with ``error``."""
    pynvml: Any = None
    try:
        pynvml = importlib.import_module("pynvml")
        tell(**read(pynvml))
    except ModuleNotFoundError:
        tell(error=f"{BINDINGS} is not installed")
    except Exception as error:  # other packages bring a module of this name, too
        known = isinstance(error, getattr(pynvml, "NVMLError", ()))
        where = getattr(pynvml, "__file__", "pynvml")
        reason = f"{BINDINGS} is needed; {where} fails with {type(error).__name__}: {error}"
        tell(error=_text(error) if known else reason)


if __name__ == "__main__":
    main()


class VisibleGpus(NamedTuple):
    """The GPUs that CUDA_VISIBLE_DEVICES lets through; ``problem``: why not all that it names."""

    gpus: List[NvmlGpu]
    problem: str = ""


def visible_gpus(gpus: Sequence[NvmlGpu], visible: Optional[str]) -> VisibleGpus:
    """``visible``: the value of CUDA_VISIBLE_DEVICES; its numbers count along ``gpus``.

    (CUDA C++ Programming Guide)
    """
    if visible is None:
        return VisibleGpus(list(gpus))
    shown: List[NvmlGpu] = []
    for word in [word.strip() for word in visible.split(",")] if visible.strip() else []:
        if word.startswith("-"):
            break  # means: no more
        gpu = _named(gpus, word)
        if gpu is None:
            none = f"which names none of the {len(gpus)} GPUs here, and ignores what follows"
            return VisibleGpus(shown, f"CUDA stops at {word!r}, {none}")
        if word.startswith("MIG-"):
            return VisibleGpus([gpu])  # a process computes on one part, of one GPU
        if gpu in shown:
            return VisibleGpus([], f"it names GPU {gpu.index} twice, so CUDA shows no GPU")
        shown.append(gpu)
    return VisibleGpus(shown)


def _named(gpus: Sequence[NvmlGpu], word: str) -> Optional[NvmlGpu]:
    """The one GPU that a word means: a number, or the beginning of a UUID."""
    number = re.match(r"\+?(\d+)", word)
    if number:
        return gpus[int(number[1])] if int(number[1]) < len(gpus) else None
    if word.startswith("MIG-GPU-"):  # what drivers before 470 call parts: MIG-GPU-<uuid>/3/0
        word = word[len("MIG-") :].partition("/")[0]
    if not word.startswith(("GPU-", "MIG-")):
        return None
    found = [
        gpu for gpu in gpus if any(uuid.startswith(word) for uuid in (gpu.uuid, *(gpu.parts or ())))
    ]
    return found[0] if len(found) == 1 else None


def in_cuda_order(
    gpus: Sequence[NvmlGpu], environ: Mapping[str, str] = os.environ
) -> List[NvmlGpu]:
    """As CUDA is likely to count them: by default the fastest first, which the newer ones are."""
    if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return list(gpus)
    return sorted(gpus, key=lambda gpu: gpu.capability, reverse=True)
