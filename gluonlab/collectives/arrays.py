"""Whether arrays, some on each rank, fit a schedule and each other."""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np
from mxnet import nd

from gluonlab.collectives.schedule import Schedule
from gluonlab.engine.invoke import share_memory
from gluonlab.errors import ScheduleError

Kind = Tuple[Tuple[int, ...], str]  # shape and type


def check_arrays(
    schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], written: bool = True
) -> None:
    """Raise ScheduleError for arrays that do not fit the schedule or each other.

    Those that are to be ``written`` may share no memory.
    """
    fault = _fault(schedule, arrays, written)
    if fault:
        raise ScheduleError(f"{schedule.name}{fault}")


def _fault(schedule: Schedule, arrays: Sequence[Sequence[nd.NDArray]], written: bool) -> str:
    """What is wrong first, to be said after the schedule's name; nothing where all is right."""
    if len(arrays) != schedule.world_size:
        return f" is for {schedule.world_size} ranks, and there are arrays of {len(arrays)}"
    if any(isinstance(rank_arrays, nd.NDArray) for rank_arrays in arrays):
        return ": each rank has a list of arrays: [[a], [b]], not [a, b]"
    if not arrays[0]:
        return ": there are no arrays to work on"
    first = _kinds(arrays[0])
    for rank, rank_arrays in enumerate(arrays):
        own = _kinds(rank_arrays)
        if own != first:
            return f": rank {rank} has {_named(own)}, rank 0 {_named(first)}: they must be alike"
        if any(array.context != rank_arrays[0].context for array in rank_arrays):
            return (
                f": the arrays of rank {rank} lie on several devices: each rank has one of its own"
            )
        if any(array.stype != "default" for array in rank_arrays):
            return (
                f": rank {rank} has sparse arrays: "
                "dense ones can be summed, array.tostype('default')"
            )
    if written and share_memory([array for rank_arrays in arrays for array in rank_arrays]):
        return ": some of the arrays share memory: give each its own, array.copy()"
    ctxs = [rank_arrays[0].context for rank_arrays in arrays]
    kinds = {ctx.device_type for ctx in ctxs}
    if not kinds <= {"cpu", "gpu"}:
        return f": the arrays lie on {', '.join(sorted(kinds))}: use devices cpu(i) or gpu(i)"
    if any(type_name == "bool" for _, type_name in first):
        return ": the arrays are of type bool, which has no sum: use array.astype('int32')"
    if len(set(ctxs)) < len(ctxs):
        names = ", ".join(map(str, ctxs))
        return f": the ranks lie on {names}: each rank needs a device of its own"
    return ": CPU devices and GPUs together: use devices of one kind" if len(kinds) > 1 else ""


def _kinds(arrays: Sequence[nd.NDArray]) -> List[Kind]:
    return [(array.shape, np.dtype(array.dtype).name) for array in arrays]


def _named(kinds: Sequence[Kind]) -> str:
    names = [f"{type_name}{list(shape)}" for shape, type_name in kinds[:4]]
    return " ".join(names + ["..."] * (len(kinds) > 4))
