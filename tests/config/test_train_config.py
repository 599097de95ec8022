"""TrainConfig: its valid and invalid values, and its messages."""

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
from gluonlab.config.option_checks import LARGEST_NUMBER, MAX_COUNT, SMALLEST_LIMIT, check_size_in_bytes
from gluonlab.config.renamed_settings import RENAMED_KVSTORES, RENAMED_SETTINGS
from gluonlab.devices import devices
from gluonlab.errors import ConfigError
from gluonlab.run import main
from gluonlab.runs.run_reader import parse_description

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
    "workers": st.integers(1, 256),
    "resizer": WORDS,
    "skip_corrupt": st.booleans(),
    "val_split": st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True),
    "random_resized_crop": st.booleans(),
    "crop_padding": st.integers(0, 1024),
    "flip": st.booleans(),
    "mixup": st.floats(min_value=0, max_value=LARGEST_NUMBER, exclude_max=True),
    "normalize": st.sampled_from(["imagenet", "none", "0.25,0.5/1.0,2.0", "-0.5/0.125"]),
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
    "estimate_memory": st.booleans(),
    "kvstore": WORDS,
    "topology": WORDS,
    "compress": st.floats(min_value=SMALLEST_LIMIT, max_value=LARGEST_NUMBER, exclude_max=True).map("2bit:{!r}".format)
    | st.just("fp16"),
    "seed": st.integers(0, 2**32 - 1),
    "deterministic": st.booleans(),
    "tf32": st.booleans(),
    "prefetch": st.integers(0, MAX_COUNT),
    "device_cache_bytes": st.integers(0, 2**63),
    "bucket_bytes": st.integers(0, 2**63),
    "update_on_servers": st.booleans(),
    "check_replicas": st.integers(1, MAX_COUNT),
    "profile": st.integers(1, MAX_COUNT),
    "tensorboard": st.booleans(),
    "backward_bulk_size": st.one_of(st.just("off"), st.integers(1, 10**6)),
    "strategy": WORDS,
    "device_weights": st.lists(st.integers(1, 10**9 - 1), min_size=1, max_size=4).map(
        lambda weights: ",".join(map(str, weights))
    ),
    "class_weights": st.just("balanced")
    | st.lists(st.integers(1, 999) | st.floats(0.001, 999.5), min_size=1, max_size=4).map(
        lambda weights: ",".join(re.sub(r"[.]0$", "", str(weight)) for weight in weights)
    ),
    "pipeline_parallel": st.integers(2, MAX_COUNT),
    "cut": st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=4).map(lambda cuts: ",".join(map(str, cuts))),
    "balance": WORDS,
    "pipeline_schedule": WORDS,
    "stages_per_device": st.integers(1, MAX_COUNT),
    "tensor_parallel": st.integers(2, MAX_COUNT),
    "tensor_parallel_mode": WORDS,
    "confusion": st.booleans(),
    "checkpoint_every": st.sampled_from(["1 steps", "50 steps", "10 minutes", "2 epochs"]),
    "keep_checkpoints": st.integers(1, 10**9),
    "export": st.sampled_from(["mxnet", "onnx"]),
    "out": WORDS,
}
NUMBERS = [name for name in VALID if re.search("int|float", str(FIELDS[name].type))]
NAMED = st.sampled_from(sorted(VALID)).flatmap(lambda name: st.tuples(st.just(name), VALID[name]))


def test_every_setting_is_in_the_table():
    assert set(VALID) == set(FIELDS)


@pytest.mark.parametrize("name", VALID)
@settings(max_examples=6)
@given(st.data())
def test_valid_values_survive_construction_text_and_json(name, data):
    value = data.draw(VALID[name])
    config = TrainConfig(**{name: value})
    assert getattr(config, name) == value
    assert isinstance(value, bool) or getattr(TrainConfig(**{name: str(value)}), name) == value
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_a_topology_file_becomes_an_absolute_path(tmp_path, monkeypatch):
    """A run may be resumed in another folder; the name of a machine stays the same."""
    monkeypatch.chdir(tmp_path)
    for topology, expected in (("m.json", str(tmp_path / "m.json")), ("/a/m.JSON",) * 2, ("p3.16xlarge",) * 2):
        assert TrainConfig(topology=topology).topology == expected
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    assert TrainConfig(topology="m.json").topology == "m.json"


