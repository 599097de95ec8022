"""python tools/onnx_table.py [NAME...]: which networks can be exported to ONNX, as a table.

Rows are of the named networks, by default of all that gluonlab knows, gluoncv's included, which
takes most of an hour on two cores. Each network gets the parameters that --export onnx tries it
with before training, for ten classes, and images of chance; onnxruntime's scores are compared with
MXNet's. docs/onnx.md holds what it printed.
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
# of photographs from 128 on, where nothing of an edge is lost
SHAPES = [(3, 128, 128), (3, 224, 224), (3, 299, 299)]
SMALL = [(1, 28, 28), (3, 32, 32), (3, 64, 64)]


def all_names():
    return [*MODELS, *(gluoncv_zoo.PREFIX + name for name in gluoncv_zoo.gluoncv_names())]


def row(name):
    """One line of the table."""
    graph = get_model(name, CLASSES)(mx.sym.var(INPUT))
    small = not name.startswith(gluoncv_zoo.PREFIX) or "cifar" in name
    shapes = [*SMALL * small, *SHAPES]
    shape = next(each for each in shapes if accepts_images(graph, each, CLASSES))
    arrays = random_parameters(graph, shape)
    images = np.random.RandomState(1).normal(size=(sum(BATCHES), *shape)).astype("float32")
    try:
        file = to_onnx(graph, arrays, shape, name)
        found = "%.1e" % check_onnx(file, graph, arrays, images, BATCHES).difference
    except GluonlabError as error:
        found = str(error)
    return "| %s | %s | %s |" % (name, "x".join(map(str, shape)), found)


def main(names):
    print("| network | images | largest difference |\n|---|---|---:|")
    for name in names or all_names():
        print(row(name))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
