"""--compress: gradients in fewer bits, on their way from device to device, or between processes."""

from __future__ import annotations

import math
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.config.option_types import check_compression_setting
from gluonlab.engine.fast_invoke import Attributes, EngineCall, operator_call
from gluonlab.errors import ConfigError, KVStoreError, warn
from gluonlab.kvstores import KVSTORES
from gluonlab.kvstores.process_groups import Group

FP16 = "fp16"


def keeps_rest(compress: Optional[str]) -> bool:
    """Whether what is not sent is kept, to be added later: it is in 2 bits."""
    return compress not in (None, FP16)


def in_use(compress: Optional[str], device_count: int, group: Group) -> Optional[str]:
    """The compression that a run records: no 2 bits where one device is alone."""
    alone = group.size == 1 and device_count == 1
    return None if keeps_rest(compress) and alone else compress


def threshold_of(compress: str) -> float:
    """That of ``2bit:THRESHOLD``."""
    return float(compress.split(":")[1])


def sendable(compress: Optional[str], group: Group, on_servers: bool) -> Optional[str]:
    """How a GroupKVStore compresses what ``group`` sums, written out.

    None, and a warning, where a process alone has nobody to send 2 bits to. Raises KVStoreError for
    what is no compression, and for what the group, or servers that update, cannot take.
    """
    if compress is None:
        return None
    try:
        compress = check_compression_setting("compress", compress)
    except ConfigError as error:
        raise KVStoreError(str(error)) from None
    if on_servers:
        raise KVStoreError(
            f"compress {compress} and on_servers contradict each other: servers that update take "
            "whole gradients: leave one of them out"
        )
    if compress == FP16 and not group.sums_float16:
        raise KVStoreError(
            f"compress {compress}: {group.name or 'a process alone'} cannot send that: "
            "it is possible with Horovod: leave it out, or choose 2bit:THRESHOLD"
        )
    if keeps_rest(compress) and group.size == 1:
        warn(_alone(f"compress {compress}", "process"))
        return None
    return compress


def _alone(asked: str, sender: str) -> str:
    return f"{asked}: one {sender} has nobody to send gradients to, so nothing is compressed"


def check_compression(compress: Optional[str], kvstore: str, dtype: str, group: Group) -> None:
    """Raise KVStoreError for a kvstore that cannot compress its sums, ConfigError for float16.

    ConfigError, too, for a ``group`` that sums no float16, where that is to be sent. Where it has
    several processes, these compress what they send each other, with any kvstore.
    """
    if compress == FP16:
        if not group.sums_float16:
            start = f"{group.name} cannot sum float16: choose --backend horovod, 2bit:THRESHOLD"
            if not group.name:
                start = (
                    "it is for what several processes send each other over Horovod: start them "
                    "with python -m gluonlab.launch -n 2 --backend horovod"
                )
            raise ConfigError(f"--compress {FP16}: {start}, or leave it out")
        return
    if compress is not None and group.size == 1 and not KVSTORES[kvstore].compresses:
        able = " or ".join(name for name, kind in KVSTORES.items() if kind.compresses)
        raise KVStoreError(
            f"--compress {compress}: kvstore {kvstore!r} cannot compress gradients: choose {able}"
        )
    if compress is not None and dtype == "float16":
        raise ConfigError(
            f"--dtype float16 and --compress {compress} contradict each other: "
            "what 2 bits have left over would hold a part of steps that overflow, and are skipped: "
            "leave one of them out"
        )


def compressing(kvstore: Any, compress: Optional[str], device_count: int, group: Group) -> Any:
    """The same kvstore, set to compress the gradients that it sums: ``2bit:THRESHOLD``, or None.

    What 2 bits cannot say stays on its device and is added to the next gradient (Seide et al.,
    "1-bit stochastic gradient descent and its application to data-parallel distributed training of
    speech DNNs", 2014, section 3). A gradient here is that of the sum over a device's shard, and so
    the threshold is, too. With ``fp16``, and with several processes, nothing is set: the devices of
    a process exchange whole gradients, and `gluonlab.kvstores.process_group_store` compresses what
    ``group`` sums.
    """
    if compress is None or group.size > 1:
        return kvstore
    if compress == FP16 or device_count == 1:
        warn(_alone(f"--compress {compress}", "process" if compress == FP16 else "device"))
    else:
        params = {"type": "2bit", "threshold": threshold_of(compress)}
        kvstore.set_gradient_compression(params)
    return kvstore


