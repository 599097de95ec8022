"""The processes of a group: scheduler, servers and workers, and what each finds in its environment.

With MXNet's parameter server, all of them are MXNet's; with Horovod, the scheduler is the
rendezvous at which its workers find each other.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.launch.own_program import is_program

RANK = "GLUONLAB_RANK"  # of a worker: MXNet's scheduler would count them as they come
LOCAL_RANK = "GLUONLAB_LOCAL_RANK"
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
COMMAND = "GLUONLAB_COMMAND"  # what the user has written, up to the options of the run
RAN_ON = "GLUONLAB_RAN_ON"  # where rank 0 was, and the run's folder, if it is elsewhere now
WORKER = "gluonlab.launch.worker"
SCHEDULER = "scheduler"  # the name of this part
SERVE = ["-m", "gluonlab.launch.serving"]
RENDEZVOUS = ["-m", "gluonlab.launch.rendezvous"]
AGAIN = "--autoresume"  # what all are given, too, when they start again


class Part(NamedTuple):
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


Started = Tuple[List[Part], List[Dict[str, str]]]  # what is no worker, and workers' environments


def parts(
    backend: str,
    words: Sequence[str],
    placed: Sequence[int],
    servers: Sequence[int],
    sites: Sequence[Site],
    port: int,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> List[Part]:
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
        Part(f"rank {rank}", host, own, environment, is_program(words))
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

    before = [Part(SCHEDULER, 0, SERVE, of("scheduler", 0))]
    for number, host in enumerate(servers):
        before.append(Part(f"server {number}", host, SERVE, of("server", host)))
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
    return [Part(SCHEDULER, 0, begin, {})], workers


def _if_known(**variables: str) -> Dict[str, str]:
    return {name: value for name, value in variables.items() if value}


BY_BACKEND = {
    "dist_sync": _parameter_server,
    "dist_device_sync": _parameter_server,
    "dist_async": _parameter_server,
    "horovod": _horovod,
}
