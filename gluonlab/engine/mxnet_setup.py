"""What must be true before MXNet loads.

`import gluonlab` arranges it, and costs nothing until then.

MXNet 1.9.1 is the last of its line and needs six things of a machine of today:

- the names that numpy has dropped since 1.24 (MXNet asks for them when it is imported);
- the CUDA libraries, from LD_LIBRARY_PATH or the nvidia-*-cu11 wheels, when mxnet-cu112 is the
  installed flavour;
- scratch memory enough that several CPU devices compute at the same time;
- OpenMP teams of one thread to begin with, whose idle threads do not spin for long;
- shapes written without numpy 2's names of types (`gluonlab.engine.mxnet_fixes`);
- fused operators only where the driver runs what NVRTC compiles
(`gluonlab.engine.mxnet_installation`).

An import hook (`gluonlab.engine.mxnet_import`) does all of it at the moment somebody imports mxnet,
and turns what can go wrong then into an EngineError that names the cure. How many threads compute
for each device: `gluonlab.engine.cpu_threads`.
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
from gluonlab.engine.mxnet_installation import cuda_versions, either, flavours, load_cuda_libraries
from gluonlab.engine.parameter_server_environment import WORKER_VARIABLE
from gluonlab.errors import EngineError, warn

PEER_VARIABLE = "MXNET_ENABLE_GPU_P2P"
# With 0 cuBLAS and cuDNN compute float32 products in float32, whatever MXNet asks them for.
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
# Convolutions on GPUs by algorithms that repeat their bits, and chosen by shape, not by time.
DETERMINISTIC = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}
FUSION = "MXNET_USE_FUSION"
# MXNet reads it whenever a graph is bound
BACKWARD_PIECE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"

# Operators that need scratch memory share this many buffers among all CPU devices and wait for each
# other when there are too few (MXNet's default is 4).
ENVIRONMENT = {
    "MXNET_CPU_TEMP_COPY": "64",
    # A pass is queued in pieces of so many operators (MXNet's default is 15). Nothing waits for a
    # part of forward; for small pieces of backward see `backward_pieces`.
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": "100",
    BACKWARD_PIECE: "8",
    "MXNET_SUBGRAPH_VERBOSE": "0",  # else every bound graph prints a line
    "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
    # else the first use of a GPU warns that cuDNN is not the very release that MXNet was built with
    "MXNET_CUDNN_LIB_CHECKING": "0",
    # MXNet's own numbers. They stand here so that `peers_are_enabled` and `gluonlab.gpu.cuda`
    # change variables and add none: for a new one the environment might move while MXNet's threads
    # read it.
    PEER_VARIABLE: "1",
    "MXNET_ENFORCE_DETERMINISM": "0",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "1",
    TF32_VARIABLE: "0",  # ours, not NVIDIA's: see `gluonlab.gpu.cuda`
    FUSION: "",  # as good as unset to MXNet, and there for `unfused`
}


def install() -> None:
    """Prepare MXNet when it is imported; if it is imported already, do what can still be done."""
    if "mxnet" in sys.modules:
        openmp_settings.came_first = True
        _set_environment()
        if "mxnet-cu112" in flavours():
            _settle_fusion()  # MXNet asks for it when a graph is bound
        _complete()
    else:
        mxnet_import.install(_loading)


def uninstall() -> None:
    """Let MXNet be loaded with its own defaults, to measure what they cost.

    Only numpy's names are put back.
    """
    import numpy

    mxnet_fixes.put_back_numpy_names(numpy)
    mxnet_import.uninstall()


# Taken once, when gluonlab is imported: MXNet had been imported before, with too little scratch
# memory. What a process of ours has started finds enough of that in its environment, but not what
# OpenMP was told here: `openmp.came_first`.
mxnet_came_first = "mxnet" in sys.modules and "MXNET_CPU_TEMP_COPY" not in os.environ


def _set_environment() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if os.environ.get("MXNET_CPU_WORKER_NTHREADS", "1") != "1":
        asked = os.environ["MXNET_CPU_WORKER_NTHREADS"]
        os.environ["MXNET_CPU_WORKER_NTHREADS"] = "1"
        warn(f"MXNET_CPU_WORKER_NTHREADS={asked} could hang CPU devices: each has 1 worker")


def _prepare() -> None:
    """All that has to be done before the first line of MXNet runs."""
    import numpy

    _set_environment()
    mxnet_fixes.put_back_numpy_names(numpy)
    installed = flavours()
    if len(installed) > 1:
        raise EngineError(
            f"{' and '.join(installed)} are both installed and overwrite each other's files: "
            f"pip uninstall -y {' '.join(installed)}, then {either()}"
        )
    if "mxnet-cu112" in installed:
        load_cuda_libraries()
        _settle_fusion()


def _complete() -> None:
    """What is put right in MXNet once it is there."""
    mxnet_fixes.install_attribute_text()
    mxnet_fixes.install_noting(openmp_settings.came_first)
    if "mxnet-cu112" in flavours():
        mxnet_fixes.install_unfused(unfused)


@contextmanager
def _loading() -> Iterator[None]:
    """MXNet is loaded in this block.

    A server or scheduler of its parameter server, which would begin in the middle of that, begins
    afterwards: the optimizers that a server is sent need all of MXNet. It ends in SystemExit.
    """
    # not for those who only import gluonlab
    from gluonlab.engine import faster_import
    from gluonlab.host import out_of_memory, signals

    serves = os.environ.get(WORKER_VARIABLE) in ("server", "scheduler")
    with signals.delayed_signals(), openmp_settings.as_mxnet_needs_it(), out_of_memory.loading():
        _prepare()
        role = variable(WORKER_VARIABLE, "worker") if serves else nullcontext()
        with role, faster_import.deferring():
            yield
        faster_import.close_operator_cache()
        _complete()
    if serves:
        from gluonlab.engine.parameter_server_environment import serve

        serve()


_FUSION_OFF = ("0", "false")


class Fusion(NamedTuple):
    """``on``: whether MXNet fuses pointwise operators on GPUs.

    ``works``: whether the driver runs what it compiles for that.
    """

    on: bool
    works: bool
    because: str


_fusion_is_off = False  # by us


def _settle_fusion() -> None:
    """Turn fusion off where the driver would refuse it, which would end each run in its first step.

    A value that the user has exported is kept, with a warning.
    """
    global _fusion_is_off
    found = cuda_versions()
    if found.fit:
        return
    if not os.environ.get(FUSION):
        os.environ[FUSION], _fusion_is_off = "0", True
    elif os.environ[FUSION] not in _FUSION_OFF:
        asked = f"{FUSION}={os.environ[FUSION]}"
        cure = f"unset {FUSION} to run without fusion"
        warn(f"{asked} is obeyed, but {found}: the first fused operator will fail; {cure}")


def fusing() -> Fusion:
    """Whether MXNet fuses in this process, once it is loaded, and why."""
    versions, asked = cuda_versions(), os.environ.get(FUSION)
    on, because = asked not in _FUSION_OFF, str(versions)
    if asked and not _fusion_is_off:
        because = f"{FUSION}={asked} is set" + (f"; {versions}" if on else "")
    return Fusion(on, versions.fit, because)


def variable(name: str, value: str) -> ContextManager[None]:
    """In this block the environment has this value, and then the user's."""
    return openmp_settings.variables({name: value})


