"""Random parameters for any network, as healthy as trained ones.

With initial parameters and the statistics 0 and 1, deep residual networks multiply their
activations from block to block, and with them what rounding leaves, up to any size: two libraries
that both compute rightly then differ. Here every BatchNorm has the statistics of what goes into it.
MXNet's own random numbers are left alone.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.export.unfused import outputs
from gluonlab.models.graphs import parsed, to_symbol

IMAGES = 4  # of which the statistics are taken


def drawn_parameters(
    graph: mx.sym.Symbol, image_shape: Tuple[int, ...], name: str = "data", seed: int = 0
) -> Dict[str, nd.NDArray]:
    """Float32 values on the CPU for all arguments of ``graph`` but the input ``name``, and states.

    ``image_shape``: (C, H, W).
    """
    random = np.random.RandomState(seed)
    shapes, _, states = graph.infer_shape(**{name: (1, *image_shape)})
    shaped = {
        **dict(zip(graph.list_arguments(), shapes)),
        **dict(zip(graph.list_auxiliary_states(), states)),
    }
    del shaped[name]
    arrays = {each: nd.array(_drawn(random, each, shape)) for each, shape in shaped.items()}
    images = random.normal(size=(IMAGES, *image_shape)).astype("float32")
    _settle_statistics(graph, arrays, name, nd.array(images))
    return arrays


def _drawn(random: Any, name: str, shape: Tuple[int, ...]) -> Any:
    if name.endswith("weight"):
        return random.normal(size=shape) * (2 / math.prod(shape[1:])) ** 0.5
    if name.endswith(("gamma", "running_var")):
        return random.uniform(0.5, 1.5, shape)
    return random.uniform(-0.5, 0.5, shape)


def _settle_statistics(
    graph: mx.sym.Symbol, arrays: Dict[str, nd.NDArray], name: str, images: nd.NDArray
) -> None:
    """Give each BatchNorm the mean and variance of its input for these images, while training."""
    whole = parsed(graph)
    nodes = whole["nodes"]
    for node in nodes:
        if node["op"] == "Dropout":  # which would draw from MXNet's random numbers
            node["attrs"] = {**node["attrs"], "p": "0"}
    norms = [node["inputs"] for node in nodes if node["op"] == "BatchNorm"]
    if not norms:
        return
    inputs = to_symbol(nodes, [entries[0] for entries in norms], whole["attrs"])
    for entries, seen in zip(norms, outputs(inputs, arrays, name, images, is_train=True)):
        values = seen.asnumpy()
        mean, variance = (nodes[entries[place][0]]["name"] for place in (3, 4))
        axes = (0, *range(2, values.ndim))
        arrays[mean][:] = values.mean(axis=axes)
        arrays[variance][:] = values.var(axis=axes) + 1e-3
