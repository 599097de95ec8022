"""What a process that a scheduler has started takes from rank 0, which it knows by address alone.

It starts a server of MXNet, or a worker with its own options or program, and gives it the variables
that `gluonlab.launch.parts` sets for these, each of its own form: ranks, numbers, and where others
are. Everything else it refuses, and the whole request with it, or leaves out.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Dict, Mapping, Sequence

from gluonlab.errors import ConfigError
from gluonlab.launch.own_program import is_program
from gluonlab.launch.parts import AGAIN, RANK, SERVE, worker_words
from gluonlab.plain import one_line

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
