def learning_rate(step, base_lr, devices, warmup_steps):
    full = base_lr * devices
    if step >= warmup_steps:
        return full
    return full * step / warmup_steps
