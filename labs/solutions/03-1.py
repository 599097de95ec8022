from mxnet import autograd, gluon


def train_batch(images, labels, devices, net, loss, trainer):
    """Make one update of `net`, which is on `devices`, from n >= len(devices) images.

    images: (n, ...)
    labels: (n,)
    loss(net(x), y): returns one number for each image
    trainer.step(m): divides the sum of the gradients by m
    """
    xs = gluon.utils.split_and_load(images, devices, even_split=False)
    ys = gluon.utils.split_and_load(labels, devices, even_split=False)
    with autograd.record():
        losses = [loss(net(x), y) for x, y in zip(xs, ys)]
    autograd.backward(losses)
    trainer.step(len(images))
