"""ONNX models have the scores of MXNet, for any network; an error is one line."""

import json
from functools import partial

import mxnet as mx
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from mxnet import gluon, nd
from mxnet.gluon import nn, rnn
from onnx import numpy_helper
from support.completed import make_initialized_net
from support.covering import pairwise
from support.devices import contexts
from support.made_up_data import CLASSES, make_dataset
from support.networks import network_cases
from support.reference import random_batches
from support.steps import SHAPE

from gluonlab.config.option_checks import MXNET, ONNX
from gluonlab.data.loading.augmentation import make_input_transform
from gluonlab.errors import ModelError, RunError
from gluonlab.export import export_network
from gluonlab.export.check_exportable import check_onnx_export, random_parameters
from gluonlab.export.export_network import DESCRIPTION, ONNX_FILE, SYMBOL, WEIGHTS, write_export
from gluonlab.export.onnx_graph import MAX_DIFFERENCE, TOLERANCE, check_onnx, to_onnx
from gluonlab.models import MODELS, get_model

pytestmark = pytest.mark.cpu_only("onnxruntime is compared with MXNet on the CPU")


def score_with_onnxruntime(file, images):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    [data], [scores] = session.get_inputs(), session.get_outputs()
    assert (data.name, data.shape) == ("data", ["batch", *images.shape[1:]])
    assert (scores.name, scores.shape[0]) == ("scores", "batch")
    return session.run(None, {"data": images})[0]


def assert_close(result, expected):
    assert result.shape == expected.shape
    assert abs(result - expected).max() <= TOLERANCE * abs(expected).max()


def export(net, shape):
    arrays = {param.name: param.data() for param in net.collect_params().values()}
    return to_onnx(net(mx.sym.var("data")), arrays, shape, "net")


def make_net(shape, *layers):
    """Return a network with random parameters, including those that are not trained."""
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize()
    net(nd.zeros((1, *shape)))
    random = np.random.RandomState(0)
    for param in net.collect_params().values():
        shift = param.name.endswith("weight") / 2
        param.set_data(nd.array(random.uniform(0.3, 0.9, param.shape) - shift))
    return net


def assert_same_scores(shape, *layers):
    net = make_net(shape, *layers)
    images = np.random.RandomState(1).normal(size=(3, *shape)).astype("float32")
    assert_close(score_with_onnxruntime(export(net, shape), images), net(nd.array(images)).asnumpy())


@settings(max_examples=25)
@given(network_cases(fewest=1))
def test_a_drawn_network_scores_as_in_mxnet(network):
    drawn = network.build([mx.cpu()], "as it is", mx.nd)
    drawn.cast("float32")
    net = nn.HybridSequential()
    net.add(*drawn.body, drawn.heads[0])
    file = export(net, network.shape)
    for size in (1, 3):
        images = network._images(np.random.RandomState(network.seed), size).astype("float32")
        assert_close(score_with_onnxruntime(file, images), net(nd.array(images)).asnumpy())


class Shuffled(nn.HybridBlock):
    """The channels of two groups in turns, as ShuffleNet has them."""

    def hybrid_forward(self, F, x):
        x = F.concat(x, x * 2, dim=1)
        return F.reshape(F.swapaxes(F.reshape(x, (0, -4, 2, -1, -2)), 1, 2), (0, -3, -2))


