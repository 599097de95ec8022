"""Program that prints a table of the networks that can be exported to ONNX.

python tools/onnx_table.py [NAME...]

Without names the table has a row for every network of gluonlab and gluoncv, which takes most of an
hour on two cores. Each network has ten classes, and the random parameters of the check that
--export onnx makes before training. The table compares the scores of onnxruntime and MXNet for
random images. docs/predict.md contains a summary.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this gluonlab

import gluonlab  # noqa: F401, I001  # before MXNet
import mxnet as mx
import numpy as np

from gluonlab.errors import GluonlabError
from gluonlab.export.check_exportable import random_parameters
from gluonlab.export.onnx_graph import check_onnx
from gluonlab.export.onnx_graph import INPUT, to_onnx
from gluonlab.models import MODELS, get_model, gluoncv_zoo
from gluonlab.models.infer_shapes import accepts_images

CLASSES = 10
BATCHES = (1, 3)
# of photographs from 128 on, where no pooling drops an edge
SHAPES = [(3, 128, 128), (3, 224, 224), (3, 299, 299)]
SMALL = [(1, 28, 28), (3, 32, 32), (3, 64, 64)]


def network_names():
    return [*MODELS, *(gluoncv_zoo.PREFIX + name for name in gluoncv_zoo.gluoncv_names())]


def format_row(name):
    """Return the line of a network in the table."""
    graph = get_model(name, CLASSES)(mx.sym.var(INPUT))
    small = not name.startswith(gluoncv_zoo.PREFIX) or "cifar" in name
    shapes = [*SMALL * small, *SHAPES]
    shape = next(shape for shape in shapes if accepts_images(graph, shape, CLASSES))
    arrays = random_parameters(graph, shape)
    images = np.random.RandomState(1).normal(size=(sum(BATCHES), *shape)).astype("float32")
    try:
        file = to_onnx(graph, arrays, shape, name)
        outcome = "%.1e" % check_onnx(file, graph, arrays, images, BATCHES).difference
    except GluonlabError as error:
        outcome = str(error)
    return "| %s | %s | %s |" % (name, "x".join(map(str, shape)), outcome)


def main(names):
    print("| network | images | largest difference |\n|---|---|---:|")
    for name in names or network_names():
        print(format_row(name))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
