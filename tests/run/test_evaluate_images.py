"""--evaluate goes through images as the run did: in parts as small, as large ones, and of the same
classes.
"""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from support.devices import device_spec
from support.image_folders import write_image_folder

from gluonlab.config import TrainConfig
from gluonlab.data.sets.data_fingerprint import MAX_NAMES, classes_fingerprint, describe_class_changes
from gluonlab.training.evaluate_run import plan_evaluation
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")


def evaluated_in_parts(config, given):
    """The parts of at most so many images in which the run of this config is evaluated; None for
    whole shards.
    """
    used = make_plan(config).settings()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(
            json.dumps({"gluonlab": "1", "settings": used, "config": config.to_dict()})
        )
        Path(folder, "parameters.params").touch()
        plan = plan_evaluation(Path(folder), given)
    return plan.microbatches.largest_part(360)


@pytest.mark.parametrize(
    ("settings", "given", "largest"),
    [
        ({"microbatches": 4, "batch_size": 64}, {}, 16),
        ({"microbatch_size": 10}, {}, 10),
        # a device's parts are no larger
        ({"microbatches": 4, "global_batch_size": 64, "gpus": 2}, {"devices": device_spec(1)}, 8),
        # and any number of devices can make them
        ({"microbatches": 64, "batch_size": 64}, {"devices": device_spec(8)}, 1),
        ({"microbatches": 4, "batch_size": 64}, {"microbatch_size": 9}, 9),
        ({"microbatch_size": 10}, {"microbatches": 5}, 72),
        ({"microbatches": 4, "batch_size": 64}, {"batch_size": 100}, 360),
        ({"microbatch_size": 10}, {"global_batch_size": 100}, 360),
    ],
)
def test_a_run_in_microbatches_is_evaluated_in_parts_as_small(settings, given, largest):
    assert evaluated_in_parts(TrainConfig(**{"model": "mlp", "gpus": 1, **settings}), given) == largest


def train_on_animals(folder, size):
    """A run in folder/run, on images in folder/animals of this size."""
    root = write_image_folder(folder / "animals", train=4, val=2, size=size)
    train(
        TrainConfig(
            dataset=f"folder:{root}", model="mlp", epochs=1, devices=device_spec(1), decoders=1, out=str(folder / "run")
        ),
        reporter=Reporter(),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with such a run and its images of 16x16 pixels, which nobody changes."""
    folder = tmp_path_factory.mktemp("trained")
    train_on_animals(folder, 16)
    return folder


@pytest.fixture
def animals(trained, tmp_path, empty_cwd):
    """The images of a copy of it; its run is in the folder run."""
    root = Path(shutil.copytree(trained / "animals", tmp_path / "animals"))
    shutil.copytree(trained / "run", "run")
    config = Path("run/config.json")
    config.write_text(config.read_text().replace(str(trained / "animals"), str(root)))
    return root


def rename(root, before, after):
    for part in ("train", "val"):
        (root / part / before).rename(root / part / after)


def test_other_classes_are_refused_and_named(run, animals, empty_cwd):
    before = json.loads(run("--evaluate", "run", "--json")[1])
    rename(animals, "bee", "dog")
    status, out, err = run("--evaluate", "run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "animals is not what run was trained on (class 1 is 'cow', and was 'bee')" in err
    rename(animals, "dog", "bee")
    assert json.loads(run("--evaluate", "run", "--json")[1])["loss"] == before["loss"]


def test_another_number_of_classes_is_refused(run, animals, empty_cwd):
    for part in ("train", "val"):
        shutil.copytree(animals / part / "ant", animals / part / "dog")
    assert "(4 classes, not 3)" in run("--evaluate", "run")[2]


def test_images_are_resized_to_the_size_of_the_run(run, animals, empty_cwd):
    """Larger ones would be resized to another size by default."""
    larger = write_image_folder(animals.parent / "larger", train=4, val=2, size=40)
    shutil.rmtree(animals)
    larger.rename(animals)
    status, out, err = run("--evaluate", "run", "--json")
    assert status == 0, err
    assert json.loads(out)["images"] == 6


def test_images_smaller_than_the_least_image_size_are_evaluated(run, tmp_path):
    train_on_animals(tmp_path, 6)
    assert run("--evaluate", str(tmp_path / "run"))[0] == 0


def test_many_classes_are_recorded_as_a_digest():
    many = [str(number) for number in range(MAX_NAMES + 1)]
    assert "names" not in classes_fingerprint(many) and classes_fingerprint(many[1:])["names"] == many[1:]
    assert describe_class_changes(classes_fingerprint(many), many) == ""
    assert describe_class_changes(classes_fingerprint(many), many[::-1]) == "classes of other names"
