"""Counts the processes of a group on this host, and divides the host's cores among them.

If two processes each compute with all cores of a host, they wait for each other most of the time. A
process group sets the count with `set_local_process_count`. Until then, the count is the largest
number in these variables:

=================================  ==============================================================
``LOCAL_SIZE_VARIABLES``           variables of launchers (`gluonlab.host.launcher_environment`)
``SLURM_STEP_TASKS_PER_NODE``      srun, with SLURM_NODEID
``LSF_PM_TASKID``                  blaunch, with LSB_MCPU_HOSTS
``DMLC_NUM_WORKER``                MXNet's parameter server, if its scheduler is on loopback
=================================  ==============================================================

If the scheduler of the parameter server is on another host, the count is unknown before the group
has formed. In that case, all workers are assumed to be on this host, because too many threads slow
down training far more than too few.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List, NamedTuple, Optional

from gluonlab.engine import parameter_server_role
from gluonlab.host import resources
from gluonlab.host.launcher_environment import (
    BLAUNCH,
    LOCAL_SIZE_VARIABLES,
    MAX_SLOTS_PER_HOST,
    lsf_local_rank_and_size,
    parse_slurm_counts,
    read_lsf_hosts,
)

SLURM_TASK_VARIABLES = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")


class LocalProcessCount(NamedTuple):
    """The number of processes in the group that run on this host, including this process.

    If ``is_certain`` is False, the number is an upper bound.
    """

    processes: int
    is_certain: bool = True


# The count from `set_local_process_count`, as a list of one number; [] before.
_reported_count: List[int] = []


def set_local_process_count(processes: int) -> None:
    """Set the number of the group's processes on this host, overriding the environment."""
    _reported_count[:] = [processes]


def local_process_count() -> LocalProcessCount:
    """Return the number of processes that share this host's cores."""
    if _reported_count:
        return LocalProcessCount(_reported_count[0])
    workers = parameter_server_role.parameter_server_workers()
    counts = [_parse_process_count(os.environ.get(name, "")) for name in LOCAL_SIZE_VARIABLES]
    counts += [_slurm_tasks_on_node(), _lsf_tasks_on_host()]
    counts += [workers.workers] if workers is not None and workers.are_local else []
    known_counts = [count for count in counts if count is not None]
    if not known_counts and workers is not None:
        return LocalProcessCount(max(1, workers.workers), is_certain=workers.workers <= 1)
    return LocalProcessCount(max(known_counts, default=1))


def cores_per_process() -> int:
    """Return how many of the host's cores this process may use, at least 1.

    If a launcher such as mpirun or srun has bound each process to its own cores, the process may
    use all of its own cores. All processes of a container share the container's limit.
    """
    cores, processes = resources.available_cores(), local_process_count().processes
    if processes == 1:
        return cores
    cpus = len(resources.allowed_cpus())
    shared_cpus = max(cpus, _launcher_cpus())
    limit = resources.core_limit() or cores * processes
    # ``shared_cpus`` are the hardware threads that all processes of this host share. Assume that
    # they have as many hardware threads per core as the CPUs of this process.
    return max(1, min(cores, cores * shared_cpus // cpus // processes, limit // processes))


def _launcher_cpus() -> int:
    """Return how many CPUs the launcher's processes on this host share; 0 if unknown."""
    if _slurm_tasks_on_node() is not None:
        return _parse_process_count(os.environ.get("SLURM_CPUS_ON_NODE", "")) or 0
    names = (*LOCAL_SIZE_VARIABLES, parameter_server_role.ROLE_VARIABLE)
    launcher_names = {name for name in names if name in os.environ}
    ancestor = os.getppid()
    # Find the launcher: the first ancestor without the launcher's variables. A shell between the
    # launcher and this process has the variables, and the same binding to CPUs as this process.
    while ancestor > 1 and launcher_names & _environment_names(ancestor):
        ancestor = _parent_pid(ancestor)
    try:
        return len(resources.allowed_cpus(ancestor)) if ancestor > 1 else 0
    except OSError:
        return 0


def _environment_names(pid: int) -> "set[str]":
    """Return the names of a process's environment variables; empty for another user's process."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return set()
    return {entry.split(b"=", 1)[0].decode("utf-8", "replace") for entry in environ.split(b"\0")}


def _parent_pid(pid: int) -> int:
    """Return the process id of a process's parent; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _slurm_tasks_on_node() -> Optional[int]:
    """Return the number of this Slurm step's tasks on this node; None outside a step."""
    if "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ:
        return None  # a job's script has the variables of the job's tasks, but is not a task
    text = next((os.environ[name] for name in SLURM_TASK_VARIABLES if os.environ.get(name)), "")
    counts = parse_slurm_counts(text)
    node = os.environ.get("SLURM_NODEID", "")
    if node.isdecimal() and int(node) < len(counts):
        return counts[int(node)]
    return max(counts, default=None)


def _lsf_tasks_on_host() -> Optional[int]:
    """Return the number of blaunch's tasks on this host; None if unknown or outside a task."""
    task = os.environ.get(BLAUNCH.rank, "")
    try:
        return lsf_local_rank_and_size(int(task) - BLAUNCH.first, read_lsf_hosts(os.environ)[1])[1]
    except (ValueError, IndexError):  # a ConfigError is a ValueError
        return None


def _parse_process_count(text: str) -> Optional[int]:
    """Parse a number of processes from 1 to MAX_SLOTS_PER_HOST. Return None for other text."""
    is_number = re.fullmatch(r"\d{1,5}", text.strip()) is not None
    return int(text) if is_number and 1 <= int(text) <= MAX_SLOTS_PER_HOST else None
