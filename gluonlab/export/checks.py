"""Whether a network can be exported, asked before it is trained."""

from __future__ import annotations

import importlib
import math
from typing import Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluonlab.config.values import ONNX
from gluonlab.engine.installation import pip_install
from gluonlab.errors import ConfigError, ModelError, RunError
from gluonlab.export.drawn import drawn_parameters
from gluonlab.export.onnx_check import check_onnx
from gluonlab.export.onnx_graph import INPUT, INSTEAD, to_onnx
from gluonlab.models import get_model

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
                f"{pip_install('onnx')}, or leave onnx out"
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
