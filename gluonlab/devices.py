"""From what a person writes to a list of devices.

===================================  ============================================================
what is given                        the devices
===================================  ============================================================
``2``, ``"2"``                       two GPUs; without any, two CPU devices stand in (see `gpus`)
``"gpu"``, ``"gpu:0"``               the first GPU
``"gpu:0,2"``                        GPUs 0 and 2
``["gpu:0", "gpu:2"]``               the same; the parts of a list may have any form below ``"gpu"``
``"gpu:*"``                          every GPU that CUDA shows
``"gpu:[0-3]"``, ``"gpu:0|gpu:2"``   every GPU whose name matches this regular expression
``"cpu"``                            one CPU device with all cores
``"cpu*4"``                          four CPU devices with one core each
``"cpu:0,1"``                        CPU devices 0 and 1
``"cpu(1)"``, ``mx.cpu(1)``          CPU device 1, as MXNet writes it
``None``                             the first GPU, or one CPU device with all cores
===================================  ============================================================

Upper case (``"GPU:0"``) is the same. A device named twice is an error: MXNet has one array of
gradients for a device, so that two replicas on it would lose a gradient.

GPUs are numbered as CUDA shows them to this process: CUDA_VISIBLE_DEVICES selects and reorders
them, so with CUDA_VISIBLE_DEVICES=3,4 the machine's GPU 3 is ``gpu:0``; CUDA numbers the fastest
first unless CUDA_DEVICE_ORDER=PCI_BUS_ID makes it nvidia-smi's order. Both must be set before
Python starts.

MXNet's CPU devices are not tied to cores: each has a worker thread of its own, so there may be more
of them than cores.
"""

from __future__ import annotations

import re
from numbers import Integral
from typing import TYPE_CHECKING, Iterator, List, Sequence, Union

from gluonlab.engine.cpu_threads import set_threads
from gluonlab.engine.local_processes import cores_per_process as cores
from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.errors import DeviceError, warn
from gluonlab.gpu.cuda import check_code
from gluonlab.host.launcher_environment import has_gpus, instance_type

if TYPE_CHECKING:
    import mxnet as mx

Spec = Union[None, int, str, "mx.Context", Sequence[Union[str, "mx.Context"]]]

MOST_CPU_DEVICES = 256  # far more than is of use; some thousands of threads would end the process

_FORMS = "give 2, 'gpu:0', 'gpu:0,2', 'gpu:*', 'gpu:[0-3]', 'cpu', 'cpu*4' or 'cpu:0,1'"


