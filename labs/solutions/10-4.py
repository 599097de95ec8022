from gluonlab.collectives.schedule import Transfer


def both_ways_round():
    """Return a reduce-scatter of six devices. At the end, device c has the sum of chunk c."""
    steps = [[], [], []]
    for chunk in range(6):
        # three contributions come down from c + 3, two come up from c - 2
        for step, away in enumerate((3, 2, 1)):
            src, dst = (chunk + away) % 6, (chunk + away - 1) % 6
            steps[step].append(Transfer(src, dst, chunk, "add"))
        for step, away in ((1, 2), (2, 1)):
            src, dst = (chunk - away) % 6, (chunk - away + 1) % 6
            steps[step].append(Transfer(src, dst, chunk, "add"))
    return steps
