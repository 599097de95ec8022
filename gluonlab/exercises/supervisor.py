"""The process between the grader and a notebook: it bounds and ends all that the notebook starts.

It starts a command in a session of its own, within `Bounds`, and writes ``{"ended": ..}`` as the
last line of its output: what the command used too much of, or nothing. Processes whose parents have
ended become its own children (prctl(2), PR_SET_CHILD_SUBREAPER), whatever they have done to their
session; so none is left when it ends. It ends early when its input is closed, as it is when the
grader has ended, and then removes the notebook's folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

from gluonlab.files.atomic_files import remove_folder
from gluonlab.host.resources import PROC, available_cores, available_memory

MOST_JOBS = 256
MEMORY_OF_ONE = 2 * 2**30  # bytes; a lab takes less than half
TICK_S = 0.1  # between two looks at the processes
TICKS_FOR_FILES = 10  # as many between two looks at the files, which take longer


@dataclass(frozen=True)
class Bounds:
    """For all processes of a notebook together, in bytes where nothing else is said.

    ``seconds``: for its cells; ``spare_seconds``: for all that comes before and after them, and for
    a process that does not answer. ``files``: in its own folder, which ``disk`` bounds, too;
    ``file``: the largest one, anywhere. ``source``: of the notebook itself.
    """

    seconds: float
    spare_seconds: float = 30.0
    memory: int = 8 * 2**30
    processes: int = 200
    files: int = 20_000
    disk: int = 2 * 2**30
    file: int = 2**30
    printed: int = 2**24
    source: int = 2**25


def within_room(bounds: Bounds, jobs: int = 1) -> Bounds:
    """The same with no more memory than three quarters of what is left here, for ``jobs`` at once.

    What is left to this machine or job, that is.
    """
    left = available_memory()
    if left is None:
        return bounds
    return replace(bounds, memory=min(bounds.memory, left.free * 3 // 4 // jobs))


def jobs_here() -> int:
    """How many notebooks this machine or job can run at a time: a core and 2 GiB for each."""
    left = available_memory()
    fit = MOST_JOBS if left is None else left.free * 3 // 4 // MEMORY_OF_ONE
    return max(1, min(available_cores(), fit, MOST_JOBS))


class ProcessStat(NamedTuple):
    """A line of /proc/PID/stat."""

    pid: int
    parent: int
    group: int
    state: str
    resident: int


def descendants(pid: int, proc: Path = PROC) -> List[ProcessStat]:
    """All that this process has started, and what those have, as far as they run or are zombies."""
    children: Dict[int, List[ProcessStat]] = {}
    for name in (folder.name for folder in proc.iterdir()) if proc.is_dir() else ():
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                found = _process(int(name), (proc / name / "stat").read_bytes())
                children.setdefault(found.parent, []).append(found)
    all_of_them: List[ProcessStat] = []
    new = children.pop(pid, [])
    while new:
        all_of_them += new
        new = [child for process in new for child in children.pop(process.pid, [])]
    return all_of_them


def _process(pid: int, line: bytes) -> ProcessStat:
    # the second field, the program's name, may hold spaces and parentheses
    state, parent, group, *rest = line[line.rindex(b")") + 2 :].split()
    resident = int(rest[18]) * os.sysconf("SC_PAGE_SIZE")
    return ProcessStat(pid, int(parent), int(group), state.decode(), resident)


def files_below(folder: Path, most: int) -> Tuple[int, int]:
    """How many entries a folder has, and the bytes on the disk; counts no further than ``most``."""
    count, size, folders = 0, 0, [os.fspath(folder)]
    while folders and count <= most:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                count += 1
                if count > most:
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
    return count, size


class ResourceMonitor:
    """Compares what a notebook uses with its bounds."""

    def __init__(self, bounds: Bounds, folder: Path) -> None:
        self.bounds, self.folder = bounds, folder
        self.end = time.monotonic() + bounds.seconds + bounds.spare_seconds
        self.ticks = 0

    def excess(self, processes: List[ProcessStat]) -> str:
        """What is more than allowed, in words; empty for nothing. Call it every TICK_S."""
        bounds, self.ticks = self.bounds, self.ticks + 1
        if len(processes) > bounds.processes:
            return f"started more than {bounds.processes} processes"
        if self._memory(processes) > bounds.memory:
            return f"took more than {bounds.memory / 2**20:,.0f} MiB of memory"
        if time.monotonic() > self.end:
            return f"not finished in time, and had to be ended after {bounds.seconds:g} s"
        if self.ticks % TICKS_FOR_FILES == 0:
            count, size = files_below(self.folder, bounds.files)
            if count > bounds.files:
                return f"wrote more than {bounds.files:,} files"
            if size > bounds.disk:
                return f"wrote more than {bounds.disk / 2**20:,.0f} MiB of files"
        return ""

    def _memory(self, processes: List[ProcessStat]) -> int:
        """The bytes of all; what they share is counted once where that makes a difference."""
        resident = sum(process.resident for process in processes)
        if resident <= self.bounds.memory:
            return resident
        return sum(_own_share(process) for process in processes)


def _own_share(process: ProcessStat) -> int:
    """Resident bytes, each divided by the number of processes that have it (proc(5), Pss)."""
    try:
        lines = (PROC / str(process.pid) / "smaps_rollup").read_bytes()
        return int(lines.split(b"\nPss:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):  # it has ended meanwhile, or this kernel is old
        return 0 if not (PROC / str(process.pid)).exists() else process.resident


ENDED, ABANDONED = "ended", "the grader has ended"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_SWEEPS = 2000  # of what still runs; a notebook may start processes while others are ended


def main(arguments: Sequence[str]) -> None:
    """``BOUNDS FOLDER COMMAND...``: run the command; the first is the JSON of a `Bounds`."""
    bounds, folder = Bounds(**json.loads(arguments[0])), Path(arguments[1])
    _control(PR_SET_CHILD_SUBREAPER, 1)
    with suppress(OSError):  # where memory ends, the kernel is to end these and not the grader
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_FSIZE, _lowered(resource.RLIMIT_FSIZE, bounds.file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    child = subprocess.Popen(arguments[2:], stdin=subprocess.DEVNULL, start_new_session=True)
    excess = ""
    try:
        excess = _wait(child, ResourceMonitor(bounds, folder))
    finally:
        _end_all(child)
        if excess == ABANDONED:
            remove_folder(folder)
        print(json.dumps({ENDED: excess}), flush=True)


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _lowered(limit: int, most: int) -> "tuple[int, int]":
    _, hard = resource.getrlimit(limit)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    return most, most


def _wait(child: "subprocess.Popen[bytes]", watch: ResourceMonitor) -> str:
    """Wait until the command ends; what it used too much of, or nothing."""
    while child.poll() is None:
        processes = descendants(os.getpid())
        _bury(process for process in processes if process.pid != child.pid)
        excess = watch.excess(processes)
        if excess:
            return excess
        # closed when the grader has ended; nothing is ever written to it
        if select.select([0], [], [], TICK_S)[0]:
            return ABANDONED
    return ""


def _bury(processes: Iterable[ProcessStat]) -> None:
    """Take note of children that have ended, which are zombies until then."""
    for process in processes:
        if process.state == "Z" and process.parent == os.getpid():
            with suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)


def _end_all(child: "subprocess.Popen[bytes]") -> None:
    """Kill the command and all its descendants, group by group: a whole one cannot fork away."""
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for _ in range(MOST_SWEEPS):
        left: List[ProcessStat] = descendants(os.getpid())
        if not left:
            return
        _bury(left)
        own = {process.pid for process in left}
        for process in left:
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            if process.group in own:
                with suppress(OSError):
                    os.killpg(process.group, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1:])
