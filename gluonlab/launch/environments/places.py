"""What each launcher's variables tell of this process: its place in its group."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Callable, Dict, Optional, Tuple

from gluonlab.engine.parameter_server import ROLE_NAMES, server_role
from gluonlab.errors import ConfigError
from gluonlab.host.host_lists import (
    checked_host,
    lsf_hosts,
    lsf_place,
    merged,
    slurm_counts,
    slurm_hosts,
)
from gluonlab.host.launchers import (
    BLAUNCH,
    JSRUN,
    KUBERNETES,
    OPEN_MPI,
    SAGEMAKER,
    SRUN,
    TORCHRUN,
    Launcher,
)
from gluonlab.launch.environments.variables import (
    Environ,
    contradiction,
    first_of,
    job_port,
    missing,
    number,
    optional,
    port_number,
)

ROLES = ("worker", "server", "scheduler")
HNP = "OMPI_MCA_orte_hnp_uri"


@dataclass(frozen=True)
class Membership:
    """This process's place in its group.

    ``root``: a name or address of rank 0's host, the same in all processes; None if nobody tells.
    ``port``: where rank 0 may listen: told, or made of the job's number, so that two jobs on a host
    seldom meet. ``rank`` is None, and ``role`` is set, for processes of MXNet's parameter server.
    """

    launcher: str
    rank: Optional[int]
    size: int
    local_rank: Optional[int]
    local_size: Optional[int]
    root: Optional[str]
    port: int
    role: Optional[str] = None


def has_started(launcher: Launcher, environ: Environ) -> bool:
    """Whether the launcher, or one that it has started, has started this process."""
    if not environ.get(launcher.mark or launcher.rank):
        return False
    if launcher is SRUN:
        # the script of a job, and the shell of salloc, are steps with numbers beyond all others;
        # what runs alone on a terminal is a shell as well
        step = environ[SRUN.mark]
        shell = "SLURM_PTY_PORT" in environ and environ.get("SLURM_STEP_NUM_TASKS") == "1"
        return not shell and not (re.fullmatch("[0-9]{10}", step) and int(step) >= 0xFFFFFFF0)
    return True


def place(launcher: Launcher, environ: Environ) -> Membership:
    """What this launcher tells, checked."""
    if launcher is SAGEMAKER:
        return _of_sagemaker(environ)
    size, told_by = _size(launcher, environ)
    if not environ.get(launcher.rank):
        raise missing(launcher, environ, launcher.rank)
    rank = number(environ, launcher.rank, launcher.first) - launcher.first
    if rank >= size:
        raise contradiction(
            f"{launcher.rank}={environ[launcher.rank]}, but {told_by} is {size}: "
            f"the numbers are {launcher.first} to {size - 1 + launcher.first}"
        )
    local_rank = optional(environ, launcher.local_rank, 0)
    local_size = optional(environ, launcher.local_size, 1)
    found = Membership(
        launcher.name, rank, size, local_rank, local_size, None, job_port(launcher, environ)
    )
    if launcher in PLACES:
        found = PLACES[launcher](found, environ)
    _check_local(found, launcher, environ)
    return found


def _size(launcher: Launcher, environ: Environ) -> Tuple[int, str]:
    """The number of processes, and the variable that tells it."""
    name = first_of(environ, launcher.size)
    if name:
        return number(environ, name, least=1), name
    hosts = lsf_hosts(environ)[1] if launcher is BLAUNCH else []
    if not hosts:
        raise missing(launcher, environ, launcher.size[0])
    return sum(slots for _, slots in hosts), "the number of slots in LSF's list of hosts"


def _check_local(found: Membership, launcher: Launcher, environ: Environ) -> None:
    """A host's processes are some of all, and this one is among them."""
    name = first_of(environ, launcher.local_size) or "the number of processes on this host"
    if found.local_size is not None and found.local_size > found.size:
        raise contradiction(f"{name} is {found.local_size}, more than all {found.size} processes")
    if None not in (found.local_rank, found.local_size):
        assert found.local_rank is not None and found.local_size is not None
        if found.local_rank >= found.local_size:
            ranks = first_of(environ, launcher.local_rank) or "this process's number on its host"
            raise contradiction(f"{ranks} is {found.local_rank}, but {name} is {found.local_size}")


