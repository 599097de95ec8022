"""Postprocessing of gradients between the allreduce and the update: unscaling and clipping."""

from __future__ import annotations

import math
from itertools import zip_longest
from numbers import Real
from typing import Any, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.buckets import Gaps
from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.engine.fast_invoke import NO_ATTRIBUTES, Attributes, CopyInto, OperatorCall
from gluonlab.errors import ConfigError, KVStoreError
from gluonlab.finite_numbers import FiniteCheck


class GlobalNormClipping:
    """``clip(limit)`` scales the gradients of each device down to a norm of at most ``limit``.

    After the allreduce each device holds the same sum, to the bit; so each finds the same norm and
    the same factor, and the replicas stay alike without a word between them. Where each device
    holds a part of the sum, they exchange one number each. Nothing is fetched to the host: the
    factor stays an array, and multiplying by 1 is what it costs not to know.

    As `gluon.utils.clip_global_norm` on one device (Pascanu, Mikolov, Bengio, "On the difficulty of
    training recurrent neural networks", 2013, algorithm 1). ``grads[i]``: all gradients of device
    i, as float32; with ``parts`` the part that it has of them, which may be nothing.
    """

    def __init__(
        self,
        grads: Sequence[Sequence[nd.NDArray]],
        ctxs: Sequence[mx.Context],
        parts: bool = False,
        again: Sequence[Sequence[nd.NDArray]] = (),
    ) -> None:
        """``again[i]``: what device i has of gradients that are another's part, too."""
        self._devices = [
            _DeviceNorms(arrays, ctx, others)
            for arrays, ctx, others in zip_longest(grads, ctxs, again, fillvalue=())
        ]
        apart = self._devices if parts else []
        self._exchanges = [_Exchange(device, apart) for device in apart]
        self._limit = 0.0
        self._attributes = NO_ATTRIBUTES

    def __call__(self, limit: float) -> None:
        """Queue it on every device; nothing waits."""
        if limit != self._limit:
            self._limit, self._attributes = limit, Attributes({"scalar": limit})
        for device in self._devices:
            device.measure()
        for exchange in self._exchanges:
            exchange.run()
        for device in self._devices:
            device.scale(self._attributes)


class _DeviceNorms:
    """One device's operations: squared norms, their sum, the factor, and multiplying by it.

    The factor is limit / max(norm, limit).
    """

    def __init__(
        self, grads: Sequence[nd.NDArray], ctx: mx.Context, again: Sequence[nd.NDArray] = ()
    ) -> None:
        self.ctx = ctx
        flat = [grad.reshape((-1,)) for grad in grads]  # views
        squares = nd.zeros((max(1, len(flat)),), ctx=ctx)
        self.square = nd.zeros((1,), ctx=ctx)  # of the norm of what this device has
        # of the norm of everything; then the norm, then the factor
        self.total = nd.zeros((1,), ctx=ctx)
        # dot: BLAS adds in many lanes. multi_sum_sq and norm add one by one, and lose three digits
        # over some million elements.
        cells = [squares[i : i + 1] for i in range(len(flat))]
        self._measure = [OperatorCall("dot", [grad, grad], cell) for grad, cell in zip(flat, cells)]
        self._measure.append(OperatorCall("sum", [squares], self.square))
        self._measure.append(OperatorCall("_copy", [self.square], self.total))
        self._norm, *self._factor = (
            OperatorCall(name, [self.total], self.total)
            for name in ("sqrt", "_maximum_scalar", "_rdiv_scalar")
        )
        scaled = [*flat, *(grad.reshape((-1,)) for grad in again)]
        self._scale = [OperatorCall("broadcast_mul", [grad, self.total], grad) for grad in scaled]

    def measure(self) -> None:
        for call in self._measure:
            call(NO_ATTRIBUTES)

    def scale(self, limit: Attributes) -> None:
        self._norm(NO_ATTRIBUTES)
        for call in self._factor:
            call(limit)
        for call in self._scale:
            call(NO_ATTRIBUTES)


class _Exchange:
    """One device gets the squared norms of all, and adds them in the same order as the others."""

    def __init__(self, device: _DeviceNorms, devices: List[_DeviceNorms]) -> None:
        self._squares = [other.square for other in devices]
        row = nd.zeros((len(devices),), ctx=device.ctx)
        self._cells = [CopyInto(row[i : i + 1]) for i in range(len(devices))]
        self._sum = OperatorCall("sum", [row], device.total)

    def run(self) -> None:
        for cell, square in zip(self._cells, self._squares):
            cell.copy(square)
        self._sum(NO_ATTRIBUTES)


