def accuracy(net, images, labels, global_batch_size, ctxs):
    right = counted = 0
    for batch in mx.io.NDArrayIter(images, labels, global_batch_size):
        true = len(batch.data[0]) - batch.pad  # the rest are images from the beginning, once more
        xs, ys = shard(batch.data[0][:true], ctxs), shard(batch.label[0][:true], ctxs)
        for x, y in zip(xs, ys):
            right += int((net(x).argmax(axis=1) == y).sum().asscalar())
            counted += len(x)
    return right / counted
