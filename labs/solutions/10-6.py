from gluonlab.collectives.schedule import Transfer


def around_the_slow_wire():
    """Return an allreduce of four devices. The link between 0 and 1 is slow."""
    hubs = {0: 2, 1: 3}  # chunk: the device that sums it
    others = {hub: [rank for rank in range(4) if rank != hub] for hub in hubs.values()}
    return [
        [Transfer(r, hub, chunk, "add") for chunk, hub in hubs.items() for r in others[hub]],
        [Transfer(hub, r, chunk, "copy") for chunk, hub in hubs.items() for r in others[hub]],
    ]
