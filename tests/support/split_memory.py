"""Memory of split networks: planned, and allocated by MXNet, counted in a process of its own.

MXNet lets a process configure its profiler once, and the process of the tests records timelines.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache

import gluonlab  # noqa: F401, before MXNet, which then starts soon

# isort: split
import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.shards import whole
from gluonlab.errors import ModelError
from gluonlab.kvstores.groups import ALONE
from gluonlab.models import rewriting
from gluonlab.models.channel_padding import Padding
from gluonlab.parallel.channels.strategy import channel_parallel
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.stages.partition import ACTIVATION, StagedMemory, bindings
from gluonlab.parallel.stages.strategy import staged_parallel
from support.splits import IMAGE, make_chain, plan_for, softmax, split_of
from support.storage import counted


@lru_cache(maxsize=None)
def _process():
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def count_elsewhere(count, case):
    """Return ``count(case)``, computed by a process that does nothing else.

    ``count`` is ``count_stages`` or ``count_channels``. No channels are padded: padded ones are
    rearranged in memory that MXNet does not plan.
    """
    return _process().submit(_count_without_padding, count, case).result()


def _count_without_padding(count, case):
    rewriting.padding_for = lambda ctx: Padding()
    return count(case)


def count_stages(case):
    """Return bytes of each device: planned, planned in vain by MXNet, allocated."""
    ctxs = _cpus(case["size"])
    plan = staged_plan(ctxs, case["size"], case["microbatches"], **case["split"])
    batches = _batches(case["shards"].trained, ctxs[0])
    with counted(ctxs) as allocated:
        strategy = staged_parallel(make_staged(case["chain"]), softmax(), plan, ALONE)
        for batch in batches:
            strategy.step(batch)
    planned = [sum(taken) for taken in strategy.taken(case["shards"])]
    return planned, _planned_in_vain(plan, strategy.stages, case["shards"]), allocated


def count_channels(case):
    """Return the same of split channels; None where no layer has channels for all devices."""
    ctxs = _cpus(case["ways"])
    layout = split_of(
        "channels", ctxs, len(ctxs), channels=case["channels"], share=case["shards"].trained[0]
    )
    plan = plan_for(layout, microbatches=Microbatches(case["microbatches"]), preprocess=of_bytes)
    batches = _batches(case["shards"].trained, ctxs[0])
    try:
        with counted(ctxs) as allocated:
            strategy = channel_parallel(
                lambda of, start=None: make_chain(case["chain"], start or of),
                softmax(), plan, ALONE,
            )  # fmt: skip
            for batch in batches:
                strategy.step(batch)
    except ModelError as error:
        assert "no layer has channels for" in str(error)
        return None
    planned = [sum(taken) for taken in strategy.taken(case["shards"])]
    # MXNet plans a gradient of the images which nothing reads
    in_vain = 4 * plan.microbatches.largest(case["shards"].trained[0]) * int(np.prod(IMAGE))
    return planned, [in_vain] * len(ctxs), allocated


def of_bytes(F, images):
    return F.cast(images, "float32") / 255


def staged_plan(ctxs, size, microbatches, **more):
    split = split_of("pipeline", ctxs, size, **more)
    return plan_for(split, microbatches=Microbatches(microbatches), preprocess=of_bytes)


def make_staged(chain):
    return lambda ctxs, start=None: make_chain(chain, start)


def _cpus(count):
    """Devices without cpu(0), which has the scratch memory of all."""
    return [mx.cpu(1 + number) for number in range(count)]


def _batches(shares, ctx):
    """A batch of each size, and the first again."""
    batches = []
    for images in shares:
        xs = nd.array(np.zeros((images, *IMAGE)), ctx=ctx, dtype="uint8")
        batches.append(whole([xs], [nd.zeros((images,), ctx=ctx, dtype="int32")]))
    return [*batches, batches[0]]


def _planned_in_vain(plan, stages, shards):
    """Bytes of each device: MXNet plans a gradient of the first layer, even if unread."""
    bound = bindings(shards, plan.microbatches, plan.split, columns=0)
    slots = [len({binding.slot for binding in of_stage}) for of_stage in bound]
    images = plan.microbatches.largest(shards.trained[0])

    extra = [0] * plan.split.size
    for number, stage in enumerate(stages):
        if not stage.wants:
            shape = IMAGE
            if ACTIVATION in stage.inputs:
                memory = StagedMemory(stages, softmax(), plan)
                shape = memory._activation(number, 1)[0]
            unused = 4 * images * int(np.prod(shape))
            extra[number % plan.split.size] += slots[number] * unused
    return extra
