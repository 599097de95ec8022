def ring_allreduce(arrays, send):
    """Leave in each of `arrays`, one (n,) on each device, the sum of all, in place.

    Device i sends to device i + 1 only, the last one to device 0.
    send(piece, src, dst): the copy of `piece`, on device src, that arrives on dst.
    """
    n = len(arrays)
    ends = [len(arrays[0]) * chunk // n for chunk in range(n + 1)]

    def chunk(device, number):
        number %= n
        return arrays[device][ends[number] : ends[number + 1]]

    for step in range(n - 1):  # reduce-scatter: all send before anybody adds
        arrived = [send(chunk(device, device - step), device, (device + 1) % n) for device in range(n)]
        for device in range(n):
            target = chunk((device + 1) % n, device - step)
            target[:] = target + arrived[device]
    for step in range(n - 1):  # all-gather
        arrived = [send(chunk(device, device + 1 - step), device, (device + 1) % n) for device in range(n)]
        for device in range(n):
            chunk((device + 1) % n, device + 1 - step)[:] = arrived[device]
