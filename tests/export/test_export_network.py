"""Exported files: plain MXNet loads them in another process, with the scores of the train_net network."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from support.completed import make_initialized_net
from support.devices import contexts, device
from support.made_up_data import CLASSES, make_dataset
from support.reference import random_batches, relative_distance
from support.steps import SHAPE, make_step, train_steps

from gluonlab.errors import OutputError
from gluonlab.export.export_network import DESCRIPTION, ONNX_FILE, SYMBOL, WEIGHTS, write_export
from gluonlab.parallel.data.running_statistics import RunningStatistics

# gluonlab itself is imported only because MXNet needs its patches for a new numpy
LOAD = """
import sys
import gluonlab
import numpy as np
import mxnet as mx
net = mx.gluon.SymbolBlock.imports(sys.argv[1], ["data"], sys.argv[2], ctx=mx.cpu(0))
np.save("scores.npy", net(mx.nd.array(np.load("images.npy"))).asnumpy())
ours = ("gluonlab.models", "gluonlab.training")
assert not [name for name in sys.modules if name.startswith(ours)]
"""


def train_net(name, shape):
    """Return a network that was train_net on two devices."""
    net = make_initialized_net(name, shape, ctxs=contexts(2))
    step = make_step(net, contexts(2), learning_rate=0.05)
    train_steps(step, random_batches([8] * 2, shape=shape), contexts(2))
    RunningStatistics(net).average()
    return net


@pytest.mark.parametrize(
    ("name", "shape"), [pytest.param("lenet", (1, 28, 28), marks=pytest.mark.long), ("resnet8", SHAPE)]
)
def test_a_fresh_process_gets_the_same_scores_from_the_files(tmp_path, python, name, shape):
    net = train_net(name, shape)
    write_export(net, name, make_dataset(shape), tmp_path / "export")
    ((images, _),) = random_batches([5], seed=9, shape=shape)
    np.save(tmp_path / "images.npy", images)
    result = python("-c", LOAD, *(str(tmp_path / "export" / name) for name in (SYMBOL, WEIGHTS)))
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    for hybridized in (True, False):
        net.hybridize(hybridized)
        scores = net(nd.array(images, ctx=device())).asnumpy()
        assert relative_distance([np.load(tmp_path / "scores.npy")], [scores]) <= 1e-5


def operators(folder):
    return {node["op"] for node in json.loads((folder / SYMBOL).read_text())["nodes"]}


def test_the_graph_is_the_plain_networks_with_operators_of_mxnet_alone(tmp_path):
    """No padding, no casts, no losses."""
    net = make_initialized_net("lenet", (1, 28, 28))
    write_export(net, "lenet", make_dataset((1, 28, 28)), tmp_path)
    assert operators(tmp_path) == {"null", "Convolution", "Pooling", "Activation", "Flatten", "FullyConnected"}
    write_export(make_initialized_net("resnet8", SHAPE), "resnet8", make_dataset(SHAPE), tmp_path)
    known = set(mx.operator.get_all_registered_operators())
    assert operators(tmp_path) - {"null"} <= known - {"Custom", "_CustomFunction"}


def test_the_description_has_the_input_and_the_output(tmp_path):
    write_export(make_initialized_net("resnet8", SHAPE), "resnet8", make_dataset(SHAPE), tmp_path)
    about = json.loads((tmp_path / DESCRIPTION).read_text())
    assert {path.name for path in tmp_path.iterdir()} == {about["symbol"], about["parameters"], DESCRIPTION}
    expected = {"shape": [None, *SHAPE], "dtype": "float32", "values": "0 to 1: pixels divided by 255"}
    assert expected.items() <= about["input"].items()
    assert about["classes"] == list(CLASSES)
    graph = mx.sym.load(str(tmp_path / SYMBOL))
    assert about["input"]["name"] in graph.list_arguments()
    assert graph.infer_shape(data=(3, *SHAPE))[1] == [(3, about["output"]["shape"][1])]


def test_training_can_continue_from_the_files(tmp_path):
    net = train_net("resnet8", SHAPE)
    write_export(net, "resnet8", make_dataset(SHAPE), tmp_path)
    imported = gluon.SymbolBlock.imports(str(tmp_path / SYMBOL), ["data"], str(tmp_path / WEIGHTS), ctx=device())
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    ((images, labels),) = random_batches([12], shape=SHAPE)
    trainer = gluon.Trainer(imported.collect_params(), "sgd", {"learning_rate": 0.05})
    x, y = nd.array(images, ctx=device()), nd.array(labels, ctx=device())
    before = loss(imported(x), y).mean().asscalar()
    for _ in range(10):
        with mx.autograd.record():
            total = loss(imported(x), y).sum()
        total.backward()
        trainer.step(12)
    with mx.autograd.train_mode():
        assert loss(imported(x), y).mean().asscalar() < before / 2


@pytest.mark.parametrize("obstacle", ["", WEIGHTS, ONNX_FILE])
def test_a_write_error_names_the_file(tmp_path, obstacle):
    """A file is where the folder goes, or a folder where a file goes."""
    if obstacle:
        (tmp_path / "export" / obstacle).mkdir(parents=True)
    else:
        (tmp_path / "export").write_text("mine")
    with pytest.raises(OutputError, match=rf"cannot write .*export.*{obstacle}.*choose another path with --out"):
        write_export(make_initialized_net("mlp"), "mlp", make_dataset((3, 32, 32)), tmp_path / "export")
    assert list(tmp_path.rglob(".*")) == []
