"""Sets up the environment, libraries and fixes that MXNet 1.9.1 needs on current machines.

`import gluonlab` installs an import hook (`mxnet_import`), which runs when mxnet is imported. The
hook sets environment variables for MXNet and OpenMP (`openmp_settings`), loads CUDA libraries from
LD_LIBRARY_PATH or the nvidia-*-cu11 wheels (`mxnet_and_cuda_libraries`), or OpenBLAS on ARM
(`arm_libraries`), disables fusion that the GPU driver does not support, and applies `mxnet_fixes`.
Import errors are converted to an EngineError that says how to fix them.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import ContextManager, Iterator, NamedTuple, Optional, Union

from gluonlab.engine import mxnet_fixes, mxnet_import, openmp_settings
from gluonlab.engine.mxnet_and_cuda_libraries import (
    cuda_versions,
    installed_distributions,
    load_cuda_libraries,
    needs_arm_libraries,
    pip_install_choices,
)
from gluonlab.engine.parameter_server_role import ROLE_VARIABLE
from gluonlab.errors import EngineError, warn

PEER_VARIABLE = "MXNET_ENABLE_GPU_P2P"
# With 0, cuBLAS and cuDNN compute float32 products in float32, even if MXNet requests TF32.
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
# With these variables, convolutions on GPUs use deterministic algorithms. MXNet chooses them by
# shape instead of by measured time.
DETERMINISTIC_ENVIRONMENT = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}
FUSION_VARIABLE = "MXNET_USE_FUSION"
# MXNet reads this variable whenever a graph is bound.
BACKWARD_BULK_VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"

# Variables that are set before MXNet is loaded, unless the user has set them.
DEFAULT_ENVIRONMENT = {
    # Number of scratch buffers that all CPU devices share (MXNet's default is 4). Operators wait
    # for each other if there are too few buffers.
    "MXNET_CPU_TEMP_COPY": "64",
    # MXNet queues a pass in bulks of so many operators (default 15). Forward uses large bulks,
    # because nothing waits for a part of forward. For backward see `apply_backward_bulk_size`.
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": "100",
    BACKWARD_BULK_VARIABLE: "8",
    "MXNET_SUBGRAPH_VERBOSE": "0",  # otherwise MXNet prints a line for every bound graph
    "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
    # Otherwise the first use of a GPU warns if MXNet was built with another release of cuDNN.
    "MXNET_CUDNN_LIB_CHECKING": "0",
    # MXNet's own defaults. They are set here so that later code only changes existing variables. A
    # new variable might move the environment in memory while MXNet's threads read it.
    PEER_VARIABLE: "1",
    "MXNET_ENFORCE_DETERMINISM": "0",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "1",
    TF32_VARIABLE: "0",  # gluonlab's default, not NVIDIA's: see `gluonlab.gpu.math_modes`
    FUSION_VARIABLE: "",  # MXNet treats "" like an unset variable; `disable_fusion` changes it
}


def install_setup_hook() -> None:
    """Make Python set up MXNet when importing it. Call this function before MXNet is imported.

    If MXNet is already imported, apply the settings and fixes that still have an effect.
    """
    if "mxnet" in sys.modules:
        openmp_settings.openmp_loaded_first = True
        _set_environment()
        if "mxnet-cu112" in installed_distributions():
            _disable_unsupported_fusion()  # still has an effect: MXNet reads it for each graph
        _patch_imported_mxnet()
    else:
        mxnet_import.install_import_hook(_set_up_around_import)


def remove_setup_hook() -> None:
    """Remove the import hook, so that MXNet can be measured with its own defaults.

    The names that MXNet uses but numpy has removed are still added to numpy, and the libraries that
    MXNet needs on ARM are still loaded, since MXNet cannot be imported without them.
    """
    import numpy

    mxnet_fixes.put_back_numpy_names(numpy)
    _load_arm_libraries()
    mxnet_import.remove_import_hook()


# True if MXNet was imported before gluonlab, and so has too few scratch buffers. A child of a
# gluonlab process inherits MXNET_CPU_TEMP_COPY, so the value is False there. The settings of OpenMP
# are not inherited: see `openmp_settings.openmp_loaded_first`.
mxnet_imported_first = "mxnet" in sys.modules and "MXNET_CPU_TEMP_COPY" not in os.environ


def _set_environment() -> None:
    """Set DEFAULT_ENVIRONMENT, and limit each CPU device to one worker thread of MXNet."""
    for name, value in DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if os.environ.get("MXNET_CPU_WORKER_NTHREADS", "1") != "1":
        requested = os.environ["MXNET_CPU_WORKER_NTHREADS"]
        os.environ["MXNET_CPU_WORKER_NTHREADS"] = "1"
        warn(f"MXNET_CPU_WORKER_NTHREADS={requested} could hang CPU devices, so each uses 1 worker")


def _prepare_import() -> None:
    """Prepare the process before the first line of MXNet runs."""
    import numpy

    _set_environment()
    mxnet_fixes.put_back_numpy_names(numpy)
    installed = installed_distributions()
    if len(installed) > 1:
        raise EngineError(
            f"{' and '.join(installed)} are both installed and overwrite each other's files: run pip "
            f"uninstall -y {' '.join(installed)}, then {pip_install_choices()}"
        )
    _load_arm_libraries()
    if "mxnet-cu112" in installed:
        load_cuda_libraries()
        _disable_unsupported_fusion()


def _load_arm_libraries() -> None:
    """Load OpenBLAS for MXNet on Linux on ARM."""
    if needs_arm_libraries():
        from gluonlab.engine.arm_libraries import load_arm_libraries

        load_arm_libraries(sys.path)


def _patch_imported_mxnet() -> None:
    """Apply `mxnet_fixes` to the imported MXNet."""
    mxnet_fixes.patch_attribute_text()
    mxnet_fixes.track_blocks(openmp_settings.openmp_loaded_first)
    if "mxnet-cu112" in installed_distributions():
        mxnet_fixes.patch_unfusible_graphs(disable_fusion)


@contextmanager
def _set_up_around_import() -> Iterator[None]:
    """Prepare the process, import MXNet in the with block, and patch MXNet afterwards.

    If this process is a server or scheduler of MXNet's parameter server, run the server after the
    import, and then exit with SystemExit. MXNet itself would run the server in the middle of the
    import, although the optimizers that workers send to the server need all of MXNet.
    """
    # here, to keep `import gluonlab` fast
    from gluonlab.engine import faster_import
    from gluonlab.host import out_of_memory, signals

    serves = os.environ.get(ROLE_VARIABLE) in ("server", "scheduler")
    openmp = openmp_settings.openmp_settings_for_mxnet()
    with signals.delayed_signals(), openmp, out_of_memory.limit_import_time():
        _prepare_import()
        role = temporary_variable(ROLE_VARIABLE, "worker") if serves else nullcontext()
        with role, faster_import.defer_optional_imports():
            yield
        faster_import.close_operator_cache()
        _patch_imported_mxnet()
    if serves:
        from gluonlab.engine.parameter_server_role import run_server_role

        run_server_role()


_FUSION_OFF = ("0", "false")


class FusionState(NamedTuple):
    """Whether MXNet fuses pointwise operators on GPUs, and whether the driver supports fusion.

    ``reason``: text about the versions of the driver and NVRTC, or about the user's setting.
    """

    is_on: bool
    driver_supports: bool
    reason: str


_fusion_is_off = False  # True if gluonlab, not the user, has disabled fusion


def _disable_unsupported_fusion() -> None:
    """Disable fusion if the GPU driver does not support it, since the first step would fail.

    If the user has exported a value, keep it, but warn if it enables fusion.
    """
    global _fusion_is_off
    versions = cuda_versions()
    if versions.are_compatible:
        return
    if not os.environ.get(FUSION_VARIABLE):
        os.environ[FUSION_VARIABLE], _fusion_is_off = "0", True
    elif os.environ[FUSION_VARIABLE] not in _FUSION_OFF:
        setting = f"{FUSION_VARIABLE}={os.environ[FUSION_VARIABLE]}"
        fix = f"unset {FUSION_VARIABLE} to run without fusion"
        warn(f"{setting} is set, but {versions}: the first fused operator will fail; {fix}")


def fusion_state() -> FusionState:
    """Return whether MXNet fuses operators in this process. Call this after loading MXNet."""
    versions, value = cuda_versions(), os.environ.get(FUSION_VARIABLE)
    is_on, reason = value not in _FUSION_OFF, str(versions)
    if value and not _fusion_is_off:
        reason = f"{FUSION_VARIABLE}={value} is set" + (f"; {versions}" if is_on else "")
    return FusionState(is_on, versions.are_compatible, reason)


def temporary_variable(name: str, value: str) -> ContextManager[None]:
    """Set an environment variable in the with block, and restore it afterwards."""
    return openmp_settings.temporary_variables({name: value})


class _FusionDisabledCount:
    """The number of active `disable_fusion` blocks.

    The last of these blocks restores the user's variable.
    """

    lock, blocks = threading.Lock(), 0
    user_value: "str | None" = None


@contextmanager
def disable_fusion() -> Iterator[None]:
    """Disable fusion for graphs that are bound, or blocks that first run, in the with block."""
    with _FusionDisabledCount.lock:
        if _FusionDisabledCount.blocks == 0:
            _FusionDisabledCount.user_value = os.environ.get(FUSION_VARIABLE)
            openmp_settings.set_variables({FUSION_VARIABLE: "0"})
        _FusionDisabledCount.blocks += 1
    try:
        yield
    finally:
        with _FusionDisabledCount.lock:
            _FusionDisabledCount.blocks -= 1
            if _FusionDisabledCount.blocks == 0:
                openmp_settings.set_variables({FUSION_VARIABLE: _FusionDisabledCount.user_value})


def is_peer_access_allowed() -> bool:
    """Check if the user allows direct copies between GPUs; MXNET_ENABLE_GPU_P2P=0 forbids them."""
    return re.fullmatch(r"\s*[+-]?0+\s*", os.environ.get(PEER_VARIABLE, "")) is None


def skip_peer_access_setup() -> ContextManager[None]:
    """In a with block, keep MXNet's kvstore ``device`` from enabling peer access at its first sum.

    `gluonlab.gpu.cuda` has already enabled peer access. MXNet would warn about pairs of GPUs
    without peer access, which every p3.16xlarge has. For pairs whose access is already enabled,
    MXNet would leave a pending CUDA error.
    """
    return temporary_variable(PEER_VARIABLE, "0")


# Overlap of backward and allreduce. MXNet queues backward in bulks of operators. The gradients of a
# bulk are ready when the whole bulk has run. On a CPU device, the next bulk must also have run.
#
# With small bulks, the allreduce of the last layers starts while backward still computes the first
# layers. But each bulk costs the host 5 to 10 us, and on a GPU MXNet waits for the stream at the
# end of each bulk.

BULK_OFF = "off"
WHOLE_BACKWARD = 10**9  # more operators than any graph has
# The backward of a ResNet-50 has 13 bulks of 15 operators, or 22 bulks of 8. With 13 bulks, the
# allreduce of a bucket (a quarter of all gradients) waits for at most 1/13 of backward.
GPU_BACKWARD_BULK_SIZE = 15

BackwardBulkSize = Union[int, str]

_requested_bulk_size: "ContextVar[Optional[BackwardBulkSize]]" = ContextVar("overlap", default=None)


@contextmanager
def use_backward_bulk_size(bulk_size: Optional[BackwardBulkSize]) -> Iterator[None]:
    """In this with block, set the bulk size of backward for graphs that this thread binds.

    ``bulk_size``: the number of operators that the engine runs as one operation (a bulk). None
    means `default_backward_bulk_size`; "off" means a single bulk, so that no allreduce starts
    before the end of backward.
    """
    token = _requested_bulk_size.set(bulk_size)
    try:
        yield
    finally:
        _requested_bulk_size.reset(token)


def default_backward_bulk_size(device_type: str) -> int:
    """Return the default bulk size of backward, in operators, for ``cpu`` or ``gpu``.

    If the user has set MXNet's variable MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD, return its value.
    """
    exported, ours = (os.environ.get(BACKWARD_BULK_VARIABLE), DEFAULT_ENVIRONMENT[BACKWARD_BULK_VARIABLE])
    if exported in (None, ours):
        return GPU_BACKWARD_BULK_SIZE if device_type == "gpu" else int(ours)
    return int(exported) if exported.isdecimal() else int(ours)


def apply_backward_bulk_size(device_type: str) -> ContextManager[None]:
    """Set MXNet's variable for the bulk size of backward in the with block that binds a graph.

    The size is the one requested by `use_backward_bulk_size`, or else the default.
    """
    requested = _requested_bulk_size.get()
    if requested is None:
        size = default_backward_bulk_size(device_type)
    else:
        size = WHOLE_BACKWARD if requested == BULK_OFF else int(requested)
    return temporary_variable(BACKWARD_BULK_VARIABLE, str(size))
