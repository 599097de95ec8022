"""The price of a step as its definition says it, transfer by transfer, in dictionaries."""

from collections import Counter, defaultdict


def priced(step, topology, chunk_bytes):
    """(seconds of the busiest link, the names of those that are, seconds of additions)."""
    messages = Counter((transfer.src, transfer.dst) for transfer in step)  # chunks in each
    busy_s = defaultdict(float)
    for pair, chunks in messages.items():
        route = topology.routes[pair]
        for link in route.links:
            busy_s[link] += route.latency_s + chunks * chunk_bytes / link.bytes_per_s
    longest = max(busy_s.values(), default=0.0)
    adds = [(transfer.dst, transfer.chunk) for transfer in step if transfer.op == "add"]
    if topology.shared_reduce_bytes_per_s < float("inf"):
        adds = set(adds)
    added = Counter(dst for dst, _ in adds)
    reduce_s = max(
        max(added.values(), default=0) * chunk_bytes / topology.reduce_bytes_per_s,
        sum(added.values()) * chunk_bytes / topology.shared_reduce_bytes_per_s,
    )
    busiest = {link.name for link, seconds in busy_s.items() if seconds >= longest * (1 - 1e-12)}
    return longest, busiest or {""}, reduce_s


def plain_price(schedule, topology, size_bytes):
    """Seconds of a schedule: of its steps, one after the other."""
    steps = (priced(step, topology, size_bytes / schedule.chunks) for step in schedule.steps)
    return sum(longest + reduce_s for longest, _, reduce_s in steps)