# --- 2 bits between processes: -1, 0 or 1 times a threshold for each element
#
# MXNet's rule (Seide et al., see `compressing`), for the sum of a process's devices: the gradient
# is added to what was left over before, an element from the threshold up sends 1, one from minus
# the threshold down sends -1, and what was sent is subtracted from what is left.
#
# The group only has to add float32 numbers. The P elements that are added up to one make a digit
# from -P to P, so numbers to the base 2 P + 1 are added digit by digit, and nothing is carried.
# With two processes a float32 takes 10 digits, 3.2 bits an element, both on the way to the sum and
# back.

# Of the numbers here, see `digits_for`; a float32 holds whole numbers up to half of it.
LIMIT = 2**25


class Digits(NamedTuple):
    """A number that travels: ``low`` digits and, above them, ``high`` ones, to the ``base``.

    A table gives all digits of a half at once.
    """

    base: int
    low: int
    high: int

    @property
    def elements(self) -> int:
        """How many elements of a gradient it holds."""
        return self.low + self.high


def digits_for(processes: int) -> Digits:
    """The most digits that a sum over so many processes can hold exactly, and be read from.

    With base b, k digits and B = b**ceil(k / 2), they fit if b**k + B <= LIMIT = 2**25:

    - Each digit of a sum is at most P = (b - 1) / 2 in size, so the number is at most
      P (b**k - 1) / (b - 1) = (b**k - 1) / 2, below 2**24. So are the numbers of single processes,
      and all sums on the way, in whatever order: float32 holds them, and rounds nothing.
    - The low half is at most h = (B - 1) / 2 in size, so the high half is floor((x + h) / B).
      y = x + h is at most (b**k + B) / 2 - 1 in size, below 2**24, and whole. A quotient between
      two whole numbers is at least 1 / B away from them, and float32 rounds it by at most
      2**-24 |y| / B, which is less: so it stays between them.

    Where not even two digits fit, with 2896 processes or more, there is one: nothing is saved then.
    """
    base, count = 2 * processes + 1, 1
    while base ** (count + 1) + base ** ((count + 2) // 2) <= LIMIT:
        count += 1
    low = (count + 1) // 2
    return Digits(base, low, count - low)


class TwoBits:
    """Gradients of ``size`` elements on the device ``ctx``, and what is left over of them.

    Add gradients to ``rest``, at their places (`parts`). `encode` then leaves in ``travels``,
    float32, what the group has to sum, and `decode` leaves in ``sums`` the threshold times what all
    processes have sent, with the same bits in each of them. ``rest`` and ``sums`` are flat, with
    some elements more than ``size``.

    Where ``rest`` is infinite or NaN, the process sends NaN, now and ever after, so that all of
    them see it; the elements beside it, which share its number, become NaN with it.
    """

    def __init__(
        self, size: int, dtype: "np.dtype[Any]", ctx: mx.Context, threshold: float,
        processes: int,
    ) -> None:  # fmt: skip
        """``dtype``: float32 or float64; ``threshold`` is rounded to float32, as MXNet's is."""
        self.dtype = dtype
        self._digits, self._threshold = digits_for(processes), float(np.float32(threshold))
        self._numbers = -(-size // self._digits.elements)
        padded = self._numbers * self._digits.elements
        self.rest = nd.zeros((padded,), ctx, dtype)
        self.sums, self._below = (nd.empty((padded,), ctx, dtype) for _ in range(2))
        self.travels = nd.empty((self._numbers,), ctx, np.float32)
        self._encode = [*self._ternary(), *self._packed()]
        self._decode = [*self._unpacked()]

    def parts(self, shapes: Sequence[Tuple[int, ...]]) -> Iterator[Tuple[nd.NDArray, nd.NDArray]]:
        """The places in ``rest`` and ``sums``, views, of gradients that lie one after the other."""
        begin = 0
        for shape in shapes:
            end = begin + math.prod(shape)
            yield self.rest[begin:end].reshape(shape), self.sums[begin:end].reshape(shape)
            begin = end

    def encode(self) -> None:
        """Queue it; nothing waits."""
        _as_one(self._encode)

    def decode(self) -> None:
        """Queue it; nothing waits."""
        _as_one(self._decode)

    def _ternary(self) -> Iterator[EngineCall]:
        """-1, 0 or 1 into ``sums``, and the threshold times that away from ``rest``.

        On a CPU MXNet's clip and sign take five times as long as comparisons. sgd_mom_update makes
        w + m of m = momentum m - rate g, here above - below - 0 rest: NaN where rest is not finite.
        """
        above, below, rest, threshold = self.sums, self._below, self.rest, self._threshold
        yield _with("_greater_equal_scalar", rest, above, scalar=threshold)
        yield _with("_lesser_equal_scalar", rest, below, scalar=-threshold)
        zero = Attributes({"momentum": -1.0, "lr": 0.0, "wd": 0.0})
        yield operator_call("sgd_mom_update", [above, rest, below], above, zero)
        yield _minus(rest, threshold, above, rest)

    def _packed(self) -> Iterator[EngineCall]:
        """The numbers that the digits in ``sums`` make, into ``travels``.

        In a half the powers of the base are below 2**11: GPUs multiply them exactly in TF32, too.
        """
        base, low, _ = self._digits
        numbers = []
        for digits, count in self._halves():
            powers = nd.array(float(base) ** np.arange(count), self.rest.context, self.dtype)
            numbers.append(nd.empty((self._numbers,), self.rest.context, self.dtype))
            yield operator_call("dot", [digits, powers], numbers[-1])
        for upper in numbers[1:]:
            yield _minus(numbers[0], -float(base**low), upper, numbers[0])
        yield _with("Cast", numbers[0], self.travels, dtype="float32")

    def _unpacked(self) -> Iterator[EngineCall]:
        """The threshold times the digits of the summed ``travels``, into ``sums``."""
        base, low, high = self._digits
        lower, upper, known = (nd.empty(self.travels.shape, self.travels.context) for _ in range(3))
        yield operator_call("broadcast_equal", [self.travels, self.travels], known)  # 0 for NaN
        yield _with("_plus_scalar", self.travels, lower, scalar=(base**low - 1) // 2)
        if high:
            yield _with("_div_scalar", lower, upper, scalar=base**low)
            yield operator_call("floor", [upper], upper)
            yield _minus(lower, float(base**low), upper, lower)
            yield _with("_plus_scalar", upper, upper, scalar=(base**high - 1) // 2)
        for (digits, count), place in zip(self._halves(), (lower, upper)):
            yield _with("_plus_scalar", place, place, scalar=1)  # row 0 is that of NaN
            yield operator_call("where", [known, place, known], place)
            table = nd.array(self._table(count), self.rest.context, self.dtype)
            in_rows = Attributes({"axis": 0, "mode": "clip"})
            yield operator_call("take", [table, place], digits, in_rows)

    def _table(self, count: int) -> "np.ndarray[Any, Any]":
        """A row of NaN; then, for each number of so many digits, the threshold times those."""
        base = self._digits.base
        numbers = np.arange(base**count)[:, np.newaxis]
        digits = numbers // base ** np.arange(count) % base - base // 2
        values = self.dtype.type(self._threshold) * digits.astype(self.dtype)
        return np.concatenate([np.full((1, count), np.nan), values])

    def _halves(self) -> "List[Tuple[nd.NDArray, int]]":
        """For each half the places of its digits, (numbers, digits), and how many digits it has."""
        edge = self._numbers * self._digits.low
        parts = (self.sums[:edge], self._digits.low), (self.sums[edge:], self._digits.high)
        return [(part.reshape((-1, count)), count) for part, count in parts if count]


def _as_one(calls: Sequence[EngineCall]) -> None:
    """Queue them as one operation to the engine, which waits once for a GPU."""
    with mx.engine.bulk(len(calls)):
        for call in calls:
            call()


def _with(operator: str, given: nd.NDArray, into: nd.NDArray, **attributes: Any) -> EngineCall:
    return operator_call(operator, [given], into, Attributes(attributes))


def _minus(one: nd.NDArray, factor: float, other: nd.NDArray, into: nd.NDArray) -> EngineCall:
    """``into = one - factor * other``, in one pass."""
    return operator_call("sgd_update", [one, other], into, Attributes({"lr": factor, "wd": 0.0}))
