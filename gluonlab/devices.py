"""Converts device names, such as ``"gpu:0,2"``, to a list of MXNet devices.

===================================  ============================================================
specification                        devices
===================================  ============================================================
``2``, ``"2"``                       two GPUs, or two CPU devices if there are no GPUs
``"gpu"``, ``"gpu:0"``               the first GPU
``"gpu:0,2"``                        GPUs 0 and 2
``["gpu:0", "gpu:2"]``               the same; items may have any form except ``2`` and ``None``
``"gpu:*"``                          every GPU that CUDA shows
``"gpu:[0-3]"``, ``"gpu:0|gpu:2"``   every GPU whose name matches this regular expression
``"cpu"``                            one CPU device with all cores
``"cpu*4"``                          four CPU devices with one core each
``"cpu:0,1"``                        CPU devices 0 and 1
``"cpu(1)"``, ``mx.cpu(1)``          CPU device 1, in MXNet's notation
``None``                             the first GPU, or one CPU device with all cores
===================================  ============================================================

Names are case-insensitive. A device named twice is an error: MXNet has one gradient array per
device, so two replicas on the same device would lose a gradient.

GPUs are numbered as CUDA shows them to this process. CUDA_VISIBLE_DEVICES selects and reorders
them: with CUDA_VISIBLE_DEVICES=3,4 the machine's GPU 3 is ``gpu:0``. By default, CUDA numbers the
fastest GPU first; with CUDA_DEVICE_ORDER=PCI_BUS_ID, it uses nvidia-smi's order. Both variables
must be set before Python starts.

MXNet's CPU devices are not bound to cores. Each CPU device has its own worker thread, so there may
be more CPU devices than cores.
"""

from __future__ import annotations

import re
from numbers import Integral
from typing import TYPE_CHECKING, Any, Iterator, List, Sequence, Union

from gluonlab.engine.cpu_threads import set_threads
from gluonlab.engine.local_processes import cores_per_process as cores
from gluonlab.engine.mxnet_and_cuda_libraries import cuda_build_advice
from gluonlab.errors import DeviceError, warn
from gluonlab.gpu.cuda import check_gpus_supported
from gluonlab.host.launcher_environment import instance_has_gpus, sagemaker_instance_type
from gluonlab.renamed import get_renamed

if TYPE_CHECKING:
    import mxnet as mx

DeviceSpec = Union[None, int, str, "mx.Context", Sequence[Union[str, "mx.Context"]]]

# More than is useful. Each CPU device has a thread, and several thousand would crash the process.
MAX_CPU_DEVICES = 256

_FORMS = "use 2, 'gpu:0', 'gpu:0,2', 'gpu:*', 'gpu:[0-3]', 'cpu', 'cpu*4' or 'cpu:0,1'"


