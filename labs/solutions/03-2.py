import math


def updates(images, epochs, devices, batch_per_device):
    """The number of updates in `epochs` passes over so many images; whole numbers."""
    global_batch = devices * batch_per_device
    return epochs * math.ceil(images / global_batch)
