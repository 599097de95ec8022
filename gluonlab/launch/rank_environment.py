"""Which process of which group this one is: told by the variables of whoever started it.

`gluonlab.host.launcher_environment` is the table of the launchers, the inner ones first.
`membership` gives this process's place in its group, `allocation` the hosts of the job.

==============  ==================================================================================
launcher        the root, the host of rank 0
==============  ==================================================================================
(any)           ``GLUONLAB_ROOT`` and ``GLUONLAB_PORT``, if they are set
DMLC            as the scheduler's address is told; no rank is, as the store gives it out
horovodrun      not told, and not needed: Horovod finds its processes by itself
torchrun        MASTER_ADDR
jsrun           the first host of the LSF job behind the one of the job's script
Open MPI        mpirun's own host: rank 0 is there unless mpirun was told otherwise
MPICH, MVAPICH  the first host of the Slurm or LSF job
srun            the first node of the step
blaunch         the first host of the LSF job
Kubernetes      ``GLUONLAB_ROOT``, which the printed job file sets
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

from gluonlab.engine.parameter_server_environment import ROLE_FIELD_VARIABLES, read_server_role
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
    checked_host,
    lsf_hosts,
    lsf_place,
    merged,
    slurm_counts,
    slurm_hosts,
)

Environ = Mapping[str, str]
LOOPBACK = "127.0.0.1"
ROLES = ("worker", "server", "scheduler")
HNP = "OMPI_MCA_orte_hnp_uri"
# Linux gives ports from 32768 on to whoever asks for any
FIRST_PORT, PORTS = 10000, 20000


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


def membership(environ: Environ) -> Optional[Membership]:
    """The place of the process with this environment; None if no launcher has started it.

    A shell in an allocation (salloc, bsub -Is, srun --pty) is no process of a group: see
    `allocation`. Raises ConfigError, which names the variable, if variables are missing, senseless
    or contradict each other.
    """
    role = _of_parameter_server(environ)
    if role is not None:
        return role
    started = [launcher for launcher in LAUNCHERS if _has_started(launcher, environ)]
    if not started:
        return None
    found = _place(started[0], environ)
    for launcher in started[1:]:
        if None in (found.root, found.local_rank, found.local_size):
            found = _completed(found, launcher, environ)
    return _rooted(found, environ)


def _completed(found: Membership, launcher: Launcher, environ: Environ) -> Membership:
    """With what only the outer launcher tells, if it has started the same group.

    It is the same if rank and size are: srun hands out PMI_RANK itself, jsrun Open MPI's variables.
    """
    try:
        outer = _place(launcher, environ)
    except ConfigError:
        return found  # of another group
    if (found.rank, found.size) != (outer.rank, outer.size):
        return found
    local_rank = outer.local_rank if found.local_rank is None else found.local_rank
    local_size = outer.local_size if found.local_size is None else found.local_size
    root = outer.root if found.root is None else found.root
    return replace(found, root=root, local_rank=local_rank, local_size=local_size)


def _rooted(found: Membership, environ: Environ) -> Membership:
    """With the root and the port that the user has set.

    Else the root is this host, if nobody is elsewhere; MPICH gives out the ranks from the job's
    first host on.
    """
    if environ.get("GLUONLAB_ROOT"):
        found = replace(found, root=checked_host(environ["GLUONLAB_ROOT"], "GLUONLAB_ROOT"))
    elif found.local_size == found.size:
        found = replace(found, root=LOOPBACK)
    elif found.root is None and found.launcher in (PMI.name, MVAPICH2.name):
        hosts = allocation(environ)
        found = replace(found, root=hosts[0].host) if hosts else found
    if environ.get("GLUONLAB_PORT"):
        found = replace(found, port=_port_number(environ, "GLUONLAB_PORT"))
    return found


def allocation(environ: Environ) -> Optional[List[HostSlots]]:
    """The hosts of the Slurm or LSF job in which this process runs, with their slots, else None.

    Each host comes once. Slots are Slurm's tasks and LSF's slots. Raises ConfigError as
    `membership` does.
    """
    variable = _first_of(environ, ("SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if environ.get("SLURM_JOB_ID") and variable:
        hosts = slurm_hosts(environ[variable], variable)
        counts = slurm_counts(environ.get("SLURM_TASKS_PER_NODE", "")) or [1] * len(hosts)
        if len(counts) != len(hosts) and "SLURM_STEP_ID" in environ:  # counts are the step's
            counts = [1] * len(hosts)
        if len(counts) != len(hosts):
            raise _contradiction(
                f"SLURM_TASKS_PER_NODE={environ['SLURM_TASKS_PER_NODE']} counts {len(counts)} "
                f"nodes, {variable}={environ[variable]} names {len(hosts)}"
            )
        return merged([HostSlots(*pair) for pair in zip(hosts, counts)])
    if environ.get("LSB_JOBID"):
        return merged(lsf_hosts(environ)[1]) or None
    return None


# --- What each launcher's variables tell of this process


def _has_started(launcher: Launcher, environ: Environ) -> bool:
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


def _place(launcher: Launcher, environ: Environ) -> Membership:
    """What this launcher tells, checked."""
    if launcher is SAGEMAKER:
        return _of_sagemaker(environ)
    size, told_by = _size(launcher, environ)
    if not environ.get(launcher.rank):
        raise _missing(launcher, environ, launcher.rank)
    rank = _number(environ, launcher.rank, launcher.first) - launcher.first
    if rank >= size:
        raise _contradiction(
            f"{launcher.rank}={environ[launcher.rank]}, but {told_by} is {size}: "
            f"the numbers are {launcher.first} to {size - 1 + launcher.first}"
        )
    local_rank = _optional(environ, launcher.local_rank, 0)
    local_size = _optional(environ, launcher.local_size, 1)
    found = Membership(
        launcher.name, rank, size, local_rank, local_size, None, _job_port(launcher, environ)
    )
    if launcher in PLACES:
        found = PLACES[launcher](found, environ)
    _check_local(found, launcher, environ)
    return found


def _size(launcher: Launcher, environ: Environ) -> Tuple[int, str]:
    """The number of processes, and the variable that tells it."""
    name = _first_of(environ, launcher.size)
    if name:
        return _number(environ, name, least=1), name
    hosts = lsf_hosts(environ)[1] if launcher is BLAUNCH else []
    if not hosts:
        raise _missing(launcher, environ, launcher.size[0])
    return sum(slots for _, slots in hosts), "the number of slots in LSF's list of hosts"


def _check_local(found: Membership, launcher: Launcher, environ: Environ) -> None:
    """A host's processes are some of all, and this one is among them."""
    name = _first_of(environ, launcher.local_size) or "the number of processes on this host"
    if found.local_size is not None and found.local_size > found.size:
        raise _contradiction(f"{name} is {found.local_size}, more than all {found.size} processes")
    if None not in (found.local_rank, found.local_size):
        assert found.local_rank is not None and found.local_size is not None
        if found.local_rank >= found.local_size:
            ranks = _first_of(environ, launcher.local_rank) or "this process's number on its host"
            raise _contradiction(f"{ranks} is {found.local_rank}, but {name} is {found.local_size}")


