"""Reads this process's rank and group from the environment variables that its launcher sets.

- `membership` returns the rank, the size of the group and the address of rank 0.
- `read_job_allocation` returns the hosts of the Slurm or LSF job.

`gluonlab.host.launcher_environment` lists the variables of each launcher. If one launcher runs
inside another, the variables of the inner launcher are used first.

The root of a group is the host of rank 0. The root depends on the launcher:

==============  ==================================================================================
launcher        root
==============  ==================================================================================
(any)           ``GLUONLAB_MASTER_ADDR`` and ``GLUONLAB_PORT``, if they are set
DMLC            the address of MXNet's scheduler; MXNet's kvstore assigns the ranks
horovodrun      none, because Horovod's processes find each other by themselves
torchrun        MASTER_ADDR
jsrun           the first host of the LSF job after the host of the job's script
Open MPI        mpirun's host, where rank 0 runs by default
MPICH, MVAPICH  the first host of the Slurm or LSF job
srun            the first node of the step
blaunch         the first host of the LSF job
Kubernetes      ``GLUONLAB_MASTER_ADDR``, which the printed job file sets
SageMaker       the first of SM_HOSTS
==============  ==================================================================================

If all processes are on one host, the root is 127.0.0.1.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from gluonlab.engine.parameter_server_role import ROLE_FIELD_VARIABLES, read_server_role
from gluonlab.errors import ConfigError
from gluonlab.host.launcher_environment import (
    BLAUNCH,
    JSRUN,
    KUBERNETES,
    LAUNCHERS,
    MVAPICH2,
    OPEN_MPI,
    PMI,
    SAGEMAKER,
    SRUN,
    TORCHRUN,
    HostSlots,
    Launcher,
    check_hostname,
    lsf_local_rank_and_size,
    merge_host_slots,
    parse_slurm_counts,
    parse_slurm_hosts,
    read_lsf_hosts,
)

Environ = Mapping[str, str]
LOOPBACK = "127.0.0.1"
ROLES = ("worker", "server", "scheduler")
MPIRUN_ADDRESS_VARIABLE = "OMPI_MCA_orte_hnp_uri"
# Linux assigns ports from 32768 on to processes that request any port.
FIRST_PORT, PORT_COUNT = 10000, 20000


@dataclass(frozen=True)
class Membership:
    """The rank of this process, and the size and root of its group.

    Args:
        launcher: name of the launcher that started this process
        rank: rank in the group; None for processes of MXNet's parameter server
        size: number of processes in the group
        local_rank: rank among the group's processes on this host; None if unknown
        local_size: number of the group's processes on this host; None if unknown
        root: name or address of rank 0's host, the same in all processes; None if unknown
        port: port of rank 0, set by the launcher or derived from the job's number
        role: worker, server or scheduler; None if MXNet's parameter server is not used
    """

    launcher: str
    rank: Optional[int]
    size: int
    local_rank: Optional[int]
    local_size: Optional[int]
    root: Optional[str]
    port: int
    role: Optional[str] = None


def membership(environ: Environ) -> Optional[Membership]:
    """Return the rank, group size and launcher of the process with these environment variables.

    Returns None if no launcher has started the process. A shell in an allocation (salloc, bsub -Is,
    srun --pty) does not belong to a group. Use `read_job_allocation` in such a shell.

    Raises ConfigError, with the variable's name, if variables are missing, invalid or
    contradictory.
    """
    server_member = _parameter_server_membership(environ)
    if server_member is not None:
        return server_member
    launchers = [launcher for launcher in LAUNCHERS if _was_started_by(launcher, environ)]
    if not launchers:
        return None
    member = _membership_by_launcher(launchers[0], environ)
    for launcher in launchers[1:]:
        if None in (member.root, member.local_rank, member.local_size):
            member = _complete_from_outer(member, launcher, environ)
    return _set_root(member, environ)


def _complete_from_outer(member: Membership, launcher: Launcher, environ: Environ) -> Membership:
    """Fill in missing values from the outer ``launcher``, if it has started the same group.

    Both launchers describe the same group if the ranks and sizes are equal. For example, srun
    itself sets PMI_RANK, and jsrun sets Open MPI's variables.
    """
    try:
        outer = _membership_by_launcher(launcher, environ)
    except ConfigError:
        return member  # the outer launcher belongs to another group
    if (member.rank, member.size) != (outer.rank, outer.size):
        return member
    local_rank = outer.local_rank if member.local_rank is None else member.local_rank
    local_size = outer.local_size if member.local_size is None else member.local_size
    root = outer.root if member.root is None else member.root
    return replace(member, root=root, local_rank=local_rank, local_size=local_size)


ROOT_VARIABLES = ("GLUONLAB_MASTER_ADDR", "GLUONLAB_ROOT")  # of rank 0's host; the second is the old name


def _set_root(member: Membership, environ: Environ) -> Membership:
    """Set the root and the port to the user's GLUONLAB_MASTER_ADDR and GLUONLAB_PORT, or to defaults.

    If all processes are on one host, the default root is 127.0.0.1. MPICH and MVAPICH2 put rank 0
    on the job's first host.
    """
    name = next((name for name in ROOT_VARIABLES if environ.get(name)), None)
    if name is not None:
        member = replace(member, root=check_hostname(environ[name], name))
    elif member.local_size == member.size:
        member = replace(member, root=LOOPBACK)
    elif member.root is None and member.launcher in (PMI.name, MVAPICH2.name):
        hosts = read_job_allocation(environ)
        member = replace(member, root=hosts[0].host) if hosts else member
    if environ.get("GLUONLAB_PORT"):
        member = replace(member, port=_read_port(environ, "GLUONLAB_PORT"))
    return member


def read_job_allocation(environ: Environ) -> Optional[List[HostSlots]]:
    """Return the hosts and slots in this process's Slurm or LSF job; None outside of a job.

    Each host appears once. Slots are Slurm's tasks or LSF's slots. Raises ConfigError in the same
    cases as `membership`.
    """
    variable = _first_set_name(environ, ("SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if environ.get("SLURM_JOB_ID") and variable:
        hosts = parse_slurm_hosts(environ[variable], variable)
        counts = parse_slurm_counts(environ.get("SLURM_TASKS_PER_NODE", "")) or [1] * len(hosts)
        if len(counts) != len(hosts) and "SLURM_STEP_ID" in environ:  # counts are the step's
            counts = [1] * len(hosts)
        if len(counts) != len(hosts):
            raise _contradiction_error(
                f"SLURM_TASKS_PER_NODE={environ['SLURM_TASKS_PER_NODE']} describes {len(counts)} "
                f"nodes, but {variable}={environ[variable]} lists {len(hosts)} nodes"
            )
        return merge_host_slots([HostSlots(*pair) for pair in zip(hosts, counts)])
    if environ.get("LSB_JOBID"):
        return merge_host_slots(read_lsf_hosts(environ)[1]) or None
    return None


# --- Membership from the variables of each launcher


def _was_started_by(launcher: Launcher, environ: Environ) -> bool:
    """Check if ``launcher`` has started this process, directly or through an inner launcher."""
    if not environ.get(launcher.mark or launcher.rank):
        return False
    if launcher is SRUN:
        # Slurm reserves step numbers from 0xFFFFFFF0 for a job's script and for salloc's shell.
        # A single task with a terminal is also a shell.
        step = environ[SRUN.mark]
        is_shell = "SLURM_PTY_PORT" in environ and environ.get("SLURM_STEP_NUM_TASKS") == "1"
        return not is_shell and not (re.fullmatch("[0-9]{10}", step) and int(step) >= 0xFFFFFFF0)
    return True


def _membership_by_launcher(launcher: Launcher, environ: Environ) -> Membership:
    """Return the membership that this launcher's variables describe. Raises ConfigError."""
    if launcher is SAGEMAKER:
        return _sagemaker_membership(environ)
    size, size_source = _group_size(launcher, environ)
    if not environ.get(launcher.rank):
        raise _missing_variable_error(launcher, environ, launcher.rank)
    rank = _read_number(environ, launcher.rank, launcher.first) - launcher.first
    if rank >= size:
        raise _contradiction_error(
            f"{launcher.rank}={environ[launcher.rank]}, but {size_source} is {size}, so the rank must "
            f"be from {launcher.first} to {size - 1 + launcher.first}"
        )
    local_rank = _read_optional_number(environ, launcher.local_rank, 0)
    local_size = _read_optional_number(environ, launcher.local_size, 1)
    member = Membership(launcher.name, rank, size, local_rank, local_size, None, _port_from_job_id(launcher, environ))
    if launcher in MEMBERSHIP_COMPLETIONS:
        member = MEMBERSHIP_COMPLETIONS[launcher](member, environ)
    _check_local(member, launcher, environ)
    return member


