def fit(net, loss, trainer, images, labels, global_batch_size, epochs, ctxs, largest):
    params = list(net.collect_params().values())
    share = global_batch_size // len(ctxs)
    means = []
    for _ in range(epochs):
        order = np.random.permutation(len(images))  # one for all devices: their shares are disjoint
        total = 0
        for begin in range(0, len(images), global_batch_size):
            xs, ys = [], []
            for device, ctx in enumerate(ctxs):
                first = begin + device * share
                rows = nd.array(order[first : first + share])
                xs.append(images.take(rows).as_in_context(ctx))
                ys.append(labels.take(rows).as_in_context(ctx))
            with autograd.record():
                losses = [loss(net(x), y) for x, y in zip(xs, ys)]
            autograd.backward(losses)
            trainer.allreduce_grads()  # the gradient of the batch is the sum: add up, then scale
            for ctx in ctxs:
                gradients = [param.grad(ctx) for param in params]
                gluon.utils.clip_global_norm(gradients, largest * global_batch_size)
            trainer.update(global_batch_size)
            total += sum(float(each.sum().asscalar()) for each in losses)
        means.append(total / len(images))
    return means
