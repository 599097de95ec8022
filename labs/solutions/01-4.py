from mxnet import nd


def whole_gradient(gradients, sizes):
    """The gradient of the mean loss of all images, on the first gradient's device.

    gradients[i], on device i: that of the mean loss of a shard of sizes[i] images; they have the
    same shape, and are not changed.
    """
    device = gradients[0].context
    total = nd.zeros_like(gradients[0])
    for gradient, size in zip(gradients, sizes):
        total += size * gradient.as_in_context(device)  # a mean times its number of images is the sum
    return total / sum(sizes)