def _group_size(launcher: Launcher, environ: Environ) -> Tuple[int, str]:
    """Return the number of processes, and the source of this number for error messages."""
    name = _first_set_name(environ, launcher.size)
    if name:
        return _read_number(environ, name, least=1), name
    hosts = read_lsf_hosts(environ)[1] if launcher is BLAUNCH else []
    if not hosts:
        raise _missing_variable_error(launcher, environ, launcher.size[0])
    return sum(slots for _, slots in hosts), "the number of slots in LSF's list of hosts"


def _check_local(member: Membership, launcher: Launcher, environ: Environ) -> None:
    """Raise ConfigError if local rank, local size and size contradict each other."""
    name = _first_set_name(environ, launcher.local_size) or "the number of processes on this host"
    if member.local_size is not None and member.local_size > member.size:
        raise _contradiction_error(f"{name} is {member.local_size}, but there are only {member.size} processes in all")
    if None not in (member.local_rank, member.local_size):
        assert member.local_rank is not None and member.local_size is not None
        if member.local_rank >= member.local_size:
            rank_name = _first_set_name(environ, launcher.local_rank) or "the local rank of this process"
            raise _contradiction_error(
                f"{rank_name} is {member.local_rank}, but must be less than {name}, which is {member.local_size}"
            )