@given(
    st.sampled_from(NUMBERS),
    st.one_of(st.text(), st.floats(), st.integers(max_value=-1), st.booleans(), st.none(), st.binary()),
)
def test_anything_else_is_refused_in_one_error_that_names_option_and_value(name, value):
    try:
        result = getattr(TrainConfig(**{name: value}), name)
    except ConfigError as error:
        assert str(error).startswith(f"{option_name(name)} ") and str(value).strip() in str(error)
    else:
        assert result is None if value is None else math.isfinite(result) and result >= 0


OUT_OF_RANGE = {
    **{name: [0] for name in ("batch_size", "global_batch_size", "microbatches", "microbatch_size")},
    "lr": [0, 10**400, LARGEST_NUMBER],
    "wd": [1e300],
    "epochs": [0, "9" * 5000],
    "device_cache_bytes": ["9" * 5000, "1.5.1M", "64X"],
    "momentum": [1],
    "seed": [2**32],
    "lr_decay": [0, 1],
    "lr_decay_epochs": ["0,3", "3,3", "20,10", "3,,5", "1.5", "9" * 5000, [], [2, 1], True, 0],
    "compress": [
        "1bit:0.5", "2bit:", "2bit:0", "2bit:nan", "2bit:1:2", "2bit:-1", "0.5", 2, "2bit:1e-300", "fp16:1", "fp8",
    ],
    "normalize": [
        "0.5/0", "0.5/-1", "0.5,0.5", "1/2/3", "nan/1", "0/inf", "x,1/1,1", "/", 0.5, [[0.5]], [],
    ],
    "clip_norm": [0, 1e-300],
    "label_smoothing": [1],
    "threads": [0, 1025],
    "gpus": [0, "1_000", 2.5],
    "devices": [[], ["gpu:0", 1.5], ["gpu:0", ""], {"gpu:0"}],
    "require_gpu": ["yes"],
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_values_out_of_range_are_refused(name):
    values = ["", *OUT_OF_RANGE.get(name, []), *[None] * (FIELDS[name].default is not None)]
    for value in values + [-1, math.nan, math.inf, True, "two"] * (name in NUMBERS):
        with pytest.raises(ConfigError, match=f"^{option_name(name)} "):
            TrainConfig(**{name: value})


@pytest.mark.parametrize("name", ["optimizer", "model", "kvstore", "lr_schedule", "devices"])
def test_the_message_about_an_object_instead_of_a_name_has_its_type(name):
    """Its repr may have many lines, as that of a Gluon network."""
    thing = type("Thing", (), {"__repr__": lambda self: "Thing(\n)"})()
    with pytest.raises(
        ConfigError, match=rf"^{option_name(name)}.* has type Thing: pass a name that gluonlab list prints$"
    ):
        TrainConfig(**{name: thing})


@given(
    st.integers(0, 2**40), st.sampled_from(["", "k", "m", "g", "t"]), st.sampled_from(["", "b", "ib"]), st.booleans()
)
def test_sizes_in_bytes_are_exact(number, unit, ending, upper):
    text = f"{number}{unit}{ending}"
    size = number << 10 * " kmgt".index(unit or " ")
    assert check_size_in_bytes("--x", text.upper() if upper else text) == size
    assert check_size_in_bytes("--x", " 1.5 GiB ") == 3 * 2**29


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lr_decay_epochs", [10, 20], "10,20"),
        ("lr_decay_epochs", " 10, 020 ", "10,20"),
        ("lr_decay_epochs", 10, "10"),
        ("compress", "2bit", "2bit:0.5"),
        ("compress", " 2bit:.50 ", "2bit:0.5"),
        ("compress", " fp16 ", "fp16"),
        ("normalize", ((0.5, 0.25), (1, 2)), "0.5,0.25/1.0,2.0"),
        ("normalize", " .5,0.250 / 1,2e0 ", "0.5,0.25/1.0,2.0"),
        ("normalize", (0.5, 2), "0.5/2.0"),
        ("normalize", "ImageNet", "imagenet"),
        ("out", pathlib.Path("runs") / "a", "runs/a"),
    ],
)
def test_settings_have_one_spelling(name, value, expected):
    assert getattr(TrainConfig(**{name: value}), name) == expected


