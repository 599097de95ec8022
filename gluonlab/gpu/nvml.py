"""Queries NVIDIA's driver through NVML (nvidia-ml-py's pynvml), in a separate process."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.gpu.isolated_process import ProcessOutcome, run_isolated, send_answer

BINDINGS = "nvidia-ml-py"
Pair = Tuple[int, int]
# Levels of nvmlGpuTopologyLevel_t. GPUs are connected by PCIe switches under one root port, or
# by one CPU.
SAME_SWITCHES, SAME_CPU = 20, 40
TIMEOUT_S = 30.0  # a driver that is being set up takes seconds for each GPU


class GpuProcess(NamedTuple):
    """A process that uses a GPU. ``used_bytes``: None if the driver does not report this number."""

    pid: int
    name: str
    used_bytes: "int | None"


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU, as NVML describes it.

    ``index``: the number in NVML and nvidia-smi, in the order of the PCI bus. ``used_bytes``: None
    if the driver does not report this number. ``parts``: the UUIDs of the GPU's MIG devices, into
    which a GPU can be divided; None if MIG is off.
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

    Attributes:
        error: The reason why NVML reports nothing, or "".
        version: Version of the driver.
        gpus: The GPUs that NVML can read.
        nvlinks: For each pair (a, b) with a < b, the number of NVLinks between the two GPUs.
        nvswitch_gpus: GPUs whose NVLinks lead to NVSwitches.
        pairs_without_access: Pairs of GPUs without access to each other's memory.
        unreadable_gpus: (number, reason) for each GPU that NVML cannot read.
        pcie_levels: For each pair (a, b) with a < b, the level at which the PCIe paths of the two
            GPUs meet: `SAME_SWITCHES`, `SAME_CPU` or another number of nvmlGpuTopologyLevel_t.
            Pairs are missing if the driver does not report their level.
    """

    error: str = ""
    version: str = ""
    gpus: Tuple[NvmlGpu, ...] = ()
    nvlinks: Dict[Pair, int] = field(default_factory=dict)
    nvswitch_gpus: Tuple[int, ...] = ()
    pairs_without_access: Tuple[Pair, ...] = ()
    unreadable_gpus: Tuple[Tuple[int, str], ...] = ()
    pcie_levels: Dict[Pair, int] = field(default_factory=dict)

    @classmethod
    def from_answer(cls, answer: Dict[str, Any]) -> Driver:
        """Create a Driver from an answer of `query_nvml`."""
        gpus = []
        for gpu in answer["gpus"]:
            gpu = {**gpu, "capability": tuple(gpu["capability"])}
            gpu["processes"] = tuple(GpuProcess(*process) for process in gpu["processes"])
            gpu["parts"] = None if gpu["parts"] is None else tuple(gpu["parts"])
            gpus.append(NvmlGpu(**gpu))
        return cls(
            version=answer["version"],
            gpus=tuple(gpus),
            nvlinks={(a, b): count for a, b, count in answer["nvlinks"]},
            nvswitch_gpus=tuple(answer["nvswitch_gpus"]),
            pairs_without_access=tuple((a, b) for a, b in answer["pairs_without_access"]),
            unreadable_gpus=tuple((index, reason) for index, reason in answer["unreadable_gpus"]),
            pcie_levels={(a, b): level for a, b, level in answer["pcie_levels"]},
        )


@lru_cache(maxsize=1)
def cached_driver() -> Driver:
    """Return the cached result of `read_driver`, since links do not change while a process runs."""
    return read_driver()


def read_driver() -> Driver:
    """Return the driver and GPUs of this machine. NVML is queried in a child process."""
    return parse_outcome(run_isolated("gluonlab.gpu.nvml", timeout_s=TIMEOUT_S))


def parse_outcome(outcome: ProcessOutcome) -> Driver:
    """Return the Driver that the process reported or, after a failure, a Driver with ``error``."""
    answer, error = outcome.first_answer("version"), outcome.first_answer("error")
    if answer is not None:
        return Driver.from_answer(answer)
    reason = error["error"] if error else f"NVML {outcome.failure or 'gave no answer'}"
    return Driver(error=reason)


