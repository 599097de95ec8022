"""The cores: how many there are, what else uses them, and how OpenMP's threads wait."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Set, Tuple

from gluonlab.doctor.findings import Finding, listed, ok, plural, warning
from gluonlab.engine import openmp
from gluonlab.engine.neighbours import neighbours
from gluonlab.engine.threads import threads_per_device
from gluonlab.host import resources
from gluonlab.host.resources import PROC

MARGIN = 0.7  # of a core: this much is always going on
SAMPLE_S = 0.2
SHARE, NAMED = 0.2, 3  # processes that are named: how much of a core they take, and how many
LONG_SPINS = 100_000  # a millisecond or more
_TICKS = os.sysconf("SC_CLK_TCK")


@listed
def cpu(proc: Path = PROC) -> Iterator[Finding]:
    """A line on the cores and the threads that compute on them; a warning for what slows them."""
    threads, load, sharing = threads_per_device(1), os.getloadavg()[0], neighbours()
    what = f"{cores_in_words()}, load {load:.1f}; one CPU device computes with "
    what += plural(threads, "thread")
    what += f", as 1 of {sharing.processes} processes of a training" * (sharing.processes > 1)
    what += f"; {waiting()}"
    if load > (os.cpu_count() or 1) - threads + MARGIN and threads > 1:
        who = ", ".join(busy(proc))
        who = f"computes: {who}" if who else "computed within the last minute"
        cause = f"another process {who}; a team of threads waits for its slowest one"
        yield warning("cpu", what, cause, "end it, wait for it, or leave it a core: --threads N")
    else:
        yield ok("cpu", what)
    yield from _spinning(openmp.users_spinning())
    if not sharing.known:
        what = f"{sharing.processes} workers of a parameter server share cores"
        cause = "until they connect, it is unknown how many run on this host: all are assumed to"
        cure = "export OMP_NUM_THREADS, or train with python -m gluonlab.launch, which counts them"
        yield warning("cpu", what, cause, cure)
    exported, own = openmp.exported_threads(), resources.available_cores()
    if exported is not None and exported.threads > own:
        what = f"{exported.threads} threads are exported for {plural(own, 'core')}"
        cause = "threads without a core of their own keep the others waiting"
        yield warning("cpu", what, cause, f"unset {exported.name}")
    for setting, effect in openmp.harmful().items():
        what = f"{setting} is overridden for MXNet"
        yield warning("cpu", what, effect, f"unset {setting.split('=')[0]}")


def cores_in_words() -> str:
    """``2 cores``, and why they are not all of the machine's."""
    machine, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    own = resources.available_cores()
    notes = []
    if allowed < machine:
        notes.append(f"{allowed} of the machine's {machine} CPUs are allowed by affinity")
    if own < allowed:
        notes.append("the rest are hyper-threads, or beyond this container's limit")
    return plural(own, "core") + (f" ({'; '.join(notes)})" if notes else "")


def waiting() -> str:
    """What a team's idle threads do, by the user's setting or by gluonlab's."""
    settings = ", ".join(f"{name}={value}" for name, value in openmp.users_spinning().items())
    if settings:
        return f"idle threads wait as {settings} says"
    return f"idle threads sleep after {openmp.SPIN_COUNT} spins"


def _spinning(users: Mapping[str, str]) -> Iterator[Finding]:
    """A warning where the user's settings let idle threads keep their cores busy."""
    counts = [name for name in users if name.endswith("SPINCOUNT")]  # count before a policy
    for name in (counts or list(users))[:1]:
        value = users[name]
        if openmp.spins(value) >= LONG_SPINS if counts else value.lower() == "active":
            cause = (
                "idle threads keep their cores busy: "
                "one CPU device is then many times slower beside other work"
            )
            cure = f"unset {name}: gluonlab then lets them sleep soon"
            yield warning("cpu", f"{name}={value} is exported", cause, cure)


def busy(proc: Path = PROC, share: float = SHARE, most: int = NAMED) -> List[str]:
    """The processes that take more than ``share`` of a core, as ``python3 (pid 17) 98 %``.

    At most ``most``; none that this process has started.
    """
    before = _processes(proc)
    time.sleep(SAMPLE_S)
    after = _processes(proc)
    own = descendants(os.getpid(), {pid: parent for pid, (_, parent, _) in after.items()})
    shares = [
        ((ticks - before[pid][2]) / _TICKS / SAMPLE_S, pid, name)
        for pid, (name, _, ticks) in after.items()
        if pid in before and pid not in own
    ]
    largest = sorted((taken for taken in shares if taken[0] > share), reverse=True)[:most]
    return [f"{name} (pid {pid}) {100 * taken:.0f} %" for taken, pid, name in largest]


def descendants(pid: int, parents: Mapping[int, int]) -> Set[int]:
    """``pid``, its children, theirs, and so on."""
    family: Set[int] = set()
    youngest = {pid}
    while youngest:
        family |= youngest
        youngest = {child for child, parent in parents.items() if parent in youngest} - family
    return family


def _processes(proc: Path) -> Dict[int, Tuple[str, int, int]]:
    """(name, parent, clock ticks on a CPU) by process id, from proc(5)."""
    processes: Dict[int, Tuple[str, int, int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
                fields, name = tail.split(), head.partition("(")[2]
                ticks = int(fields[11]) + int(fields[12])
                processes[int(folder.name)] = (name, int(fields[1]), ticks)
            except (OSError, IndexError, ValueError):  # it has ended meanwhile
                continue
    return processes
