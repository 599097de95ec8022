from mxnet import gluon, nd


def validation_accuracy(net, replicas, images, labels, global_batch_size):
    """Return the fraction of images (n, ...) whose highest score belongs to their label (n,).

    Images and labels are on the CPU. replicas[i] is a list of arrays on one device, and net(x,
    replicas[i]) returns the scores (rows, classes) of images x on this device. Split batches of
    global_batch_size images over all devices. The last batch may have any size.
    """
    ctxs = [replica[0].context for replica in replicas]
    right = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]
    for begin in range(0, len(images), global_batch_size):
        x, y = images[begin : begin + global_batch_size], labels[begin : begin + global_batch_size]
        busy = ctxs[: len(x)]  # with fewer images than devices the last devices get none
        xs, ys = [gluon.utils.split_and_load(array, busy, even_split=False) for array in (x, y)]
        for count, shard, wanted, replica in zip(right, xs, ys, replicas):
            count += (net(shard, replica).argmax(axis=1) == wanted).sum()
    return sum(count.asscalar() for count in right) / len(images)  # the only waits, one per device
