import math


def scaled(k, batch_per_device, lr, images):
    """(global batch size, learning rate by the linear scaling rule, steps per epoch).

    For k devices with batch_per_device images each, if lr is the learning rate of one device and
    images is the number of training images.
    """
    global_batch_size = k * batch_per_device
    return global_batch_size, k * lr, math.ceil(images / global_batch_size)
