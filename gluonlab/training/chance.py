"""The random numbers of operators such as Dropout: the same again when a run goes on.

MXNet's generators can be seeded, but not asked where they stand. So they are seeded anew every
STEPS steps of an epoch, from seed, epoch and step; a run that goes on from a step between trains
those before it once more, and then takes the checkpoint's state.

Seeding takes a CPU device some 13 ms (1,024 Mersenne Twisters, on an AMD EPYC), so that it is done
where there is such an operator only, and not in every step. All CPU devices of a process draw from
one generator, in the order in which their work is queued, and the last of them seeds it. On GPUs
cuDNN's Dropout has a generator of its own, which nothing seeds again.
"""

from __future__ import annotations

import re
from typing import List

import mxnet as mx
import numpy as np

from gluonlab.models.graphs import parsed
from gluonlab.parallel.strategy import Strategy

STEPS = 64
DRAWS = re.compile(
    "dropout|rnn|random|sample|shuffle|uniform|normal(_n)?$|"
    "_npi_(bernoulli|choice|exponential|gamma|gumbel|logistic|multinomial|pareto|powerd|rayleigh)",
    re.IGNORECASE,
)


class Chance:
    """Seeds the devices of a strategy whose network draws random numbers while it trains.

    ``first``: where they begin among the devices of all processes, each of which draws numbers of
    its own.
    """

    def __init__(self, strategy: Strategy, seed: int, first: int = 0) -> None:
        self._seed, self._first = seed, first
        self._ctxs = _ctxs(strategy) if _draws(strategy) else []

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return bool(self._ctxs)

    @property
    def out_of_reach(self) -> bool:
        """Whether random numbers are drawn where nothing can seed them: by cuDNN."""
        return any(ctx.device_type == "gpu" for ctx in self._ctxs)

    def before_step(self, epoch: int, step: int) -> None:
        """Seed the devices if it is time.

        ``step``: of the ``epoch``, both from 0. Nothing waits.
        """
        if self._ctxs and step % STEPS == 0:
            for device, ctx in enumerate(self._ctxs, start=self._first):
                of_device = [self._seed, epoch, step, device]
                [seed] = np.random.SeedSequence(of_device).generate_state(1)
                mx.random.seed(int(seed) >> 1, ctx=ctx)

    def replayed(self, step: int) -> int:
        """How many steps before this one are to be trained again to go on from here."""
        return step % STEPS if self._ctxs else 0


def _draws(strategy: Strategy) -> bool:
    """Whether an operator of the network may draw random numbers."""
    nodes = parsed(strategy.net(mx.sym.var("data")))["nodes"]
    return any(
        DRAWS.search(node["op"]) or node.get("attrs", {}).get("act_type") == "rrelu"
        for node in nodes
    )


def _ctxs(strategy: Strategy) -> List[mx.Context]:
    """All devices that hold a part of the network, in an order that is always the same."""
    ctxs = [
        *strategy.inputs,
        *strategy.outputs,
        *(ctx for each in strategy.replicated() for ctx in each.list_ctx()),
    ]
    return list(dict.fromkeys(ctxs))
