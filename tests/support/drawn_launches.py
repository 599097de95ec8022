"""Trainings with drawn options, by one process or by its part of several.

python drawn_launches.py BACKEND FOLDER SHAPES: the process's part in the training of each of
SHAPES, [seed, workers, devices of each], one after the other in one group.
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
LEARNING_RATES = {"adadelta": 0.1, "sgd": 0.02, "nag": 0.02, "lars": 0.5}  # of others 0.001


def draw_training_settings(seed, workers, devices):
    """Settings of a training, and its images."""
    draw = random.Random(f"{seed} {workers} {devices}")
    of_all, found = workers * devices, {"threads": 1, "seed": seed, "check_replicas": 4}
    if draw.random() < 0.7:
        batch = found["global_batch_size"] = draw.choice([1, 2, 3, 5, 7, 12, 16])
    else:
        found["batch_size"] = draw.randint(1, 4)
        batch = found["batch_size"] * of_all
    epochs = found["epochs"] = draw.randint(1, 3)
    last = draw.choice([1, draw.randint(1, batch), batch])
    images = batch * (math.ceil(MIN_STEPS / epochs) - 1) + last
    # signum's step has a gradient's sign alone, which rounding turns where it is next to zero
    names = [name for name in OPTIMIZERS if name != "signum"]
    name = found["optimizer"] = draw.choice(["sgd", "sgd", *names])
    found["lr"] = LEARNING_RATES.get(name, 0.001)
    if OPTIMIZERS[name].momentum:
        found["momentum"] = draw.choice([0.0, 0.9])
    if name in ("sgd", "nag") and found["momentum"]:
        found["momentum_rule"] = draw.choice(["corrected", "mxnet"])
    # whose steps follow a gradient's size: elsewhere what is before BatchNorm is rounding errors;
    # and BatchNorm divides by the deviation of few images, which may be next to zero
    normalises = name in ("sgd", "nag") and batch >= 3 * of_all
    found["model"] = draw.choice(["mlp", "lenet", "resnet8"] if normalises else ["mlp", "lenet"])
    found["lr_schedule"] = draw.choice(["constant", "step", "cosine", "linear"])
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
        "resident_bytes": 0,
    }.items():
        if draw.random() < 0.45:
            found[setting] = value
    if "no_bias_decay" in found:
        found["wd"] = 1e-3
    if found["model"] == "resnet8":
        found.pop("microbatch_size", None)
    if "microbatch_size" in found or found.get("microbatches", 1) * of_all > batch:
        found.pop("microbatches", None)
    if devices > 1 and found["model"] != "resnet8" and draw.random() < 0.3:
        for setting in ("microbatches", "microbatch_size", "kvstore", "batch_size"):
            found.pop(setting, None)
        found["global_batch_size"] = batch
        ways = ["layers", "pipeline", *["channels"] * OPTIMIZERS[name].element_wise]
        found["split"] = draw.choice(ways)
        if found["split"] == "pipeline" and batch >= 2 * workers:
            found["microbatches"] = 2
    weights = [draw.randint(1, 3) for _ in range(devices)]
    sizes = proportional_sizes(batch, [Fraction(weight) for weight in weights] * workers)
    if len({*weights}) > 1 and "split" not in found and min(sizes) >= found.get("microbatches", 1):
        found["device_weights"] = ",".join(map(str, weights))
    return found, images


def training_features(seed, workers, devices):
    """What the training of this seed has that another may lack."""
    found, images = draw_training_settings(seed, workers, devices)
    batch = found.get("global_batch_size") or found["batch_size"] * workers * devices
    last = images % batch
    return {
        *(name for name, value in found.items() if value),
        *(["ragged"] if last else []),
        *(["a process without images"] if 0 < last < workers or batch < workers else []),
        *(["several epochs"] if found["epochs"] > 1 else []),
        found["lr_schedule"], found["model"],
        *(["another optimizer"] if found["optimizer"] != "sgd" else []),
    }  # fmt: skip


def choose_covering_shapes(worlds, seeds):
    """Shapes of trainings that together have every feature, of each world in turn; few, not fewest.

    ``worlds``: (workers, devices of each).
    """
    known = {(seed, *world): training_features(seed, *world) for seed in seeds for world in worlds}
    missing, found = set().union(*known.values()), []
    while missing or len(found) < len(worlds):
        world = worlds[len(found) % len(worlds)]
        of_world = [shape for shape in known if shape[1:] == world]
        found.append(max(of_world, key=lambda shape: len(known[shape] & missing)))
        missing -= known[found[-1]]
    return found


def train_drawn_case(folder, seed, workers, devices, group=None, factor=1.0):
    """By this process's part of a group, or by this one alone, without the drawn split.

    ``factor``: of the learning rate.
    """
    found, images = draw_training_settings(seed, workers, devices)
    if group is None and "split" in found:
        found = {k: v for k, v in found.items() if k not in ("split", "microbatches")}
    if group is None and "device_weights" in found:
        found["device_weights"] = ",".join([found["device_weights"]] * workers)
    found["lr"] *= factor
    given = {} if group is None else {"group": group}
    here = devices if group else workers * devices
    config = TrainConfig(**found, devices=f"cpu*{here}", out=str(folder))
    return train(config, reporter=Reporter(), dataset=load_few_digits(images), **given)


if __name__ == "__main__":
    from gluonlab.launch.backends import BACKENDS

    with BACKENDS[sys.argv[1]]() as group:
        for place, shape in enumerate(json.loads(sys.argv[3])):
            train_drawn_case(Path(sys.argv[2]) / f"{place}", *shape, group=group)
