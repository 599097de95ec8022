"""Processes of a group: scheduler, servers and workers, with their arguments and environments.

With MXNet's parameter server, all of these processes run MXNet. With Horovod, the scheduler is the
rendezvous server at which the workers find each other.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.errors import ConfigError
from gluonlab.host.child_processes import with_this_gluonlab
from gluonlab.launch.user_program import is_program
from gluonlab.plain_text import one_line, printable

RANK = "GLUONLAB_RANK"  # of a worker. MXNet's scheduler would number workers in order of arrival.
LOCAL_RANK = "GLUONLAB_LOCAL_RANK"
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
COMMAND = "GLUONLAB_COMMAND"  # the user's command, up to the options of the run
RAN_ON = "GLUONLAB_RAN_ON"  # the earlier host of rank 0 and the run's folder, if rank 0 has moved
WORKER = "gluonlab.launch.worker"
SCHEDULER = "scheduler"  # the name of this process
SERVE = ["-m", "gluonlab.launch.server_process"]
RENDEZVOUS = [*SERVE, "rendezvous"]
AGAIN = "--autoresume"  # added to the options when the processes restart
TELL = "GLUONLAB_TELL"  # the file descriptor over which a process reports its status
# Status of a worker: it runs; the group has formed; it trains, so that a signal stops all workers
# after the same step; it needs no server any more.
ARRIVED, JOINED, BEGUN, LEFT = "arrived", "joined", "begun", "left"
TAKEN = "taken"  # status of the scheduler, which then exits: another process has its port
# Prefixes of variables that processes on other hosts get from this environment.
PASSED = ("GLUONLAB_", "MXNET_", "DMLC_", "PS_", "OMP_", "HOROVOD_", "NCCL_", "PYTHON")
# MXNet's servers and workers would listen at this port instead of a free one. Many clouds set it
# for another purpose, or to 0.
NODE_PORT = "PORT"


class ProcessSpec(NamedTuple):
    """A process of a group. ``host`` is an index into the hosts; ``words`` are Python's arguments.

    If ``is_program``, ``words`` are the command line of the user's own program.
    """

    name: str
    host: int
    words: List[str]
    environment: Dict[str, str]
    is_program: bool = False

    @property
    def is_worker(self) -> bool:
        """Check if the process trains."""
        return RANK in self.environment


class Site(NamedTuple):
    """A host's name and address for the other hosts, and the network interface, such as eth0."""

    name: str
    address: str
    interface: str


def worker_words(backend: str, words: Sequence[str]) -> List[str]:
    """Return a worker's arguments: Python's for a run with the options ``words``, or a program's."""
    return list(words) if is_program(words) else ["-m", WORKER, "--backend", backend, *words]


# scheduler and servers, and the workers' variables
Started = Tuple[List[ProcessSpec], List[Dict[str, str]]]


def parts(
    backend: str,
    words: Sequence[str],
    placed: Sequence[int],
    servers: Sequence[int],
    sites: Sequence[Site],
    port: int,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> List[ProcessSpec]:
    """Return the processes of a group, the scheduler first.

    Args:
        backend: a key of `PROCESSES_BY_BACKEND`
        words: the options of the run, or a program
        placed: the host of each rank, as an index into ``sites``
        servers: the host of each server
        sites: the hosts; the scheduler is on the first
        port: the scheduler's port
        settings: variables for all workers, such as Horovod's
    """
    arguments = worker_words(backend, words)
    others, workers = BY_BACKEND[backend](placed, servers, sites, port)
    names = [sites[host].name for host in placed]
    for rank, (name, environment) in enumerate(zip(names, workers)):
        environment.update(settings)
        environment[RANK] = str(rank)
        environment[LOCAL_RANK] = str(names[:rank].count(name))
        environment[LOCAL_SIZE] = str(names.count(name))
    return others + [
        ProcessSpec(f"rank {rank}", host, arguments, environment, is_program(words))
        for rank, (host, environment) in enumerate(zip(placed, workers))
    ]


def _parameter_server(
    placed: Sequence[int], servers: Sequence[int], sites: Sequence[Site], port: int
) -> Started:
    def role_variables(role: str, host: int) -> Dict[str, str]:
        return {
            "DMLC_ROLE": role,
            "DMLC_NUM_WORKER": str(len(placed)),
            "DMLC_NUM_SERVER": str(len(servers)),
            "DMLC_PS_ROOT_URI": sites[0].address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": sites[host].address,
            **_if_known(DMLC_INTERFACE=sites[host].interface),
        }

    others = [ProcessSpec(SCHEDULER, 0, SERVE, role_variables("scheduler", 0))]
    for number, host in enumerate(servers):
        others.append(ProcessSpec(f"server {number}", host, SERVE, role_variables("server", host)))
    return others, [role_variables("worker", host) for host in placed]


def _horovod(
    placed: Sequence[int], servers: Sequence[int], sites: Sequence[Site], port: int
) -> Started:
    names = [sites[host].name for host in placed]
    hosts = list(dict.fromkeys(names))
    slots = ",".join(f"{name}:{names.count(name)}" for name in hosts)
    arguments = [*RENDEZVOUS, sites[0].address, str(port), slots]
    workers: List[Dict[str, str]] = []
    for rank, (host, name) in enumerate(zip(placed, names)):
        local = names[:rank].count(name)
        # hosts that also have a process with this local rank
        peers = [other for other in hosts if names.count(other) > local]
        workers.append(
            {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(placed)),
                "HOROVOD_LOCAL_RANK": str(local),
                "HOROVOD_LOCAL_SIZE": str(names.count(name)),
                "HOROVOD_CROSS_RANK": str(peers.index(name)),
                "HOROVOD_CROSS_SIZE": str(len(peers)),
                "HOROVOD_HOSTNAME": name,
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": sites[0].address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                **_if_known(HOROVOD_GLOO_IFACE=sites[host].interface),
            }
        )
    return [ProcessSpec(SCHEDULER, 0, arguments, {})], workers


