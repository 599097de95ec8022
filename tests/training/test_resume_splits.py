"""Split networks resume: with the same split with the same bits, with others with the same sums."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.devices import device_spec, runs_on_gpus
from support.drawn_runs import (
    SPLITS,
    TWO_EPOCH_STEPS,
    assert_resumes_identically,
    drawn_run_settings,
    load_few_digits,
    register_drawn_network,
    resume_run,
    split_settings,
)
from support.examples import examples
from support.interrupted_runs import interrupt_run, read_comparable_metrics, read_parameter_bytes
from support.reference import parameter_arrays
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

MIDDLE = ["pooling", "convolution", "norm"] + ["dropout"] * (not runs_on_gpus())
OPTIONS = {
    "optimizer": st.sampled_from(["sgd", "adam", "rmsprop", "signum"]),
    "kvstore": st.sampled_from(["device", "ring", "sharded"]),
    "clip_norm": st.sampled_from([None, 0.5]),
    "mixup": st.sampled_from([0.0, 0.2]),
    "lr_schedule": st.sampled_from(["constant", "cosine"]),
    "device_cache_bytes": st.sampled_from([0, 2**28]),
}
DRAWN = dict(
    middle=st.lists(st.sampled_from(MIDDLE), min_size=1, max_size=2),
    options=st.fixed_dictionaries(OPTIONS),
    steps=st.integers(2, TWO_EPOCH_STEPS - 1),
    every=st.integers(1, 5),
)
REPEATABLE = [way for way in SPLITS if SPLITS[way][1]["strategy"] != "data" and way != "by time"]


@examples(3, 60)
@given(way=st.sampled_from(REPEATABLE), **DRAWN)
@pytest.mark.long
def test_the_same_split_ends_with_the_bits_of_the_undisturbed_run(tmp_path_factory, way, middle, options, steps, every):
    assume(steps > every)
    with register_drawn_network(["convolution", *middle, "convolution"]):
        folder = tmp_path_factory.mktemp("runs")
        assert_resumes_identically(folder, steps, f"{every} steps", **split_settings(way, **options))


def train_whole(way, folder, options):
    config = TrainConfig(**split_settings(way, **options), out=str(folder))
    return train(config, reporter=Reporter(), dataset=load_few_digits())


def distance(result, other):
    one, two = (np.concatenate([array.ravel() for array in parameter_arrays(run.net)]) for run in (result, other))
    return np.linalg.norm(one - two) / np.linalg.norm(two)


@examples(2, 60)
@given(way=st.sampled_from([*SPLITS]), other=st.sampled_from([*SPLITS]), **DRAWN)
def test_a_run_resumes_with_another_split_with_the_same_sums(
    tmp_path_factory, way, other, middle, options, steps, every
):
    assume(steps > every and not {"norm", "dropout"} & set(middle))
    if options["optimizer"] == "signum":  # rounding changes signs
        options["optimizer"] = "sgd"
    devices, split = SPLITS[other]
    folder = tmp_path_factory.mktemp("runs")
    with register_drawn_network(["convolution", *middle, "convolution"]):
        expected = train_whole("one device", folder / "whole", options)
        settings = {**split_settings(way, **options), "checkpoint_every": f"{every} steps"}
        assert interrupt_run(steps, folder / "run", load_few_digits(), **settings)
        result = resume_run(folder / "run", devices=device_spec(devices), **split)
        limit = 2e-5
        if distance(result, expected) > limit:
            # An optimizer that divides by tiny gradients magnifies rounding. Then the distance may
            # be as large as between undisturbed runs with the two splits.
            runs = [train_whole(name, folder / name, options) for name in sorted({way, other})]
            limit = 2 * max(distance(run, expected) for run in runs)
    assert distance(result, expected) <= limit
    for epoch, expected_epoch in zip(result.history, expected.history):
        assert epoch.loss == pytest.approx(expected_epoch.loss, rel=1e-5)
        assert epoch.val_loss == pytest.approx(expected_epoch.val_loss, rel=1e-4)


@pytest.mark.cpu_only("cuDNN's Dropout cannot be seeded again")
def test_dropout_of_split_channels_draws_the_same_again(tmp_path):
    with register_drawn_network(["convolution", "dropout", "convolution"]):
        assert_resumes_identically(tmp_path, 13, "3 steps", **split_settings("channels"))


@pytest.mark.cpu_only("cuDNN's Dropout cannot be seeded again")
@pytest.mark.parametrize(
    "how", ["resume", *(pytest.param(how, marks=pytest.mark.long) for how in ("out", "autoresume"))]
)
def test_a_config_without_a_cut_resumes_with_the_cut_of_the_run(how, tmp_path):
    """A newly measured cut would differ, and Dropout would draw other numbers."""
    settings, run = drawn_run_settings(2, strategy="pipeline", microbatches=2, epochs=1), tmp_path / "run"
    with_cut = {**settings, "cut": "1"}  # most of the time is spent after it
    with register_drawn_network(["dropout", "convolution", "dropout"]):
        train(TrainConfig(**with_cut, out=str(tmp_path / "whole")), reporter=Reporter(), dataset=load_few_digits())
        assert interrupt_run(5, run, load_few_digits(), **with_cut, checkpoint_every="3 steps")
        config = TrainConfig(**settings, checkpoint_every="3 steps", out=None if how == "resume" else str(run))
        options = {"autoresume": True} if how == "autoresume" else {"resume": run}
        train(config, reporter=Reporter(), dataset=load_few_digits(), **options)
    assert read_parameter_bytes(run) == read_parameter_bytes(tmp_path / "whole")
    assert read_comparable_metrics(run) == read_comparable_metrics(tmp_path / "whole")


WITH_NORM = ["convolution", "norm", "pooling"]


@pytest.fixture(scope="module")
def interrupted_and_whole(tmp_path_factory):
    """A run with BatchNorm on two devices that was interrupted after 5 steps, and the same run uninterrupted."""
    folder = tmp_path_factory.mktemp("norm")
    with register_drawn_network(WITH_NORM):
        options = split_settings("data", checkpoint_every="3 steps")
        assert interrupt_run(5, folder / "run", load_few_digits(), **options)
        return folder / "run", train_whole("data", folder / "whole", {})


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ("columns", None),
        ("cut", None),
        ("layers", "the number of replicas was 2, and would now be 1"),
        ("1f1b", "--microbatches was None, and would now be 3"),
    ],
)
def test_batchnorm_resumes_only_with_the_same_parts_of_batches(interrupted_and_whole, tmp_path, other, error):
    devices, split = SPLITS[other]
    interrupted, whole = interrupted_and_whole
    folder = Path(shutil.copytree(interrupted, tmp_path / "run"))
    with register_drawn_network(WITH_NORM):
        if error is None:
            assert distance(resume_run(folder, devices=device_spec(devices), **split), whole) <= 2e-5
        else:
            with pytest.raises(ConfigError, match=error):
                resume_run(folder, devices=device_spec(devices), **split)


def read_resume_message(folder):
    [line] = [line for line in read_metrics(folder) if line.get("event") == "resumed"]
    return line["message"]


def test_a_measured_cut_is_kept_on_resume(tmp_path):
    file = tmp_path / "run" / "config.json"
    with register_drawn_network(["convolution", "pooling", "convolution", "pooling"]):
        options = split_settings("by time", checkpoint_every="2 steps", epochs=1)
        assert interrupt_run(3, tmp_path / "run", load_few_digits(), **options)
        content = json.loads(file.read_text())
        other = "1,4" if content["settings"]["cut"] != "1,4" else "2,3"
        content["settings"]["cut"] = other  # as if another machine had measured it
        file.write_text(json.dumps(content))
        resume_run(tmp_path / "run")
    assert json.loads(file.read_text())["settings"]["cut"] == other
    assert "other" not in read_resume_message(tmp_path / "run")


def test_the_resume_message_mentions_other_random_numbers(tmp_path):
    with register_drawn_network(["convolution", "dropout", "convolution"]):
        options = split_settings("layers", checkpoint_every="2 steps", epochs=1)
        assert interrupt_run(3, tmp_path / "run", load_few_digits(), **options)
        resume_run(tmp_path / "run", devices=device_spec(1), strategy="data")
    assert "Dropout draws other numbers" in read_resume_message(tmp_path / "run")
