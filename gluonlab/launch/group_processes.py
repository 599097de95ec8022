"""The processes of a group: scheduler, servers and workers.

What each of them is started with, what it finds in its environment, and what it tells its launcher.
With MXNet's parameter server, all of them are MXNet's; with Horovod, the scheduler is the
rendezvous at which its workers find each other.
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

RANK = "GLUONLAB_RANK"  # of a worker: MXNet's scheduler would count them as they come
LOCAL_RANK = "GLUONLAB_LOCAL_RANK"
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
COMMAND = "GLUONLAB_COMMAND"  # what the user has written, up to the options of the run
RAN_ON = "GLUONLAB_RAN_ON"  # where rank 0 was, and the run's folder, if it is elsewhere now
WORKER = "gluonlab.launch.worker"
SCHEDULER = "scheduler"  # the name of this part
SERVE = ["-m", "gluonlab.launch.server_process"]
RENDEZVOUS = [*SERVE, "rendezvous"]
AGAIN = "--autoresume"  # what all are given, too, when they start again
TELL = "GLUONLAB_TELL"  # the descriptor over which a process tells its launcher how far it is
# of a worker: it runs; the group stands; it trains, and a signal ends all after the same step; it
# needs no server any more
ARRIVED, JOINED, BEGUN, LEFT = "arrived", "joined", "begun", "left"
TAKEN = "taken"  # of the scheduler, which then ends: somebody else has its port
# What a process on another host gets of this one's environment, as it has none of its own.
PASSED = ("GLUONLAB_", "MXNET_", "DMLC_", "PS_", "OMP_", "HOROVOD_", "NCCL_", "PYTHON")
# MXNet's servers and workers would listen at this port, in place of one that is free; many a cloud
# sets it for something else, or to 0.
NODE_PORT = "PORT"


class ProcessSpec(NamedTuple):
    """A process of a group. ``host``: its place in the list; ``words``: what Python is given.

    ``is_program``: the words are a whole command line, of the user's own program.
    """

    name: str
    host: int
    words: List[str]
    environment: Dict[str, str]
    is_program: bool = False

    @property
    def is_worker(self) -> bool:
        """Whether it trains."""
        return RANK in self.environment


class Site(NamedTuple):
    """A host as the others see it. ``interface``: that of its address, such as eth0."""

    name: str
    address: str
    interface: str


def worker_words(backend: str, words: Sequence[str]) -> List[str]:
    """Return the words of a worker: Python's arguments for a run with the options ``words``.

    The words of a program are its command line.
    """
    return list(words) if is_program(words) else ["-m", WORKER, "--backend", backend, *words]


Started = Tuple[
    List[ProcessSpec], List[Dict[str, str]]
]  # what is no worker, and workers' environments


def parts(
    backend: str,
    words: Sequence[str],
    placed: Sequence[int],
    servers: Sequence[int],
    sites: Sequence[Site],
    port: int,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> List[ProcessSpec]:
    """What is to be started, the scheduler first.

    ``words``: the options of the run, or a program; ``placed``: the host of each rank; ``servers``:
    of each server; ``port``: of the scheduler, which is on the first host; ``settings``: variables
    that all workers get, such as Horovod's.
    """
    own = worker_words(backend, words)
    before, workers = BY_BACKEND[backend](placed, servers, sites, port)
    names = [sites[host].name for host in placed]
    for rank, (name, environment) in enumerate(zip(names, workers)):
        environment.update(settings)
        environment[RANK] = str(rank)
        environment[LOCAL_RANK] = str(names[:rank].count(name))
        environment[LOCAL_SIZE] = str(names.count(name))
    return before + [
        ProcessSpec(f"rank {rank}", host, own, environment, is_program(words))
        for rank, (host, environment) in enumerate(zip(placed, workers))
    ]


def _parameter_server(
    placed: Sequence[int], servers: Sequence[int], sites: Sequence[Site], port: int
) -> Started:
    def of(role: str, host: int) -> Dict[str, str]:
        return {
            "DMLC_ROLE": role,
            "DMLC_NUM_WORKER": str(len(placed)),
            "DMLC_NUM_SERVER": str(len(servers)),
            "DMLC_PS_ROOT_URI": sites[0].address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": sites[host].address,
            **_if_known(DMLC_INTERFACE=sites[host].interface),
        }

    before = [ProcessSpec(SCHEDULER, 0, SERVE, of("scheduler", 0))]
    for number, host in enumerate(servers):
        before.append(ProcessSpec(f"server {number}", host, SERVE, of("server", host)))
    return before, [of("worker", host) for host in placed]


def _horovod(
    placed: Sequence[int], servers: Sequence[int], sites: Sequence[Site], port: int
) -> Started:
    names = [sites[host].name for host in placed]
    used = list(dict.fromkeys(names))
    listed = ",".join(f"{name}:{names.count(name)}" for name in used)
    begin = [*RENDEZVOUS, sites[0].address, str(port), listed]
    workers: List[Dict[str, str]] = []
    for rank, (host, name) in enumerate(zip(placed, names)):
        local = names[:rank].count(name)
        above = [each for each in used if names.count(each) > local]  # hosts that have this place
        workers.append(
            {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(placed)),
                "HOROVOD_LOCAL_RANK": str(local),
                "HOROVOD_LOCAL_SIZE": str(names.count(name)),
                "HOROVOD_CROSS_RANK": str(above.index(name)),
                "HOROVOD_CROSS_SIZE": str(len(above)),
                "HOROVOD_HOSTNAME": name,
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": sites[0].address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                **_if_known(HOROVOD_GLOO_IFACE=sites[host].interface),
            }
        )
    return [ProcessSpec(SCHEDULER, 0, begin, {})], workers


def _if_known(**variables: str) -> Dict[str, str]:
    return {name: value for name, value in variables.items() if value}


BY_BACKEND = {
    "dist_sync": _parameter_server,
    "dist_device_sync": _parameter_server,
    "dist_async": _parameter_server,
    "horovod": _horovod,
}


def gpus_of(local_rank: int, gpus: Optional[int]) -> str:
    """The GPUs of a process by its number on its host, as --devices: ``gpus`` of them, or one."""
    count = gpus or 1
    numbers = range(local_rank * count, (local_rank + 1) * count)
    return "gpu:" + ",".join(map(str, numbers))


def tell(what: str) -> None:
    """Tell the launcher; a process that has none tells nobody."""
    if TELL in os.environ:
        with suppress(OSError, ValueError):
            os.write(int(os.environ[TELL]), f"{what}\n".encode())


# --- What processes get of the environment and the folder of who starts them


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for what is no variable of this process's environment."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--env {printable(name)}: there is no such variable here: set it, and give its "
                "name alone, as in --env MY_VARIABLE"
            )


def passed(names: Sequence[str]) -> Dict[str, str]:
    """What processes on other hosts get of this environment: PASSED, and ``names``."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    chosen.update({name: os.environ[name] for name in names})
    return with_this_gluonlab(chosen)


