"""gluonlab's own training by several processes on this host, each with its own devices.

Rank 0, which the parent knows, starts the others.
"""

from __future__ import annotations

from typing import Any, Dict

from gluonlab.bench.harness import group as _group
from gluonlab.bench.peers import gluonlab_loop
from gluonlab.bench.worker import Job


def make(backend: str, processes: int, first: bool = True, **training: Any) -> Job:
    """A process of a group; ``training``: as `gluonlab_loop.make` takes it, for each of them.

    ``first``: it is rank 0.
    """
    options = {"backend": backend, "processes": processes, "first": False, **training}
    others = _group.start(backend, processes, "member", options) if first else []
    from gluonlab.launch.backends import BACKENDS  # MXNet, now that the environment is complete

    train = gluonlab_loop.make(**training, group=BACKENDS[backend]())

    def run(steps: int) -> Dict[str, float]:
        for other in others:
            other.order(steps=steps)
        return train(steps)

    return run
