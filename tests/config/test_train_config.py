"""TrainConfig: what it takes, what it refuses, and how it says so."""

import dataclasses
import json
import math
import pathlib
import re

import click
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluonlab.config import TrainConfig, option_name
from gluonlab.config.option_types import LARGEST_NUMBER, MAX_COUNT, SMALLEST_LIMIT, check_size_in_bytes
from gluonlab.devices import devices
from gluonlab.errors import ConfigError
from gluonlab.run import main

FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}
# What each setting takes, written down independently of the checks.
COUNTS = st.integers(1, MAX_COUNT)
WORDS = st.text(min_size=1).filter(str.strip)
VALID = {
    "gpus": COUNTS,
    "devices": WORDS,
    "require_gpu": st.booleans(),
    "threads": st.integers(1, 1024),
    "model": WORDS,
    "pretrained": WORDS,
    "dataset": WORDS,
    "data_dir": WORDS,
    "recipe": WORDS,
    "image_size": st.integers(8, 2048),
    "decoders": st.integers(1, 256),
    "resizer": WORDS,
    "skip_bad": st.booleans(),
    "val_share": st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True),
    "random_resized_crop": st.booleans(),
    "crop_padding": st.integers(0, 1024),
    "flip": st.booleans(),
    "mixup": st.floats(min_value=0, max_value=LARGEST_NUMBER, exclude_max=True),
    "normalise": st.sampled_from(["imagenet", "none", "0.25,0.5/1.0,2.0", "-0.5/0.125"]),
    "batch_size": COUNTS,
    "global_batch_size": COUNTS,
    "microbatches": COUNTS,
    "microbatch_size": COUNTS,
    "epochs": COUNTS,
    "drop_last": st.booleans(),
    "patience": st.one_of(st.integers(1, 10**6), st.integers(1, 10**6).map("{}:loss".format)),
    "lr": st.floats(min_value=0, exclude_min=True, max_value=LARGEST_NUMBER, exclude_max=True),
    "scale_lr": st.booleans(),
    "lr_schedule": WORDS,
    "warmup_epochs": st.floats(min_value=0, max_value=LARGEST_NUMBER, exclude_max=True),
    "lr_decay": st.floats(min_value=0, exclude_min=True, max_value=1, exclude_max=True),
    "lr_decay_epochs": st.sets(st.integers(1, 10**18 - 1), min_size=1).map(
        lambda epochs: ",".join(map(str, sorted(epochs)))
    ),
    "final_lr": st.floats(min_value=0, max_value=LARGEST_NUMBER, exclude_max=True),
    "optimizer": WORDS,
    "momentum": st.floats(min_value=0, max_value=1, exclude_max=True),
    "momentum_rule": WORDS,
    "on_nan": WORDS,
    "wd": st.floats(min_value=0, max_value=LARGEST_NUMBER, exclude_max=True),
    "no_bias_decay": st.booleans(),
    "clip_norm": st.floats(min_value=SMALLEST_LIMIT, max_value=LARGEST_NUMBER, exclude_max=True),
    "label_smoothing": st.floats(min_value=0, max_value=1, exclude_max=True),
    "sync_bn": st.booleans(),
    "dtype": WORDS,
    "memory": st.booleans(),
    "kvstore": WORDS,
    "topology": WORDS,
    "compress": st.floats(min_value=SMALLEST_LIMIT, max_value=LARGEST_NUMBER, exclude_max=True).map("2bit:{!r}".format)
    | st.just("fp16"),
    "seed": st.integers(0, 2**32 - 1),
    "deterministic": st.booleans(),
    "tf32": st.booleans(),
    "prefetch": st.integers(0, MAX_COUNT),
    "resident_bytes": st.integers(0, 2**63),
    "bucket_bytes": st.integers(0, 2**63),
    "update_on_servers": st.booleans(),
    "check_replicas": st.integers(1, MAX_COUNT),
    "profile": st.integers(1, MAX_COUNT),
    "tensorboard": st.booleans(),
    "overlap": st.one_of(st.just("off"), st.integers(1, 10**6)),
    "split": WORDS,
    "device_weights": st.lists(st.integers(1, 10**9 - 1), min_size=1, max_size=4).map(
        lambda weights: ",".join(map(str, weights))
    ),
    "class_weights": st.just("balanced")
    | st.lists(st.integers(1, 999) | st.floats(0.001, 999.5), min_size=1, max_size=4).map(
        lambda weights: ",".join(re.sub(r"[.]0$", "", str(weight)) for weight in weights)
    ),
    "stages": st.integers(2, MAX_COUNT),
    "cut": st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=4).map(lambda cuts: ",".join(map(str, cuts))),
    "balance": WORDS,
    "pipeline_schedule": WORDS,
    "stages_per_device": st.integers(1, MAX_COUNT),
    "ways": st.integers(2, MAX_COUNT),
    "channels": WORDS,
    "confusion": st.booleans(),
    "checkpoint_every": st.sampled_from(["1 steps", "50 steps", "10 minutes", "2 epochs"]),
    "keep": st.integers(1, 10**9),
    "export": st.sampled_from(["mxnet", "onnx"]),
    "out": WORDS,
}
NUMBERS = [name for name in VALID if re.search("int|float", str(FIELDS[name].type))]
NAMED = st.sampled_from(sorted(VALID)).flatmap(lambda name: st.tuples(st.just(name), VALID[name]))


