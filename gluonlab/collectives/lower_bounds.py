"""Lower bounds on the predicted time (`cost_model`) of any valid schedule on a topology.

`find_lower_bound` returns the bound, in predicted seconds. A schedule of T steps on a buffer of n bytes
takes at least T alpha + B n + G n. Here alpha is the lowest latency, B is the result of
`LinkCapacity.min_busy_seconds_per_byte`, and G is the result of `addition_seconds_per_byte`. A
schedule of few steps must send many messages at once, which implies further bounds. The bound for T
steps is the largest of these bounds. The lower bound for any schedule is the smallest bound over
all T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import Callable, List, NamedTuple, Tuple

from gluonlab.collectives.cost_model import is_numpy_installed
from gluonlab.collectives.link_capacity import FanCost, LinkCapacity
from gluonlab.collectives.schedule import ALL_GATHER, ALLREDUCE, COLLECTIVES, REDUCE_SCATTER
from gluonlab.collectives.topology import INFINITE, Topology
from gluonlab.errors import ScheduleError, unknown


class LinearCost(NamedTuple):
    """A cost of ``fixed_s`` + size * ``s_per_byte`` seconds."""

    fixed_s: float
    s_per_byte: float

    def plus(self, other: LinearCost) -> LinearCost:
        """Return the sum of both costs."""
        return LinearCost(self.fixed_s + other.fixed_s, self.s_per_byte + other.s_per_byte)


@dataclass(frozen=True)
class LowerBound:
    """The lower bound on a collective's predicted time on a topology, as a function of the size.

    ``cases``: for each number of steps, several linear costs. The cost of a schedule with this
    number of steps is at least the largest of these costs.
    """

    collective: str
    topology: str
    cases: Tuple[Tuple[LinearCost, ...], ...]

    def seconds(self, size_bytes: float) -> float:
        """Return the lower bound for a buffer of ``size_bytes`` on every device."""
        return min(max(line.fixed_s + line.s_per_byte * size_bytes for line in lines) for lines in self.cases)


def find_lower_bound(topology: Topology, collective: str = ALLREDUCE) -> LowerBound:
    """Return the lower bound on the predicted time of any valid schedule, for any chunk owners.

    Args:
        topology: the topology.
        collective: "allreduce", "reduce_scatter" or "all_gather".

    Returns:
        The bound; ``find_lower_bound(topology).seconds(size_bytes)`` is in seconds.

    Raises:
        ScheduleError: for any other collective.
    """
    if collective not in COLLECTIVES:
        raise ScheduleError(unknown("collective", collective, COLLECTIVES))
    if topology.world_size == 1:
        return LowerBound(collective, topology.name, ((LinearCost(0.0, 0.0),),))
    capacity = _make_capacity(topology)
    cases = _bounds_of_allreduces(capacity) if collective == ALLREDUCE else _bounds_of_halves(capacity, collective)
    addition_cost = LinearCost(0.0, 0.0 if collective == ALL_GATHER else addition_seconds_per_byte(topology))
    return LowerBound(
        collective, topology.name, tuple(tuple(line.plus(addition_cost) for line in lines) for lines in cases)
    )


def addition_seconds_per_byte(topology: Topology) -> float:
    """Return the least time that additions take in a sum over all ranks, in seconds per byte.

    A sum of p contributions is a tree with p - 1 inner nodes, each computed by some rank, so (p -
    1) n bytes are added. In each step the busiest device adds at least 1/p of the bytes added in
    that step. If devices share a memory, the additions of a step into one chunk count once. Each
    chunk still needs at least one step with additions, so at least n bytes are added at the speed
    of the memory.
    """
    p, shared = topology.world_size, topology.shared_reduce_bytes_per_s
    added_copies = 1 if shared < INFINITE else p - 1
    return added_copies * max(1 / (p * topology.reduce_bytes_per_s), 1 / shared)


# Proofs of the bounds by number of steps, for p ranks. A cell is a chunk of a rank.
#
# **Two steps.** Consider one chunk. Ranks read in the last step are not written in it, so one of
# them held the sum before: some rank v was complete after the first step, in which every cell held
# a single contribution. So v received from all other ranks at once: a fan in. It was written, and
# hence not read; only its own cell contained its contribution. So the last step fans out from v to
# all.
#
# **Three steps.** Let rank v be the first complete rank. If it is complete after its chunk's first
# step, that step is a fan in. Otherwise it is complete after the second step. In the first step no
# rank is overwritten by a copy: its contribution would be lost. Nor is v read in it: a rank q that
# adds v's chunk would hold both contributions together, and q's contribution would be nowhere else.
# Then v could not receive it without counting its own contribution twice. In the second step v is
# written. So v's contribution has not left its cell, and the third step fans out from v to all.
#
# **Four steps or more.** Each rank's knowledge is a row of 0 and 1: 1 for each contribution of
# which it holds a part. The matrix is the identity at first, and all ones at the end, with spectral
# norm p. A cell is either read or written in a step. So knowledge grows by a factor I + A, where A
# maps ranks that are read to others. The norm grows by at most (s + sqrt(s s + 4)) / 2, where s is
# the norm of A: at most the root of (messages that one rank can receive) x (messages that it can
# send). Ranks not written in the last step know all before it, and contributions not read in the
# first step had to travel later. Between these two steps the matrix contains a block of ones of
# that size, whose norm is the root of its area. m messages on a link cost m alpha. (For one message
# per step and rank this is the bound for gossip by telegraph of Even, Monien, "On the number of
# rounds necessary to disseminate information", 1989.)
#
# **Tightness.** The bound is exact for two devices with separate links in each direction, for every
# size, and for four devices behind a switch, where latency dominates. Bytes and additions are those
# of the ring on a switch, and of bidirectional_ring on a ring of links. On the hybrid cube mesh the
# bound is four messages and the bytes of all its links. It is unknown whether eight ranks behind a
# switch can do with 5 consecutive messages; the algorithms here take 6. Between hosts latency is a
# weak bound: it counts one message of the network, not one for every step with bytes on it.


def _bounds_of_allreduces(capacity: LinkCapacity) -> List[List[LinearCost]]:
    """Return the lower bounds for allreduces with 2 steps, 3 steps, and 4 or more steps."""
    alpha = capacity.lowest_latency_s
    s_per_byte = capacity.min_busy_seconds_per_byte(both_ways=True)
    inward, outward = capacity.min_fan_cost(True), capacity.min_fan_cost(False)
    # A contribution needs one step for each hop to its farthest reader. Also, the first complete
    # rank has received all other contributions, and the rank of the last one needs one more step.
    distances = capacity.shortest_latencies()
    farthest = max(distances.longest, distances.inward_radius + alpha)
    distance_bound = LinearCost(farthest, 0.0)
    two_steps = [a.plus(b) for a in _fan_lines(inward, alpha) for b in _fan_lines(outward, alpha)]
    # Each chunk fans in or out, so at least half of the bytes fan in, or half of them fan out.
    either = LinearCost(
        alpha * (2 + min(inward.messages_with_bytes, outward.messages_with_bytes)),
        min(inward.s_per_byte, outward.s_per_byte) / 2,
    )
    three_steps = [either, LinearCost(alpha * (2 + min(inward.messages, outward.messages)), 0.0)]
    more_steps = [LinearCost(alpha * _min_gossip_messages(capacity), 0.0)]
    cases = zip((2, 3, 4), (two_steps, three_steps, more_steps))
    return [[*lines, LinearCost(steps * alpha, s_per_byte), distance_bound] for steps, lines in cases]


def _bounds_of_halves(capacity: LinkCapacity, collective: str) -> List[List[LinearCost]]:
    """Return the lower bounds for half an allreduce with 1 step, and with more steps.

    ``collective``: reduce_scatter or all_gather. In a single step, owners receive chunks from all
    other ranks, or send chunks to them. Each further step multiplies the number of contributions
    that a rank holds, or the number of ranks that hold a chunk.
    """
    inward = collective == REDUCE_SCATTER
    alpha = capacity.lowest_latency_s
    s_per_byte = capacity.min_busy_seconds_per_byte(both_ways=False)
    distances = capacity.shortest_latencies()
    distance_bound = LinearCost(distances.inward_radius if inward else distances.outward_radius, 0.0)
    messages = _min_growth_messages(capacity.topology.world_size, capacity.max_partners(inward))
    cases = ((1, _fan_lines(capacity.min_fan_cost(inward), alpha)), (2, [LinearCost(alpha * messages, 0.0)]))
    return [[*lines, LinearCost(steps * alpha, s_per_byte), distance_bound] for steps, lines in cases]


def _fan_lines(fan: FanCost, alpha: float) -> List[LinearCost]:
    return [LinearCost(fan.messages * alpha, 0.0), LinearCost(fan.messages_with_bytes * alpha, fan.s_per_byte)]


# --- latency by the growth of knowledge


def _min_gossip_messages(capacity: LinkCapacity) -> int:
    """Return the least number of consecutive messages after which each rank can have all data.

    The proof is in the comment "Four steps or more" above `_bounds_of_allreduces`. The first and
    the last step have at least one message each. The other messages are distributed so that the
    norm grows the most.
    """
    p = capacity.topology.world_size
    receives, sends = capacity.max_partners(True), capacity.max_partners(False)
    max_log_growth: List[float] = [0.0]  # by the number of messages: logarithm of the norm's growth

    def is_enough(first: int, last: int, between: int) -> bool:
        rows, columns = math.ceil(p / (1 + sends(last))), math.ceil(p / (1 + receives(first)))
        return max_log_growth[between] >= math.log(rows * columns) / 2 - 1e-9

    for total in count(2):
        splits = [(first, last) for first in range(1, total) for last in range(1, total - first + 1)]
        if any(is_enough(first, last, total - first - last) for first, last in splits):
            return total
        last_step_messages = range(1, len(max_log_growth) + 1)
        max_log_growth.append(
            max(math.log(_max_norm_growth(receives(m), sends(m))) + max_log_growth[-m] for m in last_step_messages)
        )
    raise AssertionError("the norm of the flow diverges")


def _max_norm_growth(received: int, sent: int) -> float:
    """Return the largest norm of I + A for a matrix A of zeros and ones.

    A has ``received`` ones in each row, and ``sent`` ones in each column.
    """
    return (math.sqrt(received * sent) + math.sqrt(received * sent + 4)) / 2


def _min_growth_messages(world_size: int, max_partners: Callable[[int], int]) -> int:
    """Return the least number of consecutive messages until one rank holds all contributions.

    A step with m messages on a link multiplies the contributions by up to 1 + ``max_partners(m)``.
    The number of ranks that hold a chunk grows in the same way.
    """
    holds = [1]
    while holds[-1] < world_size:
        holds.append(max(holds[-m] * (1 + max_partners(m)) for m in range(1, len(holds) + 1)))
    return len(holds) - 1


# --- the capacity of links

# `capacity_arrays` computes the same bounds with NumPy, which is faster for more devices. Both give
# bit-identical results. Without NumPy, as in a browser, this module computes all bounds.
MAX_PLAIN_RANKS = 16


def _make_capacity(topology: Topology) -> LinkCapacity:
    """Return the capacity of a topology's links, computed in the faster way."""
    if topology.world_size <= MAX_PLAIN_RANKS or not is_numpy_installed():
        return LinkCapacity(topology)
    from gluonlab.collectives.capacity_arrays import ArrayLinkCapacity

    return ArrayLinkCapacity(topology)
