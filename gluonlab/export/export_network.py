"""A trained network as files that need no gluonlab.

``mx.gluon.SymbolBlock.imports``, Module and the C++ interface read MXNet's own; what reads ONNX
needs no MXNet, either. The graph is the plain network's, as written, not as it was laid out for
some devices; it takes float32 images whose values go from 0 to 1, as Gluon's
``transforms.ToTensor`` makes them, or normalised by the data set's colours where it has any.
model.json says so to whoever finds the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Optional

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.config.option_types import MXNET, ONNX
from gluonlab.data.sets.dataset import Dataset, image_dtype
from gluonlab.errors import RunError
from gluonlab.export.mx2onnx import OPSET
from gluonlab.export.onnx_graph import BATCHES, INPUT, OUTPUT, Agreement, check_onnx, to_onnx
from gluonlab.files.array_files import save_arrays
from gluonlab.files.atomic_files import atomic_path, raise_output_errors, write_text
from gluonlab.models import get_model

SYMBOL, WEIGHTS, DESCRIPTION = "model-symbol.json", "model-0000.params", "model.json"
MODEL = "model.onnx"
WHITE = 255  # the brightest pixel


def export(
    net: gluon.HybridBlock,
    model: str,
    dataset: Dataset,
    folder: Path,
    plain: Optional[gluon.HybridBlock] = None,
    format: str = MXNET,
) -> Optional[Agreement]:
    """Write ``net``, `get_model`'s ``model`` for ``dataset``.

    ``plain``: the network as written, where ``model`` does not name it. The replicas are equal.
    Into ``folder``, made if need be: the graph, the parameters, and a description; with the
    ``format`` ONNX the ONNX model, too, if on test images it gives MXNet's scores: how nearly is
    returned. Another network's ONNX model is removed. Raises OutputError, and for a model that is
    not written ModelError or RunError; the other files are there then.
    """
    plain = get_model(model, len(dataset.classes)) if plain is None else plain
    graph = plain(mx.sym.var(INPUT))
    trained = net._collect_params_with_prefix()
    values = {
        param.name: trained[place].list_data()[0]
        for place, param in plain._collect_params_with_prefix().items()
    }
    arrays = {f"arg:{name}": values[name] for name in graph.list_arguments() if name != INPUT}
    arrays.update({f"aux:{name}": values[name] for name in graph.list_auxiliary_states()})
    description = _description(model, dataset)
    with raise_output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with raise_output_errors(folder / MODEL):
        (folder / MODEL).unlink(missing_ok=True)
    write_text(folder / SYMBOL, graph.tojson())
    save_arrays(folder / WEIGHTS, arrays)
    write_text(folder / DESCRIPTION, _as_text(description))
    if format != ONNX:
        return None
    on_host = {name: value.as_in_context(mx.cpu()) for name, value in values.items()}
    found = _write_onnx(graph, on_host, model, dataset, folder / MODEL)
    described = {**description, "onnx": _about_onnx(found)}
    write_text(folder / DESCRIPTION, _as_text(described))
    return found


def _write_onnx(
    graph: mx.sym.Symbol, arrays: Dict[str, nd.NDArray], model: str, dataset: Dataset, path: Path
) -> Agreement:
    made = to_onnx(graph, arrays, dataset.image_shape, model)
    with raise_output_errors(path), atomic_path(path) as temporary:
        temporary.write_bytes(made)
        try:
            found = check_onnx(temporary, graph, arrays, _some_images(dataset))
            return found._replace(images=min(found.images, len(dataset.test)))  # none twice
        except RunError as error:
            raise RunError(
                f"{path} is not written: {error}; the folder has MXNet's own files"
            ) from None


def _some_images(dataset: Dataset) -> Any:
    """Test images from everywhere in the split, as float32 (n, C, H, W), as networks get them.

    Of fewer than the batches hold, some are there several times.
    """
    places = np.linspace(0, len(dataset.test) - 1, sum(BATCHES)).astype("int64")
    pixels, _ = dataset.test.batch(places)
    mean, deviation = (np.array(each, "float32").reshape(-1, 1, 1) for each in _colours(dataset))
    return ((pixels.astype("float32") / WHITE - mean) / deviation).astype("float32")


def _colours(dataset: Dataset) -> Any:
    """By which images are normalised: each channel's mean and deviation; 0 and 1 change nothing."""
    channels = dataset.image_shape[0]
    return dataset.colours or ((0.0,) * channels, (1.0,) * channels)


def _description(model: str, dataset: Dataset) -> Dict[str, Any]:
    floats = image_dtype(dataset.train) != "uint8"
    values = "floats as the run's" if floats else "pixels divided by 255"
    if dataset.colours is not None:
        values += ", minus mean, divided by std, by channel"
    elif not floats:
        values = f"0 to 1: {values}"
    mean, deviation = _colours(dataset)
    return {
        "model": model,
        "symbol": SYMBOL,
        "parameters": WEIGHTS,
        "input": {
            "name": INPUT,
            "shape": [None, *dataset.image_shape],
            "layout": "NCHW",
            "channels": {1: "grey", 3: "red, green, blue"}.get(dataset.image_shape[0], "unnamed"),
            "dtype": "float32",
            "values": values,
            "scale": 1.0 if floats else 1 / WHITE,
            "mean": list(mean),
            "std": list(deviation),
        },
        "output": {
            "shape": [None, len(dataset.classes)],
            "values": "scores; their softmax are probabilities",
        },
        "classes": list(dataset.classes),
    }


def _about_onnx(found: Agreement) -> Dict[str, Any]:
    return {
        "file": MODEL,
        "opset": OPSET,
        "output": OUTPUT,
        "test_images": found.images,
        "batches": list(found.batches),
        "largest_difference": found.difference,
    }


def _as_text(description: Dict[str, Any]) -> str:
    return json.dumps(description, indent=2) + "\n"
