"""How many processes of one training share this host, and how many of its cores each may take.

Two processes that both compute with all cores of a host wait for each other most of the time. What
tells how many there are, the largest number first:

=================================  ==============================================================
``tell``                           the group itself, once it stands (`gluonlab.launch`)
``LOCAL_SIZES``                    what launchers set (`gluonlab.host.launcher_environment`)
``SLURM_STEP_TASKS_PER_NODE``      and SLURM_NODEID; srun's
LSF_PM_TASKID                      and LSB_MCPU_HOSTS; blaunch's
DMLC_NUM_WORKER                    of MXNet's parameter server, if its scheduler is on loopback
=================================  ==============================================================

A worker of the parameter server whose scheduler is elsewhere cannot know before the group stands.
It takes the part that is right if all workers are here: the other mistake costs far more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List, NamedTuple, Optional

from gluonlab.engine import parameter_server_environment
from gluonlab.host import resources
from gluonlab.host.launcher_environment import (
    BLAUNCH,
    LOCAL_SIZES,
    MOST_SLOTS,
    lsf_hosts,
    lsf_place,
    slurm_counts,
)

SLURM = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")


class Neighbours(NamedTuple):
    """The processes of one training on this host.

    ``processes``: their number, this one included. ``known``: whether that is certain, or the most
    that there can be.
    """

    processes: int
    known: bool = True


# What the group has told; it belongs to the process.
_told: List[int] = []


def tell(processes: int) -> None:
    """Note how many processes of a group that has formed are on this host.

    From now on this number counts, whatever the environment says.
    """
    _told[:] = [processes]


def neighbours() -> Neighbours:
    """The processes that share this host's cores, by the table above; else this one alone."""
    if _told:
        return Neighbours(_told[0])
    workers = parameter_server_environment.parameter_server_workers()
    counts = [_whole(os.environ.get(name, "")) for name in LOCAL_SIZES]
    counts += [_slurm_tasks(), _lsf_tasks()]
    counts += [workers.number] if workers is not None and workers.all_here else []
    said = [count for count in counts if count is not None]
    if not said and workers is not None:
        return Neighbours(max(1, workers.number), known=workers.number <= 1)
    return Neighbours(max(said, default=1))


def own_cores() -> int:
    """How many threads this process may compute with: its part of the cores of this host.

    A launcher may have bound each process to cores of its own, as mpirun and srun do. Those are all
    its own then. A container's limit is for all of its processes together, wherever they are bound.
    """
    mine, processes = resources.available_cores(), neighbours().processes
    if processes == 1:
        return mine
    cpus = len(os.sched_getaffinity(0))
    shared = max(cpus, _launchers_cpus())
    limit = resources.core_limit() or mine * processes
    # of those CPUs as many are cores as of these
    return max(1, min(mine, mine * shared // cpus // processes, limit // processes))


def _launchers_cpus() -> int:
    """The number of CPUs that the launcher gave to all processes of this host together."""
    if _slurm_tasks() is not None:
        return _whole(os.environ.get("SLURM_CPUS_ON_NODE", "")) or 0
    names = (*LOCAL_SIZES, parameter_server_environment.WORKER_VARIABLE)
    marks = {name for name in names if name in os.environ}
    ancestor = os.getppid()
    # a shell in between was bound as this process was
    while ancestor > 1 and marks & _variables(ancestor):
        ancestor = _parent(ancestor)
    try:
        return len(os.sched_getaffinity(ancestor)) if ancestor > 1 else 0
    except OSError:
        return 0


def _variables(pid: int) -> "set[str]":
    """The variables with which a process began; empty for another user's process."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return set()
    return {entry.split(b"=", 1)[0].decode("utf-8", "replace") for entry in environ.split(b"\0")}


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _slurm_tasks() -> Optional[int]:
    """The tasks of this process's step on this node; None outside of a step."""
    if "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ:
        return None  # the script of a job knows the numbers of its tasks, but is none of them
    said = next((os.environ[name] for name in SLURM if os.environ.get(name)), "")
    counts = slurm_counts(said)
    node = os.environ.get("SLURM_NODEID", "")
    if node.isdecimal() and int(node) < len(counts):
        return counts[int(node)]
    return max(counts, default=None)


def _lsf_tasks() -> Optional[int]:
    """The tasks of blaunch on this host; None outside of a task, and where LSF tells no hosts."""
    task = os.environ.get(BLAUNCH.rank, "")
    try:
        return lsf_place(int(task) - BLAUNCH.first, lsf_hosts(os.environ)[1])[1]
    except (ValueError, IndexError):  # a ConfigError is a ValueError, too
        return None


def _whole(text: str) -> Optional[int]:
    whole = re.fullmatch(r"\d{1,5}", text.strip()) is not None
    return int(text) if whole and 1 <= int(text) <= MOST_SLOTS else None
