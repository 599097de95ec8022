"""``study speedup --predict``: options in, a prediction or the table of published speeds out."""

import functools
import json

import pytest
from support.commands import read_error_line

from gluonlab.config import TrainConfig
from gluonlab.performance_model.count_work import count_model_work
from gluonlab.performance_model.predict_training import predict
from gluonlab.training.plan import apply_recipe
from prediction.figures import FIGURES


@pytest.fixture
def speedup(ended, empty_cwd):
    from gluonlab.study.__main__ import speedup_command

    return functools.partial(ended, speedup_command)


def test_a_training_is_predicted_with_its_network_batch_store_and_type(speedup):
    status, out, err = speedup(
        "--predict", "p3.16xlarge", "--model", "resnet50", "--images", "3x224x224",
        "--batch-size", "96", "--kvstore", "ring", "--dtype", "float16", "--json",
    )  # fmt: skip
    assert (status, err) == (0, "")  # no device of this machine is looked for
    work = count_model_work("resnet50", 1000, (3, 224, 224))
    usual = str(apply_recipe(TrainConfig(model="resnet50")).config.optimizer)
    expected = predict(work, "p3.16xlarge", 96, dtype="float16", store="ring", optimizer=usual)
    assert json.loads(out) == json.loads(json.dumps(expected.to_dict()))


def test_without_options_it_is_the_usual_training_on_the_whole_machine(speedup):
    status, out, _ = speedup("--predict", "p3.8xlarge")
    assert status == 0 and out.startswith("Predicted, not measured: lenet on p3.8xlarge: 4 x V100")


def test_a_global_batch_is_shared_by_the_gpus_that_are_asked_for(speedup):
    asked = ["--predict", "p3.16xlarge", "--global-batch-size", "256", "--json"]
    for more, each in (([], 32), (["--gpus", "2"], 128)):
        content = json.loads(speedup(*asked, *more)[1])
        assert (content["batch_size"], content["network"]) == (each, "lenet")


def test_the_table_has_all_published_figures(speedup):
    status, out, _ = speedup("--predict", "table")
    assert status == 0 and f"{len(FIGURES)} figures; " in out
    content = json.loads(speedup("--predict", "table", "--json")[1])
    assert len(content["figures"]) == len(FIGURES)
    assert all(each["mean"] < 0.2 for each in content["errors"][:-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--predict", "p3.15xlarge"], "unknown machine 'p3.15xlarge': choose g4dn"),
        (["--predict", "p3.16xlarge", "--gpus", "9"], "is 9, but must be a whole number from 1 to 8 on p3.16xlarge"),
        (["--predict", "p3.16xlarge", "--strategy", "layers"], "--strategy layers is not supported"),
        (["--predict", "p3.16xlarge", "--devices", "cpu*2"], "--devices cpu*2 selects devices of this machine"),
        (["--predict", "p3.16xlarge", "--images", "224"], "as 3x224x224"),
        (["--predict", "p3.16xlarge", "--images", "3x4x4"], "does not accept images of shape 3x4x4"),
        (["--predict", "p3.16xlarge", "--out-file", "page.html"], "--predict does not write a page"),
        (["--images", "3x224x224"], "--images only applies to predictions"),
    ],
)
def test_mistakes_are_one_line(speedup, empty_cwd, arguments, message):
    assert message in read_error_line(speedup(*arguments), empty_cwd)
