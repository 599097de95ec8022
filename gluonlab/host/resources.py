"""The cores, CPU instructions and memory that this process may use, as Linux reports them.

Containers, jobs and services limit cores and memory with control groups.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
import sys
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def control_groups(controller: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[Tuple[int, Path]]:
    """Yield (version, folder) for every control group of this process, of versions 2 and 1.

    A process belongs to a group and to all groups above it. In a container, the process's own group
    is the root. Some of the folders may not exist.

    Args:
        controller: the kind of resource, such as ``cpu`` or ``memory``
        proc: the folder /proc
        cgroups: the folder /sys/fs/cgroup
    """
    for line in ["0::/", f":{controller}:/", *read_kernel_file(proc / "self" / "cgroup").split("\n")]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            version, root = 2, cgroups
        elif controller in controllers.split(","):
            version, root = 1, cgroups / controller
        else:
            continue
        own_folder = root / path.strip("/")
        yield from (
            (version, folder)
            for folder in (own_folder, *own_folder.parents)
            if folder == root or root in folder.parents
        )


def read_kernel_file(file: Path) -> str:
    """Return the text of a file in /proc or /sys; "" if the file cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- Cores


def available_cores() -> int:
    """Return the number of physical cores that this process may use.

    The number is limited by the process's affinity, and by its container, job or service.
    """
    physical, limit = len(_physical_cores(allowed_cpus())), core_limit()
    return max(1, physical if limit is None else min(physical, limit))


def allowed_cpus(pid: int = 0) -> Set[int]:
    """Return the numbers of the CPUs that a process may use; ``pid`` 0 is this process.

    Systems other than Linux do not bind processes to CPUs. There, return all CPUs.
    """
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(pid)
    return set(range(os.cpu_count() or 1))


def _physical_cores(cpus: Set[int]) -> Set[Tuple[str, str]]:
    """Return the (package id, core id) of each physical core to which these CPU numbers belong."""
    cores = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:  # no topology in this container: count every CPU as a core
            cores.add(("", str(cpu)))
    return cores


