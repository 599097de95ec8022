"""What the processes of a group decide together, although each sees something else."""

from __future__ import annotations

from typing import Callable, TypeVar

import numpy as np

from gluonlab.errors import RunError
from gluonlab.kvstores.groups import Group

T = TypeVar("T")


def all_or_none(group: Group, work: Callable[[], T]) -> T:
    """What ``work()`` gives, once all processes have done theirs.

    Raises what it raises here, and RunError where another process's has raised: no process goes on
    then. What is done needs no other process.
    """
    try:
        done = work()
    except BaseException:
        group.everyones(np.array(1))
        group.end_together()
        raise
    if group.everyones(np.array(0)).any():
        group.end_together()
        raise RunError("another process of this training cannot begin: its own message says why")
    return done
