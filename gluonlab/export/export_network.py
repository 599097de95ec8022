"""Exports a trained network to files that can be used without gluonlab.

- MXNet files, which ``mx.gluon.SymbolBlock.imports``, Module and the C++ interface can read.
- An ONNX file, which can be used without MXNet.
- model.json, which describes the input and output.

The graph is the original network, as it was before any rewrites for devices. Its input is a batch
of float32 images with values from 0 to 1, like the output of Gluon's ``transforms.ToTensor``. If
the data set has a normalization, these images must also be normalized.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Optional

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.config.option_checks import MXNET, ONNX
from gluonlab.data.sets.dataset import Dataset, image_dtype
from gluonlab.errors import RunError
from gluonlab.export.mx2onnx import OPSET
from gluonlab.export.onnx_graph import CHECK_BATCHES, INPUT, OUTPUT, Agreement, check_onnx, to_onnx
from gluonlab.files.array_files import save_arrays
from gluonlab.files.atomic_files import atomic_path, raise_output_errors, write_text
from gluonlab.models import get_model

SYMBOL, WEIGHTS, DESCRIPTION = "model-symbol.json", "model-0000.params", "model.json"
ONNX_FILE = "model.onnx"
WHITE = 255  # the brightest pixel


def write_export(
    net: gluon.HybridBlock,
    model: str,
    dataset: Dataset,
    folder: Path,
    plain: Optional[gluon.HybridBlock] = None,
    format: str = MXNET,
) -> Optional[Agreement]:
    """Write the graph, the parameters and a description of a network to a folder.

    If the format is ONNX, this function also writes an ONNX model, after comparing its scores with
    MXNet's on validation images. An ONNX model from an earlier call is removed.

    Args:
        net: The trained network, which may have been rewritten for devices.
        model: Name of the network.
        dataset: The data set on which the network was trained.
        folder: The folder, which is created if necessary.
        plain: The original network, if it is the user's own and not one of gluonlab's networks.
        format: MXNET or ONNX.

    Returns:
        How well the ONNX model agrees with the network, or None if the format is not ONNX.

    Raises:
        OutputError: A file cannot be written.
        ModelError, RunError: The ONNX model cannot be created, or its scores differ from MXNet's.
            The other files are still written.
    """
    plain = get_model(model, len(dataset.classes)) if plain is None else plain
    graph = plain(mx.sym.var(INPUT))
    trained = net._collect_params_with_prefix()
    values = {param.name: trained[key].list_data()[0] for key, param in plain._collect_params_with_prefix().items()}
    arrays = {f"arg:{name}": values[name] for name in graph.list_arguments() if name != INPUT}
    arrays.update({f"aux:{name}": values[name] for name in graph.list_auxiliary_states()})
    description = _describe_export(model, dataset)
    with raise_output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with raise_output_errors(folder / ONNX_FILE):
        (folder / ONNX_FILE).unlink(missing_ok=True)
    write_text(folder / SYMBOL, graph.tojson())
    save_arrays(folder / WEIGHTS, arrays)
    write_text(folder / DESCRIPTION, _to_json(description))
    if format != ONNX:
        return None
    host_values = {name: value.as_in_context(mx.cpu()) for name, value in values.items()}
    agreement = _write_onnx(graph, host_values, model, dataset, folder / ONNX_FILE)
    with_onnx = {**description, "onnx": _describe_onnx(agreement)}
    write_text(folder / DESCRIPTION, _to_json(with_onnx))
    return agreement


def _write_onnx(
    graph: mx.sym.Symbol, arrays: Dict[str, nd.NDArray], model: str, dataset: Dataset, path: Path
) -> Agreement:
    """Write an ONNX model, and return how closely it agrees with MXNet on validation images.

    If the scores differ or cannot be computed, raises RunError and writes no file.
    """
    content = to_onnx(graph, arrays, dataset.image_shape, model)
    with raise_output_errors(path), atomic_path(path) as temporary:
        temporary.write_bytes(content)
        try:
            agreement = check_onnx(temporary, graph, arrays, _sample_validation_images(dataset))
            # a small validation set is repeated
            return agreement._replace(images=min(agreement.images, len(dataset.test)))
        except RunError as error:
            raise RunError(f"{path} was not written: {error}; MXNet's own files are in the same folder") from None


def _sample_validation_images(dataset: Dataset) -> Any:
    """Return evenly spaced validation images as input for the network: float32, (n, C, H, W).

    If the validation set is small, images are repeated.
    """
    indices = np.linspace(0, len(dataset.test) - 1, sum(CHECK_BATCHES)).astype("int64")
    pixels, _ = dataset.test.batch(indices)
    mean, std = (np.array(values, "float32").reshape(-1, 1, 1) for values in _mean_and_std(dataset))
    return ((pixels.astype("float32") / WHITE - mean) / std).astype("float32")


def _mean_and_std(dataset: Dataset) -> Any:
    """Return each channel's mean and standard deviation: 0 and 1 if images are not normalized."""
    channels = dataset.image_shape[0]
    return dataset.normalization or ((0.0,) * channels, (1.0,) * channels)


def _describe_export(model: str, dataset: Dataset) -> Dict[str, Any]:
    """Return the content of model.json."""
    is_float = image_dtype(dataset.train) != "uint8"
    values = "floats like the run's" if is_float else "pixels divided by 255"
    if dataset.normalization is not None:
        values += ", minus mean, divided by std, by channel"
    elif not is_float:
        values = f"0 to 1: {values}"
    mean, std = _mean_and_std(dataset)
    return {
        "model": model,
        "symbol": SYMBOL,
        "parameters": WEIGHTS,
        "input": {
            "name": INPUT,
            "shape": [None, *dataset.image_shape],
            "layout": "NCHW",
            "channels": {1: "gray", 3: "red, green, blue"}.get(dataset.image_shape[0], "unnamed"),
            "dtype": "float32",
            "values": values,
            "scale": 1.0 if is_float else 1 / WHITE,
            "mean": list(mean),
            "std": list(std),
        },
        "output": {"shape": [None, len(dataset.classes)], "values": "scores; their softmax are probabilities"},
        "classes": list(dataset.classes),
    }


def _describe_onnx(agreement: Agreement) -> Dict[str, Any]:
    """Return the part of model.json that describes the ONNX model."""
    return {
        "file": ONNX_FILE,
        "opset": OPSET,
        "output": OUTPUT,
        "val_images": agreement.images,
        "batches": list(agreement.batches),
        "largest_difference": agreement.difference,
    }


def _to_json(description: Dict[str, Any]) -> str:
    return json.dumps(description, indent=2) + "\n"