@settings(max_examples=25)
@given(NAMED)
def test_numpys_values_become_pythons(named):
    name, value = named
    numpy_value = np.str_(value) if isinstance(value, str) else np.array(value)[()]
    result, expected = (getattr(TrainConfig(**{name: each}), name) for each in (numpy_value, value))
    assert (result, type(result)) == (expected, type(expected))


def test_arrays_and_types_of_numpy_become_lists_and_names():
    arrays = {
        "dtype": np.dtype("float16"), "lr_decay_epochs": np.array([2, 5]), "gpus": np.array(3),
        "normalize": [np.array([0.5]), [np.float64(0.25)]], "confusion": np.bool_(True),
    }  # fmt: skip
    expected = {"dtype": "float16", "lr_decay_epochs": "2,5", "gpus": 3, "normalize": "0.5/0.25", "confusion": True}
    assert TrainConfig(**arrays) == TrainConfig(**expected)
    assert TrainConfig(devices=np.array(["cpu:0", "cpu:1"])).devices == ("cpu:0", "cpu:1")


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [
        ("0, 1,", "gpu:0,1"), ([0, 2], "gpu:0,2"), ((1,), "gpu:1"), ("gpu:0,1", "gpu:0,1"), ("cuda:1", "gpu:1"),
        (0, "gpu:0"), ("all", "gpu:*"), (-1, "gpu:*"),
    ],
)  # fmt: skip
def test_names_of_gpus_are_answered_with_the_setting_devices(gpus, devices):
    message = f"--gpus {gpus}: must be a whole number of at least 1; to select GPUs, use --devices {devices}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        TrainConfig(gpus=gpus)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ctx", "devices"), ("context", "devices"), ("learning_rate", "lr"), ("batch", "batch_size"),
        ("num_epochs", "epochs"), ("kv_store", "kvstore"), ("weight_decay", "wd"), ("out_dir", "out"),
        ("train_data", "dataset"), ("data_shape", "image_size"), ("lr_steps", "lr_decay_epochs"),
        ("optimizer_params", "lr"), ("num_gpus", "gpus"), ("devicess", "devices"),
    ],
)  # fmt: skip
def test_a_setting_of_another_library_is_answered_with_gluonlabs(theirs, ours):
    with pytest.raises(ConfigError, match=f"^unknown setting '{theirs}': did you mean '{ours}'[?]$"):
        TrainConfig(**{theirs: 1})


@pytest.mark.parametrize(("theirs", "ours"), [("net", "net"), ("metric", "metrics"), ("resume_from", "resume")])
def test_an_argument_of_train_is_not_a_setting(theirs, ours):
    with pytest.raises(ConfigError, match=rf"'{theirs}' is .*: use train\(TrainConfig\(\), {ours}=...\)$"):
        TrainConfig(**{theirs: None})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"gpus": 2, "devices": "cpu"}, ["--gpus 2", "--devices cpu"]),
        ({"batch_size": 8, "global_batch_size": 16}, ["--batch-size 8", "--global-batch-size 16"]),
        ({"require_gpu": True, "devices": "2"}, ["--require-gpu", "--devices 2", "--gpus 2"]),
        ({"require_gpu": True, "devices": ["cpu:0", "cpu:1"]}, ["--devices cpu:0,cpu:1 contradict"]),
        ({"gpus": 2, "devices": ["cpu:0", "cpu:1"]}, ["--devices cpu:0,cpu:1 contradict"]),
    ],
)
def test_contradictions_name_both_settings(settings, named):
    with pytest.raises(ConfigError) as raised:
        TrainConfig(**settings)
    assert all(name in str(raised.value) for name in named)


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


