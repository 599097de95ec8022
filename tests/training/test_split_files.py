"""Split runs write the whole network: all splits evaluate it, and MXNet and onnxruntime load it."""

import mxnet as mx
import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts, device_spec
from support.drawn_runs import SPLITS, load_few_digits, register_drawn_network, split_settings
from support.examples import examples

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.report.report_page import make_page
from gluonlab.runs.run_reader import read_runs
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

MIDDLE = ["pooling", "convolution", "norm", "dropout"]


def exported_accuracies(folder):
    """Return the accuracy on all test images by MXNet, and by onnxruntime."""
    images, labels = load_dataset("digits").test.batch(np.arange(360))
    [ctx] = contexts(1)
    files = str(folder / "model-symbol.json"), ["data"], str(folder / "model-0000.params")
    scores = mx.gluon.SymbolBlock.imports(*files, ctx=ctx)(nd.array(images, ctx=ctx) / 255).asnumpy()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    [onnx_scores] = session.run(None, {"data": (images / 255).astype("float32")})
    return [(array.argmax(axis=1) == labels).mean() for array in (scores, onnx_scores)]


SPLIT = [way for way in SPLITS if SPLITS[way][1]["strategy"] != "data"]


@examples(3, 40)
@given(
    way=st.sampled_from(SPLIT),
    other=st.sampled_from([*SPLITS]),
    middle=st.lists(st.sampled_from(MIDDLE), min_size=1, max_size=2),
)
@pytest.mark.long
def test_every_split_scores_with_what_another_leaves(tmp_path_factory, way, other, middle):
    folder = tmp_path_factory.mktemp("runs") / "run"
    devices, split = SPLITS[other]
    with register_drawn_network(["convolution", *middle, "convolution"]):
        config = TrainConfig(**split_settings(way, epochs=1), out=str(folder), export="onnx")
        train(config, reporter=Reporter(), dataset=load_few_digits())
        expected = evaluate_run(str(folder), devices=device_spec(1), strategy="data")
        found = evaluate_run(str(folder), devices=device_spec(devices), **split)
    assert found.score.loss == pytest.approx(expected.score.loss, rel=1e-5)
    assert found.score.accuracy == pytest.approx(expected.score.accuracy, abs=1 / 360)
    assert exported_accuracies(folder / "export") == pytest.approx([expected.score.accuracy] * 2, abs=1 / 360)
    assert SPLITS[way][1]["strategy"] in make_page(read_runs([folder]))
