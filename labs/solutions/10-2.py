from gluonlab.collectives.schedule import Transfer


def down_the_line():
    """Return a broadcast on the line 0-1-2-3-4. At first, only device 0 has the chunks."""
    chunks = 6
    steps = [[] for _ in range(chunks + 3)]
    for chunk in range(chunks):
        for src in range(4):
            steps[chunk + src].append(Transfer(src, src + 1, chunk, "copy"))
    return steps
