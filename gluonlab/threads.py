"""How many threads compute for each CPU device.

MXNet runs one worker thread per CPU context, and inside an operator that worker opens an OpenMP team.
Two workers that both open a team inside OpenBLAS wait for each other for ever, which is what
OMP_NUM_THREADS=2 in somebody's profile does to two CPU contexts. The size of a team belongs to the
thread that opens it, so it is set here on each worker itself, by a function pushed to MXNet's engine:
that works whatever the environment said when MXNet was loaded.

A worker begins with all cores (`gluonlab.engine`), and its team is only ever made smaller: oneDNN's compiled operators, which
each worker keeps, have scratch memory for the team they were compiled with, and write beyond it in a larger one.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any, List, Sequence

from gluonlab import engine
from gluonlab.errors import ConfigError, EngineError, GluonlabWarning

_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Context(ctypes.Structure):  # struct Context of include/mxnet/base.h
    _fields_ = [("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32)]


def threads_per_device(cpu_devices: int, asked: "int | None" = None) -> int:
    """How many threads each of ``cpu_devices`` CPU devices computes with.

    One device: ``asked``, else OMP_NUM_THREADS, else all cores. Several: one each, because more would hang.
    Raises ConfigError when more are asked for. A larger OMP_NUM_THREADS is put aside with one warning.
    """
    from_environment = engine.omp_num_threads()
    if cpu_devices <= 1:
        return asked or from_environment or engine.cores()
    if asked is not None and asked > 1:
        raise ConfigError(
            f"--threads {asked} with {cpu_devices} CPU devices would hang in OpenBLAS: leave it out, or use one CPU device"
        )
    if asked is None and from_environment is not None and from_environment > 1:
        warnings.warn(
            f"OMP_NUM_THREADS={from_environment} would hang {cpu_devices} CPU devices: each computes with 1 thread",
            GluonlabWarning,
            stacklevel=3,
        )
    return 1


def set_threads(ctxs: Sequence[Any], threads: "int | None" = None) -> int:
    """Give every CPU device among ``ctxs`` (mx.Context) its threads, and return how many each has.

    Waits for the work already queued on these devices. On GPUs there is nothing to set: 1 is returned.
    Raises ConfigError (see `threads_per_device`), and EngineError if a worker keeps another number.
    """
    cpus = [ctx for ctx in ctxs if ctx.device_type == "cpu"]
    if not cpus:
        return 1
    count = threads_per_device(len(cpus), threads)
    if len(cpus) > 1 and engine.mxnet_came_first:
        warnings.warn(
            "mxnet was imported before gluonlab: if it has computed anything yet, CPU devices share their scratch memory "
            "and wait for each other (two of them then train LeNet at about the speed of one); import gluonlab first",
            GluonlabWarning,
            stacklevel=2,
        )
    kept = [(ctx, got) for ctx, got in ((ctx, _shrink_team(ctx, count)) for ctx in cpus) if got != count]
    if kept:
        ctx, got = kept[0]
        if got > count:
            raise EngineError(
                f"{ctx} computes with {got} threads instead of {count}: set OMP_NUM_THREADS={count} before Python starts"
            )
        warnings.warn(
            f"{ctx} computes with {got} thread{'s' * (got > 1)}, as it began, and not with {count}: "
            f"start Python anew (with OMP_NUM_THREADS={count} if that is set to less)",
            GluonlabWarning,
            stacklevel=2,
        )
        return got
    return count


def _shrink_team(ctx: Any, count: int) -> int:
    """Let the worker thread of ctx use at most ``count`` threads; return how many it then uses."""
    import mxnet as mx
    from mxnet.base import _LIB, check_call

    openmp = ctypes.CDLL("libgomp.so.1")  # loaded with libmxnet.so: this only finds it
    got: List[int] = []

    def set_team_size(run_context: object, parameter: object) -> None:
        if openmp.omp_get_max_threads() > count:
            openmp.omp_set_num_threads(count)
        got.append(openmp.omp_get_max_threads())

    callback = _ON_WORKER(set_team_size)
    var = mx.nd.zeros((1,), ctx=ctx)
    where = _Context(1, ctx.device_id)
    check_call(
        _LIB.MXEnginePushSyncND(
            callback, None, None, ctypes.byref(where), None, 0, ctypes.byref(var.handle), 1, None, 0, b"set_threads"
        )
    )
    var.wait_to_read()  # callback must outlive its call
    return got[0] if got else 0