def own_environment() -> Dict[str, str]:
    """What an agent's processes get of its own environment."""
    return {name: value for name, value in os.environ.items() if name != NODE_PORT}


def working_folder() -> str:
    """Where this process is. Raises ConfigError where that has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        raise ConfigError(
            "the folder in which this shell is has been removed: change to another one"
        ) from None


# --- What a process that a scheduler has started takes from rank 0, which it knows by address alone
#
# It starts a server of MXNet, or a worker with its own options or program, and gives it the
# variables that `parts` sets for these, each of its own form: ranks, numbers, and where others are.
# Everything else it refuses, and the whole request with it, or leaves out.

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
    given: Sequence[str], environment: Mapping[str, str], backend: str, words: Sequence[str]
) -> Dict[str, str]:
    """The variables with which ``given`` may be started, in a group that trains with ``words``.

    Raises ConfigError for what is no part of such a group, and for a variable of no such value.
    """
    own = worker_words(backend, words)
    role = environment.get("DMLC_ROLE")
    is_server = list(given) == SERVE and role == "server" and backend != "horovod"
    is_worker = list(given) in (own, [*own, AGAIN]) and role in (None, "worker")
    if not is_server and not is_worker:
        _refuse(given, own, RANK in environment)
    group = {name: value for name, value in environment.items() if name in FORMS}
    for name, value in group.items():
        if not re.fullmatch(FORMS[name], value):
            raise ConfigError(f"{name}={one_line(value)} is no such value of a part of a group")
    return group


def _refuse(given: Sequence[str], own: Sequence[str], is_worker: bool) -> None:
    programs = is_worker and (is_program(given) or is_program(own))
    for place, (mine, theirs) in enumerate(zip_longest(own, given)):
        if mine != theirs and (programs or list(given[:2]) == list(own[:2])):
            raise ConfigError(
                f"the options of this process differ from rank 0's: here {_around(own, place)}, "
                f"there {_around(given, place)}: start all with the same ones"
            )
    raise ConfigError(f"{one_line(' '.join(given[:3]))} is no part of a group")


def _around(words: Sequence[str], place: int) -> str:
    begin = place - (place > 4 and place < len(words) and not words[place].startswith("-"))
    return " ".join(words[begin : place + 1]) or "nothing more"
