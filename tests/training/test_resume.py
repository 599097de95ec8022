"""A resumed run ends with the bits of the uninterrupted one."""

import dataclasses
import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.devices import device, device_spec, runs_on_gpus
from support.drawn_runs import (
    IMAGE_COUNT,
    LAYERS,
    TWO_EPOCH_STEPS,
    assert_resumes_identically,
    drawn_run_settings,
    load_few_digits,
    register_drawn_network,
    resume_run,
)
from support.examples import examples
from support.image_folders import write_image_folder
from support.interrupted_runs import interrupt_run, read_comparable_metrics, read_parameter_bytes
from support.reference import parameter_arrays
from support.run_files import read_metrics

from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.topology_file import write_topology
from gluonlab.config import TrainConfig
from gluonlab.data.images import resize_image as images_resized
from gluonlab.data.sets.dataset import ArraySplit
from gluonlab.errors import ConfigError, DataError, GluonlabWarning, UsageError
from gluonlab.optimizers import OPTIMIZERS
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter
from gluonlab.training.resume import read_resume_point, resumed_config
from gluonlab.training.train_state import SEED_EVERY

BY_CUDNN = pytest.mark.cpu_only("cuDNN's Dropout cannot be seeded again")


@pytest.mark.long
def test_a_run_with_a_topology_file_resumes_from_another_folder(tmp_path, monkeypatch):
    """If the file has been moved, the error names it."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (there, here):
        folder.mkdir()
        monkeypatch.chdir(folder)
    write_topology(make_topology("p3.16xlarge"), "m.json")
    settings = {"devices": device_spec(8), "kvstore": "ring", "topology": "m.json", "batch_size": 1}
    assert interrupt_run(3, tmp_path / "run", load_few_digits(), **settings, epochs=1, checkpoint_every="2")
    order = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["order"]
    assert order != [str(device(number)) for number in range(8)]
    monkeypatch.chdir(there)
    resume_point = read_resume_point(tmp_path / "run")
    assert resumed_config(resume_point).topology == str(here / "m.json")
    resume_run(tmp_path / "run")
    score = evaluate_run(str(tmp_path / "run")).score
    (here / "m.json").rename(there / "m.json")
    assert evaluate_run(str(tmp_path / "run")).score == score
    with pytest.raises(UsageError, match=r"here/m.json cannot be read"):
        make_plan(resumed_config(resume_point))
    assert make_plan(resumed_config(resume_point, topology="m.json")).settings()["order"] == order


@pytest.fixture
def with_layers():
    with ExitStack() as stack:
        yield lambda layers: stack.enter_context(register_drawn_network(layers))


DRAWN = {
    "devices": st.integers(1, 4),
    "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
    "kvstore": st.sampled_from(["device", "local", "ring", "tree", "sharded-optimizer"]),
    "microbatches": st.sampled_from([None, 2]),
    "mixup": st.sampled_from([0.0, 0.2]),
    "flip": st.booleans(),
    "crop_padding": st.sampled_from([0, 1]),
    "device_cache_bytes": st.sampled_from([0, 2**28]),
    "clip_norm": st.sampled_from([None, 0.5]),
    "lr_schedule": st.sampled_from(["constant", "cosine", "step"]),
    "seed": st.integers(0, 5),
}


@examples(3, 100)
@given(
    layers=st.lists(st.sampled_from([*LAYERS][: 3 if runs_on_gpus() else 4]), max_size=3),
    sync_bn=st.booleans(),
    options=st.fixed_dictionaries(DRAWN),
    steps=st.integers(2, TWO_EPOCH_STEPS),
    every=st.integers(1, 5),
)
def test_a_resumed_run_is_bit_identical_to_an_uninterrupted_one(
    tmp_path_factory, layers, sync_bn, options, steps, every
):
    assume(steps > every)
    cuts = options["kvstore"] == "sharded-optimizer"  # parameters, which some optimizers refuse
    assume(OPTIMIZERS[options["optimizer"]].element_wise or not cuts)
    folder, sync_bn = tmp_path_factory.mktemp("runs"), sync_bn and "norm" in layers
    with register_drawn_network(layers):
        options = drawn_run_settings(**options, sync_bn=sync_bn)
        assert_resumes_identically(folder, steps, f"{every} steps", **options)


@BY_CUDNN
def test_dropout_draws_the_same_numbers_after_it_is_seeded_again(tmp_path, with_layers):
    with_layers(["dropout"])
    options = drawn_run_settings(2, global_batch_size=2, epochs=1)
    assert SEED_EVERY + 7 < IMAGE_COUNT / 2
    assert_resumes_identically(tmp_path, SEED_EVERY + 9, f"{SEED_EVERY + 7} steps", **options)


def assert_same_run(folder, other):
    assert read_parameter_bytes(folder) == read_parameter_bytes(other)
    assert read_comparable_metrics(folder) == read_comparable_metrics(other)


IMAGE_FILES = {
    "model": "mlp", "epochs": 2, "global_batch_size": 5, "image_size": 16, "device_cache_bytes": 0, "optimizer": "sgd",
    "lr": 0.01,
}  # fmt: skip


def test_images_from_files_resume_in_the_middle_of_an_epoch(tmp_path):
    root = write_image_folder(tmp_path / "animals", train=14, val=5)
    options = {"dataset": f"folder:{root}", "devices": device_spec(2), "threads": 1, "workers": 2, **IMAGE_FILES}
    options.update(flip=True, random_resized_crop=True)
    train(TrainConfig(**options, out=str(tmp_path / "whole")), reporter=Reporter())
    assert interrupt_run(7, tmp_path / "run", **options, checkpoint_every="5")
    train(resume=tmp_path / "run", reporter=Reporter())
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.fixture
def of_files(tmp_path):
    """The settings of a run on images that are resized."""
    root = write_image_folder(tmp_path / "animals", train=5, val=2, size=20)
    return {"dataset": f"folder:{root}", "devices": device_spec(1), "workers": 1, **IMAGE_FILES}


@pytest.mark.skipif(images_resized.cykooz is None, reason="cykooz.resizer has no wheel here")
def test_a_run_keeps_the_library_that_resizes_its_images(tmp_path, of_files, monkeypatch, request):
    train(TrainConfig(**of_files, out=str(tmp_path / "whole")), reporter=Reporter())
    assert interrupt_run(3, tmp_path / "run", **of_files, checkpoint_every="2")
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert settings["resizer"] == "cykooz"
    with pytest.raises(ConfigError, match="--resizer was cykooz, and would now be pillow"):
        other = resumed_config(read_resume_point(tmp_path / "run"), resizer="pillow")
        train(other, resume=tmp_path / "run", reporter=Reporter())
    monkeypatch.setattr(images_resized, "cykooz", None)  # as if it were not installed
    images_resized.default_resizer.cache_clear()
    request.addfinalizer(images_resized.default_resizer.cache_clear)
    with pytest.raises(DataError, match="--resizer cykooz requires the package"):
        train(resume=tmp_path / "run", reporter=Reporter())
    with pytest.warns(
        GluonlabWarning, match="was trained with images resized by cykooz.resizer, which is not installed"
    ):
        assert evaluate_run(str(tmp_path / "whole")).plan.dataset.resizer == "pillow"


def test_a_run_of_a_version_without_resizers_resumes_with_pillow(tmp_path, of_files):
    of_files["resizer"] = "pillow"
    train(TrainConfig(**of_files, out=str(tmp_path / "whole")), reporter=Reporter())
    assert interrupt_run(3, tmp_path / "run", **of_files, checkpoint_every="2")
    file = tmp_path / "run" / "config.json"
    content = json.loads(file.read_text())
    del content["config"]["resizer"], content["settings"]["resizer"]
    file.write_text(json.dumps(content))
    assert train(resume=tmp_path / "run", reporter=Reporter()).plan.dataset.resizer == "pillow"
    assert read_parameter_bytes(tmp_path / "run") == read_parameter_bytes(tmp_path / "whole")


@pytest.mark.parametrize(("layers", "seeded"), [(["dropout"], True), (["norm"], False)])
def test_dropout_masks_differ_by_device_and_epoch_and_what_draws_nothing_is_not_seeded(
    tmp_path, with_layers, monkeypatch, layers, seeded
):
    seeds = []
    seed = "gluonlab.training.train_state.mx.random.seed"
    monkeypatch.setattr(seed, lambda value, ctx=None: ctx is not None and seeds.append(value))
    with_layers(layers)
    config = TrainConfig(**drawn_run_settings(3), out=str(tmp_path / "run"))
    train(config, reporter=Reporter(), dataset=load_few_digits())
    assert len(set(seeds)) == len(seeds) == (3 * 2 if seeded else 0)  # devices, epochs


@pytest.fixture(scope="module")
def broken_off_once(tmp_path_factory):
    """A run of a network without statistics, broken off after step 11 of 16."""
    folder = tmp_path_factory.mktemp("broken off") / "run"
    with register_drawn_network(["convolution"]):
        assert interrupt_run(11, folder, load_few_digits(), **drawn_run_settings(2), checkpoint_every="3")
    return folder


@pytest.fixture
def broken_off(broken_off_once, tmp_path, with_layers):
    """A copy of that run, which may go on."""
    with_layers(["convolution"])
    return Path(shutil.copytree(broken_off_once, tmp_path / "run"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The result of the same run, which nobody broke off."""
    config = TrainConfig(**drawn_run_settings(2), out=str(tmp_path_factory.mktemp("whole") / "run"))
    with register_drawn_network(["convolution"]):
        return train(config, reporter=Reporter(), dataset=load_few_digits())


