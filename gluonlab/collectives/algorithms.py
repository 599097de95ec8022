"""The allreduce algorithms, each as its definition, and allreduces over hosts made of them.

ALGORITHMS is the one list that commands, tests and labs read.

Every algorithm is ``f(world_size, *, chunks=None, groups=None) -> Schedule``; one that has no use
for ``chunks`` or ``groups`` refuses them. Costs are for n bytes on p ranks behind one switch: every
rank has one full-duplex port, a message takes alpha + bytes * beta on the ports that it passes, and
adding takes gamma a byte. `gluonlab.collectives.cost_model` prices any topology.

Recursive doubling of the whole buffer is left out: two ranks that exchange and add the same chunk
in one step read and write it at once, which the rules of a step forbid; real buffers would have to
be doubled for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from inspect import signature
from itertools import zip_longest
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    ALLREDUCE,
    COPY,
    REDUCE_SCATTER,
    Schedule,
    Step,
    Transfer,
    is_whole,
    then,
)
from gluonlab.errors import ScheduleError, unknown

Groups = Sequence[Sequence[int]]
Algorithm = Callable[..., Schedule]
# the owner of each chunk, and steps
_Definition = Tuple[Sequence[int], Iterable[Sequence[Transfer]]]


def _defines(name: str, collective: str) -> Callable[[Callable[..., _Definition]], Algorithm]:
    """A decorator: ``f(world_size, *, chunks=None, groups=None)`` from a definition.

    The function returns a Schedule. A definition gets the number of ranks, and ``chunks`` and
    ``groups`` if it has arguments of these names; without them they are refused. Steps in which
    nothing happens, as with one rank, are left out.
    """

    def decorate(definition: Callable[..., _Definition]) -> Algorithm:
        options = set(signature(definition).parameters) - {"world_size"}

        @wraps(definition)
        def algorithm(
            world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
        ) -> Schedule:
            if not is_whole(world_size):
                raise ScheduleError(
                    f"{name} for a world of {world_size!r} ranks: there must be at least 1"
                )
            if chunks is not None and "chunks" not in options:
                raise ScheduleError(
                    f"{name} cuts the buffer itself: chunks={chunks!r} is for star, sharded, tree, "
                    "double_tree, hierarchical"
                )
            if groups is not None and "groups" not in options:
                raise ScheduleError(
                    f"{name} knows no groups: groups={groups!r} is for hierarchical"
                )
            given = {"chunks": chunks, "groups": groups}
            owner, steps = definition(world_size, **{option: given[option] for option in options})
            nonempty = tuple(tuple(step) for step in steps if step)
            return Schedule(name, collective, world_size, len(owner), tuple(owner), nonempty)

        del algorithm.__wrapped__  # type: ignore[attr-defined]  # its signature is that of all
        return algorithm

    return decorate


def _in_halves(reduce_scatter: Schedule, all_gather: Schedule) -> _Definition:
    """An allreduce made of a reduce-scatter and then an all-gather."""
    both = then("", reduce_scatter, all_gather)
    return both.owner, both.steps


def _chunk_count(name: str, given: Optional[int], default: int, at_least: int = 1) -> int:
    """How many chunks the algorithm ``name`` is to have. Raises ScheduleError for too few."""
    chunks = default if given is None else given
    if not is_whole(chunks, at_least):
        raise ScheduleError(
            f"{name} with chunks={chunks!r}: a whole number from {at_least} on is possible"
        )
    return chunks


@_defines("star", ALLREDUCE)
def star(world_size: int, chunks: Optional[int]) -> _Definition:
    """Every rank sends to rank 0, which adds up and sends the sum back.

    The allreduce of Dive into Deep Learning, section "Training on Multiple GPUs".

    Cost: 2 (p-1) (alpha + n beta) + (p-1) n gamma; all of it passes through one port.
    """
    count = _chunk_count("star", chunks, 1)
    others = range(1, world_size)
    reduce = [Transfer(rank, 0, chunk, ADD) for chunk in range(count) for rank in others]
    gather = [Transfer(0, rank, chunk, COPY) for chunk in range(count) for rank in others]
    return [0] * count, [reduce, gather]


def _owners(world_size: int, chunks: Optional[int]) -> List[int]:
    return [chunk % world_size for chunk in range(_chunk_count("sharded", chunks, world_size))]


@_defines("sharded", REDUCE_SCATTER)
def sharded_reduce_scatter(world_size: int, chunks: Optional[int]) -> _Definition:
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


@_defines("sharded", ALL_GATHER)
def sharded_all_gather(world_size: int, chunks: Optional[int]) -> _Definition:
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


@_defines("sharded", ALLREDUCE)
def sharded(world_size: int, chunks: Optional[int]) -> _Definition:
    """Every rank sums its own chunk, or its own parameters, for all.

    The answer to exercise 3 of the same section (see star).

    Cost, with p chunks: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma. The star's latency, but all
    ports share the bytes.
    """
    return _in_halves(
        sharded_reduce_scatter(world_size, chunks=chunks),
        sharded_all_gather(world_size, chunks=chunks),
    )


@_defines("ring", REDUCE_SCATTER)
def ring_reduce_scatter(world_size: int) -> _Definition:
    """In step s every rank r adds its part sum of chunk r-s to its right neighbour's.

    Cost: (p-1) (alpha + n/p beta) + (p-1) n/p gamma.
    """
    n = world_size
    steps = [[Transfer(r, (r + 1) % n, (r - s) % n, ADD) for r in range(n)] for s in range(n - 1)]
    return [(chunk - 1) % n for chunk in range(n)], steps


@_defines("ring", ALL_GATHER)
def ring_all_gather(world_size: int) -> _Definition:
    """In step s every rank r copies the finished chunk r+1-s to its right neighbour.

    Cost: (p-1) (alpha + n/p beta).
    """
    n = world_size
    steps = [
        [Transfer(r, (r + 1) % n, (r + 1 - s) % n, COPY) for r in range(n)] for s in range(n - 1)
    ]
    return [(chunk - 1) % n for chunk in range(n)], steps


@_defines("ring", ALLREDUCE)
def ring(world_size: int) -> _Definition:
    """Chunks travel twice around a ring of neighbours: to be summed, then to be handed out.

    Cost: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma: the fewest bytes possible. Source:
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
    section 3.
    """
    return _in_halves(ring_reduce_scatter(world_size), ring_all_gather(world_size))


@_defines("bidirectional_ring", ALLREDUCE)
def bidirectional_ring(world_size: int) -> _Definition:
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


@_defines("halving_doubling", REDUCE_SCATTER)
def halving_doubling_reduce_scatter(world_size: int) -> _Definition:
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


@_defines("halving_doubling", ALL_GATHER)
def halving_doubling_all_gather(world_size: int) -> _Definition:
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


@_defines("halving_doubling", ALLREDUCE)
def halving_doubling(world_size: int) -> _Definition:
    """The ring's bytes in log2(p) messages each way instead of p-1, with far partners.

    It needs a network that is not itself a ring. Cost, with q the largest power of two up to p: 2
    log2(q) alpha + (q-1)/q n (2 beta + gamma); folded, 2 alpha + n (2 beta + gamma) more. Source:
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH"
    (2005), section 4.5.
    """
    return _in_halves(
        halving_doubling_reduce_scatter(world_size), halving_doubling_all_gather(world_size)
    )


@_defines("hierarchical", ALLREDUCE)
def hierarchical(world_size: int, chunks: Optional[int], groups: Optional[Groups]) -> _Definition:
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
    count = _chunk_count("hierarchical", chunks, max(len(group) for group in groups))
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


# --- on binary trees of ranks, which chunks pass in a pipeline


@dataclass(frozen=True)
class Tree:
    """``parent[rank]``, which is the rank itself for the root, and ``wait[rank]``.

    That is the number of steps after which, at the earliest, the children of a rank have sent to
    it.
    """

    parent: Tuple[int, ...]
    wait: Tuple[int, ...]

    @property
    def root(self) -> int:
        """The rank that is its own parent."""
        return next(rank for rank, parent in enumerate(self.parent) if rank == parent)

    def renamed(self, names: Sequence[int]) -> Tree:
        """The same tree with rank r called ``names[r]``."""
        parent, wait = [0] * len(names), [0] * len(names)
        for rank, name in enumerate(names):
            parent[name], wait[name] = names[self.parent[rank]], self.wait[rank]
        return Tree(tuple(parent), tuple(wait))


def balanced_tree(world_size: int) -> Tree:
    """As in a heap: the children of r are 2r+1 and 2r+2.

    Whoever stands on a level waits for all levels below.
    """
    levels = [(rank + 1).bit_length() - 1 for rank in range(world_size)]
    return Tree(
        tuple(max(0, (rank - 1) // 2) for rank in range(world_size)),
        tuple(levels[-1] - level for level in levels),
    )


def mirrored_trees(world_size: int) -> Tuple[Tree, Tree]:
    """Two trees of one shape in which no rank has children twice.

    Where the number of ranks is odd, a root may have one child in the other tree.
    """
    first = _in_order_tree(world_size)
    if world_size % 2:
        return first, first.renamed([(rank + 1) % world_size for rank in range(world_size)])
    return first, first.renamed(range(world_size - 1, -1, -1))


def _in_order_tree(world_size: int) -> Tree:
    """Rank 0 is the root with one child.

    The others hang by their lowest set bit: 1, 3 below 2, 2 and 6 below 4, and so on.

    A parent beyond the last rank is skipped, so the tree stays as deep as log2(p), rounded up.
    """
    parent = [0] * world_size
    for rank in range(1, world_size):
        bit = rank & -rank
        above = (rank ^ bit) | (bit << 1)
        parent[rank] = above if above < world_size else rank ^ bit
    wait = [0] * world_size
    # children come before their parents
    for rank in sorted(range(1, world_size), key=lambda rank: rank & -rank):
        wait[parent[rank]] = max(wait[parent[rank]], wait[rank] + 1)
    return Tree(tuple(parent), tuple(wait))


@_defines("tree", ALLREDUCE)
def tree(world_size: int, chunks: Optional[int]) -> _Definition:
    """Up a balanced binary tree and down again, one chunk after the other.

    Several chunks make a pipeline: each level is busy with another one.

    Cost with c chunks and depth d = floor(log2(p)): (4 (d+c-1) - 2e) (alpha + n/c beta) + (2
    (d+c-1) - e) n/c gamma, where e = 1 if p is a power of two, whose last level has a single rank,
    else 0; for p = 2: 2c (alpha + n/c beta) + n gamma; for p = 1 nothing. Source: Sanders, Speck,
    Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009), section 1.
    """
    count = _chunk_count("tree", chunks, 1)
    return [0] * count, _up_and_down([(balanced_tree(world_size), range(count))])


@_defines("double_tree", ALLREDUCE)
def double_tree(world_size: int, chunks: Optional[int]) -> _Definition:
    """Two trees at once, half of the chunks each; inner ranks of one are leaves of the other.

    So every port is used.

    Cost with c chunks in each tree, for p = 2**d > 2: 2 (2 (d+c-1) - 1) (alpha + n/2c beta) + (2
    (d+c-1) - 1) n/2c gamma; for p = 2: 2c (alpha + n/2c beta) + n/2 gamma. Trees for other p are as
    deep as for the next power of two. Source: Sanders, Speck, Träff, "Two-tree algorithms for full
    bandwidth broadcast, reduction and scan" (2009), section 3.
    """
    count = _chunk_count("double_tree", chunks, 2, at_least=2)
    trees = mirrored_trees(world_size)
    owner = [trees[chunk % 2].root for chunk in range(count)]
    return owner, _up_and_down([(trees[half], range(half, count, 2)) for half in (0, 1)])


def _up_and_down(loads: Sequence[Tuple[Tree, Sequence[int]]]) -> List[Step]:
    """Trees that work at once, each on its own chunks: all sums first, then all copies."""
    up = [_reduce_up(tree, chunks) for tree, chunks in loads]
    down = [
        [
            tuple(Transfer(dst, src, chunk, COPY) for src, dst, chunk, _ in step)
            for step in steps[::-1]
        ]
        for steps in up
    ]
    both = (zip_longest(*steps, fillvalue=()) for steps in (up, down))
    return [sum(at_once, ()) for way in both for at_once in way]


def _reduce_up(tree: Tree, chunks: Sequence[int]) -> List[Step]:
    """Every rank adds a chunk to its parent's once its children have added theirs.

    The next chunk follows one step later.
    """
    senders = [rank for rank, parent in enumerate(tree.parent) if rank != parent]
    return [
        tuple(
            Transfer(rank, tree.parent[rank], chunk, ADD)
            for turn, chunk in enumerate(chunks)
            for rank in senders
            if tree.wait[rank] + turn == step
        )
        for step in range(tree.wait[tree.root] + len(chunks) - 1)
    ]


# --- by name

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


def takes(algorithm: Algorithm, **options: Any) -> bool:
    """Whether an algorithm has a use for ``chunks=2``, or for ``groups=((0,), (1,))``."""
    try:
        algorithm(2, **options)
    except ScheduleError:
        return False
    return True


# --- over several hosts: within hosts, across them, within hosts
#
# The second part works between devices of equal rank in their hosts, all at once, each on the
# chunks that its host's first part left with it. So every chunk crosses the network as often as
# between single devices, and all devices of a host share the work. Source: as hierarchical.

# what may work across hosts; of trees several chunks make a pipeline
ACROSS = ("ring", "tree", "double_tree")


def nested(name: str, scatter: Schedule, across: Schedule, gather: Schedule) -> Schedule:
    """An allreduce: ``scatter`` within each host, ``across`` hosts, then ``gather`` within each.

    The first and the last are a reduce_scatter and an all_gather with the same owners, for the
    devices of a host; the second is an allreduce with as many ranks as there are hosts. Device d of
    host h is rank h * devices + d; ``across`` cuts each chunk of ``scatter`` into its own chunks.
    Raises ScheduleError for schedules that do not fit.
    """
    then(name, scatter, gather)
    if across.collective != ALLREDUCE:
        raise ScheduleError(
            f"{name}: across hosts goes an allreduce, not {across.name}, a {across.collective}"
        )
    hosts, each, parts = range(across.world_size), scatter.world_size, range(across.chunks)

    def in_every_host(steps: Sequence[Step]) -> Iterator[Step]:
        for step in steps:
            yield tuple(
                Transfer(host * each + src, host * each + dst, chunk * len(parts) + part, op)
                for host in hosts
                for src, dst, chunk, op in step
                for part in parts
            )

    between = (
        tuple(
            Transfer(src * each + owner, dst * each + owner, chunk * len(parts) + part, op)
            for chunk, owner in enumerate(scatter.owner)
            for src, dst, part, op in step
        )
        for step in across.steps
    )
    owners = tuple(host * each + owner for owner in scatter.owner for host in across.owner)
    steps = (*in_every_host(scatter.steps), *between, *in_every_host(gather.steps))
    return Schedule(name, ALLREDUCE, len(hosts) * each, len(owners), owners, steps)


def over_hosts(
    hosts: int,
    devices: int,
    across: str = "ring",
    *,
    within: str = "ring",
    order: Optional[Sequence[int]] = None,
    chunks: Optional[int] = None,
) -> Schedule:
    """The allreduce of ``hosts`` with so many ``devices`` each, by the names of two algorithms.

    ``across``: any of them. ``within``: one that is made of halves. ``order``: which device of a
    host plays which rank of that; 0, 1, 2, ... by default. ``chunks``: of ``across``, where it
    leaves the choice. Raises ScheduleError.

    Cost on ports that are a device's own within a host and shared by all g of a host between hosts,
    with rings over h hosts: 2 (g-1) (alpha + n/g beta) within, and across 2 (h-1) (g alpha' + n/h
    beta'), as all g messages pass the same NIC.
    """
    if within not in HALVES:
        raise ScheduleError(
            f"{within!r} within hosts: choose {', '.join(HALVES)}, which are made of two halves"
        )
    scatter, gather = (half(devices) for half in HALVES[within])
    if order is not None:
        scatter, gather = scatter.placed(order), gather.placed(order)
    between = make_schedule(across, hosts, chunks=chunks)
    return nested(f"hierarchical, {across}", scatter, between, gather)
