"""The cores: how many this process may use, what else computes on them, and how OpenMP's threads
wait for each other.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

from gluonlab.doctor.findings import Finding, ok, warning
from gluonlab.engine import openmp, setup
from gluonlab.engine.neighbours import neighbours
from gluonlab.engine.threads import threads_per_device
from gluonlab.host import cores

PROC = Path("/proc")
MARGIN = 0.7  # of a core: this much is always going on
SAMPLE_S = 0.2
SHARE, NAMED = 0.2, 3  # processes that are named: how much of a core they take, and how many
LONG_SPINS = 100_000  # a millisecond or more
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu(proc: Path = PROC) -> List[Finding]:
    """One line on the cores and the threads that compute on them, and a warning for each thing that
    slows them.
    """
    threads = threads_per_device(1)
    load = os.getloadavg()[0]
    what = (
        f"{cores_in_words()}, load {load:.1f}; one CPU device computes with "
        f"{plural(threads, 'thread')}"
    )
    processes = neighbours().processes
    what += f", as 1 of {processes} processes of a training" * (processes > 1)
    what += f"; {waiting()}"
    free = (os.cpu_count() or 1) - threads
    found = [ok("cpu", what)]
    if load > free + MARGIN and threads > 1:
        found = [loaded(what, busy(proc))]
    return [*found, *spinning(openmp.users_spinning()), *_unknown(), *_too_many(), *_put_aside()]


def cores_in_words() -> str:
    """``2 cores``, and why they are not all of the machine's."""
    machine, allowed, own = os.cpu_count() or 1, len(os.sched_getaffinity(0)), cores.available()
    notes = [f"{allowed} of the machine's {machine} CPUs are allowed by affinity"] * (
        allowed < machine
    )
    notes += ["the rest are hyper-threads, or beyond this container's limit"] * (own < allowed)
    return plural(own, "core") + (f" ({'; '.join(notes)})" if notes else "")


def plural(count: int, noun: str) -> str:
    """``1 core``, ``2 cores``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def waiting() -> str:
    """What a team's idle threads do, by the user's setting or by gluonlab's."""
    users = openmp.users_spinning()
    settings = ", ".join(f"{name}={value}" for name, value in users.items())
    return (
        f"idle threads wait as {settings} says"
        if users
        else f"idle ones sleep after {openmp.SPIN_COUNT} looks for work"
    )


def spinning(users: Mapping[str, str]) -> List[Finding]:
    """A warning where the user has told idle threads to keep their cores busy."""
    settings = {name.rpartition("_")[2].lower(): f"{name}={value}" for name, value in users.items()}
    values = {name.rpartition("_")[2].lower(): value for name, value in users.items()}
    if "spincount" in values:  # this counts before the policy
        if openmp.spins(values["spincount"]) < LONG_SPINS:
            return []
        said = settings["spincount"]
    elif values.get("policy", "").lower() == "active":
        said = settings["policy"]
    else:
        return []
    cause = (
        "idle threads keep their cores busy: beside anything else that computes, "
        "one CPU device takes many times as long"
    )
    name = said.split("=")[0]
    return [
        warning(
            "cpu", f"{said} is exported", cause, f"unset {name}: gluonlab then lets them sleep soon"
        )
    ]


def loaded(what: str, others: List[str]) -> Finding:
    """The machine has less room than one device's threads need."""
    who = (
        f"something else computes: {', '.join(others)}"
        if others
        else "something else computed within the last minute"
    )
    cause = f"{who}; a team of threads waits for its slowest one"
    return warning("cpu", what, cause, "end it, wait for it, or leave it a core: --threads N")


def busy(proc: Path = PROC, share: float = SHARE, most: int = NAMED) -> List[str]:
    """The ``most`` that take more than a ``share`` of a core, as ``python3 (pid 17) 98 %``; none
    that this process has started.
    """
    before = _processes(proc)
    time.sleep(SAMPLE_S)
    after = _processes(proc)
    own = descendants(os.getpid(), {pid: parent for pid, (_, parent, _) in after.items()})
    taken = [
        ((ticks - before[pid][2]) / _TICKS / SAMPLE_S, pid, name)
        for pid, (name, _, ticks) in after.items()
        if pid in before and pid not in own
    ]
    largest = sorted((each for each in taken if each[0] > share), reverse=True)[:most]
    return [f"{name} (pid {pid}) {100 * each:.0f} %" for each, pid, name in largest]


def descendants(pid: int, parents: Mapping[int, int]) -> "set[int]":
    """``pid``, and every process whose parent, or whose parent's parent and so on, it is."""
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def _processes(proc: Path) -> Dict[int, Tuple[str, int, int]]:
    """(name, parent, clock ticks on a CPU) by process id, from proc(5)."""
    found: Dict[int, Tuple[str, int, int]] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
            fields = tail.split()
            found[int(folder.name)] = (
                head.partition("(")[2],
                int(fields[1]),
                int(fields[11]) + int(fields[12]),
            )
        except (OSError, IndexError, ValueError):  # it has ended meanwhile
            continue
    return found


def _unknown() -> List[Finding]:
    sharing = neighbours()
    if sharing.known:
        return []
    cause = (
        "how many of them are on this host is not known before they meet; all of them are assumed"
    )
    cure = "export OMP_NUM_THREADS, or train with python -m gluonlab.launch, which counts them"
    return [
        warning(
            "cpu", f"{sharing.processes} workers of a parameter server share cores", cause, cure
        )
    ]


def _too_many() -> List[Finding]:
    exported, own = setup.exported_threads(), cores.available()
    if exported is None or exported.threads <= own:
        return []
    cause = "threads without a core of their own keep the others waiting"
    what = f"{exported.threads} threads are exported for {plural(own, 'core')}"
    return [warning("cpu", what, cause, f"unset {exported.name}")]


def _put_aside() -> List[Finding]:
    return [
        warning(
            "cpu", f"{setting} is put aside for MXNet", effect, f"unset {setting.split('=')[0]}"
        )
        for setting, effect in openmp.harmful().items()
    ]
