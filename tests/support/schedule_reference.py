"""What a schedule does, found by running it on numbers: the reference that the symbolic proof is
compared with.

Written without a look at gluonlab.collectives.check: transfers are made one by one and in place, as
an executor would.
"""

from collections import Counter, defaultdict

import numpy as np

DRAWS = 256  # two different sum trees differ in the last bit of some of so many random sums


def run(schedule, start):
    """``start[rank, chunk, ...]`` -> the same after all steps, and what every transfer wrote, in
    order.
    """
    state, written = start.copy(), []
    for step in schedule.steps:
        for src, dst, chunk, op in step:
            state[dst, chunk] = (
                state[dst, chunk] + state[src, chunk] if op == "add" else state[src, chunk]
            )
            written.append(state[dst, chunk])
    return state, written


def digits(schedule):
    """Contributions as integers, rank r's a one in digit r, in a base that no count reaches: every
    mixture is another number.
    """
    base = 1 << (
        max(
            [
                sum(t.chunk == chunk for step in schedule.steps for t in step)
                for chunk in range(schedule.chunks)
            ]
        )
        + 1
    )
    start = np.array(
        [[base**rank] * schedule.chunks for rank in range(schedule.world_size)], dtype=object
    )
    return start, base


def counts(number, base, world_size):
    """How often each rank's contribution is in ``number``."""
    return [number // base**rank % base for rank in range(world_size)]


def promised(schedule, start):
    """``(rank, chunk) -> number`` that the collective promises."""
    ranks = range(schedule.world_size)
    if schedule.collective == "all_gather":
        return {
            (rank, chunk): start[owner, chunk]
            for chunk, owner in enumerate(schedule.owner)
            for rank in ranks
        }
    if schedule.collective == "reduce_scatter":
        return {(owner, chunk): start[:, chunk].sum() for chunk, owner in enumerate(schedule.owner)}
    return {
        (rank, chunk): start[:, chunk].sum() for rank in ranks for chunk in range(schedule.chunks)
    }


def keeps_promise(schedule):
    start, _ = digits(schedule)
    end, _ = run(schedule, start)
    return all(end[cell] == number for cell, number in promised(schedule, start).items())


def same_bits(schedule, seed=0):
    """All ranks end with the same bits in every draw, where the collective gives the chunk to
    all.
    """
    shape = (schedule.world_size, schedule.chunks, DRAWS)
    end, _ = run(schedule, np.random.default_rng(seed).standard_normal(shape).astype("float32"))
    return schedule.collective == "reduce_scatter" or all(
        np.array_equal(end[0], other) for other in end
    )


def rule_broken(schedule, step):
    """A rule that some transfer of ``step`` breaks, alone or together with another; else an empty
    string.
    """
    for transfer in step:
        if transfer.op not in ("add", "copy"):
            return "operation"
        if not {transfer.src, transfer.dst} <= set(
            range(schedule.world_size)
        ) or transfer.chunk not in range(schedule.chunks):
            return "range"
    for i, one in enumerate(step):
        for j, other in enumerate(step):
            if (one.src, one.chunk) == (other.dst, other.chunk):
                return "read and written"
            if (
                i != j
                and (one.dst, one.chunk) == (other.dst, other.chunk)
                and "copy" in (one.op, other.op)
            ):
                return "copied over"
    return ""


def is_right(schedule):
    return (
        not any(rule_broken(schedule, step) for step in schedule.steps)
        and keeps_promise(schedule)
        and same_bits(schedule)
    )


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
