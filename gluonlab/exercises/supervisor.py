"""A program that supervises a notebook's processes, enforces limits, and ends the processes.

The grader starts this program for each notebook. The supervisor starts a command in a new session,
and enforces the limits in `Bounds`. The last line of its output is ``{"ended": ..}`` with the limit
that the command exceeded, or an empty string.

Orphaned processes of the notebook become children of the supervisor (prctl(2),
PR_SET_CHILD_SUBREAPER), even if they have started a new session. Therefore, the supervisor can end
all of them. If the supervisor's standard input closes, the grader has exited. The supervisor then
removes the notebook's folder and exits.
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
from gluonlab.host.child_processes import signal_group
from gluonlab.host.resources import PROC, available_cores, available_memory

MAX_JOBS = 256
MEMORY_PER_JOB = 2 * 2**30  # in bytes; a lab needs less than half of this memory
POLL_S = 0.1  # seconds between two checks of the processes
POLLS_PER_FILE_COUNT = 10  # files are counted only in every tenth check, because counting takes longer


@dataclass(frozen=True)
class Bounds:
    """Limits for all of a notebook's processes together.

    Attributes:
        seconds: time for the cells.
        spare_seconds: additional seconds for the start, the end, and unresponsive processes.
        memory: resident memory in bytes.
        processes: number of processes.
        files: number of files in the notebook's folder.
        disk: size of the notebook's folder in bytes.
        file: size of a single file in bytes, in any folder.
        printed: output of the cells in bytes.
        source: size of the notebook file in bytes.
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