LAYERS = {
    "shuffled": Shuffled,
    "fixed gamma": lambda: nn.BatchNorm(scale=False),
    "gamma": nn.BatchNorm,
    "global average": nn.GlobalAvgPool2D,
    "global maximum": nn.GlobalMaxPool2D,
    "average without padding": lambda: nn.AvgPool2D(3, 2, 1, count_include_pad=False),
    "average with padding": lambda: nn.AvgPool2D(3, 2, 1),
    "maximum, rounded up": lambda: nn.MaxPool2D(2, 2, ceil_mode=True),
    "dropout": lambda: nn.Dropout(0.9),
    "leaky": lambda: nn.LeakyReLU(0.1),
    "elu": lambda: nn.ELU(0.5),
    "swish": lambda: nn.Swish(),
    "dilated": lambda: nn.Conv2D(4, 3, dilation=2, padding=2),
    "asymmetric": lambda: nn.Conv2D(4, (1, 3), strides=(2, 1), padding=(0, 1)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_scores_as_in_mxnet(name):
    assert_same_scores((2, 9, 9), nn.Conv2D(5, 3), LAYERS[name](), nn.Dense(4))


class Rows(nn.HybridBlock):
    """Images (n, C, H, W) as sequences of rows (n, C x H, W)."""

    def hybrid_forward(self, F, x):
        return F.reshape(x, (0, -3, 0))


RECURRENT = {"lstm": rnn.LSTM, "gru": rnn.GRU, "tanh": partial(rnn.RNN, activation="tanh"), "relu": rnn.RNN}


@pairwise(name=[*RECURRENT], both_ways=[False, True], layers=[1, 2, 3])
def test_recurrent_layers_score_as_in_mxnet(name, both_ways, layers):
    """Also where inputs and states have other widths, and the first axis is time."""
    layout = "NTC" if layers > 1 else "TNC"
    layer = RECURRENT[name](5, layers, layout=layout, bidirectional=both_ways, dropout=0.3)
    assert_same_scores((2, 4, 3), Rows(), layer, nn.Dense(4))


def test_unsupported_settings_of_recurrent_layers_are_named():
    net = nn.HybridSequential()
    net.add(Rows(), rnn.LSTM(5, layout="NTC", state_clip_min=-1, state_clip_max=1), nn.Dense(4))
    net.initialize()
    net.hybridize()
    graph = net(mx.sym.var("data"))
    shapes, _, _ = graph.infer_shape(data=(1, 2, 4, 3))
    arrays = {name: nd.zeros(shape) for name, shape in zip(graph.list_arguments(), shapes)}
    with pytest.raises(ModelError, match=r"contains the operator RNN, .*lstm_state_clip_m") as caught:
        to_onnx(graph, arrays, (2, 4, 3), "net")
    assert "\n" not in str(caught.value)


def test_an_index_without_a_row_takes_the_nearest_as_in_mxnet():
    net = make_net((4,), nn.Embedding(7, 5), nn.Dense(3))
    words = np.array([[-3, -0.5, 0, 2.7], [6, 6.9, 7, 100]], "float32")
    assert_close(score_with_onnxruntime(export(net, (4,)), words), net(nd.array(words)).asnumpy())


SMALL = ["lenet", "lenet-avg", "mlp", "resnet8", "cifar_resnet20", "gluoncv:cifar_resnet20_v2"]
# one or two of each family, and all that have an operator which no other has
OF_GLUONCV = [
    "alexnet", "cifar_residualattentionnet56", "cifar_resnext29_32x4d", "cifar_wideresnet16_10",
    "darknet53", "densenet121", "dla34", "googlenet", "hrnet_w18_small_v1_c", "inceptionv3",
    "mobilenet0.25", "mobilenetv2_0.25", "mobilenetv3_small", "nasnet_4_1056", "resnet18_v1",
    "resnet18_v1b", "resnet18_v2", "resnet50_v1d", "resnext50_32x4d", "se_resnet18_v1",
    "shufflenet_v1", "squeezenet1.0", "vgg11_bn", "xception",
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *SMALL,
        *(pytest.param(name, marks=pytest.mark.long) for name in sorted({*MODELS} - {*SMALL})),
        *(pytest.param(f"gluoncv:{name}", marks=pytest.mark.long) for name in OF_GLUONCV),
    ],
)
def test_a_network_of_the_list_can_be_exported(name):
    small = name in SMALL or "cifar" in name
    sides = [28, 32, 64] if small or name in MODELS else [128, 224, 299]
    for side in sides:
        try:
            make_initialized_net(name, (3, side, side))
        except ModelError:
            continue
        check_onnx_export(ONNX, name, 10, (3, side, side))
        return
    raise AssertionError(f"no size fits {name}")


def test_the_check_before_training_does_not_use_mxnets_random_numbers():
    def draw():
        return mx.nd.random.uniform(shape=(4,)).asnumpy()

    mx.random.seed(3)
    expected = draw()
    mx.random.seed(3)
    check_onnx_export(ONNX, "gluoncv:squeezenet1.1", 3, (3, 224, 224))  # which has Dropout
    np.testing.assert_array_equal(draw(), expected)


def test_random_statistics_are_those_of_the_input():
    """A BatchNorm gives every channel the mean beta and the deviation gamma."""
    graph = get_model("resnet8", 10)(mx.sym.var("data"))
    arrays = random_parameters(graph, SHAPE, seed=5)
    [first, *_] = [name for name in graph.list_auxiliary_states() if name.endswith("running_mean")]
    prefix = first[: -len("running_mean")]
    output = graph.get_internals()[f"{prefix}fwd_output"]
    images = np.random.RandomState(2).normal(size=(64, *SHAPE)).astype("float32")
    net = gluon.SymbolBlock(output, mx.sym.var("data"))
    for name, param in net.collect_params().items():
        param._load_init(arrays[name], [mx.cpu()])
    result = net(nd.array(images)).asnumpy()
    beta, gamma = (arrays[f"{prefix}{name}"].asnumpy() for name in ("beta", "gamma"))
    np.testing.assert_allclose(result.mean(axis=(0, 2, 3)), beta, atol=0.2)
    np.testing.assert_allclose(result.std(axis=(0, 2, 3)), gamma, rtol=0.2)


class Erf(nn.HybridBlock):
    """An operator that MXNet's exporter does not know."""

    def hybrid_forward(self, F, x):
        return F.erf(x)


@pytest.mark.parametrize(
    ("layer", "shape", "said"),
    [
        (Erf(), (4,), "net contains the operator erf, which MXNet cannot translate to ONNX: use "),
        (nn.BatchNorm(axis=2), (3, 4, 4), "operator BatchNorm, .*axis != 1"),
    ],
    ids=["unknown", "unknown as it is used"],
)
def test_an_operator_that_cannot_be_exported_is_named_in_one_line(layer, shape, said):
    net = make_net(shape, layer, nn.Dense(2))
    with pytest.raises(ModelError, match=said) as caught:
        export(net, shape)
    assert "\n" not in str(caught.value) and "use --export mxnet" in str(caught.value)


def test_patches_for_the_exporter_are_undone():
    before = {**vars(onnx)}, onnx.checker.DEFAULT_CONTEXT.opset_imports, mx.onnx.export_model
    export(make_net((3,), nn.Dense(2)), (3,))
    after = {**vars(onnx)}, onnx.checker.DEFAULT_CONTEXT.opset_imports, mx.onnx.export_model
    assert after == before


def test_the_folder_describes_the_model_and_keeps_no_stale_one(tmp_path):
    net, data = make_initialized_net("resnet8", SHAPE), make_dataset(SHAPE, samples=100)
    result = write_export(net, "resnet8", data, tmp_path, format=ONNX)
    description = json.loads((tmp_path / DESCRIPTION).read_text())["onnx"]
    assert result.difference <= TOLERANCE
    model = onnx.load(tmp_path / ONNX_FILE)
    expected = {"largest_difference": result.difference, "val_images": 12, "batches": [1, 4, 7]}
    expected["opset"] = model.opset_import[0].version
    assert expected.items() <= description.items()
    assert {path.name for path in tmp_path.iterdir()} == {SYMBOL, WEIGHTS, DESCRIPTION, ONNX_FILE}
    assert len(model.graph.input) == 1  # the images, and no weight
    assert write_export(net, "resnet8", data, tmp_path, format=MXNET) is None
    assert {path.name for path in tmp_path.iterdir()} == {SYMBOL, WEIGHTS, DESCRIPTION}
    assert "onnx" not in json.loads((tmp_path / DESCRIPTION).read_text())


@pytest.mark.parametrize("colors", [None, ((0.5, 0.25, 0.125), (0.1, 0.2, 0.3))], ids=str)
def test_the_described_pixel_values_are_those_of_the_training(tmp_path, colors):
    net, data = make_initialized_net("resnet8", SHAPE), make_dataset(SHAPE, normalization=colors)
    write_export(net, "resnet8", data, tmp_path, format=ONNX)
    about = json.loads((tmp_path / DESCRIPTION).read_text())["input"]
    pixels = np.random.RandomState(0).randint(0, 256, (3, *SHAPE)).astype("uint8")
    mean, std = (np.array(about[key]).reshape(-1, 1, 1) for key in ("mean", "std"))
    images = ((pixels * about["scale"] - mean) / std).astype("float32")
    [ctx] = contexts(1)
    expected = net(make_input_transform(colors)(nd, nd.array(pixels, ctx=ctx, dtype="uint8"))).asnumpy()
    assert_close(score_with_onnxruntime(str(tmp_path / ONNX_FILE), images), expected)


def test_a_wrong_model_is_not_written_and_mxnets_files_stay(tmp_path, monkeypatch):
    other = get_model("resnet8", len(CLASSES))(mx.sym.var("data"))
    wrong = to_onnx(other, random_parameters(other, SHAPE), SHAPE, "resnet8")
    monkeypatch.setattr(export_network, "to_onnx", lambda *_: wrong)
    with pytest.raises(RunError, match=r"model.onnx was not written: .* differ .*MXNet's own files"):
        write_export(make_initialized_net("resnet8", SHAPE), "resnet8", make_dataset(SHAPE), tmp_path, format=ONNX)
    assert {path.name for path in tmp_path.iterdir()} == {SYMBOL, WEIGHTS, DESCRIPTION}
    assert "onnx" not in json.loads((tmp_path / DESCRIPTION).read_text())


# --- a model with other scores than MXNet's is refused


@pytest.fixture
def resnet():
    """Return the graph, parameters, images and ONNX model of a ResNet."""
    net = make_initialized_net("resnet8", SHAPE, ctxs=contexts(1))
    graph = net(mx.sym.var("data"))
    arrays = random_parameters(graph, SHAPE)
    ((images, _),) = random_batches([5], shape=SHAPE)
    return graph, arrays, images, to_onnx(graph, arrays, SHAPE, "resnet8")


def multiply_weight(model, ending, factor):
    weight = next(weight for weight in model.graph.initializer if weight.name.endswith(ending))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * factor, weight.name))


