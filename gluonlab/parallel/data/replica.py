"""One device's copy of a network and its loss, compiled: forward and backward are two calls each.

The graph of net and loss is bound once to the parameters' own arrays, for each shard size that
occurs (a full one, and those of the last batch of an epoch). Running it costs the host a tenth of
what Gluon's recording and backward cost, because nothing is traced, checked or allocated again; on
small batches that is the difference between waiting for Python and not.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.invoke import CopyInto
from gluonlab.engine.setup import gpu_pieces
from gluonlab.models.odd_concat import plain_where_channels_are_odd
from gluonlab.models.one_pixel import dense_where_one_pixel
from gluonlab.models.whole_average import product_where_all_is_averaged
from gluonlab.parallel.data.adding import adding_rightly
from gluonlab.parallel.objective import MixedLoss, SmoothedCrossEntropy, make_loss
from gluonlab.parallel.precision import Conversion, as_it_is

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
    images, labels = mx.sym.var(IMAGES), mx.sym.var(LABELS)
    scores = convert(net(preprocess(mx.sym, images)))  # (n, classes)
    outputs = [loss(scores, labels).sum(), mx.sym.BlockGrad(scores)]
    if isinstance(loss, SmoothedCrossEntropy):
        outputs.append(mx.sym.BlockGrad(loss.unsmoothed(scores, labels).sum()))
    return mx.sym.Group(outputs)


def fitted(
    graph: mx.sym.Symbol, ctx: mx.Context, images: Tuple[int, ...], labels: Tuple[int, ...]
) -> mx.sym.Symbol:
    """A `loss_graph` in the form that is right and fastest for these shapes on such a device."""
    if ctx.device_type == "gpu":
        return graph  # it is all about oneDNN
    inputs = {IMAGES: images, LABELS: labels}
    graph = plain_where_channels_are_odd(graph, inputs)
    return dense_where_one_pixel(product_where_all_is_averaged(graph, inputs), inputs)


class Heads:
    """d(loss) / d(outputs), with which backward begins: 1, or the scale of the loss.

    Made once instead of in every step. ``losses``: the places of the losses among the ``outputs``;
    nothing else that leaves the graph has gradients.
    """

    def __init__(self, outputs: Sequence[nd.NDArray], losses: Sequence[int]) -> None:
        # keeps the handles alive
        self.arrays = [nd.zeros(output.shape, output.context, output.dtype) for output in outputs]
        self._losses, self._scale = [self.arrays[loss] for loss in losses], 0.0
        self.fill(1.0)
        self.count = len(self.arrays)
        self.handles = (ctypes.c_void_p * self.count)(*[array.handle for array in self.arrays])

    def fill(self, scale: float) -> None:
        """Let backward begin with this number; what is queued already has the former one."""
        if scale != self._scale:
            for array in self._losses:
                array[:] = scale
            self._scale = scale


class _BoundGraph(NamedTuple):
    """A graph bound to arrays: how to fill its inputs, how to run it, and what it leaves behind."""

    executor: Any
    images: CopyInto
    labels: CopyInto
    loss: nd.NDArray
    scores: nd.NDArray
    unsmoothed: nd.NDArray
    heads: Heads


class Replica:
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
        names = [name for name in graph.list_arguments() if name not in (IMAGES, LABELS)]
        self._args = {name: params[name].data(ctx) for name in names}
        self._aux = {name: params[name].data(ctx) for name in graph.list_auxiliary_states()}
        self._req = {name: params[name].grad_req for name in names}
        self._grads = {name: params[name].grad(ctx) for name in names if self._req[name] != "null"}
        self._bound: Dict[Tuple[Any, ...], _BoundGraph] = {}
        # The graphs run one after the other: all lay their activations into the memory that the
        # first one (and, where that is not large enough, a later one) has taken. What a graph
        # leaves behind is lost when the next one runs.
        self._memory: Any = None
        self._last: "_BoundGraph | None" = None
        self._train = True

    def forward(
        self, images: nd.NDArray, labels: nd.NDArray, train: bool = True, add: bool = False
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """The sum of losses (1,) and the scores (n, classes), until the next call.

        ``train``: as in autograd.record(train_mode=...), for layers that differ, such as Dropout.
        Labels are not smoothed without. ``add``: `backward` will add to the gradients that are
        there, instead of replacing them.
        """
        if train != self._train:
            # operators look at the mode when they run: those still queued must not see the new one
            self._wait()
            self._train = train
        bound = self._for(images, labels, add)
        bound.images.copy(images)
        bound.labels.copy(labels)
        check_call(_LIB.MXExecutorForward(bound.executor.handle, int(train)))
        self._last = bound
        return bound.loss if train else bound.unsmoothed, bound.scores

    def _wait(self) -> None:
        """Wait for what this replica has queued, and for nobody else's work."""
        if self._last is not None:
            for array in (*self._grads.values(), self._last.loss, self._last.scores):
                array.wait_to_read()

    def backward(self, scale: float = 1.0) -> None:
        """Write the gradients of the last forward's loss, times ``scale``, for the parameters."""
        assert self._last is not None, "forward comes first"
        executor, heads = self._last.executor, self._last.heads
        heads.fill(scale)
        check_call(_LIB.MXExecutorBackwardEx(executor.handle, heads.count, heads.handles, 1))

    def _for(self, images: nd.NDArray, labels: nd.NDArray, add: bool) -> _BoundGraph:
        key = (images.shape, images.dtype, labels.dtype, add)
        if key not in self._bound:
            self._bound[key] = self._bind(images, labels, add)
        return self._bound[key]

    def _bind(self, images: nd.NDArray, labels: nd.NDArray, add: bool) -> _BoundGraph:
        inputs = {
            IMAGES: nd.empty(images.shape, self.ctx, images.dtype),
            LABELS: nd.empty(labels.shape, self.ctx, labels.dtype),
        }
        # Evaluation runs on the graph of training, too: a graph without gradients would be handed
        # to MXNet's oneDNN fusion, which keeps a copy of the weights and goes on computing with it
        # after they have changed.
        requests = {**self._req, IMAGES: "null", LABELS: "null"}
        requests.update(dict.fromkeys(self._grads, "add") if add else {})
        graph = self.scoring if len(labels.shape) == 1 else self.graph
        graph = fitted(graph, self.ctx, images.shape, labels.shape)
        if "add" in requests.values():
            graph = adding_rightly(graph, self._grads)
        with gpu_pieces() if self.ctx.device_type == "gpu" else nullcontext():
            executor = graph.bind(
                self.ctx, {**self._args, **inputs}, args_grad=dict(self._grads), grad_req=requests,
                aux_states=dict(self._aux), shared_exec=self._memory,
            )  # fmt: skip
        self._memory = self._memory or executor
        loss, scores, *others = executor.outputs
        unsmoothed, heads = others[0] if others else loss, Heads(executor.outputs, [0])
        copies = CopyInto(inputs[IMAGES]), CopyInto(inputs[LABELS])
        return _BoundGraph(executor, *copies, loss, scores, unsmoothed, heads)


def replicas(
    net: gluon.HybridBlock,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    ctxs: List[mx.Context],
    convert: Conversion = as_it_is,
) -> List[Replica]:
    """One compiled copy of ``net`` for each device."""
    graph = scoring = loss_graph(net, loss, preprocess, convert)
    if isinstance(loss, MixedLoss):
        scoring = loss_graph(net, make_loss(), preprocess, convert)
    params = dict(net.collect_params().items())
    return [Replica(graph, params, ctx, scoring) for ctx in ctxs]
