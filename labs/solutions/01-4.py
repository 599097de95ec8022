from mxnet import nd


def whole_gradient(gradients, sizes):
    """Return the gradient of the mean loss of all images, on the first gradient's device.

    gradients[i] is the gradient of the mean loss of a shard of sizes[i] images, on device i. All
    gradients have the same shape. Do not change them.
    """
    device = gradients[0].context
    total = nd.zeros_like(gradients[0])
    for gradient, size in zip(gradients, sizes):
        total += size * gradient.as_in_context(device)  # a mean times its number of images is the sum
    return total / sum(sizes)