def test_every_setting_is_tried_here():
    assert set(VALID) == set(FIELDS)


@given(NAMED)
def test_valid_values_are_kept(named):
    name, value = named
    assert getattr(TrainConfig(**{name: value}), name) == value


@given(NAMED)
def test_text_from_a_command_line_becomes_the_same_value(named):
    name, value = named
    if not isinstance(value, bool):
        assert getattr(TrainConfig(**{name: str(value)}), name) == value


@given(NAMED)
def test_a_config_survives_json(named):
    config = TrainConfig(**dict([named]))
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_a_file_of_a_topology_is_known_in_every_folder(tmp_path, monkeypatch):
    """A run may go on from another one; a machine's name stays as it is."""
    monkeypatch.chdir(tmp_path)
    assert TrainConfig(topology="m.json").topology == str(tmp_path / "m.json")
    assert TrainConfig(topology="/a/m.JSON").topology == "/a/m.JSON"
    assert TrainConfig(topology="p3.16xlarge").topology == "p3.16xlarge"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert TrainConfig(topology="m.json").topology == "m.json"


@given(
    st.sampled_from(NUMBERS),
    st.one_of(st.text(), st.floats(), st.integers(max_value=-1), st.booleans(), st.none(), st.binary()),
)
def test_anything_else_is_refused_in_one_error_that_names_option_and_value(name, value):
    try:
        kept = getattr(TrainConfig(**{name: value}), name)
    except ConfigError as error:
        assert str(error).startswith(f"{option_name(name)} ")
        assert str(value).strip() in str(error)
    else:
        assert kept is None if value is None else math.isfinite(kept) and kept >= 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("gpus", "threads", "batch_size", "global_batch_size")),
        *((name, 0) for name in ("microbatches", "microbatch_size", "epochs", "lr")),
        *((name, -1) for name in NUMBERS),
        *((name, math.nan) for name in NUMBERS),
        *((name, math.inf) for name in NUMBERS),
        *((name, True) for name in NUMBERS),
        *((name, "") for name in FIELDS),
        *((name, "two") for name in NUMBERS),
        *((name, None) for name in FIELDS if FIELDS[name].default is not None),
        ("lr", 10**400),
        ("lr", LARGEST_NUMBER),
        ("wd", 1e300),
        ("epochs", "9" * 5000),
        ("resident_bytes", "9" * 5000),
        ("resident_bytes", "1.5.1M"),
        ("resident_bytes", "64X"),
        ("momentum", 1),
        ("seed", 2**32),
        *(("lr_decay", value) for value in (0, 1)),
        *(
            ("lr_decay_epochs", value)
            for value in ("0,3", "3,3", "20,10", "3,,5", "1.5", "9" * 5000, [], [2, 1], True, 0)
        ),
        *(("compress", value) for value in ("1bit:0.5", "2bit:", "2bit:0", "2bit:nan", "2bit:1:2")),
        *(("compress", value) for value in ("2bit:-1", "0.5", 2, "2bit:1e-300", "fp16:1", "fp8")),
        *(("normalise", value) for value in ("0.5/0", "0.5/-1", "0.5,0.5", "1/2/3", "nan/1")),
        *(("normalise", value) for value in ("0/inf", "x,1/1,1", "/", 0.5, [[0.5]], [])),
        *(("clip_norm", value) for value in (0, 1e-300)),
        ("label_smoothing", 1),
        ("threads", 1025),
        ("gpus", "1_000"),
        ("gpus", 2.5),
        ("devices", []),
        ("devices", ["gpu:0", 1.5]),
        ("devices", ["gpu:0", ""]),
        ("devices", {"gpu:0"}),
        ("require_gpu", "yes"),
    ],
)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{option_name(name)} "):
        TrainConfig(**{name: value})


