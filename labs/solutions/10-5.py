from gluonlab.collectives.schedule import Transfer


def three_in_a_row():
    """Return an allreduce on the line 0-1-2, in as many chunks as you like."""
    chunks = 3
    steps = [[] for _ in range(chunks + 1)]
    for chunk in range(chunks):  # inwards while the chunk before it goes outwards
        steps[chunk] += [Transfer(end, 1, chunk, "add") for end in (0, 2)]
        steps[chunk + 1] += [Transfer(1, end, chunk, "copy") for end in (0, 2)]
    return steps
