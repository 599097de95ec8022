"""The arguments and environment variables of a group's scheduler, servers and workers.

`parts` returns all processes of a group. With MXNet's parameter server, all of them run MXNet. With
Horovod, there are no servers, and the process named "scheduler" is Horovod's rendezvous server,
through which the workers find each other. In a job that a scheduler such as Slurm started, rank 0
requests that other ranks start a server or a worker; `allowed_variables` checks these requests.
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
from gluonlab.host.child_processes import add_gluonlab_path
from gluonlab.launch.user_program import is_program
from gluonlab.plain_text import escape_unprintable, one_line

# The rank of a worker. MXNet's scheduler would number the workers in order of arrival.
RANK_VARIABLE = "GLUONLAB_RANK"
LOCAL_RANK_VARIABLE = "GLUONLAB_LOCAL_RANK"
LOCAL_SIZE_VARIABLE = "LOCAL_WORLD_SIZE"
COMMAND_VARIABLE = "GLUONLAB_COMMAND"  # the user's command, without the options of the run
# The host on which rank 0 ran before, if a restart has moved rank 0. The run's folder is there.
PREVIOUS_HOST_VARIABLE = "GLUONLAB_RAN_ON"
WORKER_MODULE = "gluonlab.launch.worker"
SCHEDULER = "scheduler"  # name of the scheduler's process, as "rank 0" is of a worker
SERVER_ARGUMENTS = ["-m", "gluonlab.launch.server_process"]
RENDEZVOUS_ARGUMENTS = [*SERVER_ARGUMENTS, "rendezvous"]
AUTORESUME_OPTION = "--autoresume"  # added to the options when the processes restart
STATUS_FD_VARIABLE = "GLUONLAB_TELL"  # the file descriptor over which a process reports its status
# Statuses that a worker reports to the launcher:
# - ARRIVED: the process runs.
# - JOINED: the group has formed.
# - BEGUN: training has started. From now on, a signal stops all workers after the same step.
# - LEFT: the worker no longer needs the servers.
ARRIVED, JOINED, BEGUN, LEFT = "arrived", "joined", "begun", "left"
PORT_TAKEN = "taken"  # status of a scheduler that exits because another process has its port
# Prefixes of the environment variables that are forwarded to processes on other hosts.
FORWARDED_PREFIXES = ("GLUONLAB_", "MXNET_", "DMLC_", "PS_", "OMP_", "HOROVOD_", "NCCL_", "PYTHON")
# If this variable is set, MXNet's servers and workers listen at its port instead of a free one.
# Many clouds set the variable for another purpose, or to 0, so processes do not inherit it.
NODE_PORT_VARIABLE = "PORT"


class ProcessSpec(NamedTuple):
    """A process of a group.

    Args:
        name: ``scheduler``, ``server 0`` or ``rank 0``
        host: the process's host, as an index into the hosts of the group
        words: arguments of Python or, for a program, the whole command line
        environment: additional environment variables
        is_program: whether the process runs the user's own program
    """

    name: str
    host: int
    words: List[str]
    environment: Dict[str, str]
    is_program: bool = False

    @property
    def is_worker(self) -> bool:
        """Check if the process is a worker, which trains."""
        return RANK_VARIABLE in self.environment


class Site(NamedTuple):
    """A host's name, the address at which the other hosts reach it, and its network interface.

    ``interface`` is the name of the interface, such as eth0; "" if unknown.
    """

    name: str
    address: str
    interface: str


def worker_arguments(backend: str, words: Sequence[str]) -> List[str]:
    """Return the arguments of Python for a worker, or the command line of the user's program.

    ``words``: the options of the run, or the program and its arguments.
    """
    return list(words) if is_program(words) else ["-m", WORKER_MODULE, "--backend", backend, *words]


# The scheduler and the servers; and the environment variables of each worker, by rank.
ServersAndWorkerVariables = Tuple[List[ProcessSpec], List[Dict[str, str]]]


def parts(
    backend: str,
    words: Sequence[str],
    placed: Sequence[int],
    servers: Sequence[int],
    sites: Sequence[Site],
    port: int,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> List[ProcessSpec]:
    """Return the processes of a group: the scheduler, the servers and the workers.

    Args:
        backend: a key of `PROCESSES_BY_BACKEND`
        words: the options of the run, or a program
        placed: the host of each rank, as an index into ``sites``
        servers: the host of each server, as an index into ``sites``
        sites: the hosts; the scheduler is on the first host
        port: the scheduler's port
        settings: environment variables for all workers, such as Horovod's
    """
    arguments = worker_arguments(backend, words)
    processes, worker_environments = PROCESSES_BY_BACKEND[backend](placed, servers, sites, port)
    names = [sites[host].name for host in placed]
    for rank, (host, name, environment) in enumerate(zip(placed, names, worker_environments)):
        environment.update(settings)
        environment[RANK_VARIABLE] = str(rank)
        environment[LOCAL_RANK_VARIABLE] = str(names[:rank].count(name))
        environment[LOCAL_SIZE_VARIABLE] = str(names.count(name))
        processes.append(ProcessSpec(f"rank {rank}", host, arguments, environment, is_program(words)))
    return processes


def _parameter_server_processes(
    placed: Sequence[int], servers: Sequence[int], sites: Sequence[Site], port: int
) -> ServersAndWorkerVariables:
    """Return MXNet's scheduler and servers, and the environment variables of each worker.

    For the arguments, see `parts`.
    """

    def role_variables(role: str, host: int) -> Dict[str, str]:
        """Return the variables that MXNet needs in a process. ``host``: an index into ``sites``."""
        return {
            "DMLC_ROLE": role,
            "DMLC_NUM_WORKER": str(len(placed)),
            "DMLC_NUM_SERVER": str(len(servers)),
            "DMLC_PS_ROOT_URI": sites[0].address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": sites[host].address,
            **_omit_empty(DMLC_INTERFACE=sites[host].interface),
        }

    processes = [ProcessSpec(SCHEDULER, 0, SERVER_ARGUMENTS, role_variables("scheduler", 0))]
    for number, host in enumerate(servers):
        processes.append(ProcessSpec(f"server {number}", host, SERVER_ARGUMENTS, role_variables("server", host)))
    return processes, [role_variables("worker", host) for host in placed]


def _horovod_processes(
    placed: Sequence[int], servers: Sequence[int], sites: Sequence[Site], port: int
) -> ServersAndWorkerVariables:
    """Return Horovod's rendezvous server, and each worker's environment variables for Horovod.

    For the arguments, see `parts`. ``servers`` is not used.
    """
    names = [sites[host].name for host in placed]
    hosts = list(dict.fromkeys(names))
    slots = ",".join(f"{name}:{names.count(name)}" for name in hosts)
    arguments = [*RENDEZVOUS_ARGUMENTS, sites[0].address, str(port), slots]
    workers: List[Dict[str, str]] = []
    for rank, (host, name) in enumerate(zip(placed, names)):
        local = names[:rank].count(name)
        # the hosts that have a process with this local rank
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
                **_omit_empty(HOROVOD_GLOO_IFACE=sites[host].interface),
            }
        )
    return [ProcessSpec(SCHEDULER, 0, arguments, {})], workers


def _omit_empty(**variables: str) -> Dict[str, str]:
    return {name: value for name, value in variables.items() if value}


PROCESSES_BY_BACKEND = {
    "dist_sync": _parameter_server_processes,
    "dist_device_sync": _parameter_server_processes,
    "dist_async": _parameter_server_processes,
    "horovod": _horovod_processes,
}


def gpus_of_local_rank(local_rank: int, gpus: Optional[int]) -> str:
    """Return the GPUs of a process as a value of --devices, such as ``gpu:2,3``.

    ``gpus``: number of GPUs per process; None for one.
    """
    count = gpus or 1
    numbers = range(local_rank * count, (local_rank + 1) * count)
    return "gpu:" + ",".join(map(str, numbers))


def report_status(status: str) -> None:
    """Report a status, such as JOINED, to the launcher, if a launcher has started this process."""
    if STATUS_FD_VARIABLE in os.environ:
        with suppress(OSError, ValueError):
            os.write(int(os.environ[STATUS_FD_VARIABLE]), f"{status}\n".encode())


# --- Environment and folder of the processes


def check_variables_are_set(names: Sequence[str]) -> None:
    """Raise ConfigError if a variable to forward is not set in this process's environment."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--env {escape_unprintable(name)}: this environment variable is not set: set it, and "
                "pass only its name, as in --env MY_VARIABLE"
            )