def query_nvml(pynvml: Any) -> Dict[str, Any]:
    """Return the driver's version, its GPUs and their links, as values for JSON.

    The keys are the attributes of `Driver`. Raises pynvml.NVMLError if the driver does not answer.
    """
    pynvml.nvmlInit()
    try:
        handles, gpus, unreadable_gpus = {}, [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            # a GPU that has fallen off the bus, or belongs to another job, must not hide the others
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(_query_gpu(pynvml, index, handle))
                handles[index] = handle
            except pynvml.NVMLError as error:
                unreadable_gpus.append((index, _decode(error)))
        indices = {gpu["bus_id"].lower(): gpu["index"] for gpu in gpus}
        links, nvswitch_gpus = _count_nvlinks(pynvml, handles, indices)
        pairs = [(a, b, handles[a], handles[b]) for a in handles for b in handles if a < b]
        levels = [(a, b, _pcie_level(pynvml, one, other)) for a, b, one, other in pairs]
        return {
            "version": _decode(pynvml.nvmlSystemGetDriverVersion()),
            "gpus": gpus,
            "nvlinks": [[a, b, count] for (a, b), count in sorted(links.items())],
            "nvswitch_gpus": nvswitch_gpus,
            "pairs_without_access": [(a, b) for a, b, *ends in pairs if _lacks_access(pynvml, *ends)],
            "unreadable_gpus": unreadable_gpus,
            "pcie_levels": [[a, b, level] for a, b, level in levels if level is not None],
        }
    finally:
        pynvml.nvmlShutdown()


def _query_gpu(pynvml: Any, index: int, handle: Any) -> Dict[str, Any]:
    """Return NVML's data about one GPU: name, ids, memory, processes and MIG devices."""
    # with MIG, not every user may read the memory
    memory = _try_call(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    return {
        "index": index,
        "name": _decode(pynvml.nvmlDeviceGetName(handle)),
        "uuid": _decode(pynvml.nvmlDeviceGetUUID(handle)),
        "bus_id": _decode(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "memory_bytes": int(memory.total) if memory else 0,
        "used_bytes": int(memory.used) if memory else None,
        "processes": [
            [process.pid, _process_name(pynvml, process.pid), process.usedGpuMemory]
            for process in _compute_processes(pynvml, handle)
        ],
        "parts": _mig_uuids(pynvml, handle),
    }


def _mig_uuids(pynvml: Any, handle: Any) -> Optional[List[str]]:
    """Return the UUIDs of the GPU's MIG devices, or None if MIG is off."""
    # (current mode, mode after a reset)
    mode = _try_call(pynvml, "nvmlDeviceGetMigMode", handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    most = _try_call(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    by_index = "nvmlDeviceGetMigDeviceHandleByIndex"
    parts = [_try_call(pynvml, by_index, handle, number) for number in range(most)]
    uuids = [_try_call(pynvml, "nvmlDeviceGetUUID", part) for part in parts if part is not None]
    return [_decode(uuid) for uuid in uuids if uuid is not None]


def _compute_processes(pynvml: Any, handle: Any) -> List[Any]:
    """Return NVML's records of the processes that compute on the GPU."""
    # the function's name without a version means version 3, which drivers before 510 lack
    for version in (3, 2):
        processes = _try_call(pynvml, f"nvmlDeviceGetComputeRunningProcesses_v{version}", handle)
        if processes is not None:
            return list(processes)
    return []


def _process_name(pynvml: Any, pid: int) -> str:
    """Return the name of the process's program, without its folder and its arguments."""
    words = _decode(_try_call(pynvml, "nvmlSystemGetProcessName", pid) or "?").split(" ")
    return words[0].rpartition("/")[2]


def _count_nvlinks(pynvml: Any, handles: Dict[int, Any], indices: Dict[str, int]) -> Tuple[Dict[Pair, int], List[int]]:
    """Return the number of NVLinks between each pair of GPUs, and the GPUs linked to NVSwitches.

    ``handles``: NVML's handles, by GPU number. ``indices``: GPU numbers, by PCI bus id.
    """
    ends: Dict[Pair, int] = {}
    nvswitch_gpus = []
    for index, handle in handles.items():
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = _try_call(pynvml, "nvmlDeviceGetNvLinkState", handle, link)
            if state != pynvml.NVML_FEATURE_ENABLED:
                continue
            remote = _try_call(pynvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            other = indices.get(_decode(remote.busId).lower()) if remote else None
            if other is not None:
                pair = (min(index, other), max(index, other))
                ends[pair] = ends.get(pair, 0) + 1
            elif index not in nvswitch_gpus and not _leads_to_gpu(pynvml, handle, link):
                nvswitch_gpus.append(index)
    # both GPUs report a link
    return {pair: count // 2 for pair, count in ends.items()}, nvswitch_gpus


def _leads_to_gpu(pynvml: Any, handle: Any, link: int) -> bool:
    """Return whether a link leads to a GPU, which may be hidden from this container."""
    kind = _try_call(pynvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    return kind is not None and kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU


def _lacks_access(pynvml: Any, one: Any, other: Any) -> bool:
    """Return whether the driver reports that the first GPU cannot write to the other's memory."""
    write = pynvml.NVML_P2P_CAPS_INDEX_WRITE
    status = _try_call(pynvml, "nvmlDeviceGetP2PStatus", one, other, write)
    return status is not None and status != pynvml.NVML_P2P_STATUS_OK


def _pcie_level(pynvml: Any, one: Any, other: Any) -> Optional[int]:
    """Return the level at which the PCIe paths of two GPUs meet (see `Driver`), or None."""
    level = _try_call(pynvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    return None if level is None else int(level)


def _try_call(pynvml: Any, name: str, *arguments: Any) -> Any:
    """Call an NVML function. Return None if the driver, GPU or nvidia-ml-py does not support it."""
    try:
        return getattr(pynvml, name)(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def _decode(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    """Print the answer of `query_nvml` as JSON or, if that fails, the reason as ``error``."""
    pynvml: Any = None
    try:
        pynvml = importlib.import_module("pynvml")
        send_answer(**query_nvml(pynvml))
    except ModuleNotFoundError:
        send_answer(error=f"{BINDINGS} is not installed")
    except Exception as error:  # another package may have a module with this name
        is_nvml_error = isinstance(error, getattr(pynvml, "NVMLError", ()))
        where = getattr(pynvml, "__file__", "pynvml")
        reason = f"{BINDINGS} is needed, but {where} fails with {type(error).__name__}: {error}"
        send_answer(error=_decode(error) if is_nvml_error else reason)


if __name__ == "__main__":
    main()


class VisibleGpus(NamedTuple):
    """The GPUs that CUDA_VISIBLE_DEVICES makes visible.

    ``problem`` explains why some GPUs are missing.
    """

    gpus: List[NvmlGpu]
    problem: str = ""


def visible_gpus(gpus: Sequence[NvmlGpu], visible: Optional[str]) -> VisibleGpus:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES makes visible.

    Numbers in ``visible`` are positions in ``gpus`` (CUDA C++ Programming Guide).
    """
    if visible is None:
        return VisibleGpus(list(gpus))
    shown: List[NvmlGpu] = []
    for word in [word.strip() for word in visible.split(",")] if visible.strip() else []:
        if word.startswith("-"):
            break  # a negative number ends the list
        gpu = _find_gpu(gpus, word)
        if gpu is None:
            none = f"which is not one of the {len(gpus)} GPUs here, and ignores the rest"
            return VisibleGpus(shown, f"CUDA stops at {word!r}, {none}")
        if word.startswith("MIG-"):
            return VisibleGpus([gpu])  # a process can use only one MIG device
        if gpu in shown:
            return VisibleGpus([], f"GPU {gpu.index} is listed twice, so CUDA shows no GPU")
        shown.append(gpu)
    return VisibleGpus(shown)


def _find_gpu(gpus: Sequence[NvmlGpu], word: str) -> Optional[NvmlGpu]:
    """Return the GPU whose position is ``word``, or whose UUID starts with ``word``; else None."""
    number = re.match(r"\+?(\d+)", word)
    if number:
        return gpus[int(number[1])] if int(number[1]) < len(gpus) else None
    if word.startswith("MIG-GPU-"):  # MIG-GPU-<uuid>/3/0, the names before driver 470
        word = word[len("MIG-") :].partition("/")[0]
    if not word.startswith(("GPU-", "MIG-")):
        return None
    matches = [gpu for gpu in gpus if any(uuid.startswith(word) for uuid in (gpu.uuid, *(gpu.parts or ())))]
    return matches[0] if len(matches) == 1 else None


def sort_in_cuda_order(gpus: Sequence[NvmlGpu], environ: Mapping[str, str] = os.environ) -> List[NvmlGpu]:
    """Sort GPUs in CUDA's order, which is fastest first by default.

    A GPU with higher compute capability counts as faster.
    """
    if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return list(gpus)
    return sorted(gpus, key=lambda gpu: gpu.capability, reverse=True)
