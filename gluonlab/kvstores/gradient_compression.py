"""Gradient compression (``--compress``): sends gradients in fewer bits.

Compression applies between the devices of one process, or between several processes.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.config.option_checks import check_compression_setting
from gluonlab.engine.fast_invoke import Attributes, EngineCall, operator_call
from gluonlab.errors import ConfigError, KVStoreError, warn
from gluonlab.kvstores import KVSTORES
from gluonlab.kvstores.process_groups import ProcessGroup

FP16 = "fp16"


def keeps_residual(compress: Optional[str]) -> bool:
    """Return whether the compression keeps a residual for the next step.

    Only 2-bit compression keeps a residual.
    """
    return compress not in (None, FP16)


def effective_compression(compress: Optional[str], device_count: int, group: ProcessGroup) -> Optional[str]:
    """Return the compression that a run reports.

    The result is None for 2-bit compression on a single device in a single process, which has no
    effect.
    """
    single_device = group.size == 1 and device_count == 1
    return None if keeps_residual(compress) and single_device else compress


def parse_threshold(compress: str) -> float:
    """Return the threshold of ``2bit:THRESHOLD``."""
    return float(compress.split(":")[1])


def resolve_group_compression(compress: Optional[str], group: ProcessGroup, on_servers: bool) -> Optional[str]:
    """Return how a GroupKVStore compresses the arrays that ``group`` sums, in canonical form.

    Warns and returns None for 2-bit compression in a group of one process. Raises KVStoreError if
    the compression is unknown, if servers update the weights (``on_servers``), or if the group
    cannot sum float16.
    """
    if compress is None:
        return None
    try:
        compress = check_compression_setting("compress", compress)
    except ConfigError as error:
        raise KVStoreError(str(error)) from None
    if on_servers:
        raise KVStoreError(
            f"compress={compress} and on_servers contradict each other, because the servers need "
            "uncompressed gradients: remove one of them"
        )
    if compress == FP16 and not group.sums_float16:
        raise KVStoreError(
            f"compress={compress} only works with Horovod, not with {group.name or 'a single process'}: omit "
            "compress, or choose 2bit:THRESHOLD"
        )
    if keeps_residual(compress) and group.size == 1:
        warn(_single_sender_warning(f"compress={compress}", "process"))
        return None
    return compress


def _single_sender_warning(setting: str, sender: str) -> str:
    return f"{setting}: a single {sender} does not send gradients, so nothing is compressed"


def check_compression(compress: Optional[str], kvstore: str, dtype: str, group: ProcessGroup) -> None:
    """Check that ``compress`` works with the kvstore, the data type and the group.

    In a group of several processes, any kvstore works, because the processes compress what they
    send to each other. Raises KVStoreError for a kvstore that cannot compress its sums. Raises
    ConfigError for gradients in float16, and for "fp16" in a ``group`` that cannot sum float16.
    """
    if compress == FP16:
        if not group.sums_float16:
            advice = f"{group.name} cannot sum float16 gradients: choose --backend horovod or --compress 2bit:THRESHOLD"
            if not group.name:
                advice = (
                    "a single process does not send gradients: start several processes with gluonlab launch -n 2 "
                    "--backend horovod"
                )
            raise ConfigError(f"--compress {FP16}: {advice}, or omit --compress")
        return
    if compress is not None and group.size == 1 and not KVSTORES[kvstore].supports_compression:
        choices = " or ".join(name for name, kind in KVSTORES.items() if kind.supports_compression)
        raise KVStoreError(
            f"--compress {compress}: kvstore {kvstore!r} cannot compress gradients: choose kvstore {choices}"
        )
    if compress is not None and dtype == "float16":
        raise ConfigError(
            f"--dtype float16 and --compress {compress} contradict each other, because the residual "
            "would contain gradients of skipped steps: remove one of them"
        )


def enable_compression(kvstore: Any, compress: Optional[str], device_count: int, group: ProcessGroup) -> Any:
    """Make ``kvstore`` compress the gradients that it sums, and return ``kvstore``.

    ``compress``: ``2bit:THRESHOLD``, "fp16" or None. The residual of the quantization stays on its
    device and is added to the next gradient (Seide et al., "1-bit stochastic gradient descent and
    its application to data-parallel distributed training of speech DNNs", 2014, section 3). The
    threshold applies to sums over a device's shard of the batch, not to averages. With "fp16" or
    several processes the kvstore is not changed, because `gluonlab.kvstores.process_group_store`
    compresses the arrays that ``group`` sums.
    """
    if compress is None or group.size > 1:
        return kvstore
    if compress == FP16 or device_count == 1:
        warn(_single_sender_warning(f"--compress {compress}", "process" if compress == FP16 else "device"))
    else:
        params = {"type": "2bit", "threshold": parse_threshold(compress)}
        kvstore.set_gradient_compression(params)
    return kvstore


# --- 2 bits between processes: -1, 0 or 1 times a threshold for each element
#
# MXNet's rule (Seide et al., see `enable_compression`) is applied to the sum over a process's
# devices. The gradient is added to the residual. For each element of the result, the process sends
# 1 if the element is at least the threshold, -1 if it is at most minus the threshold, and otherwise
# 0. The sent value times the threshold is subtracted from the residual.
#
# The group only needs to add float32 numbers. Each number contains the digits of several elements.
# The sum of one element over P processes is a digit from -P to P. In base 2 P + 1, numbers are
# therefore added digit by digit, without a carry. With two processes a float32 holds 10 digits,
# which is 3.2 bits per element.

# The limit of `max_packed_digits`: float32 holds all whole numbers up to half of it.
FLOAT32_CODE_LIMIT = 2**25


class PackedDigits(NamedTuple):
    """The layout of a number in base ``base`` whose digits are gradient elements.

    The lower half of the number has ``low`` digits, and the upper half ``high`` digits. A table
    lookup unpacks all digits of a half at once.
    """

    base: int
    low: int
    high: int

    @property
    def per_number(self) -> int:
        """Number of gradient elements in one packed number."""
        return self.low + self.high


def max_packed_digits(processes: int) -> PackedDigits:
    """Return how many digits fit into a float32, if sums over ``processes`` must be exact.

    With base b, k digits and B = b**ceil(k / 2), the digits fit if b**k + B <= 2**25:

    - Each digit of a sum is at most P = (b - 1) / 2 in magnitude, so the number is at most
      P (b**k - 1) / (b - 1) = (b**k - 1) / 2, below 2**24. The numbers of single processes and all
      partial sums, in any order, are also below 2**24. Float32 represents all of them exactly.
    - The low half is at most h = (B - 1) / 2 in magnitude, so the high half is floor((x + h) / B).
      y = x + h is an integer of magnitude at most (b**k + B) / 2 - 1, below 2**24. If y / B is not
      an integer, it is at least 1 / B away from the nearest integer. Float32 rounds y / B by at
      most 2**-24 |y| / B, which is less. The floor is therefore exact.

    With 2896 processes or more, a number has only one digit, which saves no bytes.
    """
    base, count = 2 * processes + 1, 1
    while base ** (count + 1) + base ** ((count + 2) // 2) <= FLOAT32_CODE_LIMIT:
        count += 1
    low = (count + 1) // 2
    return PackedDigits(base, low, count - low)


class TwoBitCompressor:
    """Compresses gradient elements to 2 bits, and keeps the residual for the next step.

    ``size``: number of gradient elements. ``ctx``: their device. ``dtype``: their type, float32 or
    float64. ``threshold`` is rounded to float32, as in MXNet.

    The caller adds gradients to ``residual``, at their positions (`array_views`). `encode` then
    writes the array that the group has to sum into ``packed`` (float32). `decode` writes the
    threshold times the sum of all processes' digits into ``sums``. The sums are bit-identical in
    all processes. ``residual`` and ``sums`` are flat, and slightly longer than ``size``.

    If an element of ``residual`` is infinite or NaN, the process sends NaN from then on, so that
    all processes notice. Elements in the same packed number also become NaN.
    """

    def __init__(self, size: int, dtype: "np.dtype[Any]", ctx: mx.Context, threshold: float, processes: int) -> None:
        """Allocate the arrays, and prepare the calls that encode and decode."""
        self.dtype = dtype
        self._digits, self._threshold = max_packed_digits(processes), float(np.float32(threshold))
        self._numbers = -(-size // self._digits.per_number)
        padded = self._numbers * self._digits.per_number
        self.residual = nd.zeros((padded,), ctx, dtype)
        self.sums, self._below_threshold = (nd.empty((padded,), ctx, dtype) for _ in range(2))
        self.packed = nd.empty((self._numbers,), ctx, np.float32)
        self._encode_calls = [*self._quantize_calls(), *self._pack_calls()]
        self._decode_calls = [*self._unpack_calls()]

    def array_views(self, shapes: Sequence[Tuple[int, ...]]) -> Iterator[Tuple[nd.NDArray, nd.NDArray]]:
        """Yield a view of ``residual`` and a view of ``sums`` for each shape, in order."""
        begin = 0
        for shape in shapes:
            end = begin + math.prod(shape)
            yield self.residual[begin:end].reshape(shape), self.sums[begin:end].reshape(shape)
            begin = end

    def encode(self) -> None:
        """Queue the quantization of ``residual`` into ``packed``."""
        _run_in_bulk(self._encode_calls)

    def decode(self) -> None:
        """Queue the unpacking of ``packed`` into ``sums``."""
        _run_in_bulk(self._decode_calls)

    def _quantize_calls(self) -> Iterator[EngineCall]:
        """Yield calls that write -1, 0 or 1 into ``sums`` and reduce ``residual`` accordingly."""
        # Use comparisons, because MXNet's clip and sign take five times as long on a CPU.
        above, below = self.sums, self._below_threshold
        residual, threshold = self.residual, self._threshold
        yield _unary_call("_greater_equal_scalar", residual, above, scalar=threshold)
        yield _unary_call("_lesser_equal_scalar", residual, below, scalar=-threshold)
        # sgd_mom_update computes above - below - 0 * residual, which is NaN if residual is not
        # finite.
        zero = Attributes({"momentum": -1.0, "lr": 0.0, "wd": 0.0})
        yield operator_call("sgd_mom_update", [above, residual, below], above, zero)
        yield _subtract_scaled(residual, threshold, above, residual)

    def _pack_calls(self) -> Iterator[EngineCall]:
        """Yield calls that pack the digits in ``sums`` into ``packed``."""
        # The digits are packed in two halves, in which powers of the base are below 2**11. GPUs
        # multiply such numbers exactly, also in TF32.
        base, low, _ = self._digits
        numbers = []
        for digits, count in self._digit_halves():
            powers = nd.array(float(base) ** np.arange(count), self.residual.context, self.dtype)
            numbers.append(nd.empty((self._numbers,), self.residual.context, self.dtype))
            yield operator_call("dot", [digits, powers], numbers[-1])
        for upper in numbers[1:]:
            yield _subtract_scaled(numbers[0], -float(base**low), upper, numbers[0])
        yield _unary_call("Cast", numbers[0], self.packed, dtype="float32")

    def _unpack_calls(self) -> Iterator[EngineCall]:
        """Yield calls that unpack ``packed``, and write digits x threshold into ``sums``."""
        base, low, high = self._digits
        lower, upper, not_nan = (nd.empty(self.packed.shape, self.packed.context) for _ in range(3))
        yield operator_call("broadcast_equal", [self.packed, self.packed], not_nan)  # 0 for NaN
        yield _unary_call("_plus_scalar", self.packed, lower, scalar=(base**low - 1) // 2)
        if high:
            yield _unary_call("_div_scalar", lower, upper, scalar=base**low)
            yield operator_call("floor", [upper], upper)
            yield _subtract_scaled(lower, float(base**low), upper, lower)
            yield _unary_call("_plus_scalar", upper, upper, scalar=(base**high - 1) // 2)
        for (digits, count), number in zip(self._digit_halves(), (lower, upper)):
            yield _unary_call("_plus_scalar", number, number, scalar=1)  # row 0 is for NaN
            yield operator_call("where", [not_nan, number, not_nan], number)
            table = nd.array(self._digit_table(count), self.residual.context, self.dtype)
            in_rows = Attributes({"axis": 0, "mode": "clip"})
            yield operator_call("take", [table, number], digits, in_rows)

    def _digit_table(self, count: int) -> "np.ndarray[Any, Any]":
        """Return a table for unpacking: NaN in row 0, then digits times the threshold."""
        base = self._digits.base
        numbers = np.arange(base**count)[:, np.newaxis]
        digits = numbers // base ** np.arange(count) % base - base // 2
        values = self.dtype.type(self._threshold) * digits.astype(self.dtype)
        return np.concatenate([np.full((1, count), np.nan), values])

    def _digit_halves(self) -> "List[Tuple[nd.NDArray, int]]":
        """Return (view, digits per number) for the lower and for the upper half of packed numbers.

        A view is a part of ``sums`` of shape (numbers, digits).
        """
        edge = self._numbers * self._digits.low
        parts = (self.sums[:edge], self._digits.low), (self.sums[edge:], self._digits.high)
        return [(part.reshape((-1, count)), count) for part, count in parts if count]


def _run_in_bulk(calls: Sequence[EngineCall]) -> None:
    """Run the calls as one operation of MXNet's engine, which then waits for the GPU only once."""
    with mx.engine.bulk(len(calls)):
        for call in calls:
            call()


def _unary_call(operator: str, source: nd.NDArray, into: nd.NDArray, **attributes: Any) -> EngineCall:
    return operator_call(operator, [source], into, Attributes(attributes))


def _subtract_scaled(one: nd.NDArray, factor: float, other: nd.NDArray, into: nd.NDArray) -> EngineCall:
    """Return a call that sets ``into = one - factor * other``, in one operation."""
    return operator_call("sgd_update", [one, other], into, Attributes({"lr": factor, "wd": 0.0}))
