"""Trial: does every kvstore sum exactly on the GPUs, with the same bits in all replicas?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List

import numpy as np

from gluonlab.doctor.prove.trial import reason_of, run
from gluonlab.doctor.training import TOLERANCE, difference
from gluonlab.gpu.process import Outcome, tell
from gluonlab.kvstores import KVSTORES, make_kvstore

if TYPE_CHECKING:
    import mxnet as mx

Array = Any  # numpy's
NUMBERS = ("store",)  # with wrong, unlike and differs, or refused
SHAPES = ((1000, 257), (13,), (1,))  # more than a piece, fewer elements than chunks
ROUNDS = 3
SHARDED = "sharded-optimizer"


def try_all(ctxs: List[mx.Context]) -> None:
    """Answers store with wrong, unlike and differs, or refused.

    wrong: elements of exact sums; unlike: sums with other bits; differs: its training from one
    GPU's.
    """
    for name in KVSTORES:
        tell(trying=f"kvstore {name}")
        try:
            # it updates, and sums for nobody else
            sums = {} if name == SHARDED else _sums(name, ctxs)
            tell(store=name, **sums, differs=difference(ctxs, name))
        except Exception as error:
            tell(store=name, refused=reason_of(error))


def _sums(name: str, ctxs: List[mx.Context]) -> Dict[str, int]:
    """Whole numbers have exact sums in float32; others at least the same bits, each time."""
    from mxnet import nd

    random, store = np.random.RandomState(0), make_kvstore(name, ctxs)
    off = unlike = 0
    for key, shape in enumerate(SHAPES):
        outs = [nd.empty(shape, ctx=ctx) for ctx in ctxs]
        store.broadcast(key, nd.zeros(shape, ctx=ctxs[0]), outs)
        whole = random.randint(-99, 99, (len(ctxs), *shape)).astype("float32")
        broken = random.normal(size=(len(ctxs), *shape)).astype("float32")
        for _ in range(ROUNDS):
            off += sum(int((one != whole.sum(0)).sum()) for one in _summed(store, key, whole, ctxs))
        rounds = [_summed(store, key, broken, ctxs) for _ in range(ROUNDS)]
        unlike += sum(not np.array_equal(one, rounds[0][0]) for found in rounds for one in found)
    return {"wrong": off, "unlike": unlike}


def _summed(store: Any, key: int, values: Array, ctxs: List[mx.Context]) -> List[Array]:
    from mxnet import nd

    arrays = [nd.array(value, ctx=ctx) for value, ctx in zip(values, ctxs)]
    store.pushpull(key, arrays)
    return [array.asnumpy() for array in arrays]


def faults(outcome: Outcome) -> List[str]:
    """Each store that fails, sums wrongly or gives replicas different bits."""
    problems = {told["store"]: _problem(told) for told in outcome.all("store")}
    return [f"kvstore {name} {problem}" for name, problem in problems.items() if problem]


def _problem(told: Dict[str, Any]) -> str:
    if "refused" in told:
        return f"fails: {told['refused']}"
    if told.get("wrong"):
        return f"sums wrongly: {told['wrong']:,} elements"
    if told.get("unlike"):
        return "gives different bits on different GPUs, or from sum to sum"
    if not told["differs"] <= TOLERANCE:
        return f"trains differently from one GPU: parameters differ by {told['differs']:.1e}"
    return ""


def summary(outcome: Outcome) -> str:
    """The stores that were tried."""
    stores = ", ".join(told["store"] for told in outcome.all("store"))
    return f"{stores}: exact sums, the same bits in all replicas, and training as on one GPU"


if __name__ == "__main__":
    run(try_all)
