import math


def learning_rates(images, devices, batch_per_device, epochs, base_lr, warmup_epochs, drops):
    """Return a list with the learning rate of every update of a training run.

    base_lr: the right learning rate for one device
    drops: a list of epochs, counted from 0

    The last batch of an epoch may be smaller. `warmup_epochs` may be 0. The warm-up ends before the
    first drop.
    """
    updates = math.ceil(images / (devices * batch_per_device))  # in an epoch
    full, warmup = base_lr * devices, updates * warmup_epochs
    rising = [base_lr + (full - base_lr) * update / warmup for update in range(warmup)]
    rates = []
    for epoch in range(warmup_epochs, epochs):
        rates += [full * 0.1 ** sum(drop <= epoch for drop in drops)] * updates
    return rising + rates
