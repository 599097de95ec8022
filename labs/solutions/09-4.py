def train_epoch(net, loss, trainer, images, labels, global_batch_size, ctxs):
    means = []
    for begin in range(0, len(images), global_batch_size):
        end = begin + global_batch_size
        x, y = images[begin:end], labels[begin:end]
        xs, ys = shard(x, ctxs), shard(y, ctxs)
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
        autograd.backward(losses)
        for ctx in ctxs[len(xs) :]:  # no shard, no backward: what is there is the gradient of the batch before
            for param in net.collect_params().values():
                param.grad(ctx)[:] = 0
        trainer.step(len(x))
        means.append(sum(float(each.sum().asscalar()) for each in losses) / len(x))
    return means
