"""The allreduces that are compared: schedules, MXNet's own stores, and the chapter's five lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.bench.allreduce.plans import Plan
from gluonlab.collectives.algorithms import ALGORITHMS, sharded
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.for_links import FOR_LINKS
from gluonlab.collectives.schedule import Schedule
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.summing import size_of
from gluonlab.scratch.data_parallel import allreduce as chapters_allreduce

CHAPTER, WHOLE = "chapter", "sharded-whole"
NATIVE = ("local", "device", "nccl")
PEERS = (CHAPTER, *NATIVE)
CHOICES = (*PEERS, WHOLE, *FOR_LINKS, *ALGORITHMS)

Arrays = List[List[nd.NDArray]]  # [rank][number]


@dataclass(frozen=True)
class Variant:
    """A row of the table: ``make(arrays)`` gives the call that queues their sum over the ranks.

    ``schedule_for(size_bytes)``: what it runs, if that is a schedule; it has a price then.
    """

    label: str
    make: Callable[[Arrays], Callable[[], None]]
    schedule_for: Optional[Callable[[float], Schedule]] = None


def make_variants(
    names: Optional[Sequence[str]],
    plans: Sequence[Plan],
    ctxs: Sequence[mx.Context],
    array_count: int,
) -> List[Variant]:
    """The peers among ``names``, or all that work on these devices (None), then the schedules.

    ``sharded-whole`` gives whole arrays to owners, which is of use when there are several. Raises
    KVStoreError for a store that was asked for and does not work here.
    """
    found = []
    for name in PEERS if names is None else [name for name in PEERS if name in names]:
        if name == CHAPTER:
            found.append(Variant(CHAPTER, _chapter))
        elif names is not None or _works(name, ctxs):
            make_kvstore(name, ctxs)  # now, rather than when half of the table has been measured
            found.append(Variant(name, _native(name, ctxs)))
    if (names is None and array_count > 1) or WHOLE in (names or ()):
        by_owner = Plan(WHOLE, sharded(len(ctxs)))
        found.append(Variant(WHOLE, _executed(by_owner, whole=True), by_owner.schedule_for))
    return found + [Variant(plan.label, _executed(plan), plan.schedule_for) for plan in plans]


def _works(name: str, ctxs: Sequence[mx.Context]) -> bool:
    try:
        make_kvstore(name, ctxs)
    except KVStoreError:
        return False
    return True


def _executed(plan: Plan, whole: bool = False) -> Callable[[Arrays], Callable[[], None]]:
    return lambda arrays: Executor(plan.schedule_for(size_of(arrays[0])), arrays, whole).run


def _chapter(arrays: Arrays) -> Callable[[], None]:
    def run() -> None:
        for same in zip(*arrays):
            chapters_allreduce(list(same))

    return run


def _native(name: str, ctxs: Sequence[mx.Context]) -> Callable[[Arrays], Callable[[], None]]:
    def make(arrays: Arrays) -> Callable[[], None]:
        store = make_kvstore(name, ctxs)
        keys = [list(same) for same in zip(*arrays)]
        for key, same in enumerate(keys):
            store.broadcast(key, same[0], same)

        # as gluon.Trainer does it: a key for each array, the first the most urgent
        def run() -> None:
            for key, same in enumerate(keys):
                store.pushpull(key, same, priority=-key)

        return run

    return make
