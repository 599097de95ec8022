"""One step of training on every device, beside the same step on one.

`try_training` runs this module as a process of its own, which compares the parameters.
"""

from __future__ import annotations

import os
import sys
from typing import Any, List

from gluonlab.doctor.findings import Finding, fault, ok, one_line
from gluonlab.gpu.cuda import lacking
from gluonlab.gpu.isolated_process import ProcessExit, ask, message_of, tell

# Ampere's tensor cores round float32 to 10 bits, and which kernels do depends on the batch: two
# computations would differ by it.
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}  # of NVIDIA's libraries: CUDA, cuBLAS, cuDNN
TIMEOUT_S = 180.0  # a GPU's first step tries cuDNN's algorithms, one after the other
IMAGES_PER_DEVICE = 8
TOLERANCE = 1e-5  # only the order of sums differs
CURES = {
    "no kernel image": (
        "this GPU needs code that mxnet-cu112 1.9.1 does not have: "
        "see the line capability; use --devices 'cpu*2'"
    ),
    "unsupported toolchain": "the driver does not run fused operators: see the line fusion",
    "out of memory": "see the line gpu-memory: end the processes that hold it",
}


def try_training() -> List[Finding]:
    """Train in a process of its own."""
    environ = {**os.environ, **EXACT}
    return findings(ask("gluonlab.doctor.check_training", timeout_s=TIMEOUT_S, environ=environ))


def findings(outcome: ProcessExit) -> List[Finding]:
    """The findings that the process's answers make."""
    devices = (outcome.answer("devices") or {}).get("devices", "")
    where = f" on {devices}" if devices else ""
    refused, result = outcome.answer("error"), outcome.answer("difference")
    if refused is not None:
        reason, cure = one_line(refused["error"]), "see the lines above"
        cure = next((CURES[words] for words in CURES if words in reason.lower()), cure)
        return [fault("train", f"a step{where} fails", reason, cure)]
    if result is None:
        cause = f"the process {outcome.ended or 'gave no answer'}. {outcome.said}".rstrip(". ")
        cure = "see the lines above; on GPUs try one alone: --devices gpu:0"
        return [fault("train", f"a step{where} fails", cause, cure)]
    what = f"one step on {result['images']} images{where} and on one device alone: "
    what += f"parameters differ by {result['difference']:.1e}"
    if result["difference"] <= TOLERANCE:
        return [ok("train", what)]
    cause = f"more than {TOLERANCE:g}, which the order of sums explains"
    cure = "try other kvstores, with --kvstore, and fewer GPUs, to find which computes wrongly"
    return [fault("train", what, cause, cure)]


def main() -> None:
    """The process. Answers: ``devices``, then ``difference``, or ``error``."""
    try:
        from gluonlab.devices import describe

        ctxs = all_devices()
        tell(devices=describe(ctxs))
        tell(difference=difference(ctxs), images=IMAGES_PER_DEVICE * len(ctxs))
    except Exception as error:
        tell(error=message_of(error))
        sys.exit(1)


def all_devices() -> List[Any]:
    """The GPUs that MXNet has code for; two CPU devices on a machine without a GPU."""
    from gluonlab.devices import devices, gpu_count

    able = [f"gpu:{number}" for number in range(gpu_count()) if not lacking([number], 0)]
    return devices(able or ("gpu:*" if gpu_count() else "cpu*2"))


def difference(ctxs: List[Any], store: str = "device") -> float:
    """The largest ||a - b|| / ||b|| of a parameter after a step on all devices and on the first."""
    import numpy as np

    random = np.random.RandomState(0)
    images = random.randint(0, 256, (IMAGES_PER_DEVICE * len(ctxs), 1, 28, 28)).astype("uint8")
    labels = random.randint(0, 10, len(images)).astype("int32")
    [alone] = trained(ctxs[:1], images, labels, store)
    ratios = [
        np.linalg.norm(a - b) / (np.linalg.norm(b) or 1)
        for replica in trained(ctxs, images, labels, store)
        for a, b in zip(replica, alone)
    ]
    return float(np.max(ratios))  # not max, which may pass over NaN


def trained(ctxs: List[Any], images: Any, labels: Any, store: str) -> List[List[Any]]:
    """Each replica's parameters (numpy arrays) after one step of LeNet, as a run computes it."""
    from mxnet import nd

    from gluonlab.bucketed_trainer.trainer import BucketedTrainer
    from gluonlab.data.loading.augmentation import make_input
    from gluonlab.data.loading.split_batch import make_local_batch, shard
    from gluonlab.kvstores import make_kvstore
    from gluonlab.models import get_model
    from gluonlab.parallel.data.strategy import DataParallelStep
    from gluonlab.parallel.training_loss import make_loss

    net = initialised(get_model("lenet", 10, ctxs), ctxs)
    params, kvstore = net.collect_params(), make_kvstore(store, ctxs)
    trainer = BucketedTrainer(params, "sgd", {"learning_rate": 0.1}, kvstore)
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input(None))
    xs = shard(nd.array(images, dtype="uint8"), ctxs)
    step(make_local_batch(xs, shard(nd.array(labels, dtype="int32"), ctxs)))
    return [[param.data(ctx).asnumpy() for param in params.values()] for ctx in ctxs]


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
