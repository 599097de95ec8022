"""What MXNet has allocated on each device, as its own profiler of memory counts it, in bytes.

It counts what anyone asks of MXNet's storage: arrays and executors. The scratch memory of
operators, on whatever CPU device, is counted for cpu(0).
"""

import atexit
import gc
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import mxnet as mx
from mxnet import nd

PROBE = 4096  # bytes
EVENT = re.compile(r'"ts": (\d+),\s*"args": { "Memory: ([^"]+)": (\d+) }')


@lru_cache(maxsize=None)
def _profiled():
    """The file of the profiler, which MXNet lets a process set up once: call it in one that records
    no timelines.
    """
    file = Path(tempfile.mkdtemp(), "memory.json")
    atexit.register(shutil.rmtree, file.parent, ignore_errors=True)
    mx.profiler.set_config(
        filename=str(file), profile_memory=True, profile_imperative=False, profile_symbolic=False,
        profile_api=False,
    )  # fmt: skip
    return file


def _counters():
    """The names of CPU devices' counters: those without a core of their own have the next ones.

    MXNet knows the cores that this process may use, and no device beyond the counters.
    """
    names = [f"cpu/{core}" for core in range(len(os.sched_getaffinity(0)))]
    names += [f"gpu/{number}" for number in range(mx.context.num_gpus())]
    return [*names, "cpu pinned/", "cpu shared/"]


def most_counted(wanted):
    """As many of the ``wanted`` CPU devices as can be counted, without cpu(0)."""
    return min(wanted, len(_counters()) - 1)


def _counter(ctx):
    return _counters()[ctx.device_id]


@contextmanager
def counted(ctxs):
    """After ``with counted(ctxs) as taken``, ``taken[i]`` are the bytes that were allocated inside
    on ``ctxs[i]``, CPU devices, and still are at the end.
    """
    file, taken = _profiled(), []
    begin = file.stat().st_size if file.exists() else 0
    _settle()
    mx.profiler.set_state("run")
    before = _probes(ctxs)
    try:
        yield taken
    finally:
        _settle()
        after = _probes(ctxs)
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=False)
    with file.open() as opened:
        opened.seek(begin)
        events = EVENT.findall(opened.read())
    found = sorted((int(when), name, int(count)) for when, name, count in events)
    for ctx in ctxs:
        of_one = [count for _, name, count in found if name == _counter(ctx)]
        taken.append(of_one[-1] - of_one[0] - PROBE)
    del before, after


def _settle():
    gc.collect()
    nd.waitall()


def _probes(ctxs):
    """An array on each device, by which its counter shows where it stands."""
    probes = [nd.zeros((PROBE // 4,), ctx=ctx) for ctx in ctxs]
    nd.waitall()
    return probes
