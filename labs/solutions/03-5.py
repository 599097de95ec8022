def speedup(host_ms, compute_ms, sum_ms, devices):
    """Return the images per second of `devices` devices, divided by those of one device."""
    alone = max(host_ms, compute_ms)
    together = alone if devices == 1 else max(devices * host_ms, compute_ms + sum_ms)
    return devices * alone / together
