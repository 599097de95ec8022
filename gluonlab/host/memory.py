"""How much memory a process may have, and how much one has taken, as Linux reports it."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple

from gluonlab.host.control_groups import CGROUPS, PROC, control_groups, text_of

# of a control group, by version: limit, in use, and the line of memory.stat with what can be given
# back
_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
MACHINE, CONTAINER = "the machine", "this container or job"


def give_back() -> None:
    """Free what only refers to itself, such as a run's graphs, and return it to the system.

    glibc keeps free memory in pieces, more from training to training; other C libraries have no
    such call. Takes some tens of milliseconds.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Room(NamedTuple):
    """The total memory in bytes, and how much of it new data can take without swapping.

    ``where``: whose memory it is: the machine's, or its container's or job's.
    """

    total: int
    free: int
    where: str


def room(proc: Path = PROC, cgroups: Path = CGROUPS) -> Optional[Room]:
    """The memory of the machine, or of this process's container or job if less; None if unknown."""
    meminfo = text_of(proc / "meminfo")
    total, free = _number(meminfo, "MemTotal"), _number(meminfo, "MemAvailable")
    where = MACHINE
    for limit, used in _limits(proc, cgroups):
        if total is None or limit < total:
            total, where = limit, CONTAINER
        free = limit - used if free is None else min(free, limit - used)
    return None if total is None or free is None else Room(total, max(0, free), where)


def peak_bytes(pid: int, proc: Path = PROC) -> int:
    """The peak of a process's resident memory, in bytes; 0 if it is gone.

    getrusage would count from the peak of the process that started it.
    """
    return _number(text_of(proc / str(pid) / "status"), "VmHWM") or 0


def children(pid: int, proc: Path = PROC) -> List[int]:
    """The processes that this one has started, and that still run."""
    processes = [folder for folder in proc.iterdir() if folder.name.isdigit()]
    parent = re.compile(rf"^PPid:\s+{pid}$", re.M)
    return [int(folder.name) for folder in processes if parent.search(text_of(folder / "status"))]


def _limits(proc: Path, cgroups: Path) -> Iterator[Tuple[int, int]]:
    """(limit, in use) in bytes of every control group that this process is in.

    What the kernel keeps of files in memory counts as used there, but is given back when it is
    needed.
    """
    for version, folder in control_groups("memory", proc, cgroups):
        limit, used, cached = _FILES[version]
        most, now = text_of(folder / limit).strip(), text_of(folder / used).strip()
        if most.isdigit() and now.isdigit():  # the first may be "max"
            spare = re.search(rf"^{cached} (\d+)$", text_of(folder / "memory.stat"), re.M)
            yield int(most), int(now) - (int(spare[1]) if spare else 0)


def _number(lines: str, name: str) -> Optional[int]:
    """Bytes of a line such as ``MemTotal:  16384 kB``."""
    found = re.search(rf"^{name}:\s*(\d+) kB", lines, re.M)
    return int(found[1]) * 1024 if found else None
