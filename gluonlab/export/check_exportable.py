"""Checks, before training, that a network can be exported to ONNX."""

from __future__ import annotations

import importlib
import math
from typing import Any, Dict, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.config.option_checks import ONNX
from gluonlab.engine.mxnet_and_cuda_libraries import pip_install_command
from gluonlab.errors import ConfigError, ModelError, RunError
from gluonlab.export.onnx_graph import INPUT, check_onnx, compute_outputs, to_onnx
from gluonlab.models import get_model
from gluonlab.models.symbol_graph import parse_graph, to_symbol

ONNX_PACKAGES = ("onnx", "onnxruntime")
CHECK_BATCHES = (1, 2)


def check_onnx_installed(format: Optional[str]) -> None:
    """Raise ConfigError if ``format`` is ONNX and ONNX's packages cannot be imported.

    The message contains the command that installs these packages.
    """
    for name in ONNX_PACKAGES if format == ONNX else ():
        try:
            importlib.import_module(name)
        except Exception as error:  # also incompatible versions of other packages
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            reason = "not installed" if missing else f"broken ({' '.join(str(error).split())})"
            raise ConfigError(
                f"--export onnx needs {' and '.join(ONNX_PACKAGES)}, but {name} is {reason}: "
                f"run {pip_install_command('onnx')}, or use --export mxnet"
            ) from None


def check_onnx_export(
    format: Optional[str],
    model: str,
    classes: int,
    image_shape: Tuple[int, int, int],
    plain: Optional[gluon.HybridBlock] = None,
) -> None:
    """Raise ModelError if the network ``model`` cannot be exported to ONNX.

    The network is exported with random parameters, and the scores of the ONNX model are compared
    with MXNet's. If the format is not ONNX, the function does nothing. It does not use MXNet's
    random numbers.

    ``plain``: the network, if it is the user's own and not one of gluonlab's networks. Its
    parameters do not change.
    """
    if format != ONNX:
        return
    graph = (get_model(model, classes) if plain is None else plain)(mx.sym.var(INPUT))
    arrays = random_parameters(graph, image_shape, INPUT)
    images = np.random.RandomState(1).normal(size=(sum(CHECK_BATCHES), *image_shape)).astype("float32")
    try:
        content = to_onnx(graph, arrays, image_shape, model)
        # Untrained, some networks, such as gluoncv's resnest101, have huge rounding errors.
        check_onnx(content, graph, arrays, images, CHECK_BATCHES, max_difference=math.inf)
    except RunError as error:
        raise ModelError(f"--export onnx: {model} cannot be exported: {error}") from None


STATISTICS_IMAGES = 4  # from which the statistics are computed


def random_parameters(
    graph: mx.sym.Symbol, image_shape: Tuple[int, ...], name: str = "data", seed: int = 0
) -> Dict[str, nd.NDArray]:
    """Draw random parameters for which activations are about as large as in a trained network.

    In a deep residual network with newly initialized parameters and running statistics, the
    activations grow from block to block. Rounding errors grow by the same factor, so the results of
    two correct libraries differ. Therefore, this function sets the running statistics of every
    BatchNorm to the statistics of the layer's input. The function does not use MXNet's random
    numbers.

    ``image_shape``: (C, H, W). ``name``: the input of ``graph``. Returns a dictionary from the
    names of all other arguments, and of all states, to float32 arrays on the CPU.
    """
    random = np.random.RandomState(seed)
    shapes, _, states = graph.infer_shape(**{name: (1, *image_shape)})
    shape_by_name = {**dict(zip(graph.list_arguments(), shapes)), **dict(zip(graph.list_auxiliary_states(), states))}
    del shape_by_name[name]
    arrays = {variable: nd.array(_random_array(random, variable, shape)) for variable, shape in shape_by_name.items()}
    images = random.normal(size=(STATISTICS_IMAGES, *image_shape)).astype("float32")
    _set_batch_norm_statistics(graph, arrays, name, nd.array(images))
    return arrays


def _random_array(random: Any, name: str, shape: Tuple[int, ...]) -> Any:
    """Draw the values of a parameter; their distribution depends on the parameter's name."""
    if name.endswith("weight"):
        return random.normal(size=shape) * (2 / math.prod(shape[1:])) ** 0.5
    if name.endswith(("gamma", "running_var")):
        return random.uniform(0.5, 1.5, shape)
    return random.uniform(-0.5, 0.5, shape)


def _set_batch_norm_statistics(
    graph: mx.sym.Symbol, arrays: Dict[str, nd.NDArray], name: str, images: nd.NDArray
) -> None:
    """Set each BatchNorm's mean and variance to the statistics of its input for ``images``."""
    parts = parse_graph(graph)
    nodes = parts["nodes"]
    for node in nodes:
        if node["op"] == "Dropout":  # so that MXNet's random numbers are not used
            node["attrs"] = {**node["attrs"], "p": "0"}
    norms = [node["inputs"] for node in nodes if node["op"] == "BatchNorm"]
    if not norms:
        return
    inputs = to_symbol(nodes, [entries[0] for entries in norms], parts["attrs"])
    for entries, norm_input in zip(norms, compute_outputs(inputs, arrays, name, images, is_train=True)):
        values = norm_input.asnumpy()
        mean, variance = (nodes[entries[position][0]]["name"] for position in (3, 4))
        axes = (0, *range(2, values.ndim))
        arrays[mean][:] = values.mean(axis=axes)
        arrays[variance][:] = values.var(axis=axes) + 1e-3
