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

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    ALLREDUCE,
    COPY,
    REDUCE_SCATTER,
    Schedule,
    Step,
    Transfer,
    then,
)
from gluonlab.collectives.trees import Tree, balanced_tree, gather_down, mirrored_trees, reduce_up
from gluonlab.errors import ScheduleError, unknown

Groups = Sequence[Sequence[int]]


def star(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Everybody to rank 0, and back: the allreduce of Dive into Deep Learning, section "Training on
    Multiple GPUs".

    Cost: 2 (p-1) (alpha + n beta) + (p-1) n gamma; all of it passes through one port.
    """
    _check("star", world_size, groups=groups)
    count = _chunks("star", chunks, 1)
    others = range(1, world_size)
    reduce = tuple(Transfer(rank, 0, chunk, ADD) for chunk in range(count) for rank in others)
    gather = tuple(Transfer(0, rank, chunk, COPY) for chunk in range(count) for rank in others)
    return Schedule("star", ALLREDUCE, world_size, count, (0,) * count, _steps(reduce, gather))


def sharded_reduce_scatter(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Every rank is the star's centre for its own chunks: one step.

    Cost: (p-1) (alpha + n/p beta) + (p-1) n/p gamma, with p chunks.
    """
    _check("sharded", world_size, groups=groups)
    owner = _owners(world_size, _chunks("sharded", chunks, world_size))
    # Turn s of a rank goes to its s-th neighbour, so that no two ranks begin with the same owner.
    step = tuple(
        Transfer((owner[chunk] - turn) % world_size, owner[chunk], chunk, ADD)
        for turn in range(1, world_size)
        for chunk in range(len(owner))
    )
    return Schedule("sharded", REDUCE_SCATTER, world_size, len(owner), owner, _steps(step))


def sharded_all_gather(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Every owner to everybody: one step. Cost: (p-1) (alpha + n/p beta), with p chunks."""
    _check("sharded", world_size, groups=groups)
    owner = _owners(world_size, _chunks("sharded", chunks, world_size))
    step = tuple(
        Transfer(owner[chunk], (owner[chunk] + turn) % world_size, chunk, COPY)
        for turn in range(1, world_size)
        for chunk in range(len(owner))
    )
    return Schedule("sharded", ALL_GATHER, world_size, len(owner), owner, _steps(step))


def sharded(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Every rank sums its own chunk, or its own parameters: the answer to exercise 3 of the same
    section (see star).

    Cost, with p chunks: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma. The star's latency, but all
    ports share the bytes.
    """
    return then(
        "sharded",
        sharded_reduce_scatter(world_size, chunks=chunks, groups=groups),
        sharded_all_gather(world_size, chunks=chunks, groups=groups),
    )


def tree(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Up a balanced binary tree and down again; several chunks make a pipeline, each level busy
    with another one.

    Cost with c chunks and depth d = floor(log2(p)): (4 (d+c-1) - 2e) (alpha + n/c beta) + (2
    (d+c-1) - e) n/c gamma, where e = 1 if p is a power of two, whose last level has a single rank,
    else 0; for p = 2: 2c (alpha + n/c beta) + n gamma; for p = 1 nothing. Source: Sanders, Speck,
    Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009), section 1.
    """
    _check("tree", world_size, groups=groups)
    count = _chunks("tree", chunks, 1)
    shape = balanced_tree(world_size)
    return Schedule(
        "tree", ALLREDUCE, world_size, count, (0,) * count, _up_and_down([shape], [range(count)])
    )


def double_tree(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Two trees at once, half of the chunks each; a rank that passes on in one is a leaf in the
    other, so every port is used.

    Cost with c chunks in each tree, for p = 2**d > 2: 2 (2 (d+c-1) - 1) (alpha + n/2c beta) + (2
    (d+c-1) - 1) n/2c gamma; for p = 2: 2c (alpha + n/2c beta) + n/2 gamma. Trees for other p are as
    deep as for the next power of two. Source: Sanders, Speck, Träff, "Two-tree algorithms for full
    bandwidth broadcast, reduction and scan" (2009), section 3.
    """
    _check("double_tree", world_size, groups=groups)
    count = _chunks("double_tree", chunks, 2, at_least=2)
    first, second = mirrored_trees(world_size)
    parts = [range(0, count, 2), range(1, count, 2)]
    owner = tuple((first, second)[chunk % 2].root for chunk in range(count))
    return Schedule(
        "double_tree", ALLREDUCE, world_size, count, owner, _up_and_down([first, second], parts)
    )


def ring_reduce_scatter(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """In step s every rank r adds its part sum of chunk r-s to its right neighbour's.

    Cost: (p-1) (alpha + n/p beta) + (p-1) n/p gamma.
    """
    _check("ring", world_size, chunks=chunks, groups=groups)
    n = world_size
    steps = _steps(
        *[tuple(Transfer(r, (r + 1) % n, (r - s) % n, ADD) for r in range(n)) for s in range(n - 1)]
    )
    return Schedule(
        "ring", REDUCE_SCATTER, n, n, tuple((chunk - 1) % n for chunk in range(n)), steps
    )


def ring_all_gather(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """In step s every rank r copies the finished chunk r+1-s to its right neighbour.

    Cost: (p-1) (alpha + n/p beta).
    """
    _check("ring", world_size, chunks=chunks, groups=groups)
    n = world_size
    steps = _steps(
        *[
            tuple(Transfer(r, (r + 1) % n, (r + 1 - s) % n, COPY) for r in range(n))
            for s in range(n - 1)
        ]
    )
    return Schedule("ring", ALL_GATHER, n, n, tuple((chunk - 1) % n for chunk in range(n)), steps)


def ring(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Chunks travel once around to be summed and once to be handed out; nobody ever talks to more
    than two neighbours.

    Cost: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma: the fewest bytes possible. Source:
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
    section 3.
    """
    given = {"chunks": chunks, "groups": groups}
    return then(
        "ring",
        ring_reduce_scatter(world_size, **given),  # type: ignore[arg-type]
        ring_all_gather(world_size, **given),  # type: ignore[arg-type]
    )


def bidirectional_ring(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Two rings, half of the chunks each, one to the right and one to the left: links between
    neighbours work both ways.

    Cost: 4 (p-1) (alpha + n/2p beta) + (p-1) n/p gamma for p > 2, as a switch's ports gain nothing
    by it. With links of their own between neighbours: 2 (p-1) (alpha + n/2p beta) + (p-1) n/p
    gamma. For p = 2 it is ring. Source: Jain, Sabharwal, "Optimal bucket algorithms for large MPI
    collectives on torus interconnects" (2010), section 3.
    """
    _check("bidirectional_ring", world_size, chunks=chunks, groups=groups)
    right = ring(world_size)
    mirror = [-rank % world_size for rank in range(world_size)]
    left = right.placed(mirror)
    both = [
        a + tuple(transfer._replace(chunk=transfer.chunk + world_size) for transfer in b)
        for a, b in zip(right.steps, left.steps)
    ]
    return Schedule(
        "bidirectional_ring",
        ALLREDUCE,
        world_size,
        2 * world_size,
        right.owner + left.owner,
        tuple(both),
    )


def halving_doubling_reduce_scatter(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Partners far, then near, exchange and add different halves of what they still hold: recursive
    halving.

    Where p is no power of two, the ranks beyond the largest one below first add all to one partner
    each ("fold"). Cost, with q that power of two: log2(q) alpha + (q-1)/q n (beta + gamma); folded,
    alpha + n (beta + gamma) more.
    """
    _check("halving_doubling", world_size, chunks=chunks, groups=groups)
    core = 1 << (world_size.bit_length() - 1)
    steps: List[Step] = [
        tuple(
            Transfer(rank, rank - core, chunk, ADD)
            for rank in range(core, world_size)
            for chunk in range(core)
        )
    ]
    for half in _halves(core):
        steps.append(
            tuple(
                Transfer(r, r ^ half, chunk, ADD)
                for r in range(core)
                for chunk in _block(r ^ half, half)
            )
        )
    return Schedule(
        "halving_doubling", REDUCE_SCATTER, world_size, core, tuple(range(core)), _steps(*steps)
    )


def halving_doubling_all_gather(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """The way back: recursive doubling of the finished part, then one copy to every rank that was
    folded away.

    Cost: log2(q) alpha + (q-1)/q n beta; folded, alpha + n beta more.
    """
    _check("halving_doubling", world_size, chunks=chunks, groups=groups)
    core = 1 << (world_size.bit_length() - 1)
    steps: List[Step] = [
        tuple(Transfer(r, r ^ half, chunk, COPY) for r in range(core) for chunk in _block(r, half))
        for half in reversed(_halves(core))
    ]
    steps.append(
        tuple(
            Transfer(rank - core, rank, chunk, COPY)
            for rank in range(core, world_size)
            for chunk in range(core)
        )
    )
    return Schedule(
        "halving_doubling", ALL_GATHER, world_size, core, tuple(range(core)), _steps(*steps)
    )


def halving_doubling(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """ring's bytes in log2(p) instead of p-1 messages each way; partners are far apart, which needs
    a network that is no ring.

    Cost, with q the largest power of two up to p: 2 log2(q) alpha + (q-1)/q n (2 beta + gamma);
    folded, 2 alpha + n (2 beta + gamma) more. Source: Thakur, Rabenseifner, Gropp, "Optimization of
    Collective Communication Operations in MPICH" (2005), section 4.5.
    """
    given = {"chunks": chunks, "groups": groups}
    return then(
        "halving_doubling",
        halving_doubling_reduce_scatter(world_size, **given),  # type: ignore[arg-type]
        halving_doubling_all_gather(world_size, **given),  # type: ignore[arg-type]
    )


def hierarchical(
    world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Sum within each group, then between the groups, then hand out within each group: slow links
    carry a chunk once each way.

    ``groups`` share the ranks out, such as ((0, 1, 2, 3), (4, 5, 6, 7)) for two quads of GPUs;
    default: two halves. Their sizes may differ: member c mod size of a group speaks for chunk c;
    there are as many chunks as the largest group has members. Cost with G groups of g: 2 (g-1)
    (alpha + n/g beta) + (g-1) n/g gamma within the groups, and between them 2 (G-1) (alpha + n/g
    beta) + (G-1) n/g gamma. Source: Cho, Finkler, Serrano, Kung, Hunter, "BlueConnect: decomposing
    all-reduce for deep learning on heterogeneous network hierarchy" (2019), section 3.
    """
    _check("hierarchical", world_size)
    groups = _groups(world_size, groups)
    count = _chunks("hierarchical", chunks, max(len(group) for group in groups))
    speakers = [[group[chunk % len(group)] for group in groups] for chunk in range(count)]
    # the groups take turns
    owner = tuple(speakers[chunk][chunk % len(groups)] for chunk in range(count))
    inward, across, back, outward = [], [], [], []  # type: List[Transfer], List[Transfer], List[Transfer], List[Transfer]
    for chunk in range(count):
        for group, speaker in zip(groups, speakers[chunk]):
            inward += [Transfer(rank, speaker, chunk, ADD) for rank in group if rank != speaker]
            outward += [Transfer(speaker, rank, chunk, COPY) for rank in group if rank != speaker]
        across += [
            Transfer(speaker, owner[chunk], chunk, ADD)
            for speaker in speakers[chunk]
            if speaker != owner[chunk]
        ]
        back += [
            Transfer(owner[chunk], speaker, chunk, COPY)
            for speaker in speakers[chunk]
            if speaker != owner[chunk]
        ]
    steps = _steps(tuple(inward), tuple(across), tuple(back), tuple(outward))
    return Schedule("hierarchical", ALLREDUCE, world_size, count, owner, steps)


Algorithm = Callable[..., Schedule]

ALGORITHMS: Dict[str, Algorithm] = {
    algorithm.__name__: algorithm
    for algorithm in (
        star,
        sharded,
        tree,
        double_tree,
        ring,
        bidirectional_ring,
        halving_doubling,
        hierarchical,
    )
}

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
    """The schedule of the algorithm of this name.

    Raises ScheduleError, with the choices, for an unknown one.
    """
    if name not in ALGORITHMS:
        raise ScheduleError(unknown("algorithm", name, ALGORITHMS))
    return ALGORITHMS[name](world_size, chunks=chunks, groups=groups)


def _check(
    name: str, world_size: int, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> None:
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ScheduleError(f"{name} for a world of {world_size!r} ranks: there must be at least 1")
    if chunks is not None:
        raise ScheduleError(
            f"{name} cuts the buffer itself: chunks={chunks!r} is for star, sharded, tree, "
            "double_tree, hierarchical"
        )
    if groups is not None:
        raise ScheduleError(f"{name} knows no groups: groups={groups!r} is for hierarchical")


def _chunks(name: str, given: Optional[int], default: int, at_least: int = 1) -> int:
    chunks = default if given is None else given
    if not isinstance(chunks, int) or isinstance(chunks, bool) or chunks < at_least:
        raise ScheduleError(
            f"{name} with chunks={chunks!r}: a whole number from {at_least} on is possible"
        )
    return chunks


def _groups(world_size: int, given: Optional[Groups]) -> List[List[int]]:
    if given is None:
        middle = (world_size + 1) // 2
        given = [range(middle), range(middle, world_size)]
    groups = [list(group) for group in given if len(group)]
    if sorted((rank for group in groups for rank in group), key=str) != sorted(
        range(world_size), key=str
    ):
        raise ScheduleError(
            f"groups={groups}: each of the ranks 0 to {world_size - 1} is in one group, once"
        )
    return groups


def _owners(world_size: int, chunks: int) -> Tuple[int, ...]:
    return tuple(chunk % world_size for chunk in range(chunks))


def _halves(core: int) -> List[int]:
    """core/2, core/4, ..., 1"""
    return [core >> level for level in range(1, core.bit_length())]


def _block(rank: int, size: int) -> range:
    """The chunks of the aligned block of ``size`` in which ``rank`` lies."""
    begin = rank // size * size
    return range(begin, begin + size)


def _up_and_down(trees: Sequence[Tree], parts: Sequence[Sequence[int]]) -> Tuple[Step, ...]:
    """Trees that work at once, each on its part of the chunks: all sums first, then all copies."""
    up = _side_by_side([reduce_up(shape, part) for shape, part in zip(trees, parts)])
    down = _side_by_side([gather_down(shape, part) for shape, part in zip(trees, parts)])
    return _steps(*up, *down)


def _side_by_side(schedules: Sequence[Sequence[Step]]) -> List[Step]:
    length = max(len(steps) for steps in schedules)
    return [sum((steps[i] for steps in schedules if i < len(steps)), ()) for i in range(length)]


def _steps(*steps: Step) -> Tuple[Step, ...]:
    """Steps in which nothing happens, as with one rank, are none."""
    return tuple(step for step in steps if step)
