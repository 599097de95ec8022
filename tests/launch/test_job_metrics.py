"""SageMaker's charts: the regular expressions of a job find what a run prints of each epoch."""

import io
import re
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import device_spec
from support.job_charts import ACCURACY, LOSS, SPEED, chart_values, metric_regexes

from gluonlab.config import TrainConfig
from gluonlab.data import from_arrays
from gluonlab.launch.cluster_job_scripts import TEMPLATE_FOLDER
from gluonlab.runs.run_schema import Epoch
from gluonlab.training.loop import train
from gluonlab.training.reporter import ConsoleReporter, format_epoch

ROOT = Path(__file__).parents[2] / "sagemaker"
EXPRESSIONS = metric_regexes(TEMPLATE_FOLDER / "parameter-server.json")


@settings(max_examples=20)
@given(
    epoch=st.integers(1, 999), more=st.integers(0, 999), images=st.integers(1, 10**8),
    seconds=st.floats(0.01, 1e6), loss=st.floats(-1e6, 1e9) | st.floats(0, 1), accuracy=st.floats(0, 1),
    before=st.sampled_from(["", "[1,mpirank:0,algo-1]<stdout>:", "algo-1 | ", "\x1b[34m"]),
)  # fmt: skip
def test_each_number_of_an_epochs_line_is_found_once(epoch, more, images, seconds, loss, accuracy, before):
    line = Epoch(epoch=epoch, step=1, images=images, training_seconds=seconds, loss=loss, val_accuracy=accuracy)
    assert chart_values(before + format_epoch(line, epoch + more), EXPRESSIONS) == {
        LOSS: [pytest.approx(loss, abs=1e-4)], SPEED: [pytest.approx(images / seconds, abs=0.5)],
        ACCURACY: [pytest.approx(accuracy, abs=1e-4)],
    }  # fmt: skip


def test_of_all_that_a_run_prints_only_its_epochs_are_drawn(tmp_path):
    """With a metric of the user's own, and remarks on an accuracy that may be chance."""
    random, said = np.random.RandomState(0), io.StringIO()
    images, labels = random.randint(0, 255, (60, 1, 4, 4)).astype("uint8"), np.arange(60) % 3
    config = TrainConfig(
        devices=device_spec(2), threads=1, model="mlp", epochs=2, lr=1e-4, global_batch_size=8,
        out=str(tmp_path / "run"), check_replicas=1, patience=2, confusion=True,
    )  # fmt: skip
    data = from_arrays(images[:40], labels[:40], images[40:], labels[40:])
    metrics = {"validation accuracy": mx.metric.Accuracy(), "loss": mx.metric.CrossEntropy()}
    result = train(config, reporter=ConsoleReporter(said, bar=False), dataset=data, metrics=metrics)
    assert re.search("^remark .*validation accuracy 0", said.getvalue(), re.M)
    assert chart_values(said.getvalue(), EXPRESSIONS) == {
        LOSS: pytest.approx([each.loss for each in result.history], abs=1e-4),
        SPEED: pytest.approx([each.images_per_second for each in result.history], abs=0.5),
        ACCURACY: pytest.approx([each.val_accuracy for each in result.history], abs=1e-4),
    }


def test_all_templates_and_the_page_have_the_same():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    for template in [*TEMPLATE_FOLDER.glob("*.json"), *(ROOT / "training").glob("*.json")]:
        assert metric_regexes(template) == EXPRESSIONS
    rows = dict(re.findall(r"^\| `((?:train|validation):\w+)` \| .* \| `(.*)` \|$", page, re.M))
    assert rows == EXPRESSIONS
    example = re.search(r"^ {4}(epoch .*)$", page, re.M)[1]
    assert chart_values(example, EXPRESSIONS) == {LOSS: [0.1302], SPEED: [1529], ACCURACY: [0.95]}