class Unscaling:
    """``begin(scale)`` divides all gradients by the scale; `finite` says whether they are usable.

    ``grads[i]``: all gradients of device i, summed over the devices, as float32; with ``parts`` the
    part that it has of them, which may be nothing. The sums of all devices are the same, to the
    bit, so one of them is looked at; parts are looked at everywhere. (The update could divide: but
    MXNet reads a ``rescale_grad`` of 8.5e-09 less exactly than one of 0.14.)
    """

    def __init__(self, grads: Sequence[Sequence[nd.NDArray]], parts: bool = False) -> None:
        self._finite = [FiniteCheck(arrays) for arrays in (grads if parts else grads[:1]) if arrays]
        flat = [grad for arrays in grads for grad in arrays]
        self._divide = [OperatorCall("_mul_scalar", [grad], grad) for grad in flat]
        self._scale, self._attributes = 1.0, Attributes({"scalar": 1.0})

    def begin(self, scale: float) -> None:
        """Queue it; nothing waits.

        Gradients that are not finite are divided, too, and are no more so afterwards.
        """
        for device in self._finite:
            device.start_check()
        if scale != self._scale:
            self._scale, self._attributes = scale, Attributes({"scalar": 1 / scale})
        for call in self._divide if scale != 1 else ():
            call(self._attributes)

    def finite(self) -> bool:
        """Wait for the gradients; whether they were finite before they were divided."""
        return all(device.read_result() for device in self._finite)


class Postprocess(NamedTuple):
    """The settings: what happens to summed gradients before the update.

    ``clip_norm``: the largest norm of their mean over the batch. ``loss_scale``: they are those of
    a loss that was multiplied by ``loss_scale.value``. None leaves gradients as they are.
    """

    clip_norm: Optional[float] = None
    loss_scale: Optional[LossScale] = None

    @property
    def is_needed(self) -> bool:
        """Whether the whole gradient is looked at before the update."""
        return self.clip_norm is not None or self.loss_scale is not None

    @property
    def reason(self) -> str:
        """The setting that looks at the whole gradient, for messages."""
        return "a loss scale" if self.clip_norm is None else "--clip-norm"

    def check(self) -> None:
        """Raise ConfigError for a value that is not possible."""
        limit = self.clip_norm
        if limit is not None and not (isinstance(limit, Real) and 0 < limit < math.inf):
            raise ConfigError(f"clip_norm {limit!r}: give a number above 0, or None")
        if self.loss_scale is not None and not isinstance(self.loss_scale, LossScale):
            raise ConfigError(
                f"loss_scale {self.loss_scale!r}: give "
                "gluonlab.bucketed_trainer.loss_scale.LossScale(...), or None"
            )

    def check_parameters(self, params: Sequence[Parameter]) -> None:
        """Raise KVStoreError for gradients that are not float32."""
        if not self.is_needed:
            return
        what = "loss_scale" if self.clip_norm is None else f"clip_norm {self.clip_norm:g}"
        for param in params:
            dtype = np.dtype(param.dtype or np.float32)  # without a type Gluon makes float32
            if param.grad_req != "null" and dtype != np.float32:
                raise KVStoreError(
                    f"{what} is for float32, and {param.name} is {dtype}: leave it out"
                )


class SummedGradients:
    """Makes summed gradients ready for the update. ``gaps``: what lies between them."""

    def __init__(self, settings: Postprocess, gaps: Gaps) -> None:
        self.settings, self._gaps = settings, gaps
        self._clips: List[GlobalNormClipping] = []
        self._unscalings: List[Unscaling] = []

    def add(
        self,
        grads: Sequence[Sequence[nd.NDArray]],
        ctxs: Sequence[mx.Context],
        parts: bool = False,
        again: Sequence[Sequence[nd.NDArray]] = (),
    ) -> "SummedGradients":
        """A network's: ``grads[i]`` has device i, or with ``parts`` it has its part of them.

        ``again[i]``: what device i has of gradients that are another's part, too.
        """
        if self.settings.clip_norm is not None:
            self._clips.append(GlobalNormClipping(grads, ctxs, parts, again))
        if self.settings.loss_scale is not None:
            self._unscalings.append(Unscaling([*grads, *again], parts))
        return self

    def prepare(self, *optimizers: Any) -> bool:
        """Make them ready for the update by ``optimizers``; False if it must be left out.

        The optimizer divides them by the size of the batch. With a loss scale this waits, for what
        decides about the update: its optimizer counts updates, and corrections such as Adam's go by
        the count. All else is queued before, so that devices have work while the host finds out.
        """
        limit, scale = self.settings
        for unscaling in self._unscalings:
            unscaling.begin(1.0 if scale is None else scale.value)
        for clip in self._clips:
            clip((limit or 0.0) / float(optimizers[0].rescale_grad))
        if scale is None:
            return True
        for optimizer in optimizers:
            optimizer.num_update += 1  # as the update does, if any is made: rates go by it
        finite = all(unscaling.finite() for unscaling in self._unscalings)
        if not finite:
            self._gaps.clear()
        scale.after(finite)
        return finite