def damage_model(file, kind):
    if kind == "cut off":
        return file[: len(file) // 2]
    if kind == "no model":
        return b"not a model"
    model = onnx.load_from_string(file)
    if kind == "another weight":
        multiply_weight(model, "conv0_weight", 1.01)
    if kind == "NaN":
        multiply_weight(model, "dense0_bias", np.nan)
    if kind == "a fixed batch":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    if kind == "another input":
        model.graph.input[0].name = model.graph.node[0].input[0] = "images"
    return model.SerializeToString()


@pytest.mark.parametrize("kind", ["cut off", "no model", "another weight", "NaN", "a fixed batch", "another input"])
def test_a_model_that_does_not_score_as_mxnet_is_refused_in_one_line(resnet, kind):
    graph, arrays, images, file = resnet
    assert check_onnx(file, graph, arrays, images, (1, 4)).difference <= 1e-6
    with pytest.raises(RunError, match=r"onnxruntime cannot|scores of the ONNX model differ from MXNet's by") as caught:
        check_onnx(damage_model(file, kind), graph, arrays, images, (1, 4))
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
    with pytest.raises(RunError, match="MXNet's own float32 rounding error is"):
        check_onnx(file, graph, arrays, images, (2, 3), max_difference=5e-5)
    exact = {**arrays, "a": nd.zeros((1, 3))}  # where there is nothing to round
    with pytest.raises(RunError, match="MXNet's own float32 rounding error is"):
        check_onnx(file, graph, exact, images, (2, 3))
