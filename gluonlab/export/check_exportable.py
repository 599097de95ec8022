"""Whether a network can be exported, asked before it is trained."""

from __future__ import annotations

import importlib
import math
from typing import Any, Dict, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.config.option_types import ONNX
from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.errors import ConfigError, ModelError, RunError
from gluonlab.export.onnx_graph import INPUT, INSTEAD, check_onnx, outputs, to_onnx
from gluonlab.models import get_model
from gluonlab.models.symbol_graph import parsed, to_symbol

NEEDED = ("onnx", "onnxruntime")
BATCHES = (1, 2)


def check_installed(format: Optional[str]) -> None:
    """Raise ConfigError, with the command that cures it, where ONNX's packages are missing."""
    for name in NEEDED if format == ONNX else ():
        try:
            importlib.import_module(name)
        except Exception as error:  # of others' packages that do not go together, too
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            why = "not installed" if missing else f"broken here ({' '.join(str(error).split())})"
            raise ConfigError(
                f"--export onnx needs {' and '.join(NEEDED)}, and {name} is {why}: "
                f"{pip_install_command('onnx')}, or leave onnx out"
            ) from None


def check_network(
    format: Optional[str],
    model: str,
    classes: int,
    image_shape: Tuple[int, int, int],
    plain: Optional[gluon.HybridBlock] = None,
) -> None:
    """Export the network ``model`` with random parameters, and compare it, as after training.

    ``plain``: the network as written, where ``model`` does not name it; its parameters stay. Raises
    ModelError where that fails. Draws none of MXNet's random numbers.
    """
    if format != ONNX:
        return
    graph = (get_model(model, classes) if plain is None else plain)(mx.sym.var(INPUT))
    arrays = drawn_parameters(graph, image_shape, INPUT)
    images = np.random.RandomState(1).normal(size=(sum(BATCHES), *image_shape)).astype("float32")
    try:
        made = to_onnx(graph, arrays, image_shape, model)
        # some, such as gluoncv's resnest101, round beyond all measure as long as they are untrained
        check_onnx(made, graph, arrays, images, BATCHES, most=math.inf)
    except RunError as error:
        raise ModelError(f"--export onnx: {model} cannot be exported: {error}: {INSTEAD}") from None


IMAGES = 4  # of which the statistics are taken


def drawn_parameters(
    graph: mx.sym.Symbol, image_shape: Tuple[int, ...], name: str = "data", seed: int = 0
) -> Dict[str, nd.NDArray]:
    """Random parameters for any network, as healthy as trained ones.

    With initial parameters and the statistics 0 and 1, deep residual networks multiply their
    activations from block to block, and with them what rounding leaves, up to any size: two
    libraries that both compute rightly then differ. Here every BatchNorm has the statistics of what
    goes into it. MXNet's own random numbers are left alone.

    ``image_shape``: (C, H, W). Returns float32 values on the CPU for all arguments of ``graph`` but
    the input ``name``, and for its states.
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
