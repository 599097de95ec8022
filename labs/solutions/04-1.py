from gluonlab.collectives.schedule import Transfer


def reduce_scatter(world_size):
    """Return a list of steps. Each step is a list of Transfer(src, dst, chunk, op).

    Ranks and chunks are numbered from 0 to world_size - 1.
    """
    # a ring: chunk c starts at its owner's right neighbor and comes home in the last step
    return [
        [Transfer(r, (r + 1) % world_size, (r - 1 - step) % world_size, "add") for r in range(world_size)]
        for step in range(world_size - 1)
    ]
