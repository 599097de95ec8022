"""The allreduce algorithms, each as its definition.

ALGORITHMS is the one list that commands, tests, stores and labs read.

Every algorithm is ``f(world_size, *, chunks=None, groups=None) -> Schedule``; one that has no use
for ``chunks`` or ``groups`` refuses them. Costs are for n bytes on p ranks behind one switch: every
rank has one full-duplex port, a message takes alpha + bytes * beta on the ports that it passes, and
adding takes gamma a byte. `gluonlab.collectives.cost` prices any topology.

Recursive doubling of the whole buffer is left out: two ranks that exchange and add the same chunk
in one step read and write it at once, which the rules of a step forbid; real buffers would have to
be doubled for it.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from gluonlab.collectives.definition import (
    Algorithm,
    Definition,
    Groups,
    chunk_count,
    defines,
    in_halves,
)
from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    ALLREDUCE,
    COPY,
    REDUCE_SCATTER,
    Schedule,
    Transfer,
)
from gluonlab.collectives.trees import double_tree as double_tree
from gluonlab.collectives.trees import tree as tree
from gluonlab.errors import ScheduleError, unknown


@defines("star", ALLREDUCE)
def star(world_size: int, chunks: Optional[int]) -> Definition:
    """Every rank sends to rank 0, which adds up and sends the sum back.

    The allreduce of Dive into Deep Learning, section "Training on Multiple GPUs".

    Cost: 2 (p-1) (alpha + n beta) + (p-1) n gamma; all of it passes through one port.
    """
    count = chunk_count("star", chunks, 1)
    others = range(1, world_size)
    reduce = [Transfer(rank, 0, chunk, ADD) for chunk in range(count) for rank in others]
    gather = [Transfer(0, rank, chunk, COPY) for chunk in range(count) for rank in others]
    return [0] * count, [reduce, gather]


@defines("sharded", REDUCE_SCATTER)
def sharded_reduce_scatter(world_size: int, chunks: Optional[int]) -> Definition:
    """Every rank receives and adds its own chunks from all others, in one step.

    Cost: (p-1) (alpha + n/p beta) + (p-1) n/p gamma, with p chunks.
    """
    owner = _owners(world_size, chunks)
    # Turn s of a rank goes to its s-th neighbour, so that no two ranks begin with the same owner.
    step = [
        Transfer((rank - turn) % world_size, rank, chunk, ADD)
        for turn in range(1, world_size)
        for chunk, rank in enumerate(owner)
    ]
    return owner, [step]


@defines("sharded", ALL_GATHER)
def sharded_all_gather(world_size: int, chunks: Optional[int]) -> Definition:
    """Every owner sends its chunks to all others, in one step.

    Cost: (p-1) (alpha + n/p beta), with p chunks.
    """
    owner = _owners(world_size, chunks)
    step = [
        Transfer(rank, (rank + turn) % world_size, chunk, COPY)
        for turn in range(1, world_size)
        for chunk, rank in enumerate(owner)
    ]
    return owner, [step]


@defines("sharded", ALLREDUCE)
def sharded(world_size: int, chunks: Optional[int]) -> Definition:
    """Every rank sums its own chunk, or its own parameters, for all.

    The answer to exercise 3 of the same section (see star).

    Cost, with p chunks: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma. The star's latency, but all
    ports share the bytes.
    """
    halves = (half(world_size, chunks=chunks) for half in HALVES["sharded"])
    return in_halves(*halves)


@defines("ring", REDUCE_SCATTER)
def ring_reduce_scatter(world_size: int) -> Definition:
    """In step s every rank r adds its part sum of chunk r-s to its right neighbour's.

    Cost: (p-1) (alpha + n/p beta) + (p-1) n/p gamma.
    """
    n = world_size
    steps = [[Transfer(r, (r + 1) % n, (r - s) % n, ADD) for r in range(n)] for s in range(n - 1)]
    return [(chunk - 1) % n for chunk in range(n)], steps


@defines("ring", ALL_GATHER)
def ring_all_gather(world_size: int) -> Definition:
    """In step s every rank r copies the finished chunk r+1-s to its right neighbour.

    Cost: (p-1) (alpha + n/p beta).
    """
    n = world_size
    steps = [
        [Transfer(r, (r + 1) % n, (r + 1 - s) % n, COPY) for r in range(n)] for s in range(n - 1)
    ]
    return [(chunk - 1) % n for chunk in range(n)], steps


@defines("ring", ALLREDUCE)
def ring(world_size: int) -> Definition:
    """Chunks travel twice around a ring of neighbours: to be summed, then to be handed out.

    Cost: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma: the fewest bytes possible. Source:
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
    section 3.
    """
    return in_halves(ring_reduce_scatter(world_size), ring_all_gather(world_size))


@defines("bidirectional_ring", ALLREDUCE)
def bidirectional_ring(world_size: int) -> Definition:
    """Two rings, right and left, carry half of the chunks each and use links both ways.

    Cost: 4 (p-1) (alpha + n/2p beta) + (p-1) n/p gamma for p > 2, as a switch's ports gain nothing
    by it. With links of their own between neighbours: 2 (p-1) (alpha + n/2p beta) + (p-1) n/p
    gamma. For p = 2 it is ring. Source: Jain, Sabharwal, "Optimal bucket algorithms for large MPI
    collectives on torus interconnects" (2010), section 3.
    """
    right = ring(world_size)
    mirror = [-rank % world_size for rank in range(world_size)]
    chunks = list(range(world_size, 2 * world_size))  # those that go left
    steps = (
        [*step, *(Transfer(mirror[src], mirror[dst], chunks[c], op) for src, dst, c, op in step)]
        for step in right.steps
    )
    return [*right.owner, *(mirror[rank] for rank in right.owner)], steps


@defines("halving_doubling", REDUCE_SCATTER)
def halving_doubling_reduce_scatter(world_size: int) -> Definition:
    """Partners exchange and add different halves of what they hold: recursive halving.

    The first partners are the farthest apart. Where p is no power of two, the ranks beyond the
    largest one below first add all to one partner each ("fold"). Cost, with q that power of two:
    log2(q) alpha + (q-1)/q n (beta + gamma); folded, alpha + n (beta + gamma) more.
    """
    core, folded = _folded(world_size)
    steps = [[Transfer(rank, rank - core, chunk, ADD) for rank, chunk in folded]]
    for half in _halves(core):
        steps.append(
            [
                Transfer(r, r ^ half, chunk, ADD)
                for r in range(core)
                for chunk in _block(r ^ half, half)
            ]
        )
    return range(core), steps


@defines("halving_doubling", ALL_GATHER)
def halving_doubling_all_gather(world_size: int) -> Definition:
    """The way back: recursive doubling, then a copy to every rank that was folded away.

    Cost: log2(q) alpha + (q-1)/q n beta; folded, alpha + n beta more.
    """
    core, folded = _folded(world_size)
    steps = [
        [Transfer(r, r ^ half, chunk, COPY) for r in range(core) for chunk in _block(r, half)]
        for half in reversed(_halves(core))
    ]
    outwards = [Transfer(rank - core, rank, chunk, COPY) for rank, chunk in folded]
    return range(core), [*steps, outwards]


@defines("halving_doubling", ALLREDUCE)
def halving_doubling(world_size: int) -> Definition:
    """The ring's bytes in log2(p) messages each way instead of p-1, with far partners.

    It needs a network that is not itself a ring. Cost, with q the largest power of two up to p: 2
    log2(q) alpha + (q-1)/q n (2 beta + gamma); folded, 2 alpha + n (2 beta + gamma) more. Source:
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH"
    (2005), section 4.5.
    """
    return in_halves(
        halving_doubling_reduce_scatter(world_size), halving_doubling_all_gather(world_size)
    )


@defines("hierarchical", ALLREDUCE)
def hierarchical(world_size: int, chunks: Optional[int], groups: Optional[Groups]) -> Definition:
    """Sum within each group, then between groups, then hand out within each group.

    Slow links carry each chunk once each way. ``groups`` share the ranks out, such as ((0, 1, 2,
    3), (4, 5, 6, 7)) for two quads of GPUs; default: two halves. Their sizes may differ: member c
    mod size of a group speaks for chunk c; there are as many chunks as the largest group has
    members. Cost with G groups of g: 2 (g-1) (alpha + n/g beta) + (g-1) n/g gamma within the
    groups, and between them 2 (G-1) (alpha + n/g beta) + (G-1) n/g gamma. Source: Cho, Finkler,
    Serrano, Kung, Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous
    network hierarchy" (2019), section 3.
    """
    groups = _groups(world_size, groups)
    count = chunk_count("hierarchical", chunks, max(len(group) for group in groups))
    owner: List[int] = []
    inward: List[Transfer] = []
    across: List[Transfer] = []
    for chunk in range(count):
        speakers = [group[chunk % len(group)] for group in groups]
        owner.append(speakers[chunk % len(groups)])  # the groups take turns
        inward += [
            Transfer(rank, speaker, chunk, ADD)
            for group, speaker in zip(groups, speakers)
            for rank in group
            if rank != speaker
        ]
        across += [
            Transfer(speaker, owner[chunk], chunk, ADD)
            for speaker in speakers
            if speaker != owner[chunk]
        ]
    back, outward = (
        [Transfer(dst, src, chunk, COPY) for src, dst, chunk, _ in sums]
        for sums in (across, inward)
    )
    return owner, [inward, across, back, outward]


ALGORITHMS: Dict[str, Algorithm] = {
    algorithm.__name__: algorithm
    for algorithm in (
        star, sharded, tree, double_tree, ring, bidirectional_ring, halving_doubling, hierarchical,
    )
}  # fmt: skip

# The two halves of the allreduces that are made of them: what an optimizer that owns chunks works
# between.
HALVES: Dict[str, Tuple[Algorithm, Algorithm]] = {
    "sharded": (sharded_reduce_scatter, sharded_all_gather),
    "ring": (ring_reduce_scatter, ring_all_gather),
    "halving_doubling": (halving_doubling_reduce_scatter, halving_doubling_all_gather),
}


def make_schedule(
    name: str, world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """The schedule of an algorithm by its name. Raises ScheduleError, with the choices."""
    if name not in ALGORITHMS:
        raise ScheduleError(unknown("algorithm", name, ALGORITHMS))
    return ALGORITHMS[name](world_size, chunks=chunks, groups=groups)


def _groups(world_size: int, given: Optional[Groups]) -> List[List[int]]:
    if given is None:
        middle = (world_size + 1) // 2
        given = [range(middle), range(middle, world_size)]
    groups = [list(group) for group in given if len(group)]
    ranks = sorted((rank for group in groups for rank in group), key=str)
    if ranks != sorted(range(world_size), key=str):
        raise ScheduleError(
            f"groups={groups}: each of the ranks 0 to {world_size - 1} is in one group, once"
        )
    return groups


def _owners(world_size: int, chunks: Optional[int]) -> List[int]:
    return [chunk % world_size for chunk in range(chunk_count("sharded", chunks, world_size))]


def _folded(world_size: int) -> Tuple[int, List[Tuple[int, int]]]:
    """The largest power of two up to p, and (rank, chunk) for all ranks beyond it."""
    core = 1 << (world_size.bit_length() - 1)
    return core, [(rank, chunk) for rank in range(core, world_size) for chunk in range(core)]


def _halves(core: int) -> List[int]:
    """core/2, core/4, ..., 1"""
    return [core >> level for level in range(1, core.bit_length())]


def _block(rank: int, size: int) -> range:
    """The chunks of the aligned block of ``size`` in which ``rank`` lies."""
    begin = rank // size * size
    return range(begin, begin + size)