@pytest.mark.parametrize(
    "settings",
    [
        {"devices": device_spec(1)},
        {"devices": device_spec(3), "kvstore": "ring"},
        {"kvstore": "tree"},
        {"kvstore": "auto"},
    ],
    ids=str,
)
def test_on_other_devices_a_resumed_run_has_the_same_sums(broken_off, undisturbed, settings):
    result = resume_run(broken_off, **settings)
    for expected, array in zip(parameter_arrays(undisturbed.net), parameter_arrays(result.net)):
        assert np.abs(array - expected).max() <= 1e-5 * np.abs(expected).max()
    [event] = [line for line in read_metrics(broken_off) if line.get("event") == "resumed"]
    assert event["step"] in (8, 9)
    assert "gradients are summed in another order" in event["message"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.02}, "--learning-rate was 0.01, and would now be 0.02"),
        ({"seed": 7}, "--seed was 0, and would now be 7"),
        ({"model": "mlp"}, "--model was drawn, and would now be mlp"),
        ({"batch_size": 30}, "--global-batch-size was 20, and would now be 60"),
        ({"epochs": 1}, "1 of 1 epochs are finished"),
        ({"out": "elsewhere"}, "a run resumes in its own directory"),
    ],
    ids=str,
)
def test_settings_that_change_results_are_refused_with_the_difference(broken_off, settings, message):
    files = {path: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as raised:
        resume_run(broken_off, **settings)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert files == {path: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()}


def test_another_data_set_is_refused(broken_off):
    other = load_few_digits(IMAGE_COUNT - 1)
    with pytest.raises(ConfigError, match=r"its train split contained 150 images.* but now contains 149"):
        resume_run(broken_off, other)
    images = load_few_digits().train.images.copy()
    images[-1, 0, 0, 0] ^= 1
    train_split = ArraySplit(images, load_few_digits().train.labels)
    with pytest.raises(ConfigError, match=r"its train split contained 150 images, sha256 .* but now contains 150"):
        resume_run(broken_off, dataclasses.replace(other, train=train_split))


def test_batchnorm_resumes_only_with_as_many_devices(tmp_path, with_layers):
    with_layers(["norm"])
    assert interrupt_run(5, tmp_path / "run", load_few_digits(), **drawn_run_settings(2), checkpoint_every="2")
    with pytest.raises(ConfigError, match="BatchNorm normalizes together"):
        resume_run(tmp_path / "run", devices=device_spec(3))


def test_a_run_resumes_with_more_epochs(broken_off, tmp_path):
    result = resume_run(broken_off, epochs=3)
    config = TrainConfig(**drawn_run_settings(2, epochs=3), out=str(tmp_path / "whole"))
    train(config, reporter=Reporter(), dataset=load_few_digits())
    assert read_parameter_bytes(broken_off) == read_parameter_bytes(tmp_path / "whole")
    assert [epoch.epoch for epoch in result.history] == [1, 2, 3]
    assert read_resume_point(broken_off).checkpoint.step == 24
    with pytest.raises(ConfigError, match="3 of 3 epochs are finished"):
        train(resume=broken_off, reporter=Reporter(), dataset=load_few_digits())


def test_the_best_is_kept_besides_the_newest(tmp_path, with_layers):
    with_layers(["convolution"])
    options = drawn_run_settings(1, epochs=6, lr=0.3, checkpoint_every="1 epoch", keep_checkpoints=1)
    result = train(TrainConfig(**options, out=str(tmp_path / "run")), reporter=Reporter(), dataset=load_few_digits())
    best = max(result.history, key=lambda epoch: epoch.val_accuracy)
    steps = {int(each.name[5:]) for each in (tmp_path / "run" / "checkpoints").iterdir()}
    assert steps == {best.step, result.history[-1].step}


def test_a_checkpoint_is_skipped_if_earlier_lines_have_changed(broken_off):
    """The first checkpoint was written before any loss was read."""
    file = broken_off / "metrics.jsonl"
    file.write_text(file.read_text().replace('"step": 1,', '"step": 7,', 1))
    resume_run(broken_off)
    assert "earlier lines of metrics.jsonl have changed" in file.read_text()
    steps = [line["step"] for line in read_comparable_metrics(broken_off) if line["kind"] == "step"]
    assert steps == list(range(1, TWO_EPOCH_STEPS + 1))


def test_a_run_without_a_checkpoint_is_refused(tmp_path, with_layers):
    with_layers([])
    assert interrupt_run(3, tmp_path / "run", load_few_digits(), **drawn_run_settings(1))
    with pytest.raises(
        DataError,
        match=r"contains no checkpoint to resume from, because a run without --checkpoint-every .*: start the",
    ):
        resume_run(tmp_path / "run")
    with pytest.raises(DataError, match=r"nowhere is not a folder"):
        read_resume_point(tmp_path / "nowhere")


@given(st.text(max_size=12) | st.integers() | st.booleans() | st.none() | st.floats())
def test_a_period_is_a_number_of_steps_minutes_or_epochs(value):
    try:
        text = TrainConfig(checkpoint_every=value).checkpoint_every
    except UsageError as error:
        assert "such as '50 steps'" in str(error) or "remove it" in str(error)
        return
    if text is not None:
        number, unit = text.split()
        assert int(number) > 0 and unit in ("steps", "minutes", "epochs")
        assert TrainConfig(checkpoint_every=text).checkpoint_every == text
