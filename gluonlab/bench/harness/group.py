"""A group of processes on this host for a job: this one is rank 0, and starts the others."""

from __future__ import annotations

import os
import socket
from typing import Any, List, Mapping

from gluonlab.bench.harness.ranks import Rank, worker
from gluonlab.launch.parts import RANK, Site, parts

LOOPBACK = Site("localhost", "127.0.0.1", "lo")


def start(backend: str, size: int, job: str, options: Mapping[str, Any]) -> List[Rank]:
    """Start the other processes of a group of ``size``, and return the workers among them.

    ``options``: of their ``job``. This process becomes rank 0: its environment says so from now on,
    which has to be before it makes a store.
    """
    with socket.socket() as listening:
        listening.bind((LOOPBACK.address, 0))
        port: int = listening.getsockname()[1]
    others = []
    for part in parts(backend, [], [0] * size, [0], [LOOPBACK], port):
        if not part.is_worker:
            Rank(part.words, part.environment)  # it serves until this process ends
        elif part.environment[RANK] == "0":
            os.environ.update(part.environment)
        else:
            others.append(worker(job, options, part.environment))
    return others
