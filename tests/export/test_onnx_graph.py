"""A model that does not score as MXNet does, whatever is wrong with it, is refused in one line."""

import mxnet as mx
import numpy as np
import onnx
import pytest
from mxnet import nd
from onnx import numpy_helper
from support.completed import make_initialized_net
from support.devices import contexts
from support.reference import random_batches
from support.steps import SHAPE

from gluonlab.errors import RunError
from gluonlab.export.check_exportable import random_parameters
from gluonlab.export.onnx_graph import MAX_DIFFERENCE, check_onnx, to_onnx
from gluonlab.models import get_model

pytestmark = pytest.mark.cpu_only("onnxruntime is compared with MXNet on the CPU")


@pytest.fixture
def resnet():
    """Return the graph, parameters, images and ONNX model of a ResNet."""
    net = make_initialized_net("resnet8", SHAPE, ctxs=contexts(1))
    graph = net(mx.sym.var("data"))
    arrays = random_parameters(graph, SHAPE)
    ((images, _),) = random_batches([5], shape=SHAPE)
    return graph, arrays, images, to_onnx(graph, arrays, SHAPE, "resnet8")


def multiplied(model, ending, factor):
    each = next(each for each in model.graph.initializer if each.name.endswith(ending))
    each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) * factor, each.name))


def spoiled(file, how):
    if how == "cut off":
        return file[: len(file) // 2]
    if how == "no model":
        return b"not a model"
    model = onnx.load_from_string(file)
    if how == "another weight":
        multiplied(model, "conv0_weight", 1.01)
    if how == "NaN":
        multiplied(model, "dense0_bias", np.nan)
    if how == "a fixed batch":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    if how == "another input":
        model.graph.input[0].name = model.graph.node[0].input[0] = "images"
    return model.SerializeToString()


@pytest.mark.parametrize("how", ["cut off", "no model", "another weight", "NaN", "a fixed batch", "another input"])
def test_a_model_that_does_not_score_as_mxnet_is_refused_in_one_line(resnet, how):
    graph, arrays, images, file = resnet
    assert check_onnx(file, graph, arrays, images, (1, 4)).difference <= 1e-6
    with pytest.raises(RunError, match=r"onnxruntime cannot|scores differ from MXNet's by") as caught:
        check_onnx(spoiled(file, how), graph, arrays, images, (1, 4))
    assert "\n" not in str(caught.value)


def test_a_model_of_another_network_is_refused(resnet):
    graph, arrays, images, _ = resnet
    other = get_model("resnet8", 7)(mx.sym.var("data"))
    file = to_onnx(other, random_parameters(other, SHAPE), SHAPE, "resnet8")
    with pytest.raises(RunError, match=r"scores of shape \(1, 7\), \(4, 7\)"):
        check_onnx(file, graph, arrays, images, (1, 4))


def test_larger_rounding_errors_are_allowed_up_to_a_limit():
    """A large number is added, and subtracted again."""
    large = mx.sym.var("a", shape=(1, 3))
    rounds = mx.sym.broadcast_sub(mx.sym.broadcast_add(mx.sym.var("data"), large), large)
    graph = mx.sym.FullyConnected(rounds, num_hidden=2, name="dense")
    images = np.random.RandomState(0).normal(size=(5, 3)).astype("float32")
    arrays = {"a": nd.full((1, 3), 3e3), "dense_weight": nd.array([[1, 1, 1], [1, -1, 2]]), "dense_bias": nd.zeros(2)}
    other = {**arrays, "a": nd.full((1, 3), 5e3)}  # rounds twice as much
    file = to_onnx(graph, other, (3,), "rounding")
    result = check_onnx(file, graph, arrays, images, (2, 3))
    assert 5e-5 < result.difference < MAX_DIFFERENCE
    with pytest.raises(RunError, match="float32 rounds by"):
        check_onnx(file, graph, arrays, images, (2, 3), max_difference=5e-5)
    exact = {**arrays, "a": nd.zeros((1, 3))}  # where there is nothing to round
    with pytest.raises(RunError, match="float32 rounds by"):
        check_onnx(file, graph, exact, images, (2, 3))
