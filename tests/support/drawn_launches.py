"""Trainings with random options, by one process or by one rank of a group.

python drawn_launches.py BACKEND FOLDER SHAPES runs a rank. It trains each of SHAPES, which is JSON
of [seed, workers, devices per worker], in one process group.
"""

import json
import math
import random
import sys
from fractions import Fraction
from pathlib import Path

from gluonlab import TrainConfig
from gluonlab.data.loading.split_batch import proportional_sizes
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from support.drawn_runs import load_few_digits

MIN_STEPS = 10
LEARNING_RATES = {"adadelta": 0.1, "sgd": 0.02, "nag": 0.02, "lars": 0.5}  # others: 0.001


def draw_training_settings(seed, workers, devices):
    """Draw the settings of a training and its number of images."""
    draw = random.Random(f"{seed} {workers} {devices}")
    all_devices, settings = workers * devices, {"threads": 1, "seed": seed, "check_replicas": 4}
    if draw.random() < 0.7:
        batch = settings["global_batch_size"] = draw.choice([1, 2, 3, 5, 7, 12, 16])
    else:
        settings["batch_size"] = draw.randint(1, 4)
        batch = settings["batch_size"] * all_devices
    epochs = settings["epochs"] = draw.randint(1, 3)
    last = draw.choice([1, draw.randint(1, batch), batch])
    images = batch * (math.ceil(MIN_STEPS / epochs) - 1) + last
    # without signum: its step is the sign of a gradient, which rounding errors change near zero
    names = [name for name in OPTIMIZERS if name != "signum"]
    name = settings["optimizer"] = draw.choice(["sgd", "sgd", *names])
    settings["lr"] = LEARNING_RATES.get(name, 0.001)
    if OPTIMIZERS[name].momentum:
        settings["momentum"] = draw.choice([0.0, 0.9])
    if name in ("sgd", "nag") and settings["momentum"]:
        settings["momentum_rule"] = draw.choice(["corrected", "mxnet"])
    # BatchNorm needs steps in proportion to the gradient, because the gradients before it may be
    # rounding errors. It needs several images, because it divides by their deviation.
    has_batch_norm = name in ("sgd", "nag") and batch >= 3 * all_devices
    settings["model"] = draw.choice(["mlp", "lenet", "resnet8"] if has_batch_norm else ["mlp", "lenet"])
    settings["lr_schedule"] = draw.choice(["constant", "step", "cosine", "linear"])
    for setting, value in {
        "warmup_epochs": draw.choice([0.25, 0.5]),
        "wd": 1e-3,
        "no_bias_decay": True,
        "clip_norm": draw.choice([0.1, 1.0]),
        "mixup": 0.4,
        "label_smoothing": 0.1,
        "microbatches": draw.choice(range(1, 4)),
        "microbatch_size": draw.choice(range(1, 4)),
        "crop_padding": 2,
        "flip": True,
        "kvstore": draw.choice(["local", "ring", "tree"]),
        "bucket_bytes": draw.choice([0, 1000, 50_000]),
        "device_cache_bytes": 0,
    }.items():
        if draw.random() < 0.45:
            settings[setting] = value
    if "no_bias_decay" in settings:
        settings["wd"] = 1e-3
    if settings["model"] == "resnet8":
        settings.pop("microbatch_size", None)
    if "microbatch_size" in settings or settings.get("microbatches", 1) * all_devices > batch:
        settings.pop("microbatches", None)
    if devices > 1 and settings["model"] != "resnet8" and draw.random() < 0.3:
        for setting in ("microbatches", "microbatch_size", "kvstore", "batch_size"):
            settings.pop(setting, None)
        settings["global_batch_size"] = batch
        ways = ["layers", "pipeline", *["tensor"] * OPTIMIZERS[name].element_wise]
        settings["strategy"] = draw.choice(ways)
        if settings["strategy"] == "pipeline" and batch >= 2 * workers:
            settings["microbatches"] = 2
    weights = [draw.randint(1, 3) for _ in range(devices)]
    sizes = proportional_sizes(batch, [Fraction(weight) for weight in weights] * workers)
    if len({*weights}) > 1 and "strategy" not in settings and min(sizes) >= settings.get("microbatches", 1):
        settings["device_weights"] = ",".join(map(str, weights))
    return settings, images


def training_features(seed, workers, devices):
    """Return the set of features of a training, such as its settings."""
    settings, images = draw_training_settings(seed, workers, devices)
    batch = settings.get("global_batch_size") or settings["batch_size"] * workers * devices
    last = images % batch
    return {
        *(name for name, value in settings.items() if value), *(["ragged"] if last else []),
        *(["a process without images"] if 0 < last < workers or batch < workers else []),
        *(["several epochs"] if settings["epochs"] > 1 else []), settings["lr_schedule"], settings["model"],
        *(["another optimizer"] if settings["optimizer"] != "sgd" else []),
    }  # fmt: skip


def choose_covering_shapes(worlds, seeds):
    """Return few shapes of trainings that together have every feature, of each world in turn.

    ``worlds``: pairs of (workers, devices per worker).
    """
    features = {(seed, *world): training_features(seed, *world) for seed in seeds for world in worlds}
    missing, shapes = set().union(*features.values()), []
    while missing or len(shapes) < len(worlds):
        world = worlds[len(shapes) % len(worlds)]
        candidates = [shape for shape in features if shape[1:] == world]
        shapes.append(max(candidates, key=lambda shape: len(features[shape] & missing)))
        missing -= features[shapes[-1]]
    return shapes


def train_drawn_case(folder, seed, workers, devices, group=None, factor=1.0, kvstore=None):
    """Train as a rank of a group, or in this process only, then without the drawn split.

    ``factor``: multiplies the learning rate. ``kvstore``: replaces the drawn one.
    """
    settings, images = draw_training_settings(seed, workers, devices)
    if group is None and "strategy" in settings:
        settings = {k: v for k, v in settings.items() if k not in ("strategy", "microbatches")}
    if group is None and "device_weights" in settings:
        settings["device_weights"] = ",".join([settings["device_weights"]] * workers)
    settings["lr"] *= factor
    settings.update({} if kvstore is None else {"kvstore": kvstore})
    options = {} if group is None else {"group": group}
    device_count = devices if group else workers * devices
    config = TrainConfig(**settings, devices=f"cpu*{device_count}", out=str(folder))
    return train(config, reporter=Reporter(), dataset=load_few_digits(images), **options)


if __name__ == "__main__":
    from gluonlab.launch.backends import BACKENDS

    with BACKENDS[sys.argv[1]]() as group:
        for number, shape in enumerate(json.loads(sys.argv[3])):
            train_drawn_case(Path(sys.argv[2]) / f"{number}", *shape, group=group)
