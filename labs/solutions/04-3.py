def busiest_link(sizes, owners, devices):
    """Return how many numbers pass through the busiest link, one after the other, in both phases.

    Parameter i has sizes[i] numbers and is summed by device owners[i].
    """
    load = [0] * devices
    for size, owner in zip(sizes, owners):
        load[owner] += size
    # the owner of most receives it from all others, and sends the sum to all others
    return 2 * (devices - 1) * max(load)
