"""Sets the number of OpenMP threads that compute for each CPU device.

MXNet runs one worker thread per CPU context. To run an operator, the worker opens a team of OpenMP
threads. Two teams of several threads deadlock in OpenBLAS: with OMP_NUM_THREADS=2, two CPU contexts
hang. So each worker starts with a team of one (`gluonlab.engine.mxnet_setup`), and this module sets
each worker's team size by pushing a function to MXNet's engine.

- To change a team size, this module replaces all workers, because each worker caches oneDNN's
  compiled operators. In a larger team, these operators would write beyond their memory. In a
  smaller team, they would add numbers in a different order. Replacing the workers takes 10 to 50
  ms.
- Every fork of the process, such as a notebook's ``!ls`` or a worker of a gluon DataLoader, makes
  MXNet replace its workers. This module then sets the sizes again.
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
from gluonlab.engine.mxnet_and_cuda_libraries import needs_arm_libraries
from gluonlab.errors import ConfigError, EngineError, warn
from gluonlab.host import resources

EngineCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class EngineContext(ctypes.Structure):
    """MXNet's C struct for a device, which is called Context in include/mxnet/base.h."""

    _fields_ = [("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32)]


def push_engine_operation(callback: Any, written: Any, name: bytes, read: Any = None) -> None:
    """Queue a Python function as an operation of MXNet's engine.

    Args:
        callback: an `EngineCallback`. The caller must keep the callback alive until the engine has
            called it.
        written: an array on the device that runs the function. The function runs after all queued
            operations that use this array.
        name: the name of the operation
        read: an array, or None. The function runs after all queued operations that write to it.
    """
    from mxnet.base import _LIB, check_call

    ctx = written.context
    device = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    reads, read_count = (None, 0) if read is None else (ctypes.byref(read.handle), 1)
    handle = ctypes.byref(written.handle)
    check_call(_LIB.MXEnginePushSyncND(callback, None, None, device, reads, read_count, handle, 1, None, 0, name))


def threads_per_device(cpu_devices: int, requested: "int | None" = None) -> int:
    """Return the number of threads for each of this process's ``cpu_devices`` CPU devices.

    A single device uses the first of these numbers that is set:

    - ``requested``, the value of --threads
    - OMP_NUM_THREADS or MXNET_OMP_MAX_THREADS
    - the number of the host's cores for this process (`gluonlab.engine.local_processes`)

    Several devices use one thread each, because they would hang with more threads. A larger number
    in the environment is ignored. Raises ConfigError for a larger number in ``requested``.

    Without OpenMP (`openmp_settings.uses_openmp`), every device uses one thread.
    """
    if not openmp_settings.uses_openmp():
        if requested is not None and requested > 1:
            raise ConfigError(
                f"--threads {requested} needs OpenMP, with which MXNet for macOS was not compiled: omit --threads"
            )
        return 1
    if cpu_devices <= 1:
        return requested or openmp_settings.exported_thread_count() or cores_per_process()
    if requested is not None and requested > 1:
        raise ConfigError(
            f"--threads {requested} with {cpu_devices} CPU devices would hang in OpenBLAS: omit "
            "--threads, or use one CPU device"
        )
    return 1


def set_threads(ctxs: Sequence[Any], threads: "int | None" = None) -> int:
    """Set the number of threads for each CPU device in ``ctxs``, and return this number.

    ``threads``: the number that the user has requested, or None (see `threads_per_device`). Returns
    1 if all devices are GPUs. Waits for all queued work. Warns if the user has exported another
    number, or has imported mxnet before gluonlab.

    Raises ConfigError (see `threads_per_device`), and EngineError if a worker does not accept the
    number.
    """
    cpus = [ctx for ctx in ctxs if ctx.device_type == "cpu"]
    if not cpus:
        return 1
    count = threads_per_device(len(cpus), threads)
    if not openmp_settings.uses_openmp():
        return count  # always 1, and there are no teams
    is_new = any(_team_size_by_device.get(ctx.device_id) != count for ctx in cpus)
    if is_new:  # warn only once
        for message in (
            _several_devices_warnings(len(cpus), threads) if len(cpus) > 1 else _one_device_warnings(count, threads)
        ):
            warn(message)
    import mxnet as mx

    mx.nd.waitall()
    if needs_arm_libraries():
        from gluonlab.engine.arm_libraries import set_openblas_threads

        set_openblas_threads(count)
    _restore_team_sizes_after_forks()
    # Devices of earlier calls also get one thread, because several devices may be in use now.
    _team_size_by_device.update(dict.fromkeys(_team_size_by_device, 1))
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
                f"{ctx} computes with {actual} threads instead of {count}: unset OMP_THREAD_LIMIT and set "
                f"OMP_NUM_THREADS={count} before Python starts"
            )
    return count


def _several_devices_warnings(cpu_devices: int, requested: "int | None") -> Iterator[str]:
    """Yield the warnings for several CPU devices, which compute with one thread each."""
    exported = openmp_settings.exported_threads()
    if requested is None and exported is not None and exported.threads > 1:
        yield f"{exported} would hang {cpu_devices} CPU devices, so each uses 1 thread"
    if mxnet_setup.mxnet_imported_first:
        yield (
            "mxnet was imported before gluonlab, so CPU devices may share scratch memory and wait "
            "for each other, and two train LeNet no faster than one: import gluonlab first"
        )


def _one_device_warnings(threads: int, requested: "int | None") -> Iterator[str]:
    """Yield the warnings for a single CPU device, which computes with ``threads`` threads."""
    local = local_process_count()
    cores = resources.available_cores()
    is_default = requested is None and openmp_settings.exported_thread_count() is None
    if is_default and not local.is_certain and cores > 1:
        yield (
            f"up to {local.processes} workers may share the {cores} cores of this host, so this one "
            f"uses {threads} threads; if there are fewer workers, set OMP_NUM_THREADS, or train with "
            "gluonlab launch"
        )
    if threads > 1 and openmp_settings.spins_by_default():
        yield (
            f"mxnet or torch loaded OpenMP before gluonlab could configure it: its {threads} threads "
            "spin while they wait, which is very slow next to other programs; import gluonlab and "
            f"mxnet first, or run {openmp_settings.SHORT_SPIN_COMMAND} before Python starts"
        )


def _replace_workers() -> None:
    """Make MXNet replace its worker threads, by forking a child that exits at once."""
    with warnings.catch_warnings():
        # Python warns of a fork while other threads run. This child does nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _restore_team_sizes() -> None:
    _set_team_sizes(dict(_team_size_by_device))


# The team size that `set_threads` has set, by the number of the CPU device. It is global, because
# MXNet's workers belong to the process.
_team_size_by_device: Dict[int, int] = {}


@lru_cache(maxsize=None)
def _restore_team_sizes_after_forks() -> object:
    """Register a hook that restores the workers' numbers of threads after each fork.

    Call this function after MXNet is loaded, so that MXNet's own hook runs first. The hook must
    live as long as the process. So this function returns the hook, and lru_cache keeps it alive.
    """
    if sys.version_info >= (3, 10):
        os.register_at_fork(after_in_parent=_restore_team_sizes)
        return None
    # In Python 3.8 and 3.9, subprocess also forks and does not call Python's hooks.
    hook = ctypes.CFUNCTYPE(None)(_restore_team_sizes)
    ctypes.CDLL(None)["__register_atfork"](None, hook, None, None)
    return hook


def _set_team_sizes(size_by_device: "Mapping[int, Optional[int]]") -> Dict[int, int]:
    """Set how many OpenMP threads each CPU device's worker uses. Return the actual numbers.

    ``size_by_device``: the number of threads, by device number. None leaves the number unchanged.
    """
    import mxnet as mx

    libgomp = ctypes.CDLL("libgomp.so.1")  # already loaded with libmxnet.so
    actual_sizes = dict.fromkeys(size_by_device, 0)
    queued = []
    for device_id, size in size_by_device.items():

        def set_team_size(run_context: object, parameter: object, device_id: int = device_id, size: Any = size) -> None:
            """Set the number of threads in the device's worker, and record the actual number."""
            if size is not None:
                libgomp.omp_set_num_threads(size)
                # oneDNN's sums are wrong in a team that is smaller than omp_get_max_threads()
                libgomp.omp_set_dynamic(0)
            actual_sizes[device_id] = min(libgomp.omp_get_max_threads(), libgomp.omp_get_thread_limit())

        callback = EngineCallback(set_team_size)
        var = mx.nd.zeros((1,), ctx=mx.cpu(device_id))
        push_engine_operation(callback, var, b"set_threads")
        queued.append((callback, var))  # a callback must outlive its call
    for _, var in queued:
        var.wait_to_read()
    return actual_sizes
