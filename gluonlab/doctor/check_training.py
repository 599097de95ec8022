"""Checks that a training step results in the same parameters on all devices as on one device.

`probe_training` runs this module in a child process, which compares the parameters.
"""

from __future__ import annotations

import os
import sys
from typing import Any, List

from gluonlab.doctor.findings import Finding, fault, join_lines, ok
from gluonlab.gpu.cuda import describe_unsupported
from gluonlab.gpu.isolated_process import ProcessOutcome, error_message, run_isolated, send_answer

# Ampere's tensor cores round float32 to 10 bits in some kernels. Because the choice of kernels
# depends on the batch, the two computations would differ.
NO_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}  # read by cuBLAS and cuDNN
TIMEOUT_S = 180.0  # in its first step, a GPU tries the algorithms of cuDNN
IMAGES_PER_DEVICE = 8
TOLERANCE = 1e-5  # only the order of sums differs
CURES = {
    "no kernel image": (
        "mxnet-cu112 1.9.1 does not support this GPU: see the line \"capability\"; use --devices 'cpu*2'"
    ),
    "unsupported toolchain": 'the driver cannot run fused operators: see the line "fusion"',
    "out of memory": 'see the line "gpu-memory", and stop the processes that use the memory',
}


def probe_training() -> List[Finding]:
    """Train in a child process, and return the findings."""
    environ = {**os.environ, **NO_TF32}
    return training_findings(run_isolated("gluonlab.doctor.check_training", timeout_s=TIMEOUT_S, environ=environ))


def training_findings(outcome: ProcessOutcome) -> List[Finding]:
    """Report how much parameters differ between training on all devices and on one device."""
    devices = (outcome.first_answer("devices") or {}).get("devices", "")
    on_devices = f" on {devices}" if devices else ""
    error, result = outcome.first_answer("error"), outcome.first_answer("difference")
    if error is not None:
        reason, cure = join_lines(error["error"]), "see the lines above"
        cure = next((CURES[words] for words in CURES if words in reason.lower()), cure)
        return [fault("train", f"a step{on_devices} fails", reason, cure)]
    if result is None:
        cause = f"the process {outcome.failure or 'gave no answer'}. {outcome.last_line}".rstrip(". ")
        cure = "see the lines above; on GPUs, try a single one with --devices gpu:0"
        return [fault("train", f"a step{on_devices} fails", cause, cure)]
    what = f"one step on {result['images']} images{on_devices} and on a single device: "
    what += f"parameters differ by {result['difference']:.1e}"
    if result["difference"] <= TOLERANCE:
        return [ok("train", what)]
    cause = f"the order of sums explains at most {TOLERANCE:g}"
    cure = "try other kvstores with --kvstore, and fewer GPUs, to find the one that computes wrong results"
    return [fault("train", what, cause, cure)]


def main() -> None:
    """Train on all devices and on one device. Print the devices, and the difference or an error."""
    try:
        from gluonlab.devices import describe

        ctxs = testable_devices()
        send_answer(devices=describe(ctxs))
        send_answer(difference=max_parameter_difference(ctxs), images=IMAGES_PER_DEVICE * len(ctxs))
    except Exception as error:
        send_answer(error=error_message(error))
        sys.exit(1)


def testable_devices() -> List[Any]:
    """Return the GPUs to test, or two CPU devices if the machine has no GPUs.

    GPUs for which MXNet has no code are left out, unless MXNet has no code for any GPU.
    """
    from gluonlab.devices import devices, gpu_count

    usable = [f"gpu:{number}" for number in range(gpu_count()) if not describe_unsupported([number], 0)]
    return devices(usable or ("gpu:*" if gpu_count() else "cpu*2"))


def max_parameter_difference(ctxs: List[Any], store: str = "device") -> float:
    """Train on ``ctxs`` and on one device; return the maximum of ||a - b|| / ||b||.

    a is a parameter after a step on all devices, and b is the same parameter after a step on one
    device.
    """
    import numpy as np

    random = np.random.RandomState(0)
    images = random.randint(0, 256, (IMAGES_PER_DEVICE * len(ctxs), 1, 28, 28)).astype("uint8")
    labels = random.randint(0, 10, len(images)).astype("int32")
    [single] = parameters_after_step(ctxs[:1], images, labels, store)
    ratios = [
        np.linalg.norm(a - b) / (np.linalg.norm(b) or 1)
        for replica in parameters_after_step(ctxs, images, labels, store)
        for a, b in zip(replica, single)
    ]
    return float(np.max(ratios))  # not max, which may ignore NaN


def parameters_after_step(ctxs: List[Any], images: Any, labels: Any, store: str) -> List[List[Any]]:
    """Return the parameters of each replica, as numpy arrays, after one training step of LeNet."""
    from mxnet import nd

    from gluonlab.bucketed_trainer.trainer import BucketedTrainer
    from gluonlab.data.loading.augmentation import make_input_transform
    from gluonlab.data.loading.split_batch import make_local_batch, shard
    from gluonlab.kvstores import make_kvstore
    from gluonlab.models import get_model
    from gluonlab.parallel.data.strategy import DataParallelStep
    from gluonlab.parallel.training_loss import make_loss

    net = initialize_fixed(get_model("lenet", 10, ctxs), ctxs)
    params, kvstore = net.collect_params(), make_kvstore(store, ctxs)
    trainer = BucketedTrainer(params, "sgd", {"learning_rate": 0.1}, kvstore)
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input_transform(None))
    xs = shard(nd.array(images, dtype="uint8"), ctxs)
    step(make_local_batch(xs, shard(nd.array(labels, dtype="int32"), ctxs)))
    return [[param.data(ctx).asnumpy() for param in params.values()] for ctx in ctxs]


def initialize_fixed(net: Any, ctxs: List[Any]) -> Any:
    """Initialize a network with parameters that do not depend on the devices."""
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