@pytest.mark.parametrize("name", ["optimizer", "model", "kvstore", "lr_schedule", "devices"])
def test_an_object_in_place_of_a_name_is_told_by_its_type(name):
    """Its text may have many lines, as that of a Gluon network."""

    class Thing:
        def __repr__(self):
            return "Thing(\n)"

    with pytest.raises(ConfigError, match=r"of type Thing: give a name, see --list$") as caught:
        TrainConfig(**{name: Thing()})
    assert str(caught.value).startswith(option_name(name))


@given(
    st.integers(0, 2**40), st.sampled_from(["", "k", "m", "g", "t"]), st.sampled_from(["", "b", "ib"]), st.booleans()
)
def test_sizes_in_bytes_are_exact(number, unit, ending, upper):
    given_text = f"{number}{unit}{ending}"
    assert check_size_in_bytes("--x", given_text.upper() if upper else given_text) == number << 10 * " kmgt".index(
        unit or " "
    )


def test_half_sizes_are_understood():
    assert check_size_in_bytes("--x", " 1.5 GiB ") == 3 * 2**29


def test_epochs_compression_and_colours_have_one_spelling():
    assert TrainConfig(lr_decay_epochs=[10, 20]) == TrainConfig(lr_decay_epochs=" 10, 020 ")
    assert TrainConfig(lr_decay_epochs=10).lr_decay_epochs == "10"
    assert TrainConfig(compress="2bit") == TrainConfig(compress=" 2bit:.50 ")
    assert TrainConfig(compress="2bit").compress == "2bit:0.5"
    assert TrainConfig(compress=" fp16 ").compress == "fp16"
    assert TrainConfig(normalise=((0.5, 0.25), (1, 2))) == TrainConfig(normalise=" .5,0.250 / 1,2e0 ")
    assert (
        TrainConfig(normalise=(0.5, 2)).normalise == "0.5/2.0"
        and TrainConfig(normalise="ImageNet").normalise == "imagenet"
    )


@settings(max_examples=25)
@given(NAMED)
def test_numpys_values_are_pythons(named):
    name, value = named
    numpys = np.str_(value) if isinstance(value, str) else np.array(value)[()]
    found, expected = (getattr(TrainConfig(**{name: each}), name) for each in (numpys, value))
    assert (found, type(found)) == (expected, type(expected))


def test_arrays_and_types_of_numpy_are_lists_and_names():
    given = {
        "dtype": np.dtype("float16"), "lr_decay_epochs": np.array([2, 5]), "gpus": np.array(3),
        "normalise": [np.array([0.5]), [np.float64(0.25)]], "confusion": np.bool_(True),
    }  # fmt: skip
    same = {"dtype": "float16", "lr_decay_epochs": "2,5", "gpus": 3, "normalise": "0.5/0.25", "confusion": True}
    assert TrainConfig(**given) == TrainConfig(**same)
    assert TrainConfig(devices=np.array(["cpu:0", "cpu:1"])).devices == ("cpu:0", "cpu:1")


@pytest.mark.parametrize(
    ("gpus", "instead"),
    [
        ("0,1", "gpu:0,1"), ("0, 1,", "gpu:0,1"), ([0, 2], "gpu:0,2"), ((1,), "gpu:1"),
        ("gpu:0,1", "gpu:0,1"), ("cuda:1", "gpu:1"), (0, "gpu:0"), ("all", "gpu:*"),
        (-1, "gpu:*"),
    ],
)  # fmt: skip
def test_names_of_gpus_are_told_where_they_belong(gpus, instead):
    with pytest.raises(ConfigError) as raised:
        TrainConfig(gpus=gpus)
    said = f"--gpus {gpus}: give a whole number from 1 up, or name GPUs: --devices {instead}"
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ctx", "devices"), ("context", "devices"), ("learning_rate", "lr"),
        ("batch", "batch_size"), ("num_epochs", "epochs"), ("kv_store", "kvstore"),
        ("weight_decay", "wd"), ("out_dir", "out"), ("train_data", "dataset"),
        ("data_shape", "image_size"), ("lr_steps", "lr_decay_epochs"),
        ("optimizer_params", "lr"), ("num_gpus", "gpus"), ("devicess", "devices"),
    ],
)  # fmt: skip
def test_a_setting_as_others_name_it_is_answered_with_ours(theirs, ours):
    with pytest.raises(ConfigError, match=f"^unknown setting '{theirs}': did you mean '{ours}'[?]$"):
        TrainConfig(**{theirs: 1})


