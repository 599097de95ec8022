from gluonlab.collectives.schedule import Transfer


def gather():
    """Return an all-gather of five devices. At first, device c has only chunk c."""
    steps = []
    for distance in (1, 2, 4):  # everybody holds so many chunks, its own and those before it
        count = min(distance, 5 - distance)
        steps.append(
            [Transfer(src, (src + distance) % 5, (src - back) % 5, "copy") for src in range(5) for back in range(count)]
        )
    return steps
