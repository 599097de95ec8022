def ring_allreduce(arrays, send):
    """Replace the values of each array (n,) with the sum of all arrays, in place.

    arrays[i] is on device i. Device i sends only to device i + 1, and the last device to device 0.
    send(piece, src, dst): sends `piece` from device src, and returns the copy on device dst
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