def forwarded_environment(names: Sequence[str]) -> Dict[str, str]:
    """Return the environment variables to forward to processes on other hosts.

    These are the variables whose names start with FORWARDED_PREFIXES, the variables in ``names``,
    and PYTHONPATH.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED_PREFIXES)}
    variables.update({name: os.environ[name] for name in names})
    return add_gluonlab_path(variables)


def inherited_environment() -> Dict[str, str]:
    """Return the environment variables that an agent passes on to its processes."""
    return {name: value for name, value in os.environ.items() if name != NODE_PORT_VARIABLE}


def working_folder() -> str:
    """Return the current folder. Raises ConfigError if the folder has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        raise ConfigError("the current directory no longer exists: change to another directory") from None


# --- Checks of rank 0's requests, in a process that a scheduler has started
#
# The process identifies rank 0 only by its address, so it must not run arbitrary commands. It only
# starts a server of MXNet, or a worker with the process's own options or program. It only accepts
# the environment variables that `parts` sets, with values that match VARIABLE_PATTERNS.

NUMBER_PATTERN, PORT_PATTERN = "[0-9]{1,6}", "[0-9]{1,5}"
ADDRESS_PATTERN = "[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?"  # IPv6 may name its interface
INTERFACE_PATTERN, HOST_PATTERN = "[A-Za-z0-9_.:@+~-]{1,15}", "[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
VARIABLE_PATTERNS = {
    "GLUONLAB_RANK": NUMBER_PATTERN,
    "GLUONLAB_LOCAL_RANK": NUMBER_PATTERN,
    "LOCAL_WORLD_SIZE": NUMBER_PATTERN,
    "DMLC_ROLE": "server|worker",
    "DMLC_NUM_WORKER": NUMBER_PATTERN,
    "DMLC_NUM_SERVER": NUMBER_PATTERN,
    "DMLC_PS_ROOT_URI": ADDRESS_PATTERN,
    "DMLC_PS_ROOT_PORT": PORT_PATTERN,
    "DMLC_NODE_HOST": ADDRESS_PATTERN,
    "DMLC_INTERFACE": INTERFACE_PATTERN,
    **{
        f"HOROVOD_{name}": NUMBER_PATTERN
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    },
    "HOROVOD_HOSTNAME": HOST_PATTERN,
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": ADDRESS_PATTERN,
    "HOROVOD_GLOO_RENDEZVOUS_PORT": PORT_PATTERN,
    "HOROVOD_GLOO_IFACE": INTERFACE_PATTERN,
}