def fit_memory(bounds: Bounds, jobs: int = 1) -> Bounds:
    """Return the bounds with ``memory`` reduced, if necessary, so that ``jobs`` notebooks fit.

    Together, the notebooks may use three quarters of this machine's free memory.
    """
    memory = available_memory()
    return bounds if memory is None else replace(bounds, memory=min(bounds.memory, memory.free * 3 // 4 // jobs))


def max_parallel_jobs() -> int:
    """Return how many notebooks can run at the same time, with a core and 2 GiB for each."""
    memory = available_memory()
    jobs_in_memory = MAX_JOBS if memory is None else memory.free * 3 // 4 // MEMORY_PER_JOB
    return max(1, min(available_cores(), jobs_in_memory, MAX_JOBS))


class ProcessStat(NamedTuple):
    """Some fields of /proc/PID/stat. ``resident``: resident memory in bytes."""

    pid: int
    parent: int
    group: int
    state: str
    resident: int


def list_descendants(pid: int, proc: Path = PROC) -> List[ProcessStat]:
    """Return all descendants of the process ``pid``, including zombies."""
    children: Dict[int, List[ProcessStat]] = {}
    for name in (folder.name for folder in proc.iterdir()) if proc.is_dir() else ():
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):  # the process has ended in the meantime
                stat = _parse_stat(int(name), (proc / name / "stat").read_bytes())
                children.setdefault(stat.parent, []).append(stat)
    processes: List[ProcessStat] = []
    generation = children.pop(pid, [])
    while generation:
        processes += generation
        generation = [child for process in generation for child in children.pop(process.pid, [])]
    return processes


def _parse_stat(pid: int, line: bytes) -> ProcessStat:
    """Parse a line of ``/proc/PID/stat``, see proc(5)."""
    # the second field, the program's name, may contain spaces and parentheses
    state, parent, group, *rest = line[line.rindex(b")") + 2 :].split()
    resident = int(rest[18]) * os.sysconf("SC_PAGE_SIZE")
    return ProcessStat(pid, int(parent), int(group), state.decode(), resident)


def count_files(folder: Path, most: int) -> Tuple[int, int]:
    """Return the number of entries below a folder, and their bytes on disk.

    Counting stops if there are more than ``most`` entries.
    """
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
    """Compares a notebook's resource use with its bounds."""

    def __init__(self, bounds: Bounds, folder: Path) -> None:
        self.bounds, self.folder = bounds, folder
        self.deadline = time.monotonic() + bounds.seconds + bounds.spare_seconds
        self.poll_count = 0

    def find_excess(self, processes: List[ProcessStat]) -> str:
        """Describe the first exceeded bound, or return "".

        The method must be called every POLL_S seconds.
        """
        bounds, self.poll_count = self.bounds, self.poll_count + 1
        if len(processes) > bounds.processes:
            return f"started more than {bounds.processes} processes"
        if self._used_bytes(processes) > bounds.memory:
            return f"used more than {bounds.memory / 2**20:,.0f} MiB of memory"
        if time.monotonic() > self.deadline:
            return f"did not finish in time: it was killed after {bounds.seconds:g} s"
        if self.poll_count % POLLS_PER_FILE_COUNT == 0:
            count, size = count_files(self.folder, bounds.files)
            if count > bounds.files:
                return f"wrote more than {bounds.files:,} files"
            if size > bounds.disk:
                return f"wrote more than {bounds.disk / 2**20:,.0f} MiB of files"
        return ""

    def _used_bytes(self, processes: List[ProcessStat]) -> int:
        """Return the memory of all processes, in bytes.

        The sum of their resident memory counts shared pages several times. If this sum exceeds the
        bound, the method computes a sum that counts shared pages only once.
        """
        resident = sum(process.resident for process in processes)
        if resident <= self.bounds.memory:
            return resident
        return sum(_proportional_bytes(process) for process in processes)


def _proportional_bytes(process: ProcessStat) -> int:
    """Return the proportional set size of a process in bytes (Pss in proc(5)).

    A page that k processes share adds only 1 / k of its size.
    """
    try:
        lines = (PROC / str(process.pid) / "smaps_rollup").read_bytes()
        return int(lines.split(b"\nPss:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):  # the process has ended, or this kernel is old
        return 0 if not (PROC / str(process.pid)).exists() else process.resident


EXCESS_KEY, ABANDONED = "ended", "the grader has exited"
PR_SET_CHILD_SUBREAPER = 36  # an option of prctl(2)
MAX_KILL_ROUNDS = 2000  # a notebook may start processes while others are killed


def main(arguments: Sequence[str]) -> None:
    """Run a command, and end all its processes as soon as they exceed a bound.

    ``arguments``: a `Bounds` as JSON, the notebook's folder, and the command.
    """
    bounds, folder = Bounds(**json.loads(arguments[0])), Path(arguments[1])
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with suppress(OSError):  # if memory runs out, Linux kills these processes, not the grader
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_FSIZE, _lower_limit(resource.RLIMIT_FSIZE, bounds.file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    child = subprocess.Popen(arguments[2:], stdin=subprocess.DEVNULL, start_new_session=True)
    excess = ""
    try:
        excess = _wait_for_command(child, ResourceMonitor(bounds, folder))
    finally:
        _kill_all(child)
        if excess == ABANDONED:
            remove_folder(folder)
        print(json.dumps({EXCESS_KEY: excess}), flush=True)


def _lower_limit(limit: int, new_limit: int) -> "tuple[int, int]":
    """Return (soft, hard) for setrlimit: both are ``new_limit``, but at most the hard limit."""
    _, hard = resource.getrlimit(limit)
    new_limit = new_limit if hard == resource.RLIM_INFINITY else min(new_limit, hard)
    return new_limit, new_limit


def _wait_for_command(child: "subprocess.Popen[bytes]", monitor: ResourceMonitor) -> str:
    """Wait until the command ends or exceeds a bound. Return a description of this bound, or ""."""
    while child.poll() is None:
        processes = list_descendants(os.getpid())
        _reap_zombies(process for process in processes if process.pid != child.pid)
        excess = monitor.find_excess(processes)
        if excess:
            return excess
        # The grader never writes to this input, so it is readable only if the grader has exited.
        if select.select([0], [], [], POLL_S)[0]:
            return ABANDONED
    return ""


def _reap_zombies(processes: Iterable[ProcessStat]) -> None:
    """Reap the processes that are zombies and children of this process."""
    for process in processes:
        if process.state == "Z" and process.parent == os.getpid():
            with suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)


def _kill_all(child: "subprocess.Popen[bytes]") -> None:
    """Kill the command, its descendants and their process groups, until no process is left."""
    signal_group(child.pid, signal.SIGKILL)
    child.wait()
    for _ in range(MAX_KILL_ROUNDS):
        processes: List[ProcessStat] = list_descendants(os.getpid())
        if not processes:
            return
        _reap_zombies(processes)
        pids = {process.pid for process in processes}
        for process in processes:
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            if process.group in pids:
                signal_group(process.group, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1:])
