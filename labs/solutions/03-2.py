import math


def updates(images, epochs, devices, batch_per_device):
    global_batch = devices * batch_per_device
    return epochs * math.ceil(images / global_batch)
