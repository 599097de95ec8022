"""Program that checks that this checkout trains to the same bits as the checkout in DIR.

python tools/same_bits.py DIR

Thirty fixed random combinations of options are trained for an epoch on CPU devices with
one thread each, in both checkouts; parameters, losses and accuracy must be equal bit for bit. The
bits depend on the processor, so both checkouts train on this machine.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS, DEVICES = ("lenet", "mlp", "resnet8", "lenet-avg"), (1, 2, 4, 3)
KVSTORES = (  # by name, not from ALGORITHMS: both checkouts draw the same combinations
    "local", "device", "star", "sharded", "tree", "double_tree", "ring", "bidirectional_ring",
    "halving_doubling", "hierarchical", "sharded-optimizer",
)  # fmt: skip
OPTIMIZERS = ("sgd", "nag", "adam", "rmsprop", "adagrad")


def draw_combinations(count=30):
    """Yield settings of TrainConfig as dictionaries, the same ones on each call."""
    draw = random.Random(7)
    for number in range(count):
        model, devices = MODELS[number % 4], DEVICES[(number + (number % 3 == 0)) % 4]
        optimizer = draw.choice(OPTIMIZERS)
        settings = {
            "model": model, "devices": f"cpu*{devices}", "kvstore": KVSTORES[number % 11],
            "global_batch_size": draw.choice([96, 130, 61]), "optimizer": optimizer, "lr": 0.005,
            "epochs": 1, "threads": 1, "seed": number,
        }  # fmt: skip
        if optimizer in ("sgd", "nag"):
            settings["momentum"] = 0.9
        for name, choices in (
            ("clip_norm", [0.5]), ("mixup", [0.2]), ("label_smoothing", [0.1]), ("wd", [1e-3]),
            ("microbatches", [2]), ("crop_padding", [2]), ("flip", [True]), ("resident_bytes", [0]),
            ("lr_schedule", ["cosine", "linear"]), ("bucket_bytes", [0, 30_000]),
            ("no_bias_decay", [False]), ("normalise", ["0.5/0.25"]), ("warmup_epochs", [0.5]),  # codespell:ignore
        ):  # fmt: skip
            if draw.random() < 0.3:
                settings[name] = draw.choice(choices)
        if model == "resnet8" and devices > 1 and draw.random() < 0.7:
            settings["sync_bn"] = True
        if devices > 1 and number % 10 == 9:
            settings.update(kvstore="device", compress="2bit:0.02")
        yield settings


def train_all(count):
    """Train each combination in this process; print a line of JSON for each."""
    from gluonlab import TrainConfig, train
    from gluonlab.training.reporter import Reporter

    for settings in draw_combinations(count):
        with tempfile.TemporaryDirectory() as folder:
            result = train(TrainConfig(out=f"{folder}/run", **settings), reporter=Reporter())
            metrics = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        bits = hashlib.sha256()
        for param in result.net.collect_params().values():
            for array in param.list_data():
                bits.update(array.asnumpy().tobytes())
        lines = [json.loads(line) for line in metrics]
        losses = [line["loss"] for line in lines if line["kind"] in ("step", "epoch")]
        print(json.dumps([settings, bits.hexdigest(), losses, result.accuracy]), flush=True)  # the old name


def run_checkout(checkout, count):
    """Train with a checkout in a child process; yield the lines that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(Path(__file__).resolve()), "--train", "--count", str(count)]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    ) as child:
        yield from child.stdout
    if child.returncode:
        sys.exit(f"error: training with {checkout} exited with status {child.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", nargs="?", metavar="DIR", help="checkout to compare with")
    parser.add_argument("--count", type=int, default=30, help="compare only this many combinations")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train_all(args.count)
    if args.checkout is None or not Path(args.checkout, "gluonlab", "__init__.py").is_file():
        parser.error(f"{args.checkout} is not a checkout of gluonlab: pass one, such as ../before")
    differing = 0
    both = zip(*(run_checkout(path, args.count) for path in (ROOT, Path(args.checkout).resolve())))
    for number, (here, there) in enumerate(both, start=1):
        settings = " ".join(f"{name}={value}" for name, value in json.loads(here)[0].items())
        print(f"{number:3} {'same' if here == there else 'OTHER'}  {settings}", flush=True)
        differing += here != there
    return f"error: {differing} of {number} trainings are not bit-identical" if differing else None


if __name__ == "__main__":
    sys.exit(main())