def _complete_srun(member: Membership, environ: Environ) -> Membership:
    """Set the root to the first node of the Slurm step, and the local size to this node's tasks."""
    variable = _first_set_name(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if not variable:
        raise _missing_variable_error(SRUN, environ, "SLURM_STEP_NODELIST")
    nodes, local_size = parse_slurm_hosts(environ[variable], variable), None
    counts = parse_slurm_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if counts:
        setting = f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']}"
        if sum(counts) != member.size:
            raise _contradiction_error(
                f"{setting} describes {sum(counts)} tasks, but the Slurm step has {member.size} tasks"
            )
        if len(counts) != len(nodes):
            raise _contradiction_error(
                f"{setting} describes {len(counts)} nodes, but {variable}={environ[variable]} lists {len(nodes)} nodes"
            )
        if environ.get("SLURM_NODEID"):
            node = _read_number(environ, "SLURM_NODEID", 0)
            if node >= len(counts):
                raise _contradiction_error(
                    f"SLURM_NODEID={node} must be less than {len(counts)}, the number of nodes in {setting}"
                )
            local_size = counts[node]
    return replace(member, root=nodes[0], local_size=local_size)


def _complete_blaunch(member: Membership, environ: Environ) -> Membership:
    """Set the root, local rank and local size. LSF numbers the tasks host by host."""
    variable, hosts = read_lsf_hosts(environ)
    if not hosts:
        raise _missing_variable_error(BLAUNCH, environ, "LSB_MCPU_HOSTS")
    slots = sum(slots for _, slots in hosts)
    if slots != member.size:
        raise _contradiction_error(f"{variable} lists {slots} slots, but LSB_DJOB_NUMPROC is {member.size}")
    local_rank, local_size = lsf_local_rank_and_size(member.rank or 0, hosts)
    return replace(member, root=hosts[0].host, local_rank=local_rank, local_size=local_size)


def _complete_jsrun(member: Membership, environ: Environ) -> Membership:
    """Set the root to the first host with tasks."""
    hosts = merge_host_slots(read_lsf_hosts(environ)[1])
    # The job's script has its own host, the first, with one slot.
    task_hosts = hosts[1:] if len(hosts) > 1 and hosts[0].slots == 1 else hosts
    return replace(member, root=task_hosts[0].host) if task_hosts else member


def _complete_open_mpi(member: Membership, environ: Environ) -> Membership:
    """Set the root to mpirun's host.

    Open MPI 4 sets mpirun's address. Open MPI 5 sets a namespace that contains the hostname.
    """
    address = re.search(r";tcp6?://(?:\[([^,;\]]+)|([^,;:\[]+))", environ.get(MPIRUN_ADDRESS_VARIABLE, ""))
    group = re.fullmatch(r"(?:prterun|prte|mpirun)-(.+)-\d+@\d+", environ.get("PMIX_NAMESPACE", ""))
    if address:
        return replace(member, root=check_hostname(address[1] or address[2], MPIRUN_ADDRESS_VARIABLE))
    return replace(member, root=check_hostname(group[1], "PMIX_NAMESPACE")) if group else member


def _complete_torchrun(member: Membership, environ: Environ) -> Membership:
    """Set the root to MASTER_ADDR.

    If torchrun does not use MASTER_PORT, set the port to MASTER_PORT.
    """
    root = environ.get(TORCHRUN.root, "")
    member = replace(member, root=check_hostname(root, TORCHRUN.root) if root else None)
    is_free = environ.get(TORCHRUN.port) and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return replace(member, port=_read_port(environ, TORCHRUN.port)) if is_free else member


def _complete_kubernetes(member: Membership, environ: Environ) -> Membership:
    """Set local rank 0 and local size 1, because each pod runs one process."""
    if member.size > 1 and not any(map(environ.get, ROOT_VARIABLES)):
        raise _missing_variable_error(KUBERNETES, environ, ROOT_VARIABLES[0])
    return replace(member, local_rank=0, local_size=1)


MEMBERSHIP_COMPLETIONS: Dict[Launcher, Callable[[Membership, Environ], Membership]] = {
    SRUN: _complete_srun, BLAUNCH: _complete_blaunch, JSRUN: _complete_jsrun, OPEN_MPI: _complete_open_mpi,
    TORCHRUN: _complete_torchrun, KUBERNETES: _complete_kubernetes,
}  # fmt: skip


def _sagemaker_membership(environ: Environ) -> Membership:
    """Return the membership according to SageMaker's list of hosts. Each host runs one process.

    The rank is the position of this host in the sorted list, which is the same on all hosts.
    """
    try:
        hosts = json.loads(environ["SM_HOSTS"])
        is_valid = isinstance(hosts, list) and hosts and all(isinstance(host, str) for host in hosts)
    except (ValueError, RecursionError):
        is_valid = False
    if not is_valid or len(set(hosts)) != len(hosts):
        raise ConfigError(
            f"SM_HOSTS={environ['SM_HOSTS']!r} must be a JSON list of distinct hostnames, such as "
            '["algo-1", "algo-2"]: unset it, or set it as SageMaker does'
        )
    hostname = environ.get("SM_CURRENT_HOST")
    if not hostname:
        raise _missing_variable_error(SAGEMAKER, environ, "SM_CURRENT_HOST")
    if hostname not in hosts:
        raise _contradiction_error(f"SM_CURRENT_HOST={hostname} is not in SM_HOSTS={environ['SM_HOSTS']}")
    sorted_hosts = [check_hostname(host, "SM_HOSTS") for host in sorted(hosts)]
    port = _port_from_job_id(SAGEMAKER, environ)
    return Membership("SageMaker", sorted_hosts.index(hostname), len(sorted_hosts), 0, 1, sorted_hosts[0], port)


def _parameter_server_membership(environ: Environ) -> Optional[Membership]:
    """Return the membership of an MXNet parameter server process; None for other processes.

    MXNet's launch.py or `gluonlab.launch` has set the variables.
    """
    server_role = read_server_role(environ)
    if server_role is None:
        return None
    if server_role.role not in ROLES:
        name = ROLE_FIELD_VARIABLES["role"]
        raise ConfigError(f"{name}={server_role.role} is not a valid role: choose {', '.join(ROLES)}, or unset it")
    for field, name in ROLE_FIELD_VARIABLES.items():
        if getattr(server_role, field) is None:
            variable = ROLE_FIELD_VARIABLES["role"]
            raise ConfigError(
                f"{variable}={server_role.role} marks this process as a part of MXNet's parameter "
                f"server, but {name} is not set: set {name}, or unset {variable}"
            )
    root = check_hostname(str(server_role.root), ROLE_FIELD_VARIABLES["root"])
    size = _read_number(environ, ROLE_FIELD_VARIABLES["workers"], least=1)
    port = _read_port(environ, ROLE_FIELD_VARIABLES["port"])
    return Membership("parameter server", None, size, None, None, root, port, server_role.role)


# --- Values of variables, with one-line errors


def _port_from_job_id(launcher: Launcher, environ: Environ) -> int:
    """Return a port for the group. The port is the same in all of the group's processes.

    The port is derived from the job number, so that two jobs on one host rarely collide.
    """
    job = "\n".join(environ.get(name, "") for name in launcher.job)
    digest = hashlib.sha256(job.encode("utf-8", "replace")).digest()
    return FIRST_PORT + int.from_bytes(digest, "big") % PORT_COUNT


def _read_port(environ: Environ, name: str) -> int:
    """Return the port number in a variable. Raises ConfigError if the value is not a valid port."""
    port = _read_number(environ, name, least=1)
    if port > 65535:
        raise ConfigError(f"{name}={port}: must be a port from 1 to 65535")
    return port


def _read_number(environ: Environ, name: str, least: int) -> int:
    """Return the whole number in a variable.

    Raises ConfigError if the value is not a whole number or is less than ``least``.
    """
    text = environ[name]
    if re.fullmatch(r"[0-9]{1,7}", text) is None or int(text) < least:
        raise ConfigError(f"{name}={text!r}: must be a whole number of at least {least}")
    return int(text)


def _read_optional_number(environ: Environ, names: Tuple[str, ...], least: int) -> Optional[int]:
    """Return the number in the first of these variables that is set; None if all are unset."""
    name = _first_set_name(environ, names)
    return _read_number(environ, name, least) if name else None


def _first_set_name(environ: Environ, names: Tuple[str, ...]) -> str:
    """Return the name of the first of these variables that is set; "" if all are unset."""
    return next((name for name in names if environ.get(name)), "")


def _missing_variable_error(launcher: Launcher, environ: Environ, name: str) -> ConfigError:
    """Return the error for a variable that a launcher has not set."""
    mark = launcher.mark or launcher.rank
    return ConfigError(
        f"{mark}={environ[mark]} shows that {launcher.name} started this process, but {name} is "
        f"not set: set it, or unset {mark} to start processes from here"
    )


def _contradiction_error(text: str) -> ConfigError:
    """Return the error for contradictory variables, which ``text`` describes."""
    return ConfigError(f"{text}: unset the variables that another launcher has set")
