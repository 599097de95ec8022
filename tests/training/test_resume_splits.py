"""Split networks go on: by the same split with the same bits, by others with the same sums."""

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
    "resident_bytes": st.sampled_from([0, 2**28]),
}
DRAWN = dict(
    middle=st.lists(st.sampled_from(MIDDLE), min_size=1, max_size=2),
    options=st.fixed_dictionaries(OPTIONS),
    steps=st.integers(2, TWO_EPOCH_STEPS - 1),
    every=st.integers(1, 5),
)


ALWAYS_ALIKE = [way for way in SPLITS if SPLITS[way][1]["split"] != "data" and way != "by time"]


@examples(3, 60)
@given(way=st.sampled_from(ALWAYS_ALIKE), **DRAWN)
@pytest.mark.long
def test_the_same_split_ends_with_the_bits_of_the_undisturbed_run(tmp_path_factory, way, middle, options, steps, every):
    assume(steps > every)
    with register_drawn_network(["convolution", *middle, "convolution"]):
        folder = tmp_path_factory.mktemp("runs")
        assert_resumes_identically(folder, steps, f"{every} steps", **split_settings(way, **options))


@examples(2, 60)
@given(way=st.sampled_from([*SPLITS]), other=st.sampled_from([*SPLITS]), **DRAWN)
def test_another_split_goes_on_with_the_same_sums(tmp_path_factory, way, other, middle, options, steps, every):
    assume(steps > every and not {"norm", "dropout"} & set(middle))
    if options["optimizer"] == "signum":  # a sign turns where rounding turns it
        options["optimizer"] = "sgd"
    devices, split = SPLITS[other]
    folder = tmp_path_factory.mktemp("runs")
    with register_drawn_network(["convolution", *middle, "convolution"]):
        whole = TrainConfig(**split_settings("one device", **options), out=str(folder / "whole"))
        expected = train(whole, reporter=Reporter(), dataset=load_few_digits())
        begun = {**split_settings(way, **options), "checkpoint_every": f"{every} steps"}
        assert interrupt_run(steps, folder / "run", load_few_digits(), **begun)
        found = resume_run(folder / "run", devices=device_spec(devices), **split)
        limit = 2e-5
        if apart(found.net, expected.net) > limit:
            # rounding alone may do that, where an optimizer divides by tiny gradients: then going
            # on may add nothing to what the two ways make of it when nobody disturbs them
            alone = [train_whole(each, folder / each, options) for each in sorted({way, other})]
            limit = 2 * max(apart(net, expected.net) for net in alone)
    assert apart(found.net, expected.net) <= limit
    for one, step in zip(found.history, expected.history):
        assert one.loss == pytest.approx(step.loss, rel=1e-5)
        assert one.validation_loss == pytest.approx(step.validation_loss, rel=1e-4)


def train_whole(way, folder, options):
    config = TrainConfig(**split_settings(way, **options), out=str(folder))
    return train(config, reporter=Reporter(), dataset=load_few_digits()).net


def apart(net, other):
    both = [
        np.concatenate([p.list_data()[0].asnumpy().ravel() for p in each.collect_params().values()])
        for each in (net, other)
    ]
    return np.linalg.norm(both[0] - both[1]) / np.linalg.norm(both[1])


@pytest.mark.cpu_only("cuDNN's Dropout cannot be seeded again")
def test_dropout_of_split_channels_draws_the_same_again(tmp_path):
    with register_drawn_network(["convolution", "dropout", "convolution"]):
        assert_resumes_identically(tmp_path, 13, "3 steps", **split_settings("channels"))


