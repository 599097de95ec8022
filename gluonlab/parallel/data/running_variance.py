"""One meaning of BatchNorm's running variance on all devices: by which batches were normalised.

Of n values per channel MXNet's CPU operators, and `gluonlab.parallel.data.sync_bn`, keep the sum of
squares divided by n; so does evaluation then what training did. cuDNN keeps it divided by n - 1
(its documentation of cudnnBatchNormalizationForwardTraining; PyTorch, too), which is n / (n - 1)
times as much: a lot where a device has few images of few pixels. Here cuDNN's is brought back.

Nothing is computed in a step for that. While every pass has the same n, after k of them

    running = m^k start + n / (n - 1) (running with n - m^k start)

where m is the layer's momentum and start what there was before. So the variances are remembered
when n changes, which is at the last batch of an epoch, and put right when it changes again, or the
epoch ends.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon, nd

from gluonlab.engine.invoke import between_passes
from gluonlab.models.graphs import Node, outputs_in, parsed

IMAGES = "data"


class _Pass(NamedTuple):
    """A batch in a BatchNorm layer: the layer's momentum, and the values of each channel."""

    momentum: float
    values: int


class CudnnVariances:
    """Puts right what cuDNN keeps as running variances of a network, or its part, on one GPU.

    ``graph``: the network's, of the images called "data". Raises nothing; its work is queued, and
    nothing waits.
    """

    def __init__(
        self, graph: mx.sym.Symbol, params: "gluon.ParameterDict", ctx: mx.Context
    ) -> None:
        nodes = parsed(graph)["nodes"]
        self._graph = graph
        layers = [(node, nodes[node["inputs"][4][0]]["name"]) for node in nodes if _is_cudnns(node)]
        here = [(node, name) for node, name in layers if ctx in params[name].list_ctx()]
        self._layers = [node for node, _ in here]
        self._names = [name for _, name in here]
        self._running = {name: params[name].data(ctx) for name in self._names}
        known = [name for name in graph.list_arguments() if name in params]
        self._shapes = {name: params[name].shape for name in known}
        self._start: Dict[str, nd.NDArray] = {}
        self._batch: Tuple[Tuple[int, ...], ...] = ()  # the shapes of the parts of a step
        self._steps = 0
        self._seen: Dict[Tuple[int, ...], Dict[str, List[_Pass]]] = {}

    def before_step(self, parts: Sequence[Tuple[int, ...]]) -> None:
        """Note that the network is about to be trained on parts (n, C, H, W) of these shapes."""
        if tuple(parts) != self._batch:
            self.settle()
            self._batch = tuple(parts)
            with autograd.pause(), between_passes(list(self._running.values())):
                self._start = {name: array.copy() for name, array in self._running.items()}
        self._steps += 1

    def settle(self) -> None:
        """Have the variances right, as they are to be read or changed by others."""
        if self._steps:
            with autograd.pause():
                for name, running in self._running.items():
                    passes = [seen for shape in self._batch for seen in self._passes(shape)[name]]
                    _put_right(running, self._start[name], passes, self._steps)
        self._batch, self._start, self._steps = (), {}, 0

    def state(self) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """What it remembers: the variances there were before, copied to the CPU, and since when."""
        start = {name: array.copyto(mx.cpu()) for name, array in self._start.items()}
        return start, {"batch": [list(shape) for shape in self._batch], "steps": self._steps}

    def restore(self, start: Mapping[str, nd.NDArray], counts: Mapping[str, Any]) -> None:
        """Go on from a `state`, whose ``start`` may know more variances than are here."""
        self._batch = tuple(tuple(shape) for shape in counts["batch"])
        self._steps = counts["steps"]
        self._start = {
            name: start[name].as_in_context(running.context)
            for name, running in self._running.items()
            if name in start
        }

    def _passes(self, shape: Tuple[int, ...]) -> Dict[str, List[_Pass]]:
        """For each running variance, the passes through its layers in a part of this shape."""
        if shape not in self._seen:
            outputs = outputs_in(self._graph, {**self._shapes, IMAGES: shape})
            found: Dict[str, List[_Pass]] = {name: [] for name in self._names}
            for node, name in zip(self._layers, self._names):
                own, attrs = f"{node['name']}_output", node.get("attrs", {})
                seen = next(made for output, made in outputs if output == own)
                values = math.prod(seen) // seen[int(attrs.get("axis", 1))]
                found[name].append(_Pass(float(attrs.get("momentum", 0.9)), values))
            self._seen[shape] = found
        return self._seen[shape]


def kept_share(passes: Sequence[_Pass]) -> float:
    """The ratio of the passes' variances, divided by n, to cuDNN's; 0 where it has none to divide.

    Exact where all have the same n; else that of passes which vary equally. The variance of one
    value is 0 either way.
    """
    plain = unbiased = 0.0
    for momentum, values in passes:
        plain, unbiased = plain * momentum, unbiased * momentum  # earlier ones fade
        if values > 1:
            plain += 1 - momentum
            unbiased += (1 - momentum) * values / (values - 1)
    return plain / unbiased if unbiased else 0.0


def _put_right(running: nd.NDArray, start: nd.NDArray, passes: Sequence[_Pass], steps: int) -> None:
    """running = share * running + (1 - share) * faded * start, in one operation."""
    share, faded = kept_share(passes), math.prod(momentum for momentum, _ in passes) ** steps
    if not share:  # nothing but 0 came, whatever cuDNN makes of 0 / 0
        nd.sgd_update(start, start, lr=1, wd=1 - faded, rescale_grad=0, out=running)
        return
    # the update of SGD: weight -= lr * (wd * weight + rescale_grad * gradient)
    rescale = -(1 - share) * faded
    nd.sgd_update(running, start, lr=1, wd=1 - share, rescale_grad=rescale, out=running)


def _is_cudnns(node: Node) -> bool:
    attrs = node.get("attrs", {})
    mxnets = any(attrs.get(name) in ("True", "1") for name in ("use_global_stats", "cudnn_off"))
    return bool(node["op"] == "BatchNorm" and not mxnets)
