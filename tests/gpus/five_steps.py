"""Short runs of `gluonlab.run` on any devices, whose results can be compared.

As a program, for `five_steps_without_onednn`: python five_steps.py DEVICES SETTINGS FILE, where
SETTINGS are JSON.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from support.reference import parameter_arrays

from gluonlab import TrainConfig, train
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.training.reporter import Reporter

BATCH = 16
IMAGES = 4 * BATCH + 5  # five steps; in the last one some of eight devices have no image


def random_dataset(images=IMAGES, shape=(1, 28, 28), classes=10):
    """Return random images: max pooling then has no ties, which the order of a sum would decide."""
    random = np.random.RandomState(images)

    def split(count):
        pixels = random.randint(0, 256, (count, *shape)).astype("uint8")
        return ArraySplit(pixels, random.randint(0, classes, count))

    return Dataset("digits", split(images), split(BATCH), tuple(map(str, range(classes))), Defaults())


def device_names(kind, count):
    """Return names of devices, such as ``gpu:0,1``."""
    return f"{kind}:" + ",".join(map(str, range(count)))


def train_and_collect(devices, dataset=None, **settings):
    """Train; return parameters, losses, accuracy, and whether all devices have the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(devices=devices, out=f"{folder}/run", **settings)
        result = train(config, reporter=Reporter(), dataset=dataset)
    return SimpleNamespace(
        parameters=parameter_arrays(result.net),
        alike=replicas_are_equal(result.net),
        losses=[epoch.loss for epoch in result.history],
        accuracy=result.val_accuracy,
        steps=result.history[-1].step,
    )


def replicas_are_equal(net):
    """Return whether all devices have the same bits of trained parameters, without running statistics."""
    trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
    copies = [[array.asnumpy() for array in param.list_data()] for param in trained]
    return all(np.array_equal(copy, first) for first, *others in copies for copy in others)


def train_five_steps(devices, **settings):
    """A run of one epoch over `noise`."""
    batch = settings.pop("global_batch_size", BATCH)
    settings = {"model": "lenet", "optimizer": "sgd", "lr": 0.1, **settings}
    result = train_and_collect(devices, random_dataset(), global_batch_size=batch, epochs=1, **settings)
    assert result.steps == math.ceil(IMAGES / batch)
    return result


def train_five_steps_without_onednn(devices, **settings):
    """Train the same on CPU devices without oneDNN, in another process: it rounds differently."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.npz")
        command = [sys.executable, __file__, devices, json.dumps(settings), str(file)]
        path = os.pathsep.join(filter(None, sys.path))
        subprocess.run(command, env={**os.environ, "MXNET_MKLDNN_ENABLED": "0", "PYTHONPATH": path}, check=True)
        with np.load(file, allow_pickle=False) as result:
            losses = result["losses"].tolist()
            parameters = [result[name] for name in result.files if name != "losses"]
    return SimpleNamespace(parameters=parameters, losses=losses)


if __name__ == "__main__":
    _, on, asked, into = sys.argv
    ran = train_five_steps(on, **json.loads(asked))
    np.savez(into, *ran.parameters, losses=np.array(ran.losses))