def core_limit(cgroups: Path = CGROUPS, proc: Path = PROC) -> "int | None":
    """Return the CPU limit of this container, job or service, in cores; None if unlimited.

    All processes of the container, job or service share the limit, which is at least 1.
    """
    quotas = {2: ("cpu.max",), 1: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
    limits = []
    for version, folder in control_groups("cpu", proc, cgroups):
        try:
            texts = ((folder / file).read_text() for file in quotas[version])
            quota, period = (word for text in texts for word in text.split())
            if quota not in ("max", "-1"):
                limits.append(max(1, int(quota) // int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(limits, default=None)


# --- Vector instructions

# The instruction sets of oneDNN 2.4, by the value of its variable DNNL_MAX_CPU_ISA, with the widest
# vectors first. Each set requires all of its flags in /proc/cpuinfo.
INSTRUCTION_SETS = {
    "AVX512_CORE": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "AVX2": ("avx2",),
    "AVX": ("avx",),
    "SSE41": ("sse4_1",),
}
ISA_LIMIT_VARIABLE = "DNNL_MAX_CPU_ISA"
# The widest set that oneDNN may still use, by the value of DNNL_MAX_CPU_ISA. Other values of the
# variable exclude no set.
WIDEST_BY_LIMIT = {
    "SSE41": "SSE41", "AVX": "AVX", "AVX2": "AVX2", "AVX2_VNNI": "AVX2",
    "AVX512_MIC": "AVX2", "AVX512_MIC_4OPS": "AVX2",
}  # fmt: skip


def instruction_set(
    environment: Mapping[str, str] = os.environ, proc: Path = PROC, machine: str = os.uname().machine
) -> str:
    """Return the widest of INSTRUCTION_SETS that oneDNN may use; "" if oneDNN may use none.

    The CPU's flags and oneDNN's variable DNNL_MAX_CPU_ISA limit the sets. On ARM, ``machine`` is
    checked because /proc/cpuinfo describes the x86-64 processor below an emulator.
    """
    if machine != "x86_64":
        return ""
    flags = cpu_flags(proc)
    names = list(INSTRUCTION_SETS)
    allowed = names[names.index(WIDEST_BY_LIMIT.get(environment.get(ISA_LIMIT_VARIABLE, ""), names[0])) :]
    for name in allowed:
        if all(flag in flags for flag in INSTRUCTION_SETS[name]):
            return name
    return ""


def cpu_flags(proc: Path = PROC) -> Tuple[str, ...]:
    """Return the flags of the first CPU; empty if the kernel lists none, as on ARM."""
    return tuple(_read_cpu_field("flags", proc).split())


def cpu_vendor(proc: Path = PROC) -> str:
    """Return the CPU's vendor, such as GenuineIntel; "" if the kernel reports none."""
    return _read_cpu_field("vendor_id", proc)


def cpu_numbers(proc: Path = PROC) -> Optional[Tuple[int, int]]:
    """Return the CPU's family and model, such as (25, 17); None if the kernel omits them."""
    family, model = _read_cpu_field("cpu family", proc), _read_cpu_field("model", proc)
    return (int(family), int(model)) if family.isdigit() and model.isdigit() else None


def _read_cpu_field(name: str, proc: Path) -> str:
    match = re.search(rf"^{name}\s*:(.*)$", read_kernel_file(proc / "cpuinfo"), re.M)
    return match[1].strip() if match else ""


# --- Memory

# For each version of control groups: the file of the limit, the file of the memory in use, and the
# key in the file memory.stat of the memory that the kernel can reclaim.
_MEMORY_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
MACHINE_MEMORY, CONTAINER_MEMORY = "the machine", "this container or job"


def release_free_memory() -> None:
    """Free unreachable reference cycles, such as a run's graphs, and return memory to the system.

    glibc keeps freed memory in fragments, which grow with each training run. If the C library is
    not glibc, only the cycles are freed. The call takes a few tens of milliseconds.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class AvailableMemory(NamedTuple):
    """The memory that a process can use, in bytes.

    Args:
        total: memory of the machine, or the limit of the container or job if the limit is lower
        free: memory that new data can use without swapping
        where: MACHINE_MEMORY or CONTAINER_MEMORY, depending on which of them ``total`` describes
    """

    total: int
    free: int
    where: str


def available_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Optional[AvailableMemory]:
    """Return the memory that this process can use, on the machine or in its container or job.

    Returns None if the kernel does not report the memory.
    """
    meminfo = read_kernel_file(proc / "meminfo")
    total, free = _read_kilobytes(meminfo, "MemTotal"), _read_kilobytes(meminfo, "MemAvailable")
    where = MACHINE_MEMORY
    for limit, used in _memory_limits(proc, cgroups):
        if total is None or limit < total:
            total, where = limit, CONTAINER_MEMORY
        free = limit - used if free is None else min(free, limit - used)
    return None if total is None or free is None else AvailableMemory(total, max(0, free), where)


def peak_bytes(pid: int, proc: Path = PROC) -> int:
    """Return a process's peak resident memory in bytes; 0 if the process does not exist.

    Linux's getrusage is not used, because its peak would include the parent process. Systems
    without /proc report only the memory of this process, and 0 for other processes.
    """
    if pid == os.getpid() and not proc.is_dir():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return _read_kilobytes(read_kernel_file(proc / str(pid) / "status"), "VmHWM") or 0


def child_pids(pid: int, proc: Path = PROC) -> List[int]:
    """Return the pids of a process's running child processes; [] if the system has no /proc."""
    if not proc.is_dir():
        return []
    processes = [folder for folder in proc.iterdir() if folder.name.isdigit()]
    parent = re.compile(rf"^PPid:\s+{pid}$", re.M)
    return [int(folder.name) for folder in processes if parent.search(read_kernel_file(folder / "status"))]


def _memory_limits(proc: Path, cgroups: Path) -> Iterator[Tuple[int, int]]:
    """Yield (limit, memory in use) in bytes for every limited control group of this process.

    File cache that the kernel can reclaim does not count as memory in use.
    """
    for version, folder in control_groups("memory", proc, cgroups):
        limit, used, cached = _MEMORY_FILES[version]
        limit_text, used_text = (read_kernel_file(folder / limit).strip(), read_kernel_file(folder / used).strip())
        if limit_text.isdigit() and used_text.isdigit():  # the limit may be "max"
            reclaimable = re.search(rf"^{cached} (\d+)$", read_kernel_file(folder / "memory.stat"), re.M)
            yield int(limit_text), int(used_text) - (int(reclaimable[1]) if reclaimable else 0)


def _read_kilobytes(lines: str, name: str) -> Optional[int]:
    """Return the value in the line ``name``, such as ``MemTotal:  16384 kB``, in bytes.

    Returns None if ``lines`` contains no such line.
    """
    match = re.search(rf"^{name}:\s*(\d+) kB", lines, re.M)
    return int(match[1]) * 1024 if match else None


MAX_KEPT_BLOCK_BYTES = 2**25  # largest freed block to keep; the largest value every glibc accepts
MMAP_THRESHOLD, TRIM_THRESHOLD = "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"
_MALLOPT = {MMAP_THRESHOLD: -3, TRIM_THRESHOLD: -1}  # parameters of mallopt in malloc.h


def keep_freed_memory(most: int = 2**31 - 1) -> None:
    """Make glibc keep up to ``most`` bytes of freed memory for later allocations.

    Environment variables that the user has set take precedence. C libraries other than glibc are
    not affected.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in keep_freed_variables(most).items():
            if name not in os.environ:
                mallopt(_MALLOPT[name], int(value))


def keep_freed_variables(most: int) -> "dict[str, str]":
    """Return environment variables that have `keep_freed_memory`'s effect in a new process."""
    return {MMAP_THRESHOLD: str(MAX_KEPT_BLOCK_BYTES), TRIM_THRESHOLD: str(most)}
