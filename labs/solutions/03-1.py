from mxnet import autograd, gluon


def train_batch(images, labels, devices, net, loss, trainer):
    xs = gluon.utils.split_and_load(images, devices, even_split=False)
    ys = gluon.utils.split_and_load(labels, devices, even_split=False)
    with autograd.record():
        losses = [loss(net(x), y) for x, y in zip(xs, ys)]
    autograd.backward(losses)
    trainer.step(len(images))
