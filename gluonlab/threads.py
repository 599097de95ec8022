"""How many threads compute for each CPU device.

MXNet runs one worker thread per CPU context, and inside an operator that worker opens an OpenMP team.
Two workers that both open a team inside OpenBLAS wait for each other for ever, which is what
OMP_NUM_THREADS=2 in somebody's profile does to two CPU contexts. The size of a team belongs to the
thread that opens it, so it is set here on each worker itself, by a function pushed to MXNet's engine:
that works whatever the environment said when MXNet was loaded, and can be changed later.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from pathlib import Path
from typing import Any, List, Sequence, Set, Tuple

from gluonlab import engine
from gluonlab.errors import ConfigError, EngineError, GluonlabWarning

_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Context(ctypes.Structure):  # struct Context of include/mxnet/base.h
    _fields_ = [("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32)]


def cores() -> int:
    """The physical cores that this process may use: affinity and container limits count, hyper-threads do not."""
    allowed = os.sched_getaffinity(0)
    return max(1, min(len(_physical(allowed)), _cgroup_limit(len(allowed))))


def _physical(cpus: Set[int]) -> Set[Tuple[str, str]]:
    seen = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            seen.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:  # no topology in this container: count every CPU as a core
            seen.add(("", str(cpu)))
    return seen


def _cgroup_limit(otherwise: int) -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return otherwise if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return otherwise


def threads_per_device(cpu_devices: int, asked: "int | None" = None) -> int:
    """How many threads each of ``cpu_devices`` CPU devices computes with.

    One device: ``asked``, else OMP_NUM_THREADS, else all cores. Several: one each, because more would hang.
    Raises ConfigError when more are asked for. A larger OMP_NUM_THREADS is put aside with one warning.
    """
    from_environment = engine.omp_num_threads()
    if cpu_devices <= 1:
        return asked or from_environment or cores()
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
    from mxnet.base import _LIB, check_call

    check_call(_LIB.MXSetNumOMPThreads(ctypes.c_int(count)))  # the cap of MXNet's own loops
    for ctx in cpus:
        got = _on_worker(ctx, count)
        if got != count:
            raise EngineError(
                f"{ctx} computes with {got} threads instead of {count}: set OMP_NUM_THREADS={count} before Python starts"
            )
    return count


def _on_worker(ctx: Any, count: int) -> int:
    """Run omp_set_num_threads(count) on the worker thread of ctx; return what that thread then reports."""
    import mxnet as mx
    from mxnet.base import _LIB, check_call

    openmp = ctypes.CDLL("libgomp.so.1")  # loaded with libmxnet.so: this only finds it
    got: List[int] = []

    def set_team_size(run_context: object, parameter: object) -> None:
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