def devices(spec: DeviceSpec = None, threads: "int | None" = None) -> "List[mx.Context]":
    """Return the devices that a specification names, ready to compute.

    Args:
        spec: see the table of `gluonlab.devices`
        threads: threads of each CPU device; normally omitted (see
            `gluonlab.engine.cpu_threads.threads_per_device`)

    Returns:
        The devices, in the order of ``spec``.

    Raises:
        DeviceError: a device does not exist; the message contains the existing devices and the fix
    """
    if spec is None:
        return _prepare_devices(_default_devices(), threads)
    if isinstance(spec, Integral):  # also NumPy's integers
        return gpus(spec if isinstance(spec, bool) else int(spec), threads=threads)
    if isinstance(spec, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", spec):
        return _gpus_by_text(spec, threads)
    parts = [spec] if isinstance(spec, (str, bytes)) or not isinstance(spec, Sequence) else list(spec)
    ctxs: List[mx.Context] = [ctx for part in parts for ctx in _parse_devices(part)]
    if not ctxs:
        raise DeviceError(f"{spec!r} contains no device: {_FORMS}")
    check_distinct(ctxs, repr(spec))
    if len({ctx.device_type for ctx in ctxs}) > 1:
        raise DeviceError(
            f"{spec!r} mixes CPUs and GPUs: choose one kind, because the faster devices would wait for the slower ones"
        )
    return _prepare_devices(ctxs, threads)


def _gpus_by_text(text: str, threads: "int | None") -> "List[mx.Context]":
    """Return the number of GPUs that a text such as ``2`` or ``007`` requests.

    Errors quote the text as the user typed it.
    """
    try:
        return gpus(int(text.strip()), threads=threads)
    except DeviceError as error:
        if text == str(int(text.strip())):
            raise
        raise DeviceError(f"{text!r}: {error}") from None


def gpus(n: int, emulate: bool = True, threads: "int | None" = None) -> "List[mx.Context]":
    """Return the first ``n`` GPUs. If there are no GPUs, warn and return ``n`` CPU devices.

    Args:
        n: The number of devices, at least 1.
        emulate: Whether to use CPU devices if there are no GPUs.
        threads: The number of threads of each CPU device. The default depends on the number of
            cores.

    Returns:
        The devices, ready to compute.

    Raises:
        DeviceError: ``n`` is less than 1, there are fewer than ``n`` GPUs, or there are no GPUs and
            ``emulate`` is false.
    """
    import mxnet as mx

    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(f"{n} is not a valid number of GPUs: use a whole number of at least 1")
    count = gpu_count()
    if count >= n:
        return _prepare_devices([mx.gpu(i) for i in range(n)], threads)
    if count:
        raise DeviceError(f"{n} GPUs were requested, but this machine has only {count}: use --gpus {count} or fewer")
    if not emulate and is_on_paid_gpus():
        raise DeviceError(
            f"{sagemaker_instance_type()} has GPUs, but MXNet finds none: {_why_no_gpu()}, or use CPU "
            "devices instead (with --no-require-gpu, or in a job with the hyperparameter require-gpu: false)"
        )
    if not emulate:
        raise DeviceError(
            f"{n} {'GPU is' if n == 1 else 'GPUs are'} required, but MXNet finds none: {_why_no_gpu()}, or "
            "omit --require-gpu to use CPU devices instead"
        )
    _check_cpu_count(n, f"{n} CPU devices")
    stand_in = "CPU device is used instead" if n == 1 else "CPU devices are used instead"
    warn(f"no GPU on this machine: {n} {stand_in}")
    return _prepare_devices([mx.cpu(i) for i in range(n)], threads)


def is_on_paid_gpus() -> bool:
    """Return whether this process belongs to a SageMaker job on machines with GPUs."""
    name = sagemaker_instance_type()
    return name is not None and instance_has_gpus(name)


def gpu_count() -> int:
    """Return the number of GPUs that CUDA shows to this process; 0 if CUDA does not work."""
    import mxnet as mx

    try:
        return int(mx.context.num_gpus())
    except mx.base.MXNetError:  # a CUDA build on a machine without a working driver
        return 0


def check_device_list(ctxs: object) -> "List[mx.Context]":
    """Check that ``ctxs`` is a list of distinct devices, and return it as a list.

    Raises:
        DeviceError: ``ctxs`` is not a list of devices, is empty, or contains a device twice
    """
    import mxnet as mx

    contexts = list(ctxs) if isinstance(ctxs, (list, tuple)) else []
    if not contexts or not all(isinstance(ctx, mx.Context) for ctx in contexts):
        raise DeviceError(
            f"{ctxs!r} is not a list of devices: use gluonlab.devices.devices('cpu*2'), or a list such as [mx.cpu(0)]"
        )
    check_distinct(contexts)
    return contexts


def check_distinct(ctxs: "Sequence[mx.Context]", given: str = "") -> None:
    """Raise DeviceError if a device appears twice, as in ``[mx.cpu(), mx.cpu()]``.

    Args:
        ctxs: the devices
        given: the user's specification, which the message quotes; "" to quote ``ctxs``
    """
    if len(set(ctxs)) == len(ctxs):
        return
    repeated = next(ctx for position, ctx in enumerate(ctxs) if ctx in ctxs[:position])
    kind, count = repeated.device_type, len(ctxs)
    short = f"cpu*{count}" if kind == "cpu" else f"gpu:{','.join(map(str, range(count)))}"
    raise DeviceError(
        f"{given or list(ctxs)} contains {repeated} {list(ctxs).count(repeated)} times: list each "
        f"device only once, as in {short!r} or [mx.{kind}(i) for i in range({count})]"
    )


def describe(ctxs: "Sequence[mx.Context]") -> str:
    """Return the devices as text, such as ``cpu(0) cpu(1)``."""
    return " ".join(str(ctx) for ctx in ctxs)


def _default_devices() -> "List[mx.Context]":
    import mxnet as mx

    return [mx.gpu(0) if gpu_count() else mx.cpu(0)]


def _prepare_devices(ctxs: "List[mx.Context]", threads: "int | None") -> "List[mx.Context]":
    if ctxs[0].device_type == "gpu":
        check_gpus_supported(ctxs, gpu_count())
    set_threads(ctxs, threads)  # before the caller queues work that could hang
    return ctxs


def _why_no_gpu() -> str:
    """Return advice for a machine on which MXNet finds no GPU."""
    import mxnet as mx

    if mx.runtime.Features().is_enabled("CUDA"):
        return "check the driver with nvidia-smi, and check the value of CUDA_VISIBLE_DEVICES"
    return f"this is MXNet's CPU build; {cuda_build_advice()}"


def _parse_devices(part: object) -> "Iterator[mx.Context]":
    """Yield the devices for one Context, or for one string as in the module's table."""
    import mxnet as mx

    if isinstance(part, mx.Context) and part.device_type in ("cpu", "gpu"):
        yield from _devices_by_number(part.device_type, [part.device_id], str(part))
        return
    if re.fullmatch(r"\d{1,18}", str(part)):  # in a list; alone it would be a number of devices
        raise DeviceError(
            f"{part!r} is not a device: use 'gpu:{part}' or 'cpu:{part}' in the list, or pass {part} without "
            "a list as the number of devices"
        )
    if not isinstance(part, str):
        raise DeviceError(f"{part!r} is not a device: {_FORMS}")
    numbers = part.strip().rstrip(",")
    if re.fullmatch(r"\d{1,18}(\s*,\s*\d{1,18})*", numbers):
        raise DeviceError(f"{part!r} is not a device: use 'gpu:{numbers}' or 'cpu:{numbers}'")
    kind, _, pattern = part.strip().partition(":")
    kind, pattern = kind.strip().lower(), pattern.strip()
    text, lower_pattern = part.strip().lower(), pattern.lower()
    multiple = re.fullmatch(r"cpu\s*\*\s*(\d{1,18})", text)
    single = re.fullmatch(r"(cpu|gpu)\((\d{1,18})\)", text)
    if single:
        yield from _devices_by_number(single[1], [int(single[2])], part)
    elif multiple:
        _check_cpu_count(int(multiple[1]), repr(part))
        yield from (mx.cpu(i) for i in range(int(multiple[1])))
    elif re.fullmatch(r"(cpu|gpu)(\s*,\s*\1)*", text):  # each part names the first device
        yield from _devices_by_number(text[:3], [0] * text.count(text[:3]), part)
    elif kind not in ("cpu", "gpu") or not lower_pattern:
        raise DeviceError(f"{part!r} is not a device: {_FORMS}")
    elif re.fullmatch(r"\d{1,18}(\s*[,|]\s*(gpu:|cpu:)?\d{1,18})*", lower_pattern):
        for item in re.split("[,|]", lower_pattern):
            other, _, number = item.strip().rpartition(":")
            yield from _devices_by_number(other or kind, [int(number)], part)
    else:
        yield from _devices_by_pattern(kind, pattern, part)


def _devices_by_number(kind: str, numbers: List[int], requested: str) -> "Iterator[mx.Context]":
    """Yield the devices with these numbers. Raises DeviceError if a device does not exist.

    ``requested``: the user's text, which the message quotes.
    """
    import mxnet as mx

    for number in numbers:
        if kind == "gpu" and number >= gpu_count():
            raise DeviceError(f"{requested!r}: there is no gpu:{number}; {_describe_available(kind)}")
        if kind == "cpu":
            _check_cpu_count(number + 1, repr(requested))
        yield mx.Context(kind, number)


def _devices_by_pattern(kind: str, pattern: str, requested: str) -> "Iterator[mx.Context]":
    """Yield the devices whose number or name matches a regular expression, or ``*``.

    ``requested``: the user's text. Raises DeviceError if no device matches.
    """
    import mxnet as mx

    count = gpu_count() if kind == "gpu" else cores()
    try:
        regex = re.compile(".*" if pattern == "*" else pattern)
        full_regex = re.compile(requested.strip(), re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise DeviceError(
            f"{requested!r} contains neither device numbers nor a valid regular expression ({error}): {_FORMS}"
        ) from None
    matches = [
        mx.Context(kind, i) for i in range(count) if regex.fullmatch(str(i)) or full_regex.fullmatch(f"{kind}:{i}")
    ]
    if not matches:
        raise DeviceError(f"{requested!r} matches no device; {_describe_available(kind)}")
    yield from matches


def _check_cpu_count(count: int, requested: str) -> None:
    if not 1 <= count <= MAX_CPU_DEVICES:
        raise DeviceError(f"{requested}: use 1 to {MAX_CPU_DEVICES} CPU devices, because each device needs a thread")


def _describe_available(kind: str) -> str:
    if kind == "cpu":
        range_text = f"cpu:0 to cpu:{cores() - 1} to use one core for each device"
        return f"use cpu*N for N CPU devices, or {range_text}"
    count = gpu_count()
    if count:
        return f"this machine has gpu:0 to gpu:{count - 1}" if count > 1 else "this machine has only gpu:0"
    return f"this machine has no GPUs ({_why_no_gpu()}): use --gpus N or cpu*N to use CPU devices instead"


def __getattr__(name: str) -> Any:
    return get_renamed(__name__, name)
