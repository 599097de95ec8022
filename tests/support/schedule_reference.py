"""Reference implementation of schedules, which runs them on numbers.

Tests compare it with the symbolic proof of gluonlab.collectives.verify_schedule. It is independent
of that module: it executes the transfers one by one and in place, as an executor does.
"""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

SUM_DRAWS = 256  # random sums: enough to distinguish any two orders of addition


def execute_schedule(schedule, start):
    """Run a schedule on ``start[rank, chunk, ...]``; return the end state and written values."""
    state, written = start.copy(), []
    for step in schedule.steps:
        for src, dst, chunk, op in step:
            state[dst, chunk] = state[dst, chunk] + state[src, chunk] if op == "add" else state[src, chunk]
            written.append(state[dst, chunk])
    return state, written


def digit_contributions(schedule):
    """Return integers as contributions, and their base: rank r contributes a one in digit r.

    No count reaches the base, so that every sum of contributions is a different number.
    """
    chunks = [t.chunk for step in schedule.steps for t in step]
    base = 1 << (max(map(chunks.count, range(schedule.chunks))) + 1)
    ranks = range(schedule.world_size)
    return np.array([[base**rank] * schedule.chunks for rank in ranks], dtype=object), base


def contribution_counts(number, base, world_size):
    """Return how often ``number`` contains the contribution of each rank."""
    return [number // base**rank % base for rank in range(world_size)]


def expected_values(schedule, start):
    """Return {(rank, chunk): number} by the definition of the collective."""
    values = {}
    for chunk, owner in enumerate(schedule.owner):
        gathers = schedule.collective == "all_gather"
        number = start[owner, chunk] if gathers else start[:, chunk].sum()
        scatters = schedule.collective == "reduce_scatter"
        ranks = [owner] if scatters else range(schedule.world_size)
        values.update({(rank, chunk): number for rank in ranks})
    return values


def has_correct_sums(schedule):
    start, _ = digit_contributions(schedule)
    end, _ = execute_schedule(schedule, start)
    return all(end[cell] == number for cell, number in expected_values(schedule, start).items())


def ranks_end_equal(schedule, seed=0):
    """Return whether all ranks end with the same bits, unless the collective is reduce_scatter."""
    shape = (schedule.world_size, schedule.chunks, SUM_DRAWS)
    end, _ = execute_schedule(schedule, np.random.default_rng(seed).standard_normal(shape).astype("float32"))
    return schedule.collective == "reduce_scatter" or all(np.array_equal(end[0], other) for other in end)


def find_broken_rule(schedule, step):
    """Return the rule that a transfer, or a pair of transfers, of a step breaks, or ""."""
    for transfer in step:
        if transfer.op not in ("add", "copy"):
            return "operation"
        ranks, chunks = range(schedule.world_size), range(schedule.chunks)
        if not (transfer.src in ranks and transfer.dst in ranks and transfer.chunk in chunks):
            return "range"
    for i, one in enumerate(step):
        for j, other in enumerate(step):
            if (one.src, one.chunk) == (other.dst, other.chunk):
                return "read and written"
            if i != j and (one.dst, one.chunk) == (other.dst, other.chunk) and "copy" in (one.op, other.op):
                return "copied over"
    return ""


def is_valid(schedule):
    return (
        not any(find_broken_rule(schedule, step) for step in schedule.steps)
        and has_correct_sums(schedule)
        and ranks_end_equal(schedule)
    )


MUTATIONS = ("remove", "move", "duplicate", "swap", "src", "dst", "chunk", "op")


@st.composite
def mutated_schedules(draw, schedule, possible=False):
    """Draw a schedule with one change; return it, the kind of change, and the changed transfers.

    ``possible``: whether all ranks, chunks and operations exist.
    """
    steps = [list(step) for step in schedule.steps]
    kind, beyond = draw(st.sampled_from(MUTATIONS)), 0 if possible else 1

    def draw_position(extra=0):
        step = draw(st.integers(0, len(steps) - 1))
        return step, draw(st.integers(0, max(0, len(steps[step]) - 1 + extra)))

    step, position = draw_position()
    transfer = steps[step][position]
    touched = [transfer]
    if kind in ("remove", "move"):
        del steps[step][position]
    if kind in ("move", "duplicate"):
        nearby = step, draw(st.integers(0, len(steps[step])))
        to, before = nearby if draw(st.booleans()) else draw_position(extra=1)
        steps[to].insert(before, transfer)
    elif kind == "swap":
        other = draw(st.sampled_from([number for number, transfers in enumerate(steps) if transfers]))
        at = draw(st.integers(0, len(steps[other]) - 1))
        touched.append(steps[other][at])
        steps[step][position], steps[other][at] = touched[1], touched[0]
    elif kind == "op":
        ops = ["add", "copy", "mul"][: 3 - possible]
        steps[step][position] = transfer._replace(op=draw(st.sampled_from(ops)))
    elif kind != "remove":
        limit = schedule.chunks if kind == "chunk" else schedule.world_size
        new = draw(st.integers(-beyond, limit - 1 + beyond))
        steps[step][position] = transfer._replace(**{kind: new})
        touched.append(steps[step][position])
    return replace(schedule, steps=tuple(map(tuple, steps))), kind, touched


def step_cost(step, topology, chunk_bytes):
    """Return (seconds of the busiest links, names of these links, seconds of additions)."""
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


def reference_cost(schedule, topology, size_bytes):
    """Return the seconds of a schedule, the sum over its steps."""
    steps = (step_cost(step, topology, size_bytes / schedule.chunks) for step in schedule.steps)
    return sum(longest + reduce_s for longest, _, reduce_s in steps)
