"""The process that trains one step on every device, and the same step on one, and compares the
parameters.
"""

from __future__ import annotations

import sys
from typing import Any, List

from gluonlab.errors import GluonlabError
from gluonlab.gpu.code import lacking
from gluonlab.gpu.process import tell

IMAGES_PER_DEVICE = 8
TOLERANCE = 1e-5  # only the order of sums differs


def main() -> None:
    """Answers: ``devices``, then ``difference``, or ``error``."""
    try:
        from gluonlab.devices import describe

        ctxs = all_devices()
        tell(devices=describe(ctxs))
        tell(difference=difference(ctxs), images=IMAGES_PER_DEVICE * len(ctxs))
    except Exception as error:
        tell(
            error=str(error)
            if isinstance(error, GluonlabError)
            else f"{type(error).__name__}: {error}"
        )
        sys.exit(1)


def all_devices() -> List[Any]:
    """The GPUs that MXNet has code for, if there are any; two CPU devices on a machine without a
    GPU.
    """
    from gluonlab.devices import devices, gpu_count

    able = [f"gpu:{number}" for number in range(gpu_count()) if not lacking([number], 0)]
    return devices(able or ("gpu:*" if gpu_count() else "cpu*2"))


def difference(ctxs: List[Any], store: str = "device") -> float:
    """||a - b|| / ||b|| of the parameters after a step of LeNet on all devices, and on the first
    alone; the largest of all.
    """
    import numpy as np

    random = np.random.RandomState(0)
    images = random.randint(0, 256, (IMAGES_PER_DEVICE * len(ctxs), 1, 28, 28)).astype("uint8")
    labels = random.randint(0, 10, len(images)).astype("int32")
    [alone] = trained(ctxs[:1], images, labels, store)
    together = trained(ctxs, images, labels, store)
    ratios = [
        np.linalg.norm(a - b) / (np.linalg.norm(b) or 1)
        for replica in together
        for a, b in zip(replica, alone)
    ]
    return float(np.max(ratios))  # not max, which may pass over NaN


def trained(ctxs: List[Any], images: Any, labels: Any, store: str) -> List[List[Any]]:
    """Each replica's parameters after one step of what a run computes, from bytes on: numpy
    arrays.
    """
    from mxnet import nd

    from gluonlab.data.loading.augment import make_input
    from gluonlab.data.loading.shards import shard
    from gluonlab.kvstores import make_kvstore
    from gluonlab.models import get_model
    from gluonlab.parallel.data.step import DataParallelStep
    from gluonlab.parallel.objective import make_loss
    from gluonlab.update.trainer import BucketedTrainer

    net = initialised(get_model("lenet", 10, ctxs), ctxs)
    trainer = BucketedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, make_kvstore(store, ctxs)
    )
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input(None))
    step(shard(nd.array(images, dtype="uint8"), ctxs), shard(nd.array(labels, dtype="int32"), ctxs))
    return [[param.data(ctx).asnumpy() for param in net.collect_params().values()] for ctx in ctxs]


def initialised(net: Any, ctxs: List[Any]) -> Any:
    """The same parameters each time, whatever the devices."""
    import numpy as np
    from mxnet import nd

    net.initialize(ctx=ctxs)
    net(nd.zeros((1, 1, 28, 28), ctx=ctxs[0]))
    random = np.random.RandomState(1)
    for param in net.collect_params().values():
        param.set_data(nd.array(random.normal(0, 0.1, param.shape).astype("float32")))
    return net


if __name__ == "__main__":
    main()
