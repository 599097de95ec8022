"""Networks by name: residual networks and those of gluoncv equal the published ones; small images are refused."""

import re
import sys

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.completed import make_initialized_net
from support.devices import contexts, device
from support.reference import parameter_arrays, random_batches, relative_distance, set_parameter_arrays

from gluonlab.errors import ModelError
from gluonlab.models import MODELS, check_model, get_model, infer_shapes
from gluonlab.models.gluoncv_zoo import gluoncv_names
from gluonlab.models.infer_shapes import complete_initialization

NAMES = gluoncv_names()  # beside PyTorch 2, gluoncv can be imported only as gluonlab does it
cifarresnet = sys.modules["gluoncv.model_zoo.cifarresnet"]
gluoncvs = sys.modules["gluoncv.model_zoo"].get_model


class ResNet8(nn.HybridSequential):
    """gluoncv's blocks, with the paper's ReLU after the first convolution, which gluoncv omits."""

    def __init__(self):
        super().__init__()
        theirs = cifarresnet.CIFARResNetV1(cifarresnet.CIFARBasicBlockV1, [1, 1, 1], [16, 16, 32, 64], classes=10)
        convolution, normalization, *blocks = theirs.features
        self.add(convolution, normalization, nn.Activation("relu"), *blocks, theirs.output)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("resnet8", ResNet8),
        ("resnet18", lambda: gluoncvs("resnet18_v1", classes=10)),
        pytest.param("resnet50", lambda: gluoncvs("resnet50_v1", classes=10), marks=pytest.mark.long),
        ("cifar_resnet20", lambda: gluoncvs("cifar_resnet20_v1", classes=10)),
    ],
)
def test_residual_networks_are_those_of_gluoncv(name, theirs):
    """The same parameters in the same order, and with the same numbers in them the same scores."""
    net, reference = make_initialized_net(name), theirs()
    reference.initialize()
    ((images, _),) = random_batches([2], shape=(3, 32, 32))
    reference(nd.array(images))
    assert [array.shape for array in parameter_arrays(net)] == [array.shape for array in parameter_arrays(reference)]
    set_parameter_arrays(reference, parameter_arrays(net))
    result = net(nd.array(images, ctx=device())).asnumpy()
    assert relative_distance([result], [reference(nd.array(images)).asnumpy()]) <= 1e-5


@pytest.mark.parametrize(
    # resnet8: 3x3 convolutions 3-16-16-16-32-32-64-64, two 1x1, a scale and shift each, a dense layer
    ("name", "parameters"),
    [("resnet8", 78_042), ("resnet18", 11_689_512), ("resnet50", 25_557_032), ("cifar_resnet20", 272_474)],
)
def test_the_numbers_of_parameters_are_the_published_ones(name, parameters):
    """Biases of convolutions before a normalization are not counted."""
    net = make_initialized_net(name, classes=1000 if name in ("resnet18", "resnet50") else 10)
    sizes = {
        key: param.data().size
        for key, param in net.collect_params().items()
        if param.grad_req != "null" and not ("conv" in key and key.endswith("bias"))
    }
    assert sum(sizes.values()) == parameters


FAMILIES = [
    "alexnet", "cifar_resnext29_16x64d", "cifar_wideresnet16_10", "dla34", "googlenet",
    "hrnet_w18_small_v1_c", "mobilenet0.25", "mobilenetv2_0.25", "mobilenetv3_small",
    "nasnet_4_1056", "resnest14", "resnet18_v1b", "resnext101e_64x4d", "se_resnet18_v2",
    "shufflenet_v2", "squeezenet1.1", "vgg11_bn",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", [*FAMILIES, *(pytest.param(n, marks=pytest.mark.long) for n in NAMES if n not in FAMILIES)]
)
def test_networks_of_gluoncv_score_the_data_sets_classes(name):
    side = 32 if name.startswith("cifar") else 320 if "inception" in name else 224
    scores = get_model(f"gluoncv:{name}", 7)(mx.sym.var("data"))
    assert scores.infer_shape_partial(data=(2, 3, side, side))[1] == [(2, 7)]


def test_networks_that_do_not_classify_images_are_not_offered():
    names = gluoncv_names()
    assert len(names) > 100
    detector, segmenter, pose = ("ssd_300_vgg16_atrous_voc", "fcn_resnet50_voc", "simple_pose_resnet18_v1b")
    for name in (detector, segmenter, pose, "hrnet_w48_s", "i3d_resnet50_v1_custom"):
        assert name not in names
        message = f"unknown model 'gluoncv:{name}': .*--model gluoncv:\\? lists all {len(names)}"
        with pytest.raises(ModelError, match=message):
            check_model(f"gluoncv:{name}")


def test_without_gluoncv_its_networks_name_the_remedy_and_the_others_work(monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "gluoncv"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "gluoncv", None)  # Python then finds no such module
    for name in ("gluoncv:alexnet", "cifar_resnet20"):
        with pytest.raises(ModelError, match=r"pip install gluoncv==0\.10\.5\.post0 opencv-python-headless, or choose"):
            get_model(name, 10)
    get_model("resnet18", 10)


