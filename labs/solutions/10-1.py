from gluonlab.collectives.schedule import Transfer


def tell_everybody():
    """Return a list of steps, each a list of Transfer. At first, only device 0 has chunk 0."""
    steps = []
    for know in (1, 2, 4):  # whoever knows tells one more
        steps.append([Transfer(src, src + know, 0, "copy") for src in range(know)])
    return steps