def _of_srun(found: Membership, environ: Environ) -> Membership:
    """The step's first node is the root; its tasks on this node, by the node's number."""
    listed = first_of(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if not listed:
        raise missing(SRUN, environ, "SLURM_STEP_NODELIST")
    nodes, local_size = slurm_hosts(environ[listed], listed), None
    counts = slurm_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if counts:
        given = f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']}"
        if sum(counts) != found.size:
            raise contradiction(f"{given} are {sum(counts)} tasks, but the step has {found.size}")
        if len(counts) != len(nodes):
            raise contradiction(
                f"{given} counts {len(counts)} nodes, {listed}={environ[listed]} names {len(nodes)}"
            )
        if environ.get("SLURM_NODEID"):
            node = number(environ, "SLURM_NODEID", 0)
            if node >= len(counts):
                raise contradiction(f"SLURM_NODEID={node}, but {given}")
            local_size = counts[node]
    return replace(found, root=nodes[0], local_size=local_size)


def _of_blaunch(found: Membership, environ: Environ) -> Membership:
    """Tasks are numbered through the job's slots, host by host."""
    told_by, hosts = lsf_hosts(environ)
    if not hosts:
        raise missing(BLAUNCH, environ, "LSB_MCPU_HOSTS")
    slots = sum(slots for _, slots in hosts)
    if slots != found.size:
        raise contradiction(f"{told_by} names {slots} slots, LSB_DJOB_NUMPROC is {found.size}")
    local_rank, local_size = lsf_place(found.rank or 0, hosts)
    return replace(found, root=hosts[0].host, local_rank=local_rank, local_size=local_size)


def _of_jsrun(found: Membership, environ: Environ) -> Membership:
    """The job's script has a host of its own, the first, with one slot; tasks are on the others."""
    hosts = merged(lsf_hosts(environ)[1])
    tasks = hosts[1:] if len(hosts) > 1 and hosts[0].slots == 1 else hosts
    return replace(found, root=tasks[0].host) if tasks else found


def _of_open_mpi(found: Membership, environ: Environ) -> Membership:
    """Up to Open MPI 4, mpirun gives its addresses; from 5 on, its host in the group's name."""
    address = re.search(r";tcp6?://(?:\[([^,;\]]+)|([^,;:\[]+))", environ.get(HNP, ""))
    group = re.fullmatch(r"(?:prterun|prte|mpirun)-(.+)-\d+@\d+", environ.get("PMIX_NAMESPACE", ""))
    if address:
        return replace(found, root=checked_host(address[1] or address[2], HNP))
    return replace(found, root=checked_host(group[1], "PMIX_NAMESPACE")) if group else found


def _of_torchrun(found: Membership, environ: Environ) -> Membership:
    """The port that is told is taken, by torchrun itself, if its processes share its store."""
    root = environ.get(TORCHRUN.root, "")
    found = replace(found, root=checked_host(root, TORCHRUN.root) if root else None)
    told = environ.get(TORCHRUN.port) and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return replace(found, port=port_number(environ, TORCHRUN.port)) if told else found


def _of_kubernetes(found: Membership, environ: Environ) -> Membership:
    """Each pod is one process, and has a host's name of its own."""
    if found.size > 1 and not environ.get("GLUONLAB_ROOT"):
        raise missing(KUBERNETES, environ, "GLUONLAB_ROOT")
    return replace(found, local_rank=0, local_size=1)


PLACES: Dict[Launcher, Callable[[Membership, Environ], Membership]] = {
    SRUN: _of_srun, BLAUNCH: _of_blaunch, JSRUN: _of_jsrun, OPEN_MPI: _of_open_mpi,
    TORCHRUN: _of_torchrun, KUBERNETES: _of_kubernetes,
}  # fmt: skip


def _of_sagemaker(environ: Environ) -> Membership:
    """One process on each host; SageMaker gives all hosts the same list."""
    try:
        hosts = json.loads(environ["SM_HOSTS"])
        valid = isinstance(hosts, list) and hosts and all(isinstance(host, str) for host in hosts)
    except (ValueError, RecursionError):
        valid = False
    if not valid or len(set(hosts)) != len(hosts):
        raise ConfigError(
            f"SM_HOSTS={environ['SM_HOSTS']!r} is no list of different hosts, such as "
            '["algo-1", "algo-2"]: unset it, or set it as SageMaker does'
        )
    here = environ.get("SM_CURRENT_HOST")
    if not here:
        raise missing(SAGEMAKER, environ, "SM_CURRENT_HOST")
    if here not in hosts:
        raise contradiction(f"SM_CURRENT_HOST={here} is none of SM_HOSTS={environ['SM_HOSTS']}")
    order = [checked_host(host, "SM_HOSTS") for host in sorted(hosts)]
    port = job_port(SAGEMAKER, environ)
    return Membership("SageMaker", order.index(here), len(order), 0, 1, order[0], port)


def of_parameter_server(environ: Environ) -> Optional[Membership]:
    """The role that MXNet's launch.py, or `gluonlab.launch` itself, has given this process."""
    found = server_role(environ)
    if found is None:
        return None
    if found.role not in ROLES:
        name = ROLE_NAMES["role"]
        raise ConfigError(f"{name}={found.role}: choose {', '.join(ROLES)}, or unset it")
    for field, name in ROLE_NAMES.items():
        if getattr(found, field) is None:
            raise ConfigError(
                f"{ROLE_NAMES['role']}={found.role} says that this process is one of MXNet's "
                f"parameter server, but {name} is not set: set it, or unset {ROLE_NAMES['role']}"
            )
    root = checked_host(str(found.root), ROLE_NAMES["root"])
    size = number(environ, ROLE_NAMES["workers"], least=1)
    port = port_number(environ, ROLE_NAMES["port"])
    return Membership("parameter server", None, size, None, None, root, port, found.role)