def test_replace_changes_one_setting_and_checks_it():
    config = TrainConfig(gpus=2, lr=0.5)
    assert config.replace(lr=0.1) == TrainConfig(gpus=2, lr=0.1)
    assert config == TrainConfig(gpus=2, lr=0.5)
    for changes, message in (({"lr": 0}, "--lr 0"), ({"devices": "cpu"}, "contradict")):
        with pytest.raises(ConfigError, match=message):
            config.replace(**changes)


FLAGS = {
    name: option
    for option in main.params
    if isinstance(option, click.Option) and option.is_flag and not option.is_eager
    for name in [*option.opts, *option.secondary_opts]
}
BY_DEFAULT = main.make_context("run", []).params


def parse_options(*words):
    """Return the parameters that these words change."""
    params = main.make_context("run", list(words)).params
    return {name: value for name, value in params.items() if value != BY_DEFAULT[name]}


@given(st.lists(st.tuples(st.sampled_from(sorted(FLAGS)), st.booleans()), max_size=4))
def test_a_flag_takes_true_and_false(flags):
    """As JSON and Python write them: the hyperparameters of a SageMaker job become such words."""
    words, expected = [], []
    for name, value in flags:
        words += [name, str(value) if len(name) % 2 else str(value).lower()]
        option = FLAGS[name]
        opposite = option.secondary_opts if name in option.opts else option.opts
        expected += [name] if value else opposite
    assert parse_options(*words, "--gpus", "2") == parse_options(*expected, "--gpus", "2")


def test_a_flag_takes_no_other_values():
    for words in (["--flip", "yes"], ["--flip", "true", "true"], ["--gpus", "2", "true"]):
        with pytest.raises(click.UsageError, match="unexpected extra argument"):
            parse_options(*words)
    assert parse_options("--out", "true") == {"out": "true"}


OLD_VALUES = {
    "normalise": "imagenet", "skip_bad": True, "val_share": 0.5, "resident_bytes": 7, "decoders": 3, "memory": True,
    "keep": 5, "overlap": "off", "split": "channels", "ways": 2, "stages": 2, "channels": "row",
}  # fmt: skip


@pytest.mark.parametrize("old", RENAMED_SETTINGS)
def test_an_old_name_works_in_python_with_a_warning(old):
    new, value = RENAMED_SETTINGS[old], OLD_VALUES[old]
    expected = TrainConfig(**{new: "tensor" if old == "split" else value})
    for make in (TrainConfig, TrainConfig().replace):
        with pytest.warns(DeprecationWarning, match=f"^{old} is now {new}$") as warned:
            assert make(**{old: value}) == expected
        assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(DeprecationWarning, match=f"TrainConfig.{old} is now TrainConfig.{new}"):
        assert getattr(expected, old) == getattr(expected, new)


@pytest.mark.parametrize("old", RENAMED_KVSTORES)
def test_an_old_name_of_a_kvstore_works_in_python_with_a_warning(old):
    new = RENAMED_KVSTORES[old]
    for make in (TrainConfig, TrainConfig().replace):
        with pytest.warns(DeprecationWarning, match=f"^kvstore {old!r} is now {new!r}$") as warned:
            assert make(kvstore=old).kvstore == new
        assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("old", RENAMED_KVSTORES)
def test_an_old_run_is_read_without_a_warning(old, recwarn):
    used = {"split": "channels", "ways": 2, "kvstore": old, "schedules": [f"1 B {old} (4 steps)"]}
    content = {"config": {"split": "channels", "keep": 5}, "settings": used}
    run = parse_description(pathlib.Path("run"), {**content, "gluonlab": "0.2.0", "format": 2}, "config.json")
    assert run.requested == {"strategy": "tensor", "keep_checkpoints": 5}
    new = RENAMED_KVSTORES[old]
    assert run.used == {
        "strategy": "tensor", "tensor_parallel": 2, "kvstore": new, "schedules": [f"1 B {new} (4 steps)"]
    }  # fmt: skip
    assert TrainConfig(**run.requested).keep_checkpoints == 5 and not recwarn.list
