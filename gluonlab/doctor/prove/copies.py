"""Trial: does what is copied from one GPU to another arrive as it was, and how fast?"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, List

import numpy as np

from gluonlab.doctor.prove.trial import run
from gluonlab.gpu.process import Outcome, tell

if TYPE_CHECKING:
    import mxnet as mx

NUMBERS = ("source",)  # with target, wrong and gb_per_s
COUNT = 2**20  # int32, for what must arrive
TIMED_COUNT = 2**24  # 64 MiB
REPEATS = 5
GIGA = 1e9


def copy_between_all(ctxs: List[mx.Context]) -> None:
    """Answers device, lost; then source, target, wrong, gb_per_s of each pair."""
    from mxnet import nd

    sent = np.random.RandomState(0).randint(-(2**31), 2**31 - 1, COUNT).astype("int32")
    sources = {}
    for ctx in ctxs:
        tell(trying=f"memory of {ctx}")
        sources[ctx] = nd.array(sent, ctx=ctx, dtype="int32")
        tell(device=str(ctx), lost=int((sources[ctx].asnumpy() != sent).sum()))
    for source, target in itertools.permutations(ctxs, 2):
        tell(trying=f"a copy from {source} to {target}")
        there = nd.zeros((COUNT,), ctx=target, dtype="int32")
        changed = int((sources[source].copyto(there).asnumpy() != sent).sum())
        speed = _speed(source, target)
        tell(source=str(source), target=str(target), wrong=changed, gb_per_s=speed)


def _speed(source: mx.Context, target: mx.Context) -> float:
    from mxnet import nd

    here, there = nd.zeros((TIMED_COUNT,), ctx=source), nd.empty((TIMED_COUNT,), ctx=target)
    here.copyto(there).wait_to_read()
    began = time.perf_counter()
    for _ in range(REPEATS):
        here.copyto(there)
    there.wait_to_read()
    return 4 * TIMED_COUNT * REPEATS / GIGA / (time.perf_counter() - began)


def faults(outcome: Outcome) -> List[str]:
    """Each GPU that does not hold what it was given, and each pair whose copies change."""
    forgetful = [told["device"] for told in outcome.all("lost") if told["lost"]]
    return [f"{device} does not keep what is written to it" for device in forgetful] + [
        f"copies from {told['source']} to {told['target']} are wrong: "
        f"{told['wrong']:,} of {COUNT:,} numbers differ"
        for told in outcome.all("source")
        if told["wrong"]
    ]


def summary(outcome: Outcome) -> str:
    """How many pairs were tried."""
    count = len(outcome.all("source"))
    return f"what is copied between {count} pairs of GPUs arrives unchanged"


if __name__ == "__main__":
    run(copy_between_all)
