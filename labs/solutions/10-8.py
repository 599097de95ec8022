from gluonlab.collectives.schedule import Transfer


def the_cube():
    """Return an allreduce on a cube. Device r has links to r ^ 1, r ^ 2 and r ^ 4."""
    halves = [[] for _ in range(6)]
    for third, bits in enumerate([(1, 2, 4), (2, 4, 1), (4, 1, 2)]):
        for step, bit in enumerate(bits):
            done = sum(bits[:step])
            for rank in range(8):
                for owner in range(8):
                    # rank has a part of the sum of owner's chunk, the partner is nearer to owner
                    if (rank ^ owner) & done == 0 and (rank ^ owner) & bit:
                        chunk, partner = 8 * third + owner, rank ^ bit
                        halves[step].append(Transfer(rank, partner, chunk, "add"))
                        halves[5 - step].append(Transfer(partner, rank, chunk, "copy"))
    return halves
