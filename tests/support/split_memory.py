"""Memory of split networks: planned by gluonlab, and allocated by MXNet in a separate process.

The process is separate because MXNet configures its profiler once per process, and the process of
the tests records timelines.
"""

import atexit
import gc
import multiprocessing
import os
import re
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import mxnet as mx
from mxnet import nd

import gluonlab  # noqa: F401, before MXNet, which then starts soon

# isort: split
import numpy as np

from gluonlab.data.loading.split_batch import Microbatches, make_local_batch
from gluonlab.errors import ModelError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.models import rewrite_network
from gluonlab.models.cpu_channel_padding import Padding
from gluonlab.parallel.pipeline.network_stages import ACTIVATION, PipelineMemory, stage_bindings
from gluonlab.parallel.pipeline.strategy import pipeline_parallel
from gluonlab.parallel.tensor.strategy import tensor_parallel
from support.splits import IMAGE, make_chain, make_parallelism, make_strategy_plan, softmax_loss


@lru_cache(maxsize=None)
def _counting_process():
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def count_elsewhere(count, case):
    """Return ``count(case)``, computed in the counting process.

    ``count`` is ``count_stages`` or ``count_channels``. No channels are padded: padded ones are
    rearranged in memory that MXNet does not plan.
    """
    return _counting_process().submit(_count_without_padding, count, case).result()


def _count_without_padding(count, case):
    rewrite_network.choose_padding = lambda ctx: Padding()
    return count(case)


def count_stages(case):
    """Return the bytes of each device: planned, of unused gradients, and allocated."""
    ctxs = _counted_devices(case["size"])
    plan = make_pipeline_plan(ctxs, case["size"], case["microbatches"], **case["split"])
    batches = _make_batches(case["shards"].train_sizes, ctxs[0])
    with count_allocated_bytes(ctxs) as allocated:
        strategy = pipeline_parallel(chain_maker(case["chain"]), softmax_loss(), plan, SINGLE_PROCESS)
        for batch in batches:
            strategy.step(batch)
    planned = [sum(parts) for parts in strategy.estimate_memory(case["shards"])]
    return planned, _unused_gradient_bytes(plan, strategy.stages, case["shards"]), allocated


def count_channels(case):
    """Return the same for tensor parallelism; None if no layer has enough channels for all devices."""
    ctxs = _counted_devices(case["ways"])
    layout = make_parallelism(
        "tensor", ctxs, len(ctxs), channels=case["channels"], max_shard_images=case["shards"].train_sizes[0]
    )
    plan = make_strategy_plan(layout, microbatches=Microbatches(case["microbatches"]), preprocess=scale_bytes)
    batches = _make_batches(case["shards"].train_sizes, ctxs[0])
    try:
        with count_allocated_bytes(ctxs) as allocated:
            strategy = tensor_parallel(
                lambda of, start=None: make_chain(case["chain"], start or of), softmax_loss(), plan, SINGLE_PROCESS
            )
            for batch in batches:
                strategy.step(batch)
    except ModelError as error:
        assert "no layer has enough channels for" in str(error)
        return None
    planned = [sum(parts) for parts in strategy.estimate_memory(case["shards"])]
    # MXNet plans a gradient of the images which nothing reads
    unused_bytes = 4 * plan.microbatches.largest_part(case["shards"].train_sizes[0]) * int(np.prod(IMAGE))
    return planned, [unused_bytes] * len(ctxs), allocated


def scale_bytes(F, images):
    return F.cast(images, "float32") / 255


def make_pipeline_plan(ctxs, size, microbatches, **more):
    split = make_parallelism("pipeline", ctxs, size, **more)
    return make_strategy_plan(split, microbatches=Microbatches(microbatches), preprocess=scale_bytes)


def chain_maker(chain):
    return lambda ctxs, start=None: make_chain(chain, start)


def _counted_devices(count):
    """Return devices without cpu(0), which holds the scratch memory of all devices."""
    return [mx.cpu(1 + number) for number in range(count)]


def _make_batches(sizes, ctx):
    """Return a batch of each size, and the first one again."""
    batches = []
    for images in sizes:
        xs = nd.array(np.zeros((images, *IMAGE)), ctx=ctx, dtype="uint8")
        batches.append(make_local_batch([xs], [nd.zeros((images,), ctx=ctx, dtype="int32")]))
    return [*batches, batches[0]]


def _unused_gradient_bytes(plan, stages, shards):
    """Return the bytes per device of unread input gradients, which MXNet plans."""
    bound = stage_bindings(shards, plan.microbatches, plan.parallelism, columns=0)
    slots = [len({binding.slot for binding in stage}) for stage in bound]
    images = plan.microbatches.largest_part(shards.train_sizes[0])

    extra = [0] * plan.parallelism.size
    for number, stage in enumerate(stages):
        if not stage.needs_input_gradient:
            shape = IMAGE
            if ACTIVATION in stage.inputs:
                memory = PipelineMemory(stages, softmax_loss(), plan)
                shape = memory._activation_spec(number, 1)[0]
            unused = 4 * images * int(np.prod(shape))
            extra[number % plan.parallelism.size] += slots[number] * unused
    return extra


PROBE_BYTES = 4096  # bytes
EVENT = re.compile(r'"ts": (\d+),\s*"args": { "Memory: ([^"]+)": (\d+) }')


@lru_cache(maxsize=None)
def _configure_profiler():
    """Configure the profiler, which MXNet allows once per process; return its file."""
    file = Path(tempfile.mkdtemp(), "memory.json")
    atexit.register(shutil.rmtree, file.parent, ignore_errors=True)
    mx.profiler.set_config(
        filename=str(file), profile_memory=True, profile_imperative=False, profile_symbolic=False, profile_api=False
    )
    return file


def _counter_names():
    """Return the names of the memory counters of CPU devices.

    MXNet has counters for the cores of this process; further CPU devices use the next counters.
    """
    names = [f"cpu/{core}" for core in range(len(os.sched_getaffinity(0)))]
    names += [f"gpu/{number}" for number in range(mx.context.num_gpus())]
    return [*names, "cpu pinned/", "cpu shared/"]


def max_counted_devices(count):
    """Return how many of ``count`` CPU devices have a counter, without cpu(0)."""
    return min(count, len(_counter_names()) - 1)


def _counter_name(ctx):
    return _counter_names()[ctx.device_id]


@contextmanager
def count_allocated_bytes(ctxs):
    """Yield a list that gets the bytes that the block allocates and keeps on each CPU device."""
    file, allocated = _configure_profiler(), []
    begin = file.stat().st_size if file.exists() else 0
    _collect_and_wait()
    mx.profiler.set_state("run")
    first_probes = _allocate_probes(ctxs)
    try:
        yield allocated
    finally:
        _collect_and_wait()
        last_probes = _allocate_probes(ctxs)
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=False)
    with file.open() as opened:
        opened.seek(begin)
        events = EVENT.findall(opened.read())
    counts = sorted((int(time), name, int(count)) for time, name, count in events)
    for ctx in ctxs:
        device_counts = [count for _, name, count in counts if name == _counter_name(ctx)]
        allocated.append(device_counts[-1] - device_counts[0] - PROBE_BYTES)
    del first_probes, last_probes


def _collect_and_wait():
    gc.collect()
    nd.waitall()


def _allocate_probes(ctxs):
    """Allocate a small array on each device, which makes the profiler record the counters."""
    probes = [nd.zeros((PROBE_BYTES // 4,), ctx=ctx) for ctx in ctxs]
    nd.waitall()
    return probes
