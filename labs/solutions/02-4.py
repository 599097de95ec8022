def allreduce_by_owner(gradients):
    """Replace each gradient with its sum over all devices, in place.

    gradients[i][j] is the gradient of parameter j on device i. Divide the additions among the
    devices as evenly as possible, measured in bytes, but do not divide a parameter.
    """
    owned = [0] * len(gradients)  # numbers that each device adds up
    by_size = sorted(zip(*gradients), key=lambda copies: copies[0].size, reverse=True)
    for copies in by_size:  # one parameter on all devices
        owner = owned.index(min(owned))
        owned[owner] += copies[owner].size
        total, others = (copies[owner], [copy for device, copy in enumerate(copies) if device != owner])
        for other in others:
            total += other.as_in_context(total.context)
        for other in others:
            total.copyto(other)
