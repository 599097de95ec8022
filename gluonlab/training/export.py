"""A trained network as files that MXNet alone can load.

``mx.gluon.SymbolBlock.imports``, Module and the C++ interface read them. The graph is the plain
network's, as written, not as it was laid out for some devices; it takes float32 images whose values
go from 0 to 1, as Gluon's ``transforms.ToTensor`` makes them, or normalised by the data set's
colours where it has any. model.json says so to whoever finds the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Optional

import mxnet as mx
from mxnet import gluon

from gluonlab.data.sets.dataset import Dataset
from gluonlab.files.arrays import save_arrays
from gluonlab.files.whole import on_disk, write_text
from gluonlab.models import get_model

SYMBOL, WEIGHTS, DESCRIPTION = "model-symbol.json", "model-0000.params", "model.json"


def export(
    net: gluon.HybridBlock,
    model: str,
    dataset: Dataset,
    folder: Path,
    plain: Optional[gluon.HybridBlock] = None,
) -> mx.sym.Symbol:
    """Write ``net``, `get_model`'s ``model`` for ``dataset``, and return the graph written.

    ``plain``: the network as written, where ``model`` does not name it. The replicas are equal.
    Into ``folder``, made if need be: the graph, the parameters, and a description. Raises
    OutputError.
    """
    plain = get_model(model, len(dataset.classes)) if plain is None else plain
    graph = plain(mx.sym.var("data"))
    trained = net._collect_params_with_prefix()  # the same names in both, whatever the lanes
    values = {
        param.name: trained[place].list_data()[0]
        for place, param in plain._collect_params_with_prefix().items()
    }
    arrays = {f"arg:{name}": values[name] for name in graph.list_arguments() if name != "data"}
    arrays.update({f"aux:{name}": values[name] for name in graph.list_auxiliary_states()})
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / SYMBOL, graph.tojson())
    save_arrays(folder / WEIGHTS, arrays)
    write_text(folder / DESCRIPTION, json.dumps(_description(model, dataset), indent=2) + "\n")
    return graph


def _description(model: str, dataset: Dataset) -> Dict[str, Any]:
    values: Dict[str, Any] = {"values": "0 to 1: pixels divided by 255"}
    if dataset.colours is not None:
        mean, deviation = dataset.colours
        values = {
            "values": "pixels divided by 255, minus mean, divided by std, by channel",
            "mean": list(mean),
            "std": list(deviation),
        }
    return {
        "model": model,
        "symbol": SYMBOL,
        "parameters": WEIGHTS,
        "input": {
            "name": "data",
            "shape": [None, *dataset.image_shape],
            "dtype": "float32",
            **values,
        },
        "output": {
            "shape": [None, len(dataset.classes)],
            "values": "scores; their softmax are probabilities",
        },
        "classes": list(dataset.classes),
    }
