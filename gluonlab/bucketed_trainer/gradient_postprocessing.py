"""Unscales gradients and clips their norm, after the allreduce and before the update.

Unscaling means dividing the gradients by the loss scale.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from numbers import Real
from typing import Any, List, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.buckets import BucketPadding
from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.divergence_checks import FiniteCheck
from gluonlab.engine.fast_invoke import NO_ATTRIBUTES, Attributes, CopyInto, OperatorCall
from gluonlab.errors import ConfigError, KVStoreError


class GlobalNormClipping:
    """Clips the global norm: ``clip(limit)`` scales gradients to a norm of at most ``limit``.

    On one device the result equals that of `gluon.utils.clip_global_norm` (Pascanu, Mikolov,
    Bengio, "On the difficulty of training recurrent neural networks", 2013, algorithm 1).

    After the allreduce, the gradients are bit-identical on all devices. So each device computes the
    same norm and factor without communication. If each device holds only a shard of the sum, every
    device sends one number to every other device. The factor is an array on the device, so the host
    never waits. If nothing is clipped, gradients are multiplied by a factor of 1.

    Args:
        grads: For each device, its gradients or its shard of the gradients, as float32. A shard may
            be empty.
        ctxs: The devices.
        sharded: Whether each device holds only a shard of the sum.
        duplicates: For each device, gradients that another device also holds. These gradients are
            scaled, but only the other device includes them in the norm.
    """

    def __init__(
        self,
        grads: Sequence[Sequence[nd.NDArray]],
        ctxs: Sequence[mx.Context],
        sharded: bool = False,
        duplicates: Sequence[Sequence[nd.NDArray]] = (),
    ) -> None:
        self._devices = [
            _DeviceNorm(arrays, ctx, others)
            for arrays, ctx, others in zip_longest(grads, ctxs, duplicates, fillvalue=())
        ]
        sharded_devices = self._devices if sharded else []
        self._exchanges = [_NormExchange(device, sharded_devices) for device in sharded_devices]
        self._limit = 0.0
        self._attributes = NO_ATTRIBUTES

    def __call__(self, limit: float) -> None:
        """Queue the clipping on every device."""
        if limit != self._limit:
            self._limit, self._attributes = limit, Attributes({"scalar": limit})
        for device in self._devices:
            device.compute_square()
        for exchange in self._exchanges:
            exchange.sum_squares()
        for device in self._devices:
            device.scale_gradients(self._attributes)


class _DeviceNorm:
    """The operations on one device that compute the squared norm and scale the gradients."""

    def __init__(self, grads: Sequence[nd.NDArray], ctx: mx.Context, duplicates: Sequence[nd.NDArray]) -> None:
        self.ctx = ctx
        flat = [grad.reshape((-1,)) for grad in grads]  # views
        squares = nd.zeros((max(1, len(flat)),), ctx=ctx)
        self.square = nd.zeros((1,), ctx=ctx)  # squared norm of this device's gradients
        # first the squared norm of all gradients, then their norm, then the factor
        self.total = nd.zeros((1,), ctx=ctx)
        # Use dot, because BLAS keeps many partial sums. multi_sum_sq and norm add the squares one
        # by one, and lose three digits over some million elements.
        cells = [squares[i : i + 1] for i in range(len(flat))]
        self._square_calls = [OperatorCall("dot", [grad, grad], cell) for grad, cell in zip(flat, cells)]
        self._square_calls.append(OperatorCall("sum", [squares], self.square))
        self._square_calls.append(OperatorCall("_copy", [self.square], self.total))
        # total = sqrt(total); total = max(total, limit); total = limit / total
        self._norm_call, *self._factor_calls = (
            OperatorCall(name, [self.total], self.total) for name in ("sqrt", "_maximum_scalar", "_rdiv_scalar")
        )
        scaled = [*flat, *(grad.reshape((-1,)) for grad in duplicates)]
        self._scale_calls = [OperatorCall("broadcast_mul", [grad, self.total], grad) for grad in scaled]

    def compute_square(self) -> None:
        for call in self._square_calls:
            call(NO_ATTRIBUTES)

    def scale_gradients(self, limit_attributes: Attributes) -> None:
        """Queue the multiplication of all gradients by limit / max(norm, limit)."""
        self._norm_call(NO_ATTRIBUTES)
        for call in self._factor_calls:
            call(limit_attributes)
        for call in self._scale_calls:
            call(NO_ATTRIBUTES)


class _NormExchange:
    """The calls with which one device sums the squared norms of all devices, in a fixed order."""

    def __init__(self, device: _DeviceNorm, devices: List[_DeviceNorm]) -> None:
        self._squares = [other.square for other in devices]
        row = nd.zeros((len(devices),), ctx=device.ctx)
        self._cells = [CopyInto(row[i : i + 1]) for i in range(len(devices))]
        self._sum = OperatorCall("sum", [row], device.total)

    def sum_squares(self) -> None:
        for cell, square in zip(self._cells, self._squares):
            cell.copy(square)
        self._sum(NO_ATTRIBUTES)


class GradientUnscaler:
    """Divides gradients by the loss scale, and checks that they are finite.

    The update could divide by the scale instead, but MXNet reads a ``rescale_grad`` of 8.5e-09 less
    precisely than one of 0.14.

    Args:
        grads: For each device, the summed gradients or its shard of them, as float32. A shard may
            be empty.
        sharded: Whether each device holds only a shard of the sum.
    """

    def __init__(self, grads: Sequence[Sequence[nd.NDArray]], sharded: bool = False) -> None:
        # without shards all devices hold the same sums, so checking the first device is enough
        checked = grads if sharded else grads[:1]
        self._finite_checks = [FiniteCheck(arrays) for arrays in checked if arrays]
        flat = [grad for arrays in grads for grad in arrays]
        self._divide = [OperatorCall("_mul_scalar", [grad], grad) for grad in flat]
        self._scale, self._attributes = 1.0, Attributes({"scalar": 1.0})

    def unscale(self, scale: float) -> None:
        """Queue the check that gradients are finite, then the division by ``scale``."""
        for check in self._finite_checks:
            check.start_check()
        if scale != self._scale:
            self._scale, self._attributes = scale, Attributes({"scalar": 1 / scale})
        for call in self._divide if scale != 1 else ():
            call(self._attributes)

    def were_finite(self) -> bool:
        """Wait for the gradients, and return whether they were finite before the division."""
        return all(check.read_result() for check in self._finite_checks)


class GradientPostprocessor:
    """Unscales and clips summed gradients before updates, if a setting requires it (`is_needed`).

    Args:
        clip_norm: Upper limit of the norm of the batch's mean gradient. None turns clipping off.
        loss_scale: Factor by which the loss was multiplied. None turns unscaling off.

    Raises:
        ConfigError: For an invalid value.
    """

    def __init__(self, clip_norm: Optional[float] = None, loss_scale: Optional[LossScale] = None) -> None:
        if clip_norm is not None and not (isinstance(clip_norm, Real) and 0 < clip_norm < math.inf):
            raise ConfigError(f"clip_norm={clip_norm!r}: use a number above 0, or None")
        if loss_scale is not None and not isinstance(loss_scale, LossScale):
            raise ConfigError(
                f"loss_scale={loss_scale!r}: use gluonlab.bucketed_trainer.loss_scale.LossScale(...), or None"
            )
        self.clip_norm, self.loss_scale = clip_norm, loss_scale
        self.is_needed = clip_norm is not None or loss_scale is not None
        self._clips: List[GlobalNormClipping] = []
        self._unscalers: List[GradientUnscaler] = []

    @property
    def setting(self) -> str:
        """The setting that makes this object necessary, for error messages."""
        return "loss_scale" if self.clip_norm is None else f"clip_norm={self.clip_norm:g}"

    def check_parameters(self, params: Sequence[Parameter]) -> None:
        """Raise KVStoreError for gradients that are not float32."""
        if not self.is_needed:
            return
        for param in params:
            dtype = np.dtype(param.dtype or np.float32)  # Gluon's default
            if param.grad_req != "null" and dtype != np.float32:
                raise KVStoreError(
                    f"{self.setting} requires float32 parameters, but {param.name} has type {dtype}: omit "
                    f"{self.setting}"
                )

    def add_gradients(
        self,
        grads: Sequence[Sequence[nd.NDArray]],
        ctxs: Sequence[mx.Context],
        sharded: bool = False,
        duplicates: Sequence[Sequence[nd.NDArray]] = (),
    ) -> None:
        """Register the gradients of one replica.

        The arguments are those of `GlobalNormClipping`.
        """
        if self.clip_norm is not None:
            self._clips.append(GlobalNormClipping(grads, ctxs, sharded, duplicates))
        if self.loss_scale is not None:
            self._unscalers.append(GradientUnscaler([*grads, *duplicates], sharded))

    def unscale_and_clip(self, optimizers: Sequence[Any], padding: BucketPadding) -> bool:
        """Unscale and clip the gradients, and return whether ``optimizers`` may update with them.

        With a loss scale, the host waits until it is known whether all gradients are finite.
        Without a loss scale, the result is always True. ``padding``: the padding of the gradients'
        buckets.
        """
        clip_norm, scale = self.clip_norm, self.loss_scale
        if scale is not None:
            for unscaler in self._unscalers:
                unscaler.unscale(scale.value)
        if clip_norm is not None:
            # The limit is for the mean over the batch, but the gradients are still sums: the
            # optimizer multiplies them by rescale_grad = 1 / batch size only in the update.
            for clip in self._clips:
                clip(clip_norm / float(optimizers[0].rescale_grad))
        if scale is None:
            return True
        for optimizer in optimizers:
            # A skipped step counts for the learning-rate schedule. An update would set this count.
            optimizer.num_update += 1
        # Wait only now, after everything is queued, so that the devices have work. The host must
        # know the answer, because a skipped step must not increase the update counts, which Adam's
        # bias correction reads.
        finite = all(unscaler.were_finite() for unscaler in self._unscalers)
        if not finite:
            padding.clear()  # NaN there would stay, because no backward overwrites it
        scale.record_step(finite)
        return finite
