"""The number of OpenMP threads that compute for each CPU device.

MXNet runs one worker thread per CPU context, and inside an operator that worker opens an OpenMP
team. Two workers that both open a team inside OpenBLAS deadlock, so OMP_NUM_THREADS=2 hangs two
CPU contexts. The size of a team belongs to the thread that opens it. This module therefore sets the
size on each worker, by a function pushed to MXNet's engine. That works with any environment at the
time MXNet was loaded.

Each worker starts with a team of one thread (`gluonlab.engine.mxnet_setup`), so that no CPU context
ever hangs. The size of a team never changes while its worker lives, because the worker caches
oneDNN's compiled operators. In a larger team they write beyond their scratch memory. In a smaller
team they still add up in as many parts as before, and the bits differ from those of a new process.
To change a size, all workers are replaced, which takes 10 to 50 ms.

Every fork of the process, such as a notebook's ``!ls`` or a worker of a gluon DataLoader, makes
MXNet replace its workers. The new workers get the sizes of the old ones here, or they would hang.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from functools import lru_cache
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from gluonlab.engine import mxnet_setup, openmp_settings
from gluonlab.engine.local_processes import cores_per_process, local_process_count
from gluonlab.errors import ConfigError, EngineError, warn
from gluonlab.host import resources

EngineCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class EngineContext(ctypes.Structure):
    """A device in the form of MXNet's C API: struct Context of include/mxnet/base.h."""

    _fields_ = [("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32)]


def push_engine_operation(callback: Any, written: Any, name: bytes, read: Any = None) -> None:
    """Queue an `EngineCallback` as an operation of MXNet's engine on the device of ``written``.

    The callback runs after all queued operations that use ``written`` or write to ``read``. The
    caller must keep the callback alive until it has been called.
    """
    from mxnet.base import _LIB, check_call

    ctx = written.context
    device = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    reads, read_count = (None, 0) if read is None else (ctypes.byref(read.handle), 1)
    handle = ctypes.byref(written.handle)
    check_call(
        _LIB.MXEnginePushSyncND(
            callback, None, None, device, reads, read_count, handle, 1, None, 0, name
        )
    )  # fmt: skip


def threads_per_device(cpu_devices: int, requested: "int | None" = None) -> int:
    """Return the number of threads that each of ``cpu_devices`` CPU devices computes with.

    A single device uses ``requested``, else OMP_NUM_THREADS or MXNET_OMP_MAX_THREADS, else all
    cores. If several processes train on this host, it uses this process's share of the cores
    (`gluonlab.engine.local_processes`). Several devices use one thread each, because more would
    hang. A larger number in the environment is ignored. Raises ConfigError if more are requested.
    """
    if cpu_devices <= 1:
        return requested or openmp_settings.exported_thread_count() or cores_per_process()
    if requested is not None and requested > 1:
        raise ConfigError(
            f"--threads {requested} with {cpu_devices} CPU devices would hang in OpenBLAS: "
            "leave it out, or use one CPU device"
        )
    return 1


def set_threads(ctxs: Sequence[Any], threads: "int | None" = None) -> int:
    """Set the number of threads of every CPU device among ``ctxs``, and return that number.

    Returns 1 if there are only GPUs. Waits for all queued work. Warns if the number may surprise a
    user who has exported OMP_NUM_THREADS or imported mxnet first.

    Raises ConfigError (see `threads_per_device`), and EngineError if a worker keeps another number.
    """
    cpus = [ctx for ctx in ctxs if ctx.device_type == "cpu"]
    if not cpus:
        return 1
    count = threads_per_device(len(cpus), threads)
    is_new = any(_team_size_by_device.get(ctx.device_id) != count for ctx in cpus)
    if is_new:  # once, not each time they are asked for
        for message in (
            _several_devices_warnings(len(cpus), threads)
            if len(cpus) > 1
            else _one_device_warnings(count, threads)
        ):
            warn(message)
    import mxnet as mx

    mx.nd.waitall()
    _restore_team_sizes_after_forks()
    _team_size_by_device.update(
        dict.fromkeys(_team_size_by_device, 1)
    )  # the others: there may be several devices now
    _team_size_by_device.update((ctx.device_id, count) for ctx in cpus)
    actual_sizes = _set_team_sizes(dict.fromkeys(_team_size_by_device))
    if actual_sizes == _team_size_by_device and not is_new:
        return count
    if actual_sizes != _team_size_by_device:
        _replace_workers()
    actual_sizes = _set_team_sizes({ctx.device_id: count for ctx in cpus})
    for ctx in cpus:
        actual = actual_sizes[ctx.device_id]
        if actual != count:
            raise EngineError(
                f"{ctx} computes with {actual} threads instead of {count}: "
                f"unset OMP_THREAD_LIMIT, and set OMP_NUM_THREADS={count}, before Python starts"
            )
    return count


def _several_devices_warnings(cpu_devices: int, requested: "int | None") -> Iterator[str]:
    exported = openmp_settings.exported_threads()
    if requested is None and exported is not None and exported.threads > 1:
        yield f"{exported} would hang {cpu_devices} CPU devices: each computes with 1 thread"
    if mxnet_setup.mxnet_imported_first:
        yield (
            "mxnet was imported before gluonlab: if it has computed anything already, "
            "CPU devices share scratch memory and wait for each other, "
            "and two of them train LeNet about as fast as one; import gluonlab first"
        )


def _one_device_warnings(threads: int, requested: "int | None") -> Iterator[str]:
    local = local_process_count()
    cores = resources.available_cores()
    is_default = requested is None and openmp_settings.exported_thread_count() is None
    if is_default and not local.is_certain and cores > 1:
        yield (
            f"up to {local.processes} workers may share this host's {cores} cores: "
            f"this one computes with {threads} of them; if fewer do, export OMP_NUM_THREADS, "
            "or train with python -m gluonlab.launch, which counts them"
        )
    if threads > 1 and openmp_settings.spins_by_default():
        yield (
            "mxnet or torch loaded OpenMP before gluonlab could configure it: "
            f"its {threads} threads spin while they wait for each other, "
            "which is many times slower beside other work; "
            "import gluonlab and mxnet first, "
            f"or {openmp_settings.SHORT_SPIN_COMMAND} before Python starts"
        )


def _replace_workers() -> None:
    """Make MXNet stop its worker threads, when their work is done, and start new ones.

    MXNet replaces them around every fork of the process, and nowhere else (src/initialize.cc:
    atfork_prepare, atfork_parent).
    """
    with warnings.catch_warnings():
        # Python warns of a fork while other threads run. This child does nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _restore_team_sizes() -> None:
    _set_team_sizes(dict(_team_size_by_device))


# Sizes that set_threads has set. A global, because the workers belong to the process.
_team_size_by_device: Dict[int, int] = {}


@lru_cache(maxsize=None)
def _restore_team_sizes_after_forks() -> object:
    """Register a hook that restores the sizes after each fork of the process.

    Call it after MXNet is loaded, so that MXNet's own hook runs first. Returns the hook, which must
    live as long as the process; the cache keeps it alive.
    """
    if sys.version_info >= (3, 10):
        os.register_at_fork(after_in_parent=_restore_team_sizes)
        return None
    # In Python 3.8 and 3.9, subprocess also forks and does not call Python's hooks.
    hook = ctypes.CFUNCTYPE(None)(_restore_team_sizes)
    ctypes.CDLL(None)["__register_atfork"](None, hook, None, None)
    return hook


def _set_team_sizes(size_by_device: "Mapping[int, Optional[int]]") -> Dict[int, int]:
    """Set the team size of each CPU device's worker, and return the actual sizes.

    None keeps the current size. All workers are set at the same time.
    """
    import mxnet as mx

    libgomp = ctypes.CDLL("libgomp.so.1")  # already loaded with libmxnet.so
    actual_sizes = dict.fromkeys(size_by_device, 0)
    queued = []
    for device_id, size in size_by_device.items():

        def set_team_size(
            run_context: object, parameter: object, device_id: int = device_id, size: Any = size
        ) -> None:
            if size is not None:
                libgomp.omp_set_num_threads(size)
                # oneDNN's sums are wrong in a team that is smaller than omp_get_max_threads()
                libgomp.omp_set_dynamic(0)
            actual_sizes[device_id] = min(
                libgomp.omp_get_max_threads(), libgomp.omp_get_thread_limit()
            )

        callback = EngineCallback(set_team_size)
        var = mx.nd.zeros((1,), ctx=mx.cpu(device_id))
        push_engine_operation(callback, var, b"set_threads")
        queued.append((callback, var))  # a callback must outlive its call
    for _, var in queued:
        var.wait_to_read()
    return actual_sizes