def _if_known(**variables: str) -> Dict[str, str]:
    return {name: value for name, value in variables.items() if value}


BY_BACKEND = {
    "dist_sync": _parameter_server,
    "dist_device_sync": _parameter_server,
    "dist_async": _parameter_server,
    "horovod": _horovod,
}


def gpus_of(local_rank: int, gpus: Optional[int]) -> str:
    """Return a process's GPUs by its local rank, as --devices: ``gpus`` of them, or one."""
    count = gpus or 1
    numbers = range(local_rank * count, (local_rank + 1) * count)
    return "gpu:" + ",".join(map(str, numbers))


def tell(status: str) -> None:
    """Report a status to the launcher, if there is one."""
    if TELL in os.environ:
        with suppress(OSError, ValueError):
            os.write(int(os.environ[TELL]), f"{status}\n".encode())


# --- Environment and folder of the processes


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError if a variable to forward is not set in this process's environment."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--env {printable(name)}: there is no such variable here: set it, and give its "
                "name alone, as in --env MY_VARIABLE"
            )


def passed(names: Sequence[str]) -> Dict[str, str]:
    """Return the variables of this environment for processes on other hosts: PASSED and ``names``."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    variables.update({name: os.environ[name] for name in names})
    return with_this_gluonlab(variables)


def own_environment() -> Dict[str, str]:
    """Return the part of an agent's environment that its processes inherit."""
    return {name: value for name, value in os.environ.items() if name != NODE_PORT}


def working_folder() -> str:
    """Return the current folder. Raises ConfigError if it has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        raise ConfigError(
            "the folder in which this shell is has been removed: change to another one"
        ) from None


# --- Requests of rank 0 that a process started by a scheduler accepts
#
# The process knows rank 0 only by its address, so it must not run arbitrary commands. It starts a
# server of MXNet, or a worker with the process's own options or program. Of the environment it
# accepts only the variables that `parts` sets, with values of the right form.

WHOLE, PORT = "[0-9]{1,6}", "[0-9]{1,5}"
ADDRESS = "[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?"  # IPv6 may name its interface
INTERFACE, HOST = "[A-Za-z0-9_.:@+~-]{1,15}", "[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
FORMS = {
    "GLUONLAB_RANK": WHOLE,
    "GLUONLAB_LOCAL_RANK": WHOLE,
    "LOCAL_WORLD_SIZE": WHOLE,
    "DMLC_ROLE": "server|worker",
    "DMLC_NUM_WORKER": WHOLE,
    "DMLC_NUM_SERVER": WHOLE,
    "DMLC_PS_ROOT_URI": ADDRESS,
    "DMLC_PS_ROOT_PORT": PORT,
    "DMLC_NODE_HOST": ADDRESS,
    "DMLC_INTERFACE": INTERFACE,
    **{
        f"HOROVOD_{name}": WHOLE
        for name in (
            "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
        )
    },
    "HOROVOD_HOSTNAME": HOST,
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": ADDRESS,
    "HOROVOD_GLOO_RENDEZVOUS_PORT": PORT,
    "HOROVOD_GLOO_IFACE": INTERFACE,
}  # fmt: skip


def allowed(
    arguments: Sequence[str], environment: Mapping[str, str], backend: str, words: Sequence[str]
) -> Dict[str, str]:
    """Return the variables with which the process ``arguments`` may be started, for a run with
    ``words``.

    Other variables are omitted. Raises ConfigError for a process that is not part of such a group,
    and for an invalid value.
    """
    expected = worker_words(backend, words)
    role = environment.get("DMLC_ROLE")
    is_server = list(arguments) == SERVE and role == "server" and backend != "horovod"
    is_worker = list(arguments) in (expected, [*expected, AGAIN]) and role in (None, "worker")
    if not is_server and not is_worker:
        _refuse(arguments, expected, RANK in environment)
    group = {name: value for name, value in environment.items() if name in FORMS}
    for name, value in group.items():
        if not re.fullmatch(FORMS[name], value):
            raise ConfigError(f"{name}={one_line(value)} is no such value of a part of a group")
    return group


def _refuse(arguments: Sequence[str], expected: Sequence[str], is_worker: bool) -> None:
    are_programs = is_worker and (is_program(arguments) or is_program(expected))
    for position, (local_word, requested_word) in enumerate(zip_longest(expected, arguments)):
        if local_word != requested_word and (
            are_programs or list(arguments[:2]) == list(expected[:2])
        ):
            raise ConfigError(
                f"the options of this process differ from rank 0's: here {_around(expected, position)}, "
                f"there {_around(arguments, position)}: start all with the same ones"
            )
    raise ConfigError(f"{one_line(' '.join(arguments[:3]))} is no part of a group")


def _around(words: Sequence[str], position: int) -> str:
    start = position - (
        position > 4 and position < len(words) and not words[position].startswith("-")
    )
    return " ".join(words[start : position + 1]) or "nothing more"
