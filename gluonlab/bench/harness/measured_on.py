"""The devices that a measurement is made on: those that --devices names, or CPU devices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from gluonlab.errors import DeviceError

if TYPE_CHECKING:
    import mxnet as mx


@dataclass(frozen=True)
class MeasuredOn:
    """The kind and numbers of the devices, and ``words`` that name them to people and in records.

    ``asked``: whether --devices names them.
    """

    kind: str
    numbers: Tuple[int, ...]
    words: str
    asked: bool = False

    @property
    def on_gpus(self) -> bool:
        """Whether they are GPUs."""
        return self.kind == "gpu"

    def first(self, count: int) -> str:
        """The first ``count`` of them, as `gluonlab.devices.devices` takes them."""
        if not self.asked:
            return f"cpu*{count}"
        return f"{self.kind}:{','.join(map(str, self.numbers[:count]))}"

    def options(self, count: int) -> Dict[str, str]:
        """The options of a worker's job that name the devices; empty for CPU devices by default."""
        return {"devices": self.first(count)} if self.asked else {}

    def title(self) -> Dict[str, str]:
        """The devices in a record's options: two records are compared if they have the same."""
        return {"devices": self.words} if self.asked else {}

    def counts(self, wanted: Sequence[int]) -> List[int]:
        """Those of ``wanted`` that there are devices for, and the number of all."""
        there = len(self.numbers)
        return sorted({*(count for count in wanted if count <= there), there})


def cpu_devices(count: int) -> MeasuredOn:
    """The first ``count`` CPU devices, which each row sets up itself."""
    return MeasuredOn("cpu", tuple(range(count)), f"{count} CPU devices")


def measured_on(spec: str) -> MeasuredOn:
    """The devices that --devices names; MXNet is loaded to find them. Raises DeviceError."""
    from gluonlab.devices import devices

    try:
        ctxs = devices(spec)
    except DeviceError as error:
        raise DeviceError(f"--devices {error}") from None
    numbers = tuple(ctx.device_id for ctx in ctxs)
    return MeasuredOn(ctxs[0].device_type, numbers, in_words(ctxs), asked=True)


def in_words(ctxs: "Sequence[mx.Context]") -> str:
    """``gpu(0) gpu(1): 2 x Tesla T4; no two GPUs ...``: which they are, and how they copy."""
    from gluonlab.devices import describe
    from gluonlab.gpu import cuda

    kinds = ", ".join(f"{count} x {name}" for name, count in Counter(gpu_names(ctxs)).items())
    what = describe(ctxs) + (f": {kinds}" if kinds else "")
    return "; ".join(filter(None, [what, cuda.peers_in_words(ctxs)]))


def gpu_names(ctxs: "Sequence[Any]") -> List[str]:
    """NVML's name of each GPU; empty for CPU devices, and where NVML reports none."""
    from gluonlab.gpu import nvml
    from gluonlab.kvstores.placement import nvml_numbers

    if any(ctx.device_type != "gpu" for ctx in ctxs):
        return []
    by_number = {gpu.index: gpu.name for gpu in nvml.known().gpus}
    return [by_number[number] for number in nvml_numbers(ctxs) or []]
