"""How many threads compute for each CPU device.

MXNet runs one worker thread per CPU context, and inside an operator that worker opens an OpenMP
team. Two workers that both open a team inside OpenBLAS wait for each other for ever, which is what
OMP_NUM_THREADS=2 in somebody's profile does to two CPU contexts. The size of a team belongs to the
thread that opens it, so it is set here on each worker itself, by a function pushed to MXNet's
engine: that works whatever the environment said when MXNet was loaded.

A worker begins alone (`gluonlab.engine.mxnet_setup`), so that no CPU context ever hangs, asked for
here
or not. The size of a team never changes while its worker lives: the worker keeps oneDNN's compiled
operators, which write beyond their scratch memory in a larger team, and in a smaller one go on
adding up in the parts of the larger: other bits than in a new process. Where another size is
wanted, all workers are replaced by new ones, which takes 10 to 50 ms.

Every fork of the process, such as a notebook's ``!ls`` or a worker of a gluon DataLoader, makes
MXNet replace its workers, too. The new ones get the sizes of the old ones here, or they would hang.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from functools import lru_cache
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from gluonlab.engine import mxnet_setup, openmp_settings
from gluonlab.engine.local_processes import neighbours, own_cores
from gluonlab.errors import ConfigError, EngineError, warn
from gluonlab.host import resources

EngineCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class EngineContext(ctypes.Structure):
    """A device as MXNet's engine takes it: struct Context of include/mxnet/base.h."""

    _fields_ = [("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32)]


def push(callback: Any, written: Any, name: bytes, read: Any = None) -> None:
    """Have MXNet's engine call an `EngineCallback` as an operation on the device of ``written``.

    It runs after the operations that use this NDArray or write to ``read``. The callback must
    live until it has been called.
    """
    from mxnet.base import _LIB, check_call

    ctx = written.context
    where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    reads, count = (None, 0) if read is None else (ctypes.byref(read.handle), 1)
    handle = ctypes.byref(written.handle)
    check_call(
        _LIB.MXEnginePushSyncND(
            callback, None, None, where, reads, count, handle, 1, None, 0, name
        )
    )  # fmt: skip


def threads_per_device(cpu_devices: int, asked: "int | None" = None) -> int:
    """How many threads each of ``cpu_devices`` CPU devices computes with.

    One device: ``asked``, else OMP_NUM_THREADS or MXNET_OMP_MAX_THREADS, else all cores, or this
    process's part of them where several processes train on this host
    (`gluonlab.engine.local_processes`). Several: one each, because more would hang. Raises
    ConfigError when ``asked`` is more; a larger number in the environment is ignored.
    """
    if cpu_devices <= 1:
        return asked or openmp_settings.omp_num_threads() or own_cores()
    if asked is not None and asked > 1:
        raise ConfigError(
            f"--threads {asked} with {cpu_devices} CPU devices would hang in OpenBLAS: "
            "leave it out, or use one CPU device"
        )
    return 1


def set_threads(ctxs: Sequence[Any], threads: "int | None" = None) -> int:
    """Give every CPU device among ``ctxs`` (mx.Context) its threads, and return how many each has.

    Waits for the work already queued. On GPUs there is nothing to set: 1 is returned. Warns where
    the number may surprise a user who has exported OMP_NUM_THREADS or imported mxnet first.
    Raises ConfigError (see `threads_per_device`), and EngineError if a worker keeps another number.
    """
    cpus = [ctx for ctx in ctxs if ctx.device_type == "cpu"]
    if not cpus:
        return 1
    count = threads_per_device(len(cpus), threads)
    is_new = any(_sizes.get(ctx.device_id) != count for ctx in cpus)
    if is_new:  # once, not each time they are asked for
        for message in _several(len(cpus), threads) if len(cpus) > 1 else _one(count, threads):
            warn(message)
    import mxnet as mx

    mx.nd.waitall()
    _restore_sizes_after_forks()
    _sizes.update(dict.fromkeys(_sizes, 1))  # the others: there may be several devices now
    _sizes.update((ctx.device_id, count) for ctx in cpus)
    found = _team_sizes(dict.fromkeys(_sizes))
    if found == _sizes and not is_new:
        return count
    if found != _sizes:
        _replace_workers()
    found = _team_sizes({ctx.device_id: count for ctx in cpus})
    for ctx in cpus:
        got = found[ctx.device_id]
        if got != count:
            raise EngineError(
                f"{ctx} computes with {got} threads instead of {count}: "
                f"unset OMP_THREAD_LIMIT, and set OMP_NUM_THREADS={count}, before Python starts"
            )
    return count


def _several(cpu_devices: int, asked: "int | None") -> Iterator[str]:
    """What a user may expect of several devices, and does not get."""
    exported = openmp_settings.exported_threads()
    if asked is None and exported is not None and exported.threads > 1:
        yield f"{exported} would hang {cpu_devices} CPU devices: each computes with 1 thread"
    if mxnet_setup.mxnet_came_first:
        yield (
            "mxnet was imported before gluonlab: if it has computed anything already, "
            "CPU devices share scratch memory and wait for each other, "
            "and two of them train LeNet about as fast as one; import gluonlab first"
        )


def _one(threads: int, asked: "int | None") -> Iterator[str]:
    """What a user may expect of one device, and does not get."""
    sharing = neighbours()
    own, free = (
        resources.available_cores(),
        asked is None and openmp_settings.omp_num_threads() is None,
    )
    if free and not sharing.known and own > 1:
        yield (
            f"up to {sharing.processes} workers may share this host's {own} cores: "
            f"this one computes with {threads} of them; if fewer do, export OMP_NUM_THREADS, "
            "or train with python -m gluonlab.launch, which counts them"
        )
    if threads > 1 and openmp_settings.spins_as_it_came():
        yield (
            "mxnet or torch loaded OpenMP before gluonlab could configure it: "
            f"its {threads} threads spin while they wait for each other, "
            "which is many times slower beside other work; "
            f"import gluonlab and mxnet first, or {openmp_settings.SLEEP_SOON} before Python starts"
        )


def _replace_workers() -> None:
    """Make MXNet end its worker threads, when their work is done, and start new ones.

    It does so around every fork of the process (src/initialize.cc: atfork_prepare, atfork_parent),
    and nowhere else.
    """
    with warnings.catch_warnings():
        # Python's, of a fork beside threads: this child does nothing
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _restore_sizes() -> None:
    _team_sizes(dict(_sizes))


# What set_threads gave each CPU device: the workers belong to the process, and so does this.
_sizes: Dict[int, int] = {}


@lru_cache(maxsize=None)
def _restore_sizes_after_forks() -> object:
    """To be called when MXNet is loaded, so that its own hook runs first.

    Returns what must live as long as the process.
    """
    if sys.version_info >= (3, 10):
        os.register_at_fork(after_in_parent=_restore_sizes)
        return None
    # there subprocess forks as well, and does not call Python's hooks
    hook = ctypes.CFUNCTYPE(None)(_restore_sizes)
    ctypes.CDLL(None)["__register_atfork"](None, hook, None, None)
    return hook


def _team_sizes(wanted: "Mapping[int, Optional[int]]") -> Dict[int, int]:
    """Set how many threads the worker of each CPU device uses, unless None, and return how many.

    ``wanted`` is by the device's number. All workers do it at the same time.
    """
    import mxnet as mx

    libgomp = ctypes.CDLL("libgomp.so.1")  # loaded with libmxnet.so: this only finds it
    found = dict.fromkeys(wanted, 0)
    queued = []
    for device_id, new in wanted.items():

        def team_size(
            run_context: object, parameter: object, device_id: int = device_id, new: Any = new
        ) -> None:
            if new is not None:
                libgomp.omp_set_num_threads(new)
                # oneDNN's sums are wrong in a team that is smaller than it was told
                libgomp.omp_set_dynamic(0)
            found[device_id] = min(libgomp.omp_get_max_threads(), libgomp.omp_get_thread_limit())

        callback = EngineCallback(team_size)
        var = mx.nd.zeros((1,), ctx=mx.cpu(device_id))
        push(callback, var, b"set_threads")
        queued.append((callback, var))  # a callback must outlive its call
    for _, var in queued:
        var.wait_to_read()
    return found