def _of_srun(found: Membership, environ: Environ) -> Membership:
    """The step's first node is the root; its tasks on this node, by the node's number."""
    listed = _first_of(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if not listed:
        raise _missing(SRUN, environ, "SLURM_STEP_NODELIST")
    nodes, local_size = slurm_hosts(environ[listed], listed), None
    counts = slurm_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if counts:
        given = f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']}"
        if sum(counts) != found.size:
            raise _contradiction(f"{given} are {sum(counts)} tasks, but the step has {found.size}")
        if len(counts) != len(nodes):
            raise _contradiction(
                f"{given} counts {len(counts)} nodes, {listed}={environ[listed]} names {len(nodes)}"
            )
        if environ.get("SLURM_NODEID"):
            node = _number(environ, "SLURM_NODEID", 0)
            if node >= len(counts):
                raise _contradiction(f"SLURM_NODEID={node}, but {given}")
            local_size = counts[node]
    return replace(found, root=nodes[0], local_size=local_size)


def _of_blaunch(found: Membership, environ: Environ) -> Membership:
    """Tasks are numbered through the job's slots, host by host."""
    told_by, hosts = lsf_hosts(environ)
    if not hosts:
        raise _missing(BLAUNCH, environ, "LSB_MCPU_HOSTS")
    slots = sum(slots for _, slots in hosts)
    if slots != found.size:
        raise _contradiction(f"{told_by} names {slots} slots, LSB_DJOB_NUMPROC is {found.size}")
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
    return replace(found, port=_port_number(environ, TORCHRUN.port)) if told else found


def _of_kubernetes(found: Membership, environ: Environ) -> Membership:
    """Each pod is one process, and has a host's name of its own."""
    if found.size > 1 and not environ.get("GLUONLAB_ROOT"):
        raise _missing(KUBERNETES, environ, "GLUONLAB_ROOT")
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
        raise _missing(SAGEMAKER, environ, "SM_CURRENT_HOST")
    if here not in hosts:
        raise _contradiction(f"SM_CURRENT_HOST={here} is none of SM_HOSTS={environ['SM_HOSTS']}")
    order = [checked_host(host, "SM_HOSTS") for host in sorted(hosts)]
    port = _job_port(SAGEMAKER, environ)
    return Membership("SageMaker", order.index(here), len(order), 0, 1, order[0], port)


def _of_parameter_server(environ: Environ) -> Optional[Membership]:
    """The role that MXNet's launch.py, or `gluonlab.launch` itself, has given this process."""
    found = read_server_role(environ)
    if found is None:
        return None
    if found.role not in ROLES:
        name = ROLE_FIELD_VARIABLES["role"]
        raise ConfigError(f"{name}={found.role}: choose {', '.join(ROLES)}, or unset it")
    for field, name in ROLE_FIELD_VARIABLES.items():
        if getattr(found, field) is None:
            raise ConfigError(
                f"{ROLE_FIELD_VARIABLES['role']}={found.role} says that this process is one of MXNet's "
                f"parameter server, but {name} is not set: set it, or unset {ROLE_FIELD_VARIABLES['role']}"
            )
    root = checked_host(str(found.root), ROLE_FIELD_VARIABLES["root"])
    size = _number(environ, ROLE_FIELD_VARIABLES["workers"], least=1)
    port = _port_number(environ, ROLE_FIELD_VARIABLES["port"])
    return Membership("parameter server", None, size, None, None, root, port, found.role)


# --- Variables: numbers, names, and what is wrong with them in one line


def _job_port(launcher: Launcher, environ: Environ) -> int:
    """A port for the group, the same in all of its processes."""
    job = "\n".join(environ.get(name, "") for name in launcher.job)
    digest = hashlib.sha256(job.encode("utf-8", "replace")).digest()
    return FIRST_PORT + int.from_bytes(digest, "big") % PORTS


def _port_number(environ: Environ, name: str) -> int:
    """A port that a variable gives."""
    port = _number(environ, name, least=1)
    if port > 65535:
        raise ConfigError(f"{name}={port}: a port from 1 to 65535 is possible")
    return port


def _number(environ: Environ, name: str, least: int) -> int:
    """The whole number that a variable gives; ConfigError if it is none, or below ``least``."""
    text = environ[name]
    if re.fullmatch(r"[0-9]{1,7}", text) is None or int(text) < least:
        raise ConfigError(
            f"{name}={text!r}: a whole number from {least} on is possible; set it anew"
        )
    return int(text)


def _optional(environ: Environ, names: Tuple[str, ...], least: int) -> Optional[int]:
    """The number of the first of these variables that is set; None if none is."""
    name = _first_of(environ, names)
    return _number(environ, name, least) if name else None


def _first_of(environ: Environ, names: Tuple[str, ...]) -> str:
    """The first of these variables that is set; "" if none is."""
    return next((name for name in names if environ.get(name)), "")


def _missing(launcher: Launcher, environ: Environ, name: str) -> ConfigError:
    """What to say when a launcher has left a variable out."""
    mark = launcher.mark or launcher.rank
    return ConfigError(
        f"{mark}={environ[mark]} says that this process was started by {launcher.name}, but {name} "
        f"is not set: set it, or unset {mark} to start processes from here"
    )


def _contradiction(text: str) -> ConfigError:
    """What to say when two variables cannot both be true."""
    return ConfigError(f"{text}: variables of two launchers are mixed; unset those that are stale")