def devices(spec: Spec = None, threads: "int | None" = None) -> "List[mx.Context]":
    """The devices that ``spec`` names (see the table above), ready to compute.

    ``threads``: threads of each CPU device; normally left out (see
    `gluonlab.engine.cpu_threads.threads_per_device`). Raises DeviceError, which names what was
    asked, what exists, and the remedy.
    """
    if spec is None:
        return _ready(_default(), threads)
    if isinstance(spec, Integral):  # NumPy's, too
        return gpus(spec if isinstance(spec, bool) else int(spec), threads=threads)
    if isinstance(spec, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", spec):
        return _counted(spec, threads)
    parts = (
        [spec] if isinstance(spec, (str, bytes)) or not isinstance(spec, Sequence) else list(spec)
    )
    ctxs: List[mx.Context] = [ctx for part in parts for ctx in _parse(part)]
    if not ctxs:
        raise DeviceError(f"{spec!r} names no device: {_FORMS}")
    check_distinct(ctxs, repr(spec))
    if len({ctx.device_type for ctx in ctxs}) > 1:
        raise DeviceError(
            f"{spec!r} mixes CPUs and GPUs: choose one kind, for one would wait for the other"
        )
    return _ready(ctxs, threads)


def _counted(text: str, threads: "int | None") -> "List[mx.Context]":
    """As many GPUs as a text says, which is quoted as it was typed: -0, 007."""
    try:
        return gpus(int(text.strip()), threads=threads)
    except DeviceError as error:
        if text == str(int(text.strip())):
            raise
        raise DeviceError(f"{text!r}: {error}") from None


def gpus(n: int, emulate: bool = True, threads: "int | None" = None) -> "List[mx.Context]":
    """The first ``n`` GPUs.

    On a machine without any, ``n`` CPU devices stand in for them, and a warning says so.

    Raises DeviceError for ``n`` < 1, for fewer than ``n`` GPUs but not none, and for none when
    ``emulate`` is false.
    """
    import mxnet as mx

    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(f"{n} GPUs cannot be used: give a number from 1 up")
    found = gpu_count()
    if found >= n:
        return _ready([mx.gpu(i) for i in range(n)], threads)
    if found:
        raise DeviceError(f"{n} GPUs were asked for and {found} exist: use --gpus {found} or less")
    if not emulate and on_paid_gpus():
        raise DeviceError(
            f"{instance_type()} has GPUs, and MXNet finds none: {_why_no_gpu()}, "
            "or let CPU devices stand in (--no-require-gpu; "
            "in a job the hyperparameter require-gpu: false)"
        )
    if not emulate:
        raise DeviceError(
            f"{n} GPU{'' if n == 1 else 's'} required, none here: {_why_no_gpu()}, "
            "or let CPU devices stand in (without --require-gpu)"
        )
    _check_cpu_count(n, f"{n} CPU devices")
    stand_in = "CPU device stands in for a GPU" if n == 1 else "CPU devices stand in for GPUs"
    warn(f"no GPU on this machine: {n} {stand_in}")
    return _ready([mx.cpu(i) for i in range(n)], threads)


def on_paid_gpus() -> bool:
    """Whether this process is of a SageMaker job on machines with GPUs, which are paid for."""
    name = instance_type()
    return name is not None and has_gpus(name)


def gpu_count() -> int:
    """The number of GPUs that CUDA shows to this process; 0 without a driver or a CUDA build."""
    import mxnet as mx

    try:
        return int(mx.context.num_gpus())
    except mx.base.MXNetError:  # a CUDA build on a machine without a working driver
        return 0


def listed(ctxs: object) -> "List[mx.Context]":
    """``ctxs`` as a list.

    Raises DeviceError for anything but a list of devices, for an empty one, and for a device that
    comes twice.
    """
    import mxnet as mx

    found = list(ctxs) if isinstance(ctxs, (list, tuple)) else []
    if not found or not all(isinstance(ctx, mx.Context) for ctx in found):
        raise DeviceError(
            f"{ctxs!r} is not a list of devices: give gluonlab.devices.devices('cpu*2'), "
            "[mx.cpu(0)] or the like"
        )
    check_distinct(found)
    return found


def check_distinct(ctxs: "Sequence[mx.Context]", given: str = "") -> None:
    """Raise DeviceError for a device that comes twice, as in ``[mx.cpu(), mx.cpu()]``.

    ``given``: what named them, for the message; without it, the devices themselves.
    """
    if len(set(ctxs)) == len(ctxs):
        return
    twice = next(ctx for place, ctx in enumerate(ctxs) if ctx in ctxs[:place])
    kind, count = twice.device_type, len(ctxs)
    short = f"cpu*{count}" if kind == "cpu" else f"gpu:{','.join(map(str, range(count)))}"
    raise DeviceError(
        f"{given or list(ctxs)} names {twice} {list(ctxs).count(twice)} times: give each device "
        f"once, such as {short!r} or [mx.{kind}(i) for i in range({count})] for {count} of them"
    )


def describe(ctxs: "Sequence[mx.Context]") -> str:
    """The devices in words: ``cpu(0) cpu(1)``."""
    return " ".join(str(ctx) for ctx in ctxs)


def _default() -> "List[mx.Context]":
    import mxnet as mx

    return [mx.gpu(0) if gpu_count() else mx.cpu(0)]


def _ready(ctxs: "List[mx.Context]", threads: "int | None") -> "List[mx.Context]":
    if ctxs[0].device_type == "gpu":
        check_code(ctxs, gpu_count())
    set_threads(ctxs, threads)  # before anybody can start work on them that would hang
    return ctxs


def _why_no_gpu() -> str:
    import mxnet as mx

    if mx.runtime.Features().is_enabled("CUDA"):
        return "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES"
    cure = f"pip uninstall -y mxnet, then {pip_install_command('cu112')}"
    return f"this is MXNet's CPU build; on a machine with GPUs {cure}"


def _parse(part: object) -> "Iterator[mx.Context]":
    """The devices of one string of the table, or of one Context."""
    import mxnet as mx

    if isinstance(part, mx.Context) and part.device_type in ("cpu", "gpu"):
        yield from _existing(part.device_type, [part.device_id], str(part))
        return
    if re.fullmatch(r"\d{1,18}", str(part)):  # among others: alone it would be a number of devices
        raise DeviceError(
            f"{part!r} is not a device: give 'gpu:{part}' or 'cpu:{part}' in a list, "
            f"or {part} alone for so many"
        )
    if not isinstance(part, str):
        raise DeviceError(f"{part!r} is not a device: {_FORMS}")
    numbers = part.strip().rstrip(",")
    if re.fullmatch(r"\d{1,18}(\s*,\s*\d{1,18})*", numbers):
        raise DeviceError(f"{part!r} is not a device: give 'gpu:{numbers}' or 'cpu:{numbers}'")
    kind, _, pattern = part.strip().partition(":")
    kind, pattern = kind.strip().lower(), pattern.strip()
    text, which = part.strip().lower(), pattern.lower()
    times = re.fullmatch(r"cpu\s*\*\s*(\d{1,18})", text)
    one = re.fullmatch(r"(cpu|gpu)\((\d{1,18})\)", text)
    if one:
        yield from _existing(one[1], [int(one[2])], part)
    elif times:
        _check_cpu_count(int(times[1]), repr(part))
        yield from (mx.cpu(i) for i in range(int(times[1])))
    elif re.fullmatch(r"(cpu|gpu)(\s*,\s*\1)*", text):  # each of them names the first
        yield from _existing(text[:3], [0] * text.count(text[:3]), part)
    elif kind not in ("cpu", "gpu") or not which:
        raise DeviceError(f"{part!r} is not a device: {_FORMS}")
    elif re.fullmatch(r"\d{1,18}(\s*[,|]\s*(gpu:|cpu:)?\d{1,18})*", which):
        for item in re.split("[,|]", which):
            other, _, number = item.strip().rpartition(":")
            yield from _existing(other or kind, [int(number)], part)
    else:
        yield from _matching(kind, pattern, part)


def _existing(kind: str, numbers: List[int], asked: str) -> "Iterator[mx.Context]":
    import mxnet as mx

    for number in numbers:
        if kind == "gpu" and number >= gpu_count():
            raise DeviceError(f"{asked!r}: there is no gpu:{number}; {_available(kind)}")
        if kind == "cpu":
            _check_cpu_count(number + 1, repr(asked))
        yield mx.Context(kind, number)


def _matching(kind: str, pattern: str, asked: str) -> "Iterator[mx.Context]":
    import mxnet as mx

    count = gpu_count() if kind == "gpu" else cores()
    try:
        regex = re.compile(".*" if pattern == "*" else pattern)
        whole = re.compile(asked.strip(), re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise DeviceError(
            f"{asked!r} is neither device numbers nor a regular expression ({error}): {_FORMS}"
        ) from None
    found = [
        mx.Context(kind, i)
        for i in range(count)
        if regex.fullmatch(str(i)) or whole.fullmatch(f"{kind}:{i}")
    ]
    if not found:
        raise DeviceError(f"{asked!r} matches no device; {_available(kind)}")
    yield from found


def _check_cpu_count(count: int, asked: str) -> None:
    if not 1 <= count <= MOST_CPU_DEVICES:
        raise DeviceError(
            f"{asked}: give 1 to {MOST_CPU_DEVICES} CPU devices, each of which has a thread"
        )


def _available(kind: str) -> str:
    if kind == "cpu":
        own = f"cpu:0 to cpu:{cores() - 1} for those with a core of their own"
        return f"write cpu*N for N CPU devices, or {own}"
    count = gpu_count()
    if count:
        return f"here are gpu:0 to gpu:{count - 1}" if count > 1 else "here is gpu:0 only"
    return f"here are no GPUs ({_why_no_gpu()}): use --gpus N or cpu*N to let CPU devices stand in"
