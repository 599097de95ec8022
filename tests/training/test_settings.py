"""A run's settings, in config.json and in --json, contain all that changes its numbers."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.idx_files import write_mnist
from support.image_folders import write_image_folder
from support.reference import parameter_arrays
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.errors import UsageError
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import Epoch
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter

pytestmark = [
    pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning"),
    pytest.mark.cpu_only("threads are of CPU devices, and arithmetic is settled once per process"),
]

TWO, STEPPED = {"devices": "cpu*2"}, {"lr_schedule": "step"}
# A field -> another value of it, and what both runs have besides.
CHANGES = {
    "gpus": (2, {"devices": None}), "devices": ("cpu*2", {}), "threads": (2, {}),
    "batch_size": (7, {}), "global_batch_size": (7, {}), "epochs": (3, {}), "drop_last": (True, {}),
    "device_weights": ("2,1", TWO), "patience": (3, {}), "lr": (0.5, {}),
    "scale_lr": (True, {**TWO, "batch_size": 50}), "model": ("lenet-avg", {}),
    "dataset": ("synthetic", {}), "kvstore": ("ring", TWO), "optimizer": ("adam", {}),
    "momentum": (0.5, {}), "momentum_rule": ("mxnet", {"momentum": 0.9}), "wd": (0.5, {}),
    "seed": (1, {}), "lr_schedule": ("cosine", {}), "warmup_epochs": (1, {}),
    "lr_decay": (0.3, STEPPED), "lr_decay_epochs": ("2", STEPPED),
    "final_lr": (1e-3, {"lr_schedule": "linear"}), "normalize": ("0.5/0.25", {}),
    "flip": (True, {}), "crop_padding": (2, {}), "mixup": (0.2, {}), "label_smoothing": (0.1, {}),
    "class_weights": ("balanced", {}),
    "no_bias_decay": (True, {"wd": 1e-4}), "clip_norm": (1.0, {}), "microbatches": (2, {}),
    "on_nan": ("skip", {}),
    "microbatch_size": (7, {}), "sync_bn": (True, {**TWO, "model": "resnet8"}),
    "compress": ("2bit:0.5", TWO), "bucket_bytes": (0, {}),
    "topology": ("p3.16xlarge", {"devices": "cpu*4", "kvstore": "ring"}),
    "image_size": (8, {"dataset": "folder:pictures"}),
    "skip_corrupt": (True, {"dataset": "folder:pictures"}),
    "resizer": ("pillow", {"dataset": "folder:pictures"}),
    "val_split": (0.3, {"dataset": "folder:unsplit", "val_split": 0.6}),
    "random_resized_crop": (True, {"dataset": "folder:pictures"}),
    "recipe": ("imagenet", {"dataset": "folder:pictures", "model": "resnet18"}),
    "data_dir": ("other", {"dataset": "mnist", "data_dir": "here"}),
    "pretrained": ("start.params", {}),
    "strategy": ("layers", TWO), "pipeline_parallel": (2, {"devices": "cpu*4", "strategy": "layers"}),
    "cut": ("1", {**TWO, "strategy": "layers"}), "balance": ("time", {**TWO, "strategy": "layers"}),
    "pipeline_schedule": ("gpipe", {**TWO, "strategy": "pipeline"}),
    "stages_per_device": (2, {**TWO, "strategy": "pipeline"}),
    "tensor_parallel": (2, {"devices": "cpu*4", "strategy": "tensor"}),
    "tensor_parallel_mode": ("row", {**TWO, "strategy": "tensor"}),
}  # fmt: skip
ON_GPUS = {"dtype", "deterministic", "tf32"}  # no run on CPU devices takes or feels them
OF_GROUPS = {"update_on_servers"}  # tests/launch/test_served.py: no process alone takes it
# how a run is carried out, and what is made of it: never its numbers
NO_NUMBER = {
    "require_gpu", "workers", "prefetch", "device_cache_bytes", "estimate_memory", "checkpoint_every",
    "keep_checkpoints", "check_replicas", "confusion", "export", "profile", "tensorboard", "backward_bulk_size", "out",
}  # fmt: skip


BASE = {"devices": "cpu", "threads": 1, "optimizer": "sgd", "lr": 0.1, "model": "mlp"}


@functools.lru_cache(maxsize=None)
def digits():
    return load_dataset("digits")


def make_plan_of(**options):
    config = TrainConfig(**{**BASE, **options})
    return make_plan(config, digits() if config.dataset == "digits" else None)


def is_shown(name):
    value, more = CHANGES[name]
    return make_plan_of(**more).settings() != make_plan_of(**{**more, name: value}).settings()


OF_IMAGE_FILES = [name for name in CHANGES if "folder" in CHANGES[name][1].get("dataset", "")]


def test_every_field_that_can_change_numbers_shows(empty_cwd):
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    assert fields == {*CHANGES, *ON_GPUS, *NO_NUMBER, *OF_GROUPS}
    nd.save("start.params", {"weight": nd.ones((1,))})
    for name in ("here", "other"):
        write_mnist(empty_cwd / name)
    assert [name for name in CHANGES if name not in OF_IMAGE_FILES and not is_shown(name)] == []


@pytest.mark.long
@pytest.mark.parametrize("name", OF_IMAGE_FILES)
def test_every_option_that_changes_image_files_shows(name, empty_cwd):
    write_image_folder(empty_cwd / "pictures", train=1, val=1)
    write_image_folder(empty_cwd / "unsplit", train=4, val=0)
    shutil.rmtree(empty_cwd / "unsplit" / "val")
    assert is_shown(name)


def test_mixed_precision_shows():
    plan = make_plan_of()
    config = plan.resolved.config.replace(dtype="float16")  # no CPU device takes it
    plan = dataclasses.replace(plan, resolved=plan.resolved._replace(config=config))
    assert plan.settings()["dtype"] == "float16"


def test_json_has_all_settings_and_results_under_other_names():
    plan = make_plan_of(label_smoothing=0.1, clip_norm=1.0, microbatches=2)
    epoch = Epoch(epoch=1, step=1, images=9, training_seconds=1.0, loss=1.0, accuracy=0.5)
    summary = Result(plan, None, Path("run"), history=[epoch]).summary()
    assert plan.settings().items() <= json.loads(json.dumps(summary)).items()


# Options with values that may come to the same, as None does with what it stands for.
DRAWN = {
    "devices": ["cpu", "cpu*1", "cpu*2"], "global_batch_size": [700, 1437], "prefetch": [0, 2],
    "device_cache_bytes": [0, 2**28], "bucket_bytes": [None, 0, 4 * 2**20], "flip": [None, True],
    "microbatches": [None, 1, 2], "momentum": [None, 0.0, 0.9], "optimizer": ["sgd", "SGD", "nag"],
    "momentum_rule": [None, "corrected", "mxnet"], "lr_schedule": [None, "constant", "cosine"],
    "clip_norm": [None, 0.01, 1e9], "label_smoothing": [None, 0.0, 0.2], "recipe": [None, "quick"],
    "mixup": [None, 0.0, 0.3], "seed": [0, 1], "kvstore": ["device", "local", "ring"],
    "wd": [None, 0.0, 1e-2], "normalize": [None, "none", "0.5/0.5"],
    "warmup_epochs": [None, 0, 0.5], "crop_padding": [None, 0, 1], "scale_lr": [False, True],
}  # fmt: skip


def train_to_bits(options, folder):
    """Return the bits of all losses and of the parameters."""
    config = TrainConfig(**{**BASE, "epochs": 1, "out": str(folder), **options})
    result = train(config, reporter=Reporter(), dataset=digits())
    losses = [line["loss"] for line in read_metrics(folder) if "loss" in line]
    return losses, [array.tobytes() for array in parameter_arrays(result.net)]


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
@given(st.data())
@settings(max_examples=4)
def test_runs_with_the_same_settings_have_the_same_bits(tmp_path_factory, name, data):
    """So two runs that train differently have different settings."""
    values = {name: st.sampled_from(values) for name, values in DRAWN.items()}
    one = data.draw(st.fixed_dictionaries({}, optional=values))
    one[name], other = data.draw(st.permutations(DRAWN[name]))[:2]
    other = {**one, name: other}
    try:
        equal = make_plan_of(**one, epochs=1).settings() == make_plan_of(**other, epochs=1).settings()
    except UsageError:  # such as a momentum rule without momentum
        return
    if equal and one != other:
        first, second = (train_to_bits(options, tmp_path_factory.mktemp("run")) for options in (one, other))
        assert first == second
