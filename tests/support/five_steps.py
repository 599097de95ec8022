"""Program that trains LeNet for five steps on two CPU devices, and prints the losses as JSON.

tools/check_arm.py compares the losses on different processors.
"""

import json

import gluonlab  # isort: skip  # before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

STEPS, IMAGES_PER_DEVICE = 5, 8


def main():
    ctxs = gluonlab.devices.devices("cpu*2")
    mx.random.seed(0)
    draw = np.random.RandomState(0)
    net = gluonlab.get_model("lenet", 10, ctxs)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluonlab.BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="device")
    loss_function = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for _ in range(STEPS):
        images = [mx.nd.array(draw.rand(IMAGES_PER_DEVICE, 1, 28, 28), ctx) for ctx in ctxs]
        labels = [mx.nd.array(draw.randint(0, 10, IMAGES_PER_DEVICE), ctx) for ctx in ctxs]
        with autograd.record():
            step_losses = [loss_function(net(image), label) for image, label in zip(images, labels)]
        autograd.backward(step_losses)
        trainer.step(IMAGES_PER_DEVICE * len(ctxs))
        losses.append([float(loss.mean().asscalar()) for loss in step_losses])
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