class _Unfused:
    """How many bind or run a graph without fusion now, in all threads; the last one resets it."""

    lock, now = threading.Lock(), 0
    users: "str | None" = None


@contextmanager
def unfused() -> Iterator[None]:
    """Graphs bound in this block, and blocks that first run in it, are not fused.

    For `gluonlab.engine.mxnet_fixes`.
    """
    with _Unfused.lock:
        if _Unfused.now == 0:
            _Unfused.users = os.environ.get(FUSION)
            openmp_settings.set_variables({FUSION: "0"})
        _Unfused.now += 1
    try:
        yield
    finally:
        with _Unfused.lock:
            _Unfused.now -= 1
            if _Unfused.now == 0:
                openmp_settings.set_variables({FUSION: _Unfused.users})


def peer_access_wanted() -> bool:
    """Whether GPUs may copy to each other directly, which MXNET_ENABLE_GPU_P2P=0 forbids."""
    return re.fullmatch(r"\s*[+-]?0+\s*", os.environ.get(PEER_VARIABLE, "")) is None


def peers_are_enabled() -> ContextManager[None]:
    """In this block, MXNet's ``device`` store does not enable peer access when it first sums.

    `gluonlab.gpu.cuda` has done so. MXNet would warn where some pairs of GPUs have none, as on
    every p3.16xlarge, and leave the error for what is enabled already as this thread's last one.
    """
    return variable(PEER_VARIABLE, "0")


# How early sums of gradients can begin: MXNet queues backward in pieces of so many operators. What
# a piece writes is ready when all of it has run, and, on a CPU device, when the next piece has,
# too, which is queued already. In small pieces the gradients of the last layers leave while those
# of the first are still computed; but each piece costs the host 5 to 10 us, and on a GPU MXNet
# waits for the stream at its end, while nothing is queued.

OFF = "off"
WHOLE = 10**9  # operators: no graph has so many
# A ResNet-50 has 13 pieces of 15 operators instead of 22 of 8, and a bucket, a quarter of all
# gradients, waits for a thirteenth of backward at most.
ON_GPUS = 15

Overlap = Union[int, str]

_asked: "ContextVar[Optional[Overlap]]" = ContextVar("overlap", default=None)


@contextmanager
def overlapping(asked: Optional[Overlap]) -> Iterator[None]:
    """Graphs bound in this block, on this thread, run backward in pieces of so many operators.

    "off": in one, so no sum begins before its end. None: `usual_piece`.
    """
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def usual_piece(device_type: str) -> int:
    """The operators of a piece on such devices where nobody asks; the user's, by MXNet's variable.

    MXNet's variable: MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD.
    """
    exported, ours = os.environ.get(BACKWARD_PIECE), ENVIRONMENT[BACKWARD_PIECE]
    if exported in (None, ours):
        return ON_GPUS if device_type == "gpu" else int(ours)
    return int(exported) if exported.isdecimal() else int(ours)


def backward_pieces(device_type: str) -> ContextManager[None]:
    """A graph bound in this block has the pieces that are asked for."""
    asked = _asked.get()
    size = usual_piece(device_type) if asked is None else WHOLE if asked == OFF else int(asked)
    return variable(BACKWARD_PIECE, str(size))