def allowed_variables(
    arguments: Sequence[str], environment: Mapping[str, str], backend: str, words: Sequence[str]
) -> Dict[str, str]:
    """Return the requested environment variables that a process is allowed to have.

    Other variables are omitted. Raises ConfigError for a process that is not part of the group, or
    for an invalid value.

    Args:
        arguments: the requested arguments
        environment: the requested environment variables
        backend: the backend of this process
        words: the run options or the program given to this process
    """
    expected = worker_arguments(backend, words)
    role = environment.get("DMLC_ROLE")
    is_server = list(arguments) == SERVER_ARGUMENTS and role == "server" and backend != "horovod"
    is_worker = list(arguments) in (expected, [*expected, AUTORESUME_OPTION]) and role in (None, "worker")
    if not is_server and not is_worker:
        _refuse_request(arguments, expected, RANK_VARIABLE in environment)
    group = {name: value for name, value in environment.items() if name in VARIABLE_PATTERNS}
    for name, value in group.items():
        if not re.fullmatch(VARIABLE_PATTERNS[name], value):
            raise ConfigError(f"{name}={one_line(value)} is not a valid setting for a process of this job")
    return group


def _refuse_request(arguments: Sequence[str], expected: Sequence[str], is_worker: bool) -> None:
    """Raise ConfigError for requested ``arguments`` that differ from the ``expected`` ones.

    If rank 0 has requested a worker or a program, the message quotes the first difference.
    """
    are_programs = is_worker and (is_program(arguments) or is_program(expected))
    for position, (local_word, requested_word) in enumerate(zip_longest(expected, arguments)):
        if local_word != requested_word and (are_programs or list(arguments[:2]) == list(expected[:2])):
            here, there = _quote_position(expected, position), _quote_position(arguments, position)
            raise ConfigError(
                f"the options of this process differ from those of rank 0 ({here} here, {there} on rank 0): "
                "start all processes with the same options"
            )
    raise ConfigError(f"the command {one_line(' '.join(arguments[:3]))} does not belong to this job")


def _quote_position(words: Sequence[str], position: int) -> str:
    """Return the word at ``position``, preceded by its option if the word is an option's value."""
    start = position - (position > 4 and position < len(words) and not words[position].startswith("-"))
    return " ".join(words[start : position + 1]) or "no more options"
