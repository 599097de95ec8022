"""The settings of a training in a prediction: priced, with a caution, refused, or irrelevant."""

import dataclasses
import shutil
from functools import lru_cache

import pytest
from support.idx_files import write_mnist
from support.image_folders import write_image_folder

from gluonlab.config import TrainConfig
from gluonlab.config.train_config import option_name
from gluonlab.errors import UsageError
from gluonlab.performance_model.count_work import count_model_work
from gluonlab.study.speedup import predict_step as predicted_module
from gluonlab.study.speedup.predict_step import (
    CAUTIONS,
    IRRELEVANT_SETTINGS,
    PREDICTED_SETTINGS,
    REFUSED_SETTINGS,
    predict_config,
)

USUAL = TrainConfig(model="cifar_resnet20", optimizer="sgd", batch_size=64)
FILES = "folder:pictures"
MACHINE = "p4d.24xlarge"
# A value of each setting that is not its default, with what it needs.
VALUES = {
    "gpus": 2, "devices": "cpu*2", "require_gpu": True, "threads": 1, "dtype": "float16", "seed": 1,
    "deterministic": True, "tf32": True, "strategy": "layers", "pipeline_parallel": 2, "cut": "3",
    "balance": "memory", "pipeline_schedule": "gpipe", "stages_per_device": 2, "tensor_parallel": 2,
    "tensor_parallel_mode": "conv0:2", "dataset": FILES, "data_dir": "somewhere", "image_size": 64,
    "workers": 1, "resizer": "pillow", "skip_corrupt": True, "val_split": 0.2,
    "random_resized_crop": True, "crop_padding": 4, "flip": True,
    "mixup": 0.2, "normalize": "imagenet", "prefetch": 1, "device_cache_bytes": 0, "model": "resnet18",
    "pretrained": "some.params", "recipe": "imagenet", "sync_bn": True, "batch_size": 32,
    "global_batch_size": 256, "microbatches": 4, "microbatch_size": 8, "epochs": 3,
    "optimizer": "adam", "lr": 0.5, "scale_lr": True, "lr_schedule": "cosine", "warmup_epochs": 1.0,
    "lr_decay": 0.5, "lr_decay_epochs": "1,2", "final_lr": 0.01, "momentum": 0.9,
    "momentum_rule": "linear", "wd": 0.01, "no_bias_decay": True, "clip_norm": 1.0,
    "on_nan": "skip", "label_smoothing": 0.1, "kvstore": "ring", "topology": "p3.16xlarge",
    "compress": "2bit:0.5", "update_on_servers": True, "bucket_bytes": 0, "backward_bulk_size": "off",
    "check_replicas": 5, "estimate_memory": True, "confusion": True, "export": True, "profile": 5,
    "tensorboard": True,
    "checkpoint_every": "5", "keep_checkpoints": 1, "out": "somewhere", "patience": "5", "drop_last": True,
    "device_weights": "2,1", "class_weights": "balanced",
}  # fmt: skip
REQUIRED_SETTINGS = {
    "global_batch_size": {"batch_size": None}, "lr_decay_epochs": {"lr_schedule": "step"},
    "lr_decay": {"lr_schedule": "step"}, "final_lr": {"lr_schedule": "cosine"},
    "image_size": {"dataset": FILES}, "random_resized_crop": {"dataset": FILES},
    "workers": {"dataset": FILES}, "resizer": {"dataset": FILES}, "skip_corrupt": {"dataset": FILES},
    "val_split": {"dataset": "folder:unsplit", "val_split": 0.3},
    "normalize": {"dataset": FILES}, "data_dir": {"dataset": "mnist"},
    "backward_bulk_size": {"bucket_bytes": 0},
    "recipe": {"dataset": FILES, "model": "resnet18", "optimizer": None, "batch_size": None},
}  # fmt: skip


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory):
    """A folder with all data sets, which no test writes to."""
    root = tmp_path_factory.mktemp("data")
    write_image_folder(root / "pictures")
    write_image_folder(root / "unsplit", val=0)
    shutil.rmtree(root / "unsplit" / "val")
    write_mnist(root / "somewhere")
    return root


@pytest.fixture(scope="module", autouse=True)
def count_work_once():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(predicted_module, "count_model_work", lru_cache(None)(count_model_work))
        yield


@pytest.fixture(autouse=True)
def in_data_sets(data_sets, monkeypatch):
    monkeypatch.chdir(data_sets)
    monkeypatch.setenv("GLUONLAB_DATA", str(data_sets / "somewhere"))


@lru_cache(maxsize=None)
def predict_once(**settings):
    return predict_config(MACHINE, dataclasses.replace(USUAL, **settings))


def predict_both(field):
    """The predictions of a training with the setting, and of the same one without."""
    without = dataclasses.replace(USUAL, **REQUIRED_SETTINGS.get(field, {}))
    given = dataclasses.replace(without, **{field: VALUES[field]})
    return predict_config(MACHINE, given), predict_once(**REQUIRED_SETTINGS.get(field, {}))


def test_every_setting_is_in_one_list():
    lists = [PREDICTED_SETTINGS, set(CAUTIONS), set(REFUSED_SETTINGS), IRRELEVANT_SETTINGS]
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set().union(*lists) == fields == set(VALUES)
    assert sum(map(len, lists)) == len(fields)


@pytest.mark.parametrize("field", sorted(PREDICTED_SETTINGS))
def test_priced_settings_change_the_prediction(field):
    given, without = predict_both(field)
    assert given.rows != without.rows


@pytest.mark.parametrize("field", sorted(CAUTIONS))
def test_settings_that_are_not_priced_add_a_caution_only(field):
    given, without = predict_both(field)
    (caution,) = set(given.cautions) - set(without.cautions)
    assert caution.startswith(option_name(field)) and "is not priced" in caution
    assert given.rows == without.rows


@pytest.mark.parametrize("field", sorted(REFUSED_SETTINGS))
def test_refused_settings_are_named_in_one_line(field):
    with pytest.raises(UsageError, match=f"^{option_name(field)}.*$"):
        predict_both(field)


@pytest.mark.parametrize("field", sorted(IRRELEVANT_SETTINGS))
def test_irrelevant_settings_have_no_influence(field):
    given, without = predict_both(field)
    assert given == without


@pytest.mark.parametrize("machine", ["p3.16xlarge", "p3.16xlarge*4"])
def test_a_global_batch_is_strong_scaling(machine):
    """Each row is that of a training with its own share of the images, as many in all."""
    shared = dataclasses.replace(USUAL, batch_size=None, global_batch_size=512)
    for row in predict_config(machine, shared).rows:
        assert row.batch_size == 512 // row.gpus
        alone = dataclasses.replace(USUAL, batch_size=row.batch_size, gpus=row.gpus)
        assert row.step_s == predict_config(machine, alone).all_gpus_row.step_s
        assert row.images_per_s == pytest.approx(512 / row.step_s)


def test_images_that_do_not_divide_wait_for_the_gpu_with_most():
    uneven = dataclasses.replace(USUAL, batch_size=None, global_batch_size=65, gpus=8)
    found = predict_config(MACHINE, uneven)
    assert found.all_gpus_row.batch_size == 9
    assert found.all_gpus_row.images_per_s == pytest.approx(65 / found.all_gpus_row.step_s)
    assert any("cannot be divided evenly among 2, 4, 8 GPUs" in caution for caution in found.cautions)