def test_what_belongs_to_train_is_no_setting():
    with pytest.raises(ConfigError, match=r"'net' is .*: train\(TrainConfig\(\), net=...\)$"):
        TrainConfig(net=None)
    for theirs, ours in (("metric", "metrics"), ("resume_from", "resume")):
        with pytest.raises(ConfigError, match=f"'{theirs}' is not a setting, .*, {ours}=...[)]$"):
            TrainConfig(**{theirs: None})


def test_a_path_becomes_text():
    assert TrainConfig(out=pathlib.Path("runs") / "a").out == "runs/a"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"gpus": 2, "devices": "cpu"}, ["--gpus 2", "--devices cpu"]),
        ({"batch_size": 8, "global_batch_size": 16}, ["--batch-size 8", "--global-batch-size 16"]),
        ({"require_gpu": True, "devices": "cpu*2"}, ["--require-gpu", "--devices cpu*2"]),
        ({"require_gpu": True, "devices": "2"}, ["--require-gpu", "--devices 2", "--gpus 2"]),
    ],
)
def test_contradictions_name_both_settings(settings, named):
    with pytest.raises(ConfigError) as error:
        TrainConfig(**settings)
    assert all(name in str(error.value) for name in named)


@pytest.mark.cpu_only("names of CPU devices, and nothing is computed")
@pytest.mark.parametrize(
    "names", [["cpu:0", "cpu:1"], ("cpu:0", "cpu:1"), ["cpu:0|cpu:1"], "cpu:0|cpu:1", [mx.cpu(0), mx.cpu(1)]]
)
def test_devices_may_be_a_list_or_a_regular_expression(names, tmp_path):
    """As in devices(): a list, a tuple, a pattern; config.json holds plain text and reads back as
    the same config.
    """
    config = TrainConfig(devices=names)
    assert devices(config.devices) == [mx.cpu(0), mx.cpu(1)]
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))) == config
    assert TrainConfig(devices=list(names) if isinstance(names, tuple) else names) == config
    assert hash(config) == hash(config.replace(lr=None))


def test_a_list_contradicts_what_its_text_would():
    for other in ({"gpus": 2}, {"require_gpu": True}):
        with pytest.raises(ConfigError, match="--devices cpu:0,cpu:1 contradict"):
            TrainConfig(devices=["cpu:0", "cpu:1"], **other)


def test_replace_changes_one_setting_and_checks_it():
    config = TrainConfig(gpus=2, lr=0.5)
    assert config.replace(lr=0.1) == TrainConfig(gpus=2, lr=0.1)
    assert config == TrainConfig(gpus=2, lr=0.5)
    with pytest.raises(ConfigError, match="--lr 0"):
        config.replace(lr=0)
    with pytest.raises(ConfigError, match="contradict"):
        config.replace(devices="cpu")


def test_options_have_names_of_their_own_and_say_what_they_do():
    names = [option_name(name) for name in FIELDS]
    assert len(set(names)) == len(names)
    assert all(field.metadata["help"] and field.metadata["metavar"] for field in FIELDS.values())


FLAGS = {
    name: option
    for option in main.params
    if isinstance(option, click.Option) and option.is_flag and not option.is_eager
    for name in [*option.opts, *option.secondary_opts]
}
BY_DEFAULT = main.make_context("run", []).params


def read(*words):
    """What is not as it would be without these words."""
    found = main.make_context("run", list(words)).params
    return {name: value for name, value in found.items() if value != BY_DEFAULT[name]}


@given(st.lists(st.tuples(st.sampled_from(sorted(FLAGS)), st.booleans()), max_size=4))
def test_a_flag_takes_true_and_false(asked):
    """As JSON and Python write them: hyperparameters of a SageMaker job become such words."""
    words, alone = [], []
    for name, value in asked:
        words += [name, str(value) if len(name) % 2 else str(value).lower()]
        option = FLAGS[name]
        opposite = option.secondary_opts if name in option.opts else option.opts
        alone += [name] if value else opposite
    assert read(*words, "--gpus", "2") == read(*alone, "--gpus", "2")


def test_other_values_are_none_of_a_flag(capsys):
    for words in (["--flip", "yes"], ["--flip", "true", "true"], ["--gpus", "2", "true"]):
        with pytest.raises(click.UsageError, match="unexpected extra argument"):
            read(*words)
    assert read("--out", "true") == {"out": "true"}
