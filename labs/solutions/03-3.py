def learning_rate(step, base_lr, devices, warmup_steps):
    """The learning rate of a step; steps count from 1. `base_lr` is that of one device; `warmup_steps` may be 0."""
    full = base_lr * devices
    if step >= warmup_steps:
        return full
    return full * step / warmup_steps
