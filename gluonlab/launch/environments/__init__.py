"""Which process of which group this one is: told by the variables of whoever started it.

`gluonlab.host.launchers` is the table of the launchers, the inner ones first; `places.py` says what
their variables mean, `allocation.py` which hosts a job has.

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

from dataclasses import replace
from typing import Optional

from gluonlab.errors import ConfigError
from gluonlab.host.launchers import LAUNCHERS, MVAPICH2, PMI, HostSlots, Launcher, checked_host
from gluonlab.launch.environments.allocation import allocation
from gluonlab.launch.environments.places import (
    Membership,
    has_started,
    of_parameter_server,
    place,
)
from gluonlab.launch.environments.variables import Environ, port_number

__all__ = ["HostSlots", "Membership", "allocation", "membership"]
LOOPBACK = "127.0.0.1"


def membership(environ: Environ) -> Optional[Membership]:
    """The place of the process with this environment; None if no launcher has started it.

    A shell in an allocation (salloc, bsub -Is, srun --pty) is no process of a group: see
    `allocation`. Raises ConfigError, which names the variable, if variables are missing, senseless
    or contradict each other.
    """
    role = of_parameter_server(environ)
    if role is not None:
        return role
    started = [launcher for launcher in LAUNCHERS if has_started(launcher, environ)]
    if not started:
        return None
    found = place(started[0], environ)
    for launcher in started[1:]:
        if None in (found.root, found.local_rank, found.local_size):
            found = _completed(found, launcher, environ)
    return _rooted(found, environ)


def _completed(found: Membership, launcher: Launcher, environ: Environ) -> Membership:
    """With what only the outer launcher tells, if it has started the same group.

    It is the same if rank and size are: srun hands out PMI_RANK itself, jsrun Open MPI's variables.
    """
    try:
        outer = place(launcher, environ)
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
        found = replace(found, port=port_number(environ, "GLUONLAB_PORT"))
    return found
