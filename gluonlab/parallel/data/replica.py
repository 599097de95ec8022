"""One device's copy of a network and its loss, compiled (`gluonlab.parallel.compiled_graph`)."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.engine.fast_invoke import CopyInto, ShapeAndTypeReader
from gluonlab.models.symbol_graph import one_array
from gluonlab.parallel.compiled_graph import BoundGraph, CompiledGraph
from gluonlab.parallel.mixed_precision import Conversion, as_it_is
from gluonlab.parallel.training_loss import (
    SmoothedCrossEntropy,
    constants_of,
    label_columns,
    scoring_loss,
)

IMAGES, LABELS = "gluonlab_images", "gluonlab_labels"


def loss_graph(
    net: gluon.HybridBlock,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion = as_it_is,
) -> mx.sym.Symbol:
    """Images and labels -> the sum of their losses (1,), and the network's scores (n, classes).

    If ``loss`` is another one without its smoothing, then the sum of those (1,), too. ``convert``
    may change how the network computes; its scores are float32, and so is all that is made of them.
    """
    scores = net(preprocess(mx.sym, mx.sym.var(IMAGES)))
    return with_loss(convert(one_array(scores, type(net).__name__)), loss)


def with_loss(scores: mx.sym.Symbol, loss: gluon.HybridBlock) -> mx.sym.Symbol:
    """Scores (n, classes) -> what a `loss_graph` gives."""
    labels = mx.sym.var(LABELS)
    outputs = [loss(scores, labels).sum(), mx.sym.BlockGrad(scores)]
    if isinstance(loss, SmoothedCrossEntropy):
        outputs.append(mx.sym.BlockGrad(loss.unsmoothed(scores, labels).sum()))
    return mx.sym.Group(outputs)


class _BoundReplica(NamedTuple):
    """A bound graph of images and labels."""

    bound: BoundGraph
    images: CopyInto
    labels: CopyInto
    loss: nd.NDArray
    scores: nd.NDArray
    unsmoothed: nd.NDArray


class GraphReplica:
    """Runs a `loss_graph` on one device, where ``params`` are already initialised.

    ``scoring``: another one for labels (n,), where those of ``graph`` are of another kind.
    """

    def __init__(
        self,
        graph: mx.sym.Symbol,
        params: Dict[str, gluon.Parameter],
        ctx: mx.Context,
        scoring: Optional[mx.sym.Symbol] = None,
    ) -> None:
        self.graph, self.scoring, self.ctx = graph, graph if scoring is None else scoring, ctx
        self._part = CompiledGraph(graph, params, ctx, losses=[0])
        self._bound: Dict[Tuple[Any, ...], _BoundReplica] = {}
        self._last: "_BoundReplica | None" = None
        self._kinds = ShapeAndTypeReader()

    def forward(
        self,
        images: nd.NDArray,
        labels: nd.NDArray,
        train: bool = True,
        add: bool = False,
        around: Any = None,
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """The sum of losses (1,) and the scores (n, classes), until the next call.

        ``train``: as in autograd.record(train_mode=...), for layers that differ, such as Dropout.
        Labels are not smoothed without. ``add``: `backward` will add to the gradients that are
        there, instead of replacing them. ``around``: no sum is part of this pass, which it could be
        shown.
        """
        last = self._last = self._for(images, labels, add)
        last.images.copy(images)
        last.labels.copy(labels)
        self._part.forward(last.bound, train)
        return last.loss if train else last.unsmoothed, last.scores

    def backward(self, scale: float = 1.0, around: Any = None) -> None:
        """Write the gradients of the last forward's loss, times ``scale``, for the parameters."""
        assert self._last is not None, "forward comes first"
        bound = self._last.bound
        bound.heads.fill(scale)
        self._part.backward(bound)

    def _for(self, images: nd.NDArray, labels: nd.NDArray, add: bool) -> _BoundReplica:
        kinds = self._kinds
        key = (
            kinds.read_shape(images),
            kinds.read_type_number(images),
            kinds.read_type_number(labels),
            add,
        )
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(images, labels, add)
        return bound

    def _bind(self, images: nd.NDArray, labels: nd.NDArray, add: bool) -> _BoundReplica:
        graph = self.scoring if len(labels.shape) == 1 else self.graph
        bound = self._part.bind({IMAGES: images, LABELS: labels}, add, graph=graph)
        loss, scores, *others = bound.outputs
        copies = bound.inputs[IMAGES], bound.inputs[LABELS]
        return _BoundReplica(bound, *copies, loss, scores, others[0] if others else loss)


def replicas(
    net: gluon.HybridBlock,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    ctxs: List[mx.Context],
    convert: Conversion = as_it_is,
) -> List[GraphReplica]:
    """One compiled copy of ``net`` for each device."""
    graph = scoring = loss_graph(net, loss, preprocess, convert)
    if label_columns(loss):
        scoring = loss_graph(net, scoring_loss(loss), preprocess, convert)
    params = {**net.collect_params(), **constants_of(loss)}
    return [GraphReplica(graph, params, ctx, scoring) for ctx in ctxs]
