"""Gradients between their sum and the update: unscaled, clipped, or found useless."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.update.clipping import GlobalNormClipping
from gluonlab.update.gaps import Gaps
from gluonlab.update.loss_scale import LossScale, Unscaling


class SummedGradients:
    """``grads[i]``: where device i has the summed gradients, or with ``parts`` its part of them.

    ``clip_norm``: the largest norm of their mean over the batch, or None. ``gaps``: what lies
    between them.
    """

    def __init__(
        self,
        grads: Sequence[Sequence[nd.NDArray]],
        ctxs: Sequence[mx.Context],
        clip_norm: Optional[float],
        loss_scale: Optional[LossScale],
        gaps: Gaps,
        parts: bool = False,
    ) -> None:
        self.clip_norm, self.loss_scale, self._gaps = clip_norm, loss_scale, gaps
        self._clip = None if clip_norm is None else GlobalNormClipping(grads, ctxs, parts)
        self._unscaling = None if loss_scale is None else Unscaling(grads, parts)

    def prepare(self, optimizer: Any) -> bool:
        """Make them ready for the update by ``optimizer``; False if it must be left out.

        The optimizer divides them by the size of the batch. With a loss scale this waits, for what
        decides about the update: its optimizer counts updates, and corrections such as Adam's go by
        the count. All else is queued before, so that devices have work while the host finds out.
        """
        scale, unscaling = self.loss_scale, self._unscaling
        if scale is not None and unscaling is not None:
            unscaling.begin(scale.value)
        if self._clip is not None and self.clip_norm is not None:
            self._clip(self.clip_norm / float(optimizer.rescale_grad))
        if scale is None or unscaling is None:
            return True
        optimizer.num_update += 1  # as the update does, if there is one: learning rates go by it
        finite = unscaling.finite()
        if not finite:
            self._gaps.clear()
        scale.after(finite)
        return finite
