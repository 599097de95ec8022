def train_batch_on(net, loss, trainer, images, labels, ctxs):
    xs, ys = shard(images, ctxs), shard(labels, ctxs)
    with autograd.record():
        losses = [loss(net(x), y) for x, y in zip(xs, ys)]
    autograd.backward(losses)
    trainer.step(len(images))  # the gradients are summed over all devices: divide by the images of all devices
    return losses