@pytest.mark.parametrize("before", ["", "import torch; "])
def test_gluoncv_is_imported_only_for_its_networks_also_with_pytorch_2(python, tmp_path, before):
    """gluoncv's own check raises a RuntimeError for PyTorch 2; a made-up package replaces PyTorch."""
    # scipy reads torch.Tensor
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'\n\n\nclass Tensor: ...\n")
    code = before + (
        "import sys; from gluonlab.models import get_model; get_model('resnet50', 10); "
        "assert 'gluoncv' not in sys.modules; get_model('gluoncv:mobilenet0.25', 10); "
        "assert 'gluoncv' in sys.modules; import torch; assert torch.__version__ == '2.13.0'"
    )
    result = python("-c", code, path=[str(tmp_path)])
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


# --- the size of images


def can_forward(shape):
    net = get_model("lenet", 10)
    net.initialize()
    try:
        return net(nd.zeros((1, *shape))).asnumpy().shape == (1, 10)
    except (ValueError, mx.base.MXNetError):
        return False


def can_initialize(shape):
    try:
        make_initialized_net("lenet", shape)
        return True
    except ModelError:
        return False


@settings(max_examples=25)
@given(st.tuples(st.integers(1, 3), st.integers(1, 30), st.integers(1, 30)))
@example((1, 14, 14))
@example((1, 14, 13))
def test_images_fit_when_a_forward_pass_works(shape):
    assert can_initialize(shape) == can_forward(shape)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("lenet", (1, 4, 4), "1x14x14):"),
        ("gluoncv:squeezenet1.1", (3, 32, 32), None),
        ("gluoncv:vgg11", (3, 28, 28), "3x32x32):"),
        ("gluoncv:resnest14", (1, 64, 64), "3x17x17):"),
        ("gluoncv:dla34", (3, 100, 100), "3x31x31, and it does not accept all larger images):"),
    ],
)
def test_the_smallest_images_that_an_error_names_do_fit_and_smaller_ones_do_not(name, given, message):
    with pytest.raises(ModelError) as caught:
        make_initialized_net(name, given)
    text, shape = str(caught.value), "x".join(map(str, given))
    begin = f"{name} does not accept images of shape {shape} (the smallest square images that it accepts are "
    assert text.startswith(begin)
    assert message is None or f" {message} choose another model or --dataset" in text
    channels, side = map(int, re.match(r"(\d+)x(\d+)", text[len(begin) :]).groups())
    graph = get_model(name, 10)(mx.sym.var("data"))
    fits = [infer_shapes._infer_shapes(graph, (channels, s, s), 10) is not None for s in range(1, side + 1)]
    assert fits == [False] * (side - 1) + [True]


def test_nothing_is_computed_to_complete_a_network(monkeypatch):
    monkeypatch.setattr(mx.nd.CachedOp, "__call__", None)
    monkeypatch.setattr(mx.sym.Symbol, "bind", None)
    net = make_initialized_net("resnet18", (1, 28, 28), ctxs=contexts(2))
    assert all(len(param.list_data()) == 2 for param in net.collect_params().values())


def test_a_completed_network_starts_like_one_after_a_forward_pass():
    """The same seed gives the same bits: parameters are initialized in the order of a first forward pass."""
    arrays = []
    for complete in (
        lambda net: net(nd.zeros((1, 1, 28, 28))),
        lambda net: complete_initialization(net, "lenet", (1, 28, 28), 10),
    ):
        net = get_model("lenet", 10)
        mx.random.seed(3)
        net.initialize(mx.init.Xavier())
        complete(net)
        arrays.append(parameter_arrays(net))
    assert all(map(np.array_equal, *arrays))


# --- networks by name


@pytest.mark.parametrize("name", MODELS)
def test_every_network_scores_each_class(name):
    net = get_model(name, 7, contexts(2))
    net.initialize(ctx=contexts(2))
    side = 63 if name == "alexnet-2towers" else 28
    for ctx in contexts(2):
        assert net(nd.zeros((3, 1, side, side), ctx=ctx)).shape == (3, 7)


def test_alexnet_has_the_parameters_of_the_paper():
    """60 million, says the abstract of Krizhevsky et al. (2012)."""
    net = get_model("alexnet-2towers", 1000)
    complete_initialization(net, "alexnet-2towers", (3, 224, 224), 1000)
    sizes = [np.prod(param.shape) for param in net.collect_params().values()]
    assert sum(sizes) == 60_965_224
    groups = [layer._kwargs["num_group"] for layer in net if isinstance(layer, nn.Conv2D)]
    assert groups == [1, 2, 1, 2, 2]


@pytest.mark.parametrize("name", ["resnet18", "cifar_resnet20", "gluoncv:squeezenet1.0"])
def test_parameters_have_the_same_names_whatever_was_made_before(name):
    """States of an optimizer go by them, and their order decides which bucket adds up what."""
    first, second = (list(get_model(name, 10).collect_params()) for _ in range(2))
    assert first == second


def test_an_unknown_network_is_answered_with_the_choices():
    with pytest.raises(
        ModelError,
        match=r"unknown model 'lennet': choose .*, lenet, lenet-avg, mlp, "
        r".*\(did you mean 'lenet'\?\)",
    ):
        get_model("lennet", 10)


@pytest.mark.parametrize("name", ["lenet", "lenet-avg"])
def test_saved_files_number_lenets_layers_as_they_always_did(name):
    """Run folders and checkpoints of earlier versions stay readable."""
    layers = {place.split(".")[0] for place in get_model(name, 10)._collect_params_with_prefix()}
    assert layers == {"0", "3", "8", "9"}
