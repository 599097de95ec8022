def speedup(host_ms, compute_ms, sum_ms, devices):
    """Images per second of so many devices, divided by those of one device."""
    alone = max(host_ms, compute_ms)
    together = alone if devices == 1 else max(devices * host_ms, compute_ms + sum_ms)
    return devices * alone / together
