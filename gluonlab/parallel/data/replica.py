"""Compiles the graph of a network with its loss, and runs it on one device."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.engine.fast_invoke import AddInto, CopyInto, ShapeAndTypeReader
from gluonlab.models.symbol_graph import require_single_output
from gluonlab.parallel.compiled_graph import BoundGraph, CompiledGraph
from gluonlab.parallel.mixed_precision import Conversion, keep_float32
from gluonlab.parallel.training_loss import SmoothedCrossEntropy, label_columns, loss_parameters, scoring_loss

IMAGES, LABELS = "gluonlab_images", "gluonlab_labels"


def loss_graph(
    net: gluon.HybridBlock,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion = keep_float32,
) -> mx.sym.Symbol:
    """Return the graph that computes the sum of losses (1,) and the scores (n, classes).

    The inputs of the graph are images and labels. If ``loss`` has label smoothing, a third output
    is the sum of the unsmoothed losses (1,). ``convert`` may change the network's computation
    types; scores and losses are float32.
    """
    scores = net(preprocess(mx.sym, mx.sym.var(IMAGES)))
    return append_loss(convert(require_single_output(scores, type(net).__name__)), loss)


def append_loss(scores: mx.sym.Symbol, loss: gluon.HybridBlock) -> mx.sym.Symbol:
    """Append the loss to the graph of the scores (n, classes).

    The outputs are the same as for `loss_graph`.
    """
    labels = mx.sym.var(LABELS)
    outputs = [loss(scores, labels).sum(), mx.sym.BlockGrad(scores)]
    if isinstance(loss, SmoothedCrossEntropy):
        outputs.append(mx.sym.BlockGrad(loss.unsmoothed(scores, labels).sum()))
    return mx.sym.Group(outputs)


class _BoundReplica(NamedTuple):
    """A graph bound to images and labels."""

    bound: BoundGraph
    images: CopyInto
    labels: CopyInto
    loss: nd.NDArray
    scores: nd.NDArray
    unsmoothed: nd.NDArray


class GraphReplica:
    """Runs a `loss_graph` on one device, on which ``params`` are already initialized.

    ``scoring``: a second graph, for labels of shape (n,). This graph is required if the labels of
    ``graph`` have another shape.
    """

    def __init__(
        self,
        graph: mx.sym.Symbol,
        params: Dict[str, gluon.Parameter],
        ctx: mx.Context,
        scoring: Optional[mx.sym.Symbol] = None,
    ) -> None:
        self.graph, self.scoring_graph, self.ctx = graph, graph if scoring is None else scoring, ctx
        self._compiled = CompiledGraph(graph, params, ctx, losses=[0])
        self._bound: Dict[Tuple[Any, ...], _BoundReplica] = {}
        self._last: "_BoundReplica | None" = None
        self._kinds = ShapeAndTypeReader()

    def forward(
        self, images: nd.NDArray, labels: nd.NDArray, train: bool = True, accumulate: bool = False, hook: Any = None
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """Queue a forward pass. Return the sum of losses (1,) and the scores (n, classes).

        The next call overwrites both arrays.

        Args:
            images: Images of a microbatch.
            labels: Labels of the images.
            train: Mode for layers such as Dropout, as in autograd.record(train_mode=...). If
                False, the loss is unsmoothed.
            accumulate: Whether `backward` adds to the gradients instead of overwriting them.
            hook: Unused, since a pass on one device contains no allreduce.
        """
        last = self._last = self._get_bound(images, labels, accumulate)
        last.images.copy(images)
        last.labels.copy(labels)
        self._compiled.forward(last.bound, train)
        return last.loss if train else last.unsmoothed, last.scores

    def backward(self, scale: float = 1.0, hook: Any = None) -> None:
        """Queue the backward pass of the last `forward`, for the loss times ``scale``."""
        assert self._last is not None, "call forward before backward"
        bound = self._last.bound
        bound.heads.set_loss_scale(scale)
        self._compiled.backward(bound)

    def _get_bound(self, images: nd.NDArray, labels: nd.NDArray, accumulate: bool) -> _BoundReplica:
        """Return a graph bound to inputs with the shapes and types of ``images`` and ``labels``.

        The first call for each shape and type binds a graph.
        """
        kinds = self._kinds
        key = (kinds.read_shape(images), kinds.read_type_number(images), kinds.read_type_number(labels), accumulate)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(images, labels, accumulate)
        return bound

    def _bind(self, images: nd.NDArray, labels: nd.NDArray, accumulate: bool) -> _BoundReplica:
        """Bind the graph to new arrays with the shapes and types of ``images`` and ``labels``."""
        graph = self.scoring_graph if len(labels.shape) == 1 else self.graph
        bound = self._compiled.bind({IMAGES: images, LABELS: labels}, accumulate, graph=graph)
        loss, scores, *others = bound.outputs
        copies = bound.inputs[IMAGES], bound.inputs[LABELS]
        return _BoundReplica(bound, *copies, loss, scores, others[0] if others else loss)


def make_replicas(
    net: gluon.HybridBlock,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    ctxs: List[mx.Context],
    convert: Conversion = keep_float32,
) -> List[GraphReplica]:
    """Create one compiled replica of ``net`` on each device."""
    graph = scoring = loss_graph(net, loss, preprocess, convert)
    if label_columns(loss):
        scoring = loss_graph(net, scoring_loss(loss), preprocess, convert)
    params = {**net.collect_params(), **loss_parameters(loss)}
    return [GraphReplica(graph, params, ctx, scoring) for ctx in ctxs]


class LossAccumulator:
    """Sums the losses of a shard's microbatches, on each device."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        self.totals = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]
        self._start = [CopyInto(total) for total in self.totals]
        self._add = [AddInto(total) for total in self.totals]

    def add(self, device: int, loss: nd.NDArray, first: bool) -> nd.NDArray:
        """Add ``loss`` to the device's sum of losses, and return the sum.

        ``first``: whether to start a new sum. Later calls overwrite the returned array.
        """
        if first:
            self._start[device].copy(loss)
        else:
            self._add[device].add(loss)
        return self.totals[device]
