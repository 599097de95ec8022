from gluonlab.collectives.schedule import Transfer


def two_hosts():
    """Return an allreduce of two hosts, 0-3 and 4-7, with one network port each."""
    firsts = (0, 4)
    return [
        [Transfer(first + i, first, 0, "add") for first in firsts for i in (1, 2, 3)],
        [Transfer(first, first + 1, 0, "copy") for first in firsts],  # two ranks hold the sum
        [Transfer(0, 4, 0, "add"), Transfer(5, 1, 0, "add")],  # so both directions work at once
        [Transfer(1, r, 0, "copy") for r in (0, 2, 3)] + [Transfer(4, r, 0, "copy") for r in (5, 6, 7)],
    ]
