def learning_rate(step, base_lr, devices, warmup_steps):
    """The learning rate of a step, which count from 1; `warmup_steps` may be 0.

    base_lr: the rate that is right for one device.
    """
    full = base_lr * devices
    if step >= warmup_steps:
        return full
    return full * step / warmup_steps
