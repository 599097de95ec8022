"""Trial: does what is copied from one GPU to another arrive as it was, and how fast?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, List

import numpy as np

from gluonlab.doctor.prove.telling import run
from gluonlab.doctor.prove.verdict import Verdict, all_of, right, unfinished, wrong
from gluonlab.gpu.process import Outcome, tell

if TYPE_CHECKING:
    import mxnet as mx

NAME = "copies"
COUNT = 2**20  # int32, for what must arrive
TIMED_COUNT = 2**24  # 64 MiB
REPEATS = 5
GIGA = 1e9


def copy_between_all(ctxs: List[mx.Context]) -> None:
    """Answers ``device`` and what it ``lost``; then ``source``, ``target``, ``wrong`` and
    ``gb_per_s`` for each pair.
    """
    from mxnet import nd

    sent = np.random.RandomState(0).randint(-(2**31), 2**31 - 1, COUNT).astype("int32")
    sources = {}
    for ctx in ctxs:
        tell(trying=f"memory of {ctx}")
        sources[ctx] = nd.array(sent, ctx=ctx, dtype="int32")
        tell(device=str(ctx), lost=int((sources[ctx].asnumpy() != sent).sum()))
    for source in ctxs:
        for target in ctxs:
            if source == target:
                continue
            tell(trying=f"a copy from {source} to {target}")
            arrived = (
                sources[source].copyto(nd.zeros((COUNT,), ctx=target, dtype="int32")).asnumpy()
            )
            speed = _speed(source, target)
            tell(
                source=str(source),
                target=str(target),
                wrong=int((arrived != sent).sum()),
                gb_per_s=speed,
            )


def _speed(source: mx.Context, target: mx.Context) -> float:
    from mxnet import nd

    here, there = nd.zeros((TIMED_COUNT,), ctx=source), nd.empty((TIMED_COUNT,), ctx=target)
    here.copyto(there).wait_to_read()
    began = time.perf_counter()
    for _ in range(REPEATS):
        here.copyto(there)
    there.wait_to_read()
    return 4 * TIMED_COUNT * REPEATS / GIGA / (time.perf_counter() - began)


def judge(outcome: Outcome) -> List[Verdict]:
    """Each pair whose copies change, and each GPU that does not hold what it was given."""
    forgetful = [told["device"] for told in all_of(outcome, "lost") if told["lost"]]
    bad = [wrong(NAME, f"{device} does not hold what it is given") for device in forgetful]
    pairs = all_of(outcome, "source")
    for told in pairs:
        if told["wrong"]:
            changed = f"{told['wrong']:,} of {COUNT:,} numbers change"
            bad.append(
                wrong(
                    NAME,
                    f"copies from {told['source']} to {told['target']} do not arrive: {changed}",
                )
            )
    bad += unfinished(NAME, outcome)
    return bad or [
        right(NAME, f"what is copied between {len(pairs)} pairs of GPUs arrives as it was")
    ]


def numbers(outcome: Outcome) -> List[Dict[str, Any]]:
    """One for each pair: ``source``, ``target``, ``wrong``, ``gb_per_s``."""
    return all_of(outcome, "source")


if __name__ == "__main__":
    run(copy_between_all)
