"""gluonlab evaluate uses images as the run did: in parts as small, of the same size and of the same classes."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from support.devices import device_spec
from support.image_folders import write_image_folder
from support.quick_runs import run_quickly

from gluonlab.config import TrainConfig
from gluonlab.data.sets.data_fingerprint import MAX_NAMES, classes_fingerprint, describe_class_changes
from gluonlab.training.evaluate_run import plan_evaluation
from gluonlab.training.plan import make_plan

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")


def largest_evaluated_part(config, settings):
    """Return the largest number of images in a part in which the run of this config is evaluated."""
    with tempfile.TemporaryDirectory() as folder:
        content = {"gluonlab": "1", "settings": make_plan(config).settings(), "config": config.to_dict()}
        Path(folder, "config.json").write_text(json.dumps(content))
        Path(folder, "parameters.params").touch()
        return plan_evaluation(Path(folder), settings).microbatches.largest_part(360)


@pytest.mark.parametrize(
    ("settings", "more", "largest"),
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
def test_a_run_in_microbatches_is_evaluated_in_parts_as_small(settings, more, largest):
    assert largest_evaluated_part(TrainConfig(**{"model": "mlp", "gpus": 1, **settings}), more) == largest


def train_on_animals(folder, size):
    """Train on images of this size in folder/animals; the run is in folder/run."""
    root = write_image_folder(folder / "animals", train=4, val=2, size=size)
    run_quickly(folder, dataset=f"folder:{root}", devices=device_spec(1), workers=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run and its images of 16x16 pixels."""
    folder = tmp_path_factory.mktemp("trained")
    train_on_animals(folder, 16)
    return folder


@pytest.fixture
def animals(trained, tmp_path, empty_cwd):
    """A copy of the images; a copy of the run is in the folder run."""
    root = Path(shutil.copytree(trained / "animals", tmp_path / "animals"))
    shutil.copytree(trained / "run", "run")
    config = Path("run/config.json")
    config.write_text(config.read_text().replace(str(trained / "animals"), str(root)))
    return root


def test_other_classes_are_refused_and_named(run, animals):
    expected = json.loads(run("evaluate", "run", "--json")[1])["loss"]
    for part in ("train", "val"):
        (animals / part / "bee").rename(animals / part / "dog")
    status, out, err = run("evaluate", "run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "the classes of animals differ from the classes on which run was trained (class 1 is 'cow', and" in err
    for part in ("train", "val"):
        shutil.copytree(animals / part / "dog", animals / part / "bee")
    assert "(4 classes, not 3)" in run("evaluate", "run")[2]
    for part in ("train", "val"):
        shutil.rmtree(animals / part / "dog")
    assert json.loads(run("evaluate", "run", "--json")[1])["loss"] == expected


def test_images_are_resized_to_the_size_of_the_run(run, animals):
    """Larger ones would be resized to another size by default."""
    shutil.rmtree(animals)
    write_image_folder(animals, train=4, val=2, size=40)
    status, out, err = run("evaluate", "run", "--json")
    assert status == 0 and json.loads(out)["images"] == 6, err


def test_images_smaller_than_the_least_image_size_are_evaluated(run, tmp_path):
    train_on_animals(tmp_path, 6)
    assert run("evaluate", str(tmp_path / "run"))[0] == 0


def test_many_classes_are_recorded_as_a_digest():
    many = [str(number) for number in range(MAX_NAMES + 1)]
    assert "names" not in classes_fingerprint(many) and classes_fingerprint(many[1:])["names"] == many[1:]
    assert describe_class_changes(classes_fingerprint(many), many) == ""
    assert describe_class_changes(classes_fingerprint(many), many[::-1]) == "classes with other names"
