import math


def scaled(k, batch_per_device, lr, images):
    """For k devices with batch_per_device images each, given the learning rate lr of one device and the number of training images:

    (global batch size, learning rate by the linear scaling rule, steps per epoch).
    """
    global_batch_size = k * batch_per_device
    return global_batch_size, k * lr, math.ceil(images / global_batch_size)
