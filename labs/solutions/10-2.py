from gluonlab.collectives.schedule import Transfer


def down_the_line():
    """Device 0 of the line 0-1-2-3-4 has all chunks, as many as you like."""
    chunks = 6
    steps = [[] for _ in range(chunks + 3)]
    for chunk in range(chunks):
        for src in range(4):
            steps[chunk + src].append(Transfer(src, src + 1, chunk, "copy"))
    return steps
