from gluonlab.collectives.schedule import Transfer


def beat_the_eight():
    """Return an allreduce of 8 ranks: a list of steps.

    Each step is a list of Transfer(src, dst, chunk, op).
    """
    doubles, singles = [0, 3, 2, 1, 5, 6, 7, 4], [0, 1, 3, 7, 5, 4, 6, 2]
    # a double link carries two rings each way, a single one carries one
    rings = [doubles, doubles, singles]
    rings += [ring[::-1] for ring in rings]
    steps = [[] for _ in range(14)]
    for number, ring in enumerate(rings):
        for place in range(8):
            chunk = 8 * number + place  # it begins at this place of the ring
            for step in range(14):
                src, dst = ring[(place + step) % 8], ring[(place + step + 1) % 8]
                op = "add" if step < 7 else "copy"
                steps[step].append(Transfer(src, dst, chunk, op))
    return steps