@pytest.mark.cpu_only("cuDNN's Dropout cannot be seeded again")
@pytest.mark.parametrize(
    "how", ["resume", *(pytest.param(how, marks=pytest.mark.long) for how in ("out", "autoresume"))]
)
def test_a_config_that_leaves_the_cut_open_goes_on_with_the_one_the_run_has(how, tmp_path):
    """Measured again it would be another one, by which Dropout draws other numbers."""
    open_cut = drawn_run_settings(2, split="pipeline", microbatches=2, epochs=1)
    chosen = {**open_cut, "cut": "1"}  # nearly all the time is taken behind it
    with register_drawn_network(["dropout", "convolution", "dropout"]):
        train(TrainConfig(**chosen, out=str(tmp_path / "whole")), reporter=Reporter(), dataset=load_few_digits())
        run, open_cut["checkpoint_every"] = tmp_path / "run", "3 steps"
        assert interrupt_run(5, run, load_few_digits(), **chosen, checkpoint_every="3 steps")
        config = TrainConfig(**open_cut, out=None if how == "resume" else str(run))
        goes_on = {"autoresume": True} if how == "autoresume" else {"resume": run}
        train(config, reporter=Reporter(), dataset=load_few_digits(), **goes_on)
    assert read_parameter_bytes(tmp_path / "run") == read_parameter_bytes(tmp_path / "whole")
    assert read_comparable_metrics(tmp_path / "run") == read_comparable_metrics(tmp_path / "whole")


WITH_NORM = ["convolution", "norm", "pooling"]


@pytest.fixture
def with_norm():
    with register_drawn_network(WITH_NORM):
        yield


@pytest.fixture(scope="module")
def broken_off_once(tmp_path_factory):
    """A run of two devices and a network with statistics, broken off after 5 of its steps."""
    folder = tmp_path_factory.mktemp("broken off") / "run"
    options = split_settings("data", checkpoint_every="3 steps")
    with register_drawn_network(WITH_NORM):
        assert interrupt_run(5, folder, load_few_digits(), **options)
    return folder


@pytest.fixture
def broken_off(broken_off_once, tmp_path, with_norm):
    """A copy of that run, which may go on."""
    return Path(shutil.copytree(broken_off_once, tmp_path / "run"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The network of the same run, which nobody broke off."""
    with register_drawn_network(WITH_NORM):
        return train_whole("data", tmp_path_factory.mktemp("whole") / "run", {})


@pytest.mark.parametrize("other", ["columns", "cut"])
def test_batchnorm_goes_on_by_a_split_with_the_same_parts_of_batches(broken_off, undisturbed, other):
    devices, split = SPLITS[other]
    found = resume_run(broken_off, devices=device_spec(devices), **split)
    assert apart(found.net, undisturbed) <= 2e-5


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("layers", "the number of copies of the network was 2, and would be 1"),
        ("1f1b", "--microbatches was None, and would be 3"),
    ],
)
def test_batchnorm_does_not_go_on_with_other_parts(broken_off_once, with_norm, other, said):
    devices, split = SPLITS[other]
    with pytest.raises(ConfigError, match=said):
        resume_run(broken_off_once, devices=device_spec(devices), **split)


def test_a_cut_by_time_stays_where_it_was(tmp_path):
    with register_drawn_network(["convolution", "pooling", "convolution", "pooling"]):
        options = split_settings("by time", checkpoint_every="2 steps", epochs=1)
        assert interrupt_run(3, tmp_path / "run", load_few_digits(), **options)
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        first = config["settings"]["cut"]
        other = "1,4" if first != "1,4" else "2,3"
        config["settings"]["cut"] = other  # as if another machine had measured it
        (tmp_path / "run" / "config.json").write_text(json.dumps(config))
        resume_run(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["cut"] == other
    [said] = [line for line in events(tmp_path / "run") if "resumed" in line.values()]
    assert "other" not in said["message"]


def test_other_random_numbers_are_said(tmp_path):
    with register_drawn_network(["convolution", "dropout", "convolution"]):
        options = split_settings("layers", checkpoint_every="2 steps", epochs=1)
        assert interrupt_run(3, tmp_path / "run", load_few_digits(), **options)
        resume_run(tmp_path / "run", devices=device_spec(1), split="data")
    [said] = [line for line in events(tmp_path / "run") if "resumed" in line.values()]
    assert "Dropout draws other numbers" in said["message"]


def events(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
