"""The allreduce algorithms: functions that return schedules, for one or several hosts.

ALGORITHMS contains all algorithms by name. Commands, tests and labs read this dictionary. To make
an algorithm available as a kvstore, also add it to KVSTORES in `gluonlab.kvstores`.

Every algorithm is a function ``f(world_size, *, chunks=None, groups=None) -> Schedule``. An
algorithm that does not support ``chunks`` or ``groups`` raises an error if the argument is not
None.

The costs in the docstrings are for n bytes on p ranks behind one switch, where every rank has one
full-duplex port. A message takes alpha + bytes * beta seconds on the ports that it passes. Adding
takes gamma seconds per byte. `gluonlab.collectives.cost_model` computes costs on any topology.

Recursive doubling of the whole buffer is missing. In this algorithm, two ranks exchange and add the
same chunk in one step. Each rank would read and write the chunk in the same step, which `Schedule`
forbids. The algorithm would need a second buffer.
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
    is_integer_at_least,
    join_reduce_scatter_and_all_gather,
)
from gluonlab.errors import ScheduleError, unknown
from gluonlab.renamed import get_renamed

Groups = Sequence[Sequence[int]]
Algorithm = Callable[..., Schedule]
# (owner of each chunk, steps)
_Definition = Tuple[Sequence[int], Iterable[Sequence[Transfer]]]


def _define_algorithm(name: str, collective: str) -> Callable[[Callable[..., _Definition]], Algorithm]:
    """Return a decorator that turns a definition of chunk owners and steps into an algorithm.

    A definition is a function that returns (owner of each chunk, steps). The function's arguments
    are the number of ranks and, if the algorithm supports them, ``chunks`` and ``groups``. The
    algorithm is ``f(world_size, *, chunks=None, groups=None) -> Schedule``. The algorithm raises
    ScheduleError for options that the definition does not support, and omits steps without
    transfers.
    """

    def decorate(definition: Callable[..., _Definition]) -> Algorithm:
        """Return the algorithm that ``definition`` defines, with the same name and docstring."""
        options = set(signature(definition).parameters) - {"world_size"}

        @wraps(definition)
        def algorithm(world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None) -> Schedule:
            """Check the options, and return the schedule with the steps of ``definition``."""
            if not is_integer_at_least(world_size):
                raise ScheduleError(f"{name} for world_size={world_size!r}: use a whole number of at least 1")
            if chunks is not None and "chunks" not in options:
                raise ScheduleError(
                    f"{name} cannot be used with chunks={chunks!r}: omit chunks, or choose star, sharded, "
                    "tree, double_tree or hierarchical"
                )
            if groups is not None and "groups" not in options:
                raise ScheduleError(
                    f"{name} cannot be used with groups={groups!r}: omit groups, or choose hierarchical"
                )
            arguments = {"chunks": chunks, "groups": groups}
            owner, steps = definition(world_size, **{option: arguments[option] for option in options})
            nonempty = tuple(tuple(step) for step in steps if step)
            return Schedule(name, collective, world_size, len(owner), tuple(owner), nonempty)

        # help() and inspect should show the common signature, not the definition's
        del algorithm.__wrapped__  # type: ignore[attr-defined]
        return algorithm

    return decorate


def _combine(reduce_scatter: Schedule, all_gather: Schedule) -> _Definition:
    """Return the definition of an allreduce: a reduce-scatter, followed by an all-gather."""
    combined = join_reduce_scatter_and_all_gather("", reduce_scatter, all_gather)
    return combined.owner, combined.steps


def _chunk_count(name: str, requested: Optional[int], default: int, at_least: int = 1) -> int:
    """Return the number of chunks: ``requested``, or ``default`` if ``requested`` is None.

    Raises ScheduleError if the number is below ``at_least``.
    """
    chunks = default if requested is None else requested
    if not is_integer_at_least(chunks, at_least):
        raise ScheduleError(f"{name} with chunks={chunks!r}: use a whole number of at least {at_least}")
    return chunks


@_define_algorithm("star", ALLREDUCE)
def star(world_size: int, chunks: Optional[int]) -> _Definition:
    """Every rank sends its buffer to rank 0, which sends the sum back.

    This is the allreduce of Dive into Deep Learning, section "Training on Multiple GPUs".

    Cost: 2 (p-1) (alpha + n beta) + (p-1) n gamma. All bytes pass through one port.
    """
    count = _chunk_count("star", chunks, 1)
    others = range(1, world_size)
    reduce = [Transfer(rank, 0, chunk, ADD) for chunk in range(count) for rank in others]
    gather = [Transfer(0, rank, chunk, COPY) for chunk in range(count) for rank in others]
    return [0] * count, [reduce, gather]


def _sharded_owners(world_size: int, chunks: Optional[int]) -> List[int]:
    return [chunk % world_size for chunk in range(_chunk_count("sharded", chunks, world_size))]


@_define_algorithm("sharded", REDUCE_SCATTER)
def sharded_reduce_scatter(world_size: int, chunks: Optional[int]) -> _Definition:
    """In one step, every rank receives its own chunks from all other ranks and adds them.

    Cost: (p-1) (alpha + n/p beta) + (p-1) n/p gamma, with p chunks.
    """
    owner = _sharded_owners(world_size, chunks)
    # In each turn a rank sends to another neighbor, so that no two ranks start with the same owner.
    step = [
        Transfer((rank - turn) % world_size, rank, chunk, ADD)
        for turn in range(1, world_size)
        for chunk, rank in enumerate(owner)
    ]
    return owner, [step]


@_define_algorithm("sharded", ALL_GATHER)
def sharded_all_gather(world_size: int, chunks: Optional[int]) -> _Definition:
    """In one step, every owner sends its chunks to all other ranks.

    Cost: (p-1) (alpha + n/p beta), with p chunks.
    """
    owner = _sharded_owners(world_size, chunks)
    step = [
        Transfer(rank, (rank + turn) % world_size, chunk, COPY)
        for turn in range(1, world_size)
        for chunk, rank in enumerate(owner)
    ]
    return owner, [step]


@_define_algorithm("sharded", ALLREDUCE)
def sharded(world_size: int, chunks: Optional[int]) -> _Definition:
    """Every rank sums one chunk for all ranks, and sends the sum back to them.

    This is the answer to exercise 3 in the section that `star` names.

    Cost, with p chunks: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma. The latency is the same as
    for star, but the bytes are shared among all ports.
    """
    return _combine(sharded_reduce_scatter(world_size, chunks=chunks), sharded_all_gather(world_size, chunks=chunks))


@_define_algorithm("ring", REDUCE_SCATTER)
def ring_reduce_scatter(world_size: int) -> _Definition:
    """In step s, every rank r adds its sum of chunk r-s to its right neighbor's sum.

    Cost: (p-1) (alpha + n/p beta) + (p-1) n/p gamma.
    """
    n = world_size
    steps = [[Transfer(r, (r + 1) % n, (r - s) % n, ADD) for r in range(n)] for s in range(n - 1)]
    return [(chunk - 1) % n for chunk in range(n)], steps


@_define_algorithm("ring", ALL_GATHER)
def ring_all_gather(world_size: int) -> _Definition:
    """In step s, every rank r copies the finished chunk r+1-s to its right neighbor.

    Cost: (p-1) (alpha + n/p beta).
    """
    n = world_size
    steps = [[Transfer(r, (r + 1) % n, (r + 1 - s) % n, COPY) for r in range(n)] for s in range(n - 1)]
    return [(chunk - 1) % n for chunk in range(n)], steps


@_define_algorithm("ring", ALLREDUCE)
def ring(world_size: int) -> _Definition:
    """Chunks travel twice around a ring: first they are summed, then the sums are copied.

    Cost: 2 (p-1) (alpha + n/p beta) + (p-1) n/p gamma. No allreduce sends fewer bytes. Source:
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
    section 3.
    """
    return _combine(ring_reduce_scatter(world_size), ring_all_gather(world_size))


@_define_algorithm("bidirectional_ring", ALLREDUCE)
def bidirectional_ring(world_size: int) -> _Definition:
    """Two rings in opposite directions carry half of the chunks each.

    Cost, if each pair of neighbors has its own link: 2 (p-1) (alpha + n/2p beta) + (p-1) n/p gamma.
    Behind a switch, a rank sends both halves through one port: 4 (p-1) (alpha + n/2p beta) + (p-1)
    n/p gamma for p > 2. For p = 2, the cost is the same as for ring. Source: Jain, Sabharwal,
    "Optimal bucket algorithms for large MPI collectives on torus interconnects" (2010), section 3.
    """
    right = ring(world_size)
    mirror = [-rank % world_size for rank in range(world_size)]
    chunks = list(range(world_size, 2 * world_size))  # the chunks that move left
    steps = (
        [*step, *(Transfer(mirror[src], mirror[dst], chunks[c], op) for src, dst, c, op in step)]
        for step in right.steps
    )
    return [*right.owner, *(mirror[rank] for rank in right.owner)], steps


def _fold_ranks(world_size: int) -> Tuple[int, List[Tuple[int, int]]]:
    """Return ``core``, the largest power of two up to p, and the chunks of the other ranks.

    The chunks are a list of (rank, chunk). The other ranks are the ranks r >= ``core``, and each of
    them sends all its chunks to rank r - ``core``.
    """
    core = 1 << (world_size.bit_length() - 1)
    return core, [(rank, chunk) for rank in range(core, world_size) for chunk in range(core)]


def _halving_distances(core: int) -> List[int]:
    """Return core/2, core/4, ..., 1."""
    return [core >> level for level in range(1, core.bit_length())]


def _aligned_block(rank: int, size: int) -> range:
    """Return the chunks of the aligned block of ``size`` chunks that contains ``rank``."""
    begin = rank // size * size
    return range(begin, begin + size)


@_define_algorithm("halving_doubling", REDUCE_SCATTER)
def halving_doubling_reduce_scatter(world_size: int) -> _Definition:
    """Recursive halving: partners exchange different halves of their chunks and add them.

    The first partners are the farthest apart. Let q be the largest power of two up to p. If q < p,
    each rank from q on first adds its whole buffer to a partner below q ("fold"). Cost: log2(q)
    alpha + (q-1)/q n (beta + gamma), and alpha + n (beta + gamma) more with a fold.
    """
    core, folded = _fold_ranks(world_size)
    steps = [[Transfer(rank, rank - core, chunk, ADD) for rank, chunk in folded]]
    for half in _halving_distances(core):
        steps.append(
            [Transfer(r, r ^ half, chunk, ADD) for r in range(core) for chunk in _aligned_block(r ^ half, half)]
        )
    return range(core), steps


@_define_algorithm("halving_doubling", ALL_GATHER)
def halving_doubling_all_gather(world_size: int) -> _Definition:
    """Recursive doubling, after which each rank beyond a power of two receives all chunks.

    Let q be the largest power of two up to p. Cost: log2(q) alpha + (q-1)/q n beta, and alpha + n
    beta more if q < p.
    """
    core, folded = _fold_ranks(world_size)
    steps = [
        [Transfer(r, r ^ half, chunk, COPY) for r in range(core) for chunk in _aligned_block(r, half)]
        for half in reversed(_halving_distances(core))
    ]
    unfold = [Transfer(rank - core, rank, chunk, COPY) for rank, chunk in folded]
    return range(core), [*steps, unfold]


@_define_algorithm("halving_doubling", ALLREDUCE)
def halving_doubling(world_size: int) -> _Definition:
    """Allreduce by recursive halving (reduce-scatter), then recursive doubling (all-gather).

    The algorithm sends as many bytes as a ring, but in 2 log2(p) messages instead of 2 (p-1). Some
    of these messages are between distant ranks. Let q be the largest power of two up to p. If q <
    p, the other p - q ranks first add their data to a partner ("fold"). Cost: 2 log2(q) alpha +
    (q-1)/q n (2 beta + gamma), and 2 alpha + n (2 beta + gamma) more with a fold. Source: Thakur,
    Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005),
    section 4.5.
    """
    return _combine(halving_doubling_reduce_scatter(world_size), halving_doubling_all_gather(world_size))


@_define_algorithm("hierarchical", ALLREDUCE)
def hierarchical(world_size: int, chunks: Optional[int], groups: Optional[Groups]) -> _Definition:
    """Sum within each group and then between groups, and copy the sums within each group.

    Slow links between groups carry each chunk once in each direction. ``groups`` contains the ranks
    of each group, such as ((0, 1, 2, 3), (4, 5, 6, 7)) for two quads of GPUs. The default is two
    halves. Groups may have different sizes. In a group of k ranks, member c mod k sums chunk c for
    the group. By default there are as many chunks as the largest group has members.

    Cost with G groups of g ranks: 2 (g-1) (alpha + n/g beta) + (g-1) n/g gamma within the groups,
    and 2 (G-1) (alpha + n/g beta) + (G-1) n/g gamma between them. Source: Cho, Finkler, Serrano,
    Kung, Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
    hierarchy" (2019), section 3.
    """
    groups = _resolve_groups(world_size, groups)
    count = _chunk_count("hierarchical", chunks, max(len(group) for group in groups))
    owner: List[int] = []
    inward: List[Transfer] = []
    across: List[Transfer] = []
    for chunk in range(count):
        leaders = [group[chunk % len(group)] for group in groups]
        owner.append(leaders[chunk % len(groups)])  # the groups take turns
        inward += [
            Transfer(rank, leader, chunk, ADD)
            for group, leader in zip(groups, leaders)
            for rank in group
            if rank != leader
        ]
        across += [Transfer(leader, owner[chunk], chunk, ADD) for leader in leaders if leader != owner[chunk]]
    between_groups, outward = (
        [Transfer(dst, src, chunk, COPY) for src, dst, chunk, _ in sums] for sums in (across, inward)
    )
    return owner, [inward, across, between_groups, outward]


def _resolve_groups(world_size: int, requested: Optional[Groups]) -> List[List[int]]:
    """Return the groups, by default two halves.

    Raises ScheduleError unless each rank is in exactly one group.
    """
    if requested is None:
        middle = (world_size + 1) // 2
        requested = [range(middle), range(middle, world_size)]
    groups = [list(group) for group in requested if len(group)]
    ranks = sorted((rank for group in groups for rank in group), key=str)
    if ranks != sorted(range(world_size), key=str):
        raise ScheduleError(f"groups={groups}: list each of the ranks 0 to {world_size - 1} in exactly one group")
    return groups


# --- binary trees of ranks, which chunks pass in a pipeline


@dataclass(frozen=True)
class Tree:
    """A tree of ranks.

    ``parent[rank]``: the parent of a rank; the root is its own parent. ``ready_step[rank]``: the
    first step in which the rank can send, after all its children have sent.
    """

    parent: Tuple[int, ...]
    ready_step: Tuple[int, ...]

    @property
    def root(self) -> int:
        """Return the rank that is its own parent."""
        return next(rank for rank, parent in enumerate(self.parent) if rank == parent)

    def relabel(self, names: Sequence[int]) -> Tree:
        """Return the same tree, with rank r renamed to ``names[r]``."""
        parent, ready_step = [0] * len(names), [0] * len(names)
        for rank, name in enumerate(names):
            parent[name], ready_step[name] = names[self.parent[rank]], self.ready_step[rank]
        return Tree(tuple(parent), tuple(ready_step))


def make_balanced_tree(world_size: int) -> Tree:
    """Return a tree in which the children of rank r are 2r+1 and 2r+2, as in a heap.

    A rank is ready when all levels below it have sent.
    """
    levels = [(rank + 1).bit_length() - 1 for rank in range(world_size)]
    return Tree(
        tuple(max(0, (rank - 1) // 2) for rank in range(world_size)), tuple(levels[-1] - level for level in levels)
    )


def make_mirrored_trees(world_size: int) -> Tuple[Tree, Tree]:
    """Return two trees of the same shape. No rank has children in both trees.

    If the number of ranks is odd, a root may have one child in the other tree.
    """
    first = _make_in_order_tree(world_size)
    if world_size % 2:
        return first, first.relabel([(rank + 1) % world_size for rank in range(world_size)])
    return first, first.relabel(range(world_size - 1, -1, -1))


def _make_in_order_tree(world_size: int) -> Tree:
    """Return a binary tree below rank 0, the root, in which ranks ascend from left to right.

    The lowest set bit of a rank determines the rank's level. The children of 2 are 1 and 3, the
    children of 4 are 2 and 6, and so on. A parent beyond the last rank is skipped, so the depth
    stays log2(p), rounded up.
    """
    parent = [0] * world_size
    for rank in range(1, world_size):
        bit = rank & -rank
        candidate = (rank ^ bit) | (bit << 1)
        parent[rank] = candidate if candidate < world_size else rank ^ bit
    ready_step = [0] * world_size
    # children come before their parents
    for rank in sorted(range(1, world_size), key=lambda rank: rank & -rank):
        ready_step[parent[rank]] = max(ready_step[parent[rank]], ready_step[rank] + 1)
    return Tree(tuple(parent), tuple(ready_step))


@_define_algorithm("tree", ALLREDUCE)
def tree(world_size: int, chunks: Optional[int]) -> _Definition:
    """Chunks travel up a balanced binary tree and down again, one after another.

    Several chunks form a pipeline: at any time, each level works on a different chunk.

    Cost with c chunks and depth d = floor(log2(p)): (4 (d+c-1) - 2e) (alpha + n/c beta) + (2
    (d+c-1) - e) n/c gamma. Here e is 1 if p is a power of two, because the last level then has a
    single rank; otherwise e is 0. For p = 2, the cost is 2c (alpha + n/c beta) + n gamma. For p =
    1, the cost is 0. Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan" (2009), section 1.
    """
    count = _chunk_count("tree", chunks, 1)
    return [0] * count, _reduce_then_broadcast([(make_balanced_tree(world_size), range(count))])


@_define_algorithm("double_tree", ALLREDUCE)
def double_tree(world_size: int, chunks: Optional[int]) -> _Definition:
    """Two trees carry half of the chunks each; inner ranks of one tree are leaves of the other.

    As a result, all ports are in use.

    Cost with c chunks in each tree, for p = 2**d > 2: 2 (2 (d+c-1) - 1) (alpha + n/2c beta) + (2
    (d+c-1) - 1) n/2c gamma; for p = 2: 2c (alpha + n/2c beta) + n/2 gamma. For other p, the trees
    are as deep as for the next power of two. Source: Sanders, Speck, Träff, "Two-tree algorithms
    for full bandwidth broadcast, reduction and scan" (2009), section 3.
    """
    count = _chunk_count("double_tree", chunks, 2, at_least=2)
    trees = make_mirrored_trees(world_size)
    owner = [trees[chunk % 2].root for chunk in range(count)]
    return owner, _reduce_then_broadcast([(trees[half], range(half, count, 2)) for half in (0, 1)])


def _reduce_then_broadcast(trees_and_chunks: Sequence[Tuple[Tree, Sequence[int]]]) -> List[Step]:
    """Return the steps that run several trees at once, each on its own chunks.

    All sums run first, followed by all copies.
    """
    up = [_reduce_steps(tree, chunks) for tree, chunks in trees_and_chunks]
    down = [
        [tuple(Transfer(dst, src, chunk, COPY) for src, dst, chunk, _ in step) for step in steps[::-1]] for steps in up
    ]
    directions = (zip_longest(*steps, fillvalue=()) for steps in (up, down))
    return [sum(parallel_steps, ()) for direction in directions for parallel_steps in direction]


def _reduce_steps(tree: Tree, chunks: Sequence[int]) -> List[Step]:
    """Return the steps in which ranks add chunks to their parents, in a pipeline.

    A rank sends a chunk after its children have sent the same chunk. The next chunk follows one
    step later.
    """
    senders = [rank for rank, parent in enumerate(tree.parent) if rank != parent]
    return [
        tuple(
            Transfer(rank, tree.parent[rank], chunk, ADD)
            for turn, chunk in enumerate(chunks)
            for rank in senders
            if tree.ready_step[rank] + turn == step
        )
        for step in range(tree.ready_step[tree.root] + len(chunks) - 1)
    ]


# --- by name

ALGORITHMS: Dict[str, Algorithm] = {
    algorithm.__name__: algorithm
    for algorithm in (
        star, sharded, tree, double_tree, ring, bidirectional_ring, halving_doubling, hierarchical,
    )
}  # fmt: skip

# The allreduces that consist of two halves. A sharded optimizer updates between the halves.
HALVES: Dict[str, Tuple[Algorithm, Algorithm]] = {
    "sharded": (sharded_reduce_scatter, sharded_all_gather),
    "ring": (ring_reduce_scatter, ring_all_gather),
    "halving_doubling": (halving_doubling_reduce_scatter, halving_doubling_all_gather),
}


def make_schedule(
    name: str, world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
) -> Schedule:
    """Return the schedule of the algorithm ``name`` for ``world_size`` ranks.

    Args:
        name: an algorithm of `ALGORITHMS`.
        world_size: the number of ranks.
        chunks: the number of chunks, for algorithms that support any number.
        groups: the groups of ranks, for the algorithm "hierarchical".

    Raises:
        ScheduleError: for an unknown name (the message lists the choices), and for invalid
            arguments.
    """
    if name not in ALGORITHMS:
        raise ScheduleError(unknown("algorithm", name, ALGORITHMS))
    return ALGORITHMS[name](world_size, chunks=chunks, groups=groups)


def accepts_options(algorithm: Algorithm, **options: Any) -> bool:
    """Call ``algorithm`` to find out whether it accepts options such as ``chunks=2``."""
    try:
        algorithm(2, **options)
    except ScheduleError:
        return False
    return True


# --- several hosts: a reduce-scatter within hosts, an allreduce across, an all-gather within
#
# The allreduce across hosts runs between devices of equal rank in their hosts. All ranks run it at
# the same time, each on the chunks that it owns after the reduce-scatter. So every chunk crosses
# the network as often as with one device per host, and all devices of a host share the work. For
# the source, see `hierarchical`.

# algorithms across hosts; in trees, several chunks form a pipeline
ACROSS_HOSTS = ("ring", "tree", "double_tree")


def nest_over_hosts(name: str, scatter: Schedule, across: Schedule, gather: Schedule) -> Schedule:
    """Return an allreduce that runs ``scatter``, then ``across`` between hosts, then ``gather``.

    ``scatter`` and ``gather`` are a reduce_scatter and an all_gather with the same owners, for the
    devices of one host. ``across`` is an allreduce with a rank for each host, and divides each
    chunk of ``scatter`` into its own chunks. Device d of host h is rank h * devices + d. Raises
    ScheduleError if the schedules cannot be combined.
    """
    join_reduce_scatter_and_all_gather(name, scatter, gather)
    if across.collective != ALLREDUCE:
        raise ScheduleError(
            f"{name}: the schedule across hosts, {across.name}, is of type {across.collective}: use an allreduce"
        )
    hosts, devices, parts = range(across.world_size), scatter.world_size, range(across.chunks)

    def in_every_host(steps: Sequence[Step]) -> Iterator[Step]:
        """Yield the steps of one host as steps of all hosts at once, for every part of a chunk."""
        for step in steps:
            yield tuple(
                Transfer(host * devices + src, host * devices + dst, chunk * len(parts) + part, op)
                for host in hosts
                for src, dst, chunk, op in step
                for part in parts
            )

    across_steps = (
        tuple(
            Transfer(src * devices + owner, dst * devices + owner, chunk * len(parts) + part, op)
            for chunk, owner in enumerate(scatter.owner)
            for src, dst, part, op in step
        )
        for step in across.steps
    )
    owners = tuple(host * devices + owner for owner in scatter.owner for host in across.owner)
    steps = (*in_every_host(scatter.steps), *across_steps, *in_every_host(gather.steps))
    return Schedule(name, ALLREDUCE, len(hosts) * devices, len(owners), owners, steps)


def make_schedule_over_hosts(
    hosts: int,
    devices: int,
    across: str = "ring",
    *,
    within: str = "ring",
    order: Optional[Sequence[int]] = None,
    chunks: Optional[int] = None,
) -> Schedule:
    """Return an allreduce over ``hosts`` hosts with ``devices`` devices each.

    Args:
        hosts: The number of hosts.
        devices: The number of devices of each host.
        across: The algorithm across hosts, one of ALGORITHMS.
        within: The algorithm within hosts, one of HALVES.
        order: ``order[r]`` is the device of each host that has rank r in ``within``; r by default.
        chunks: The number of chunks for ``across``, if that algorithm accepts any number.

    Raises:
        ScheduleError: For invalid arguments.

    Cost with rings over h hosts of g devices: 2 (g-1) (alpha + n/g beta) within hosts, and 2 (h-1)
    (g alpha' + n/h beta') across hosts. alpha' and beta' are for the NIC of a host, through which
    all g messages pass.
    """
    if within not in HALVES:
        raise ScheduleError(
            f"within={within!r}: choose one of {', '.join(HALVES)}, each of which consists of a "
            "reduce-scatter and an all-gather"
        )
    scatter, gather = (half(devices) for half in HALVES[within])
    if order is not None:
        scatter, gather = scatter.placed(order), gather.placed(order)
    across_schedule = make_schedule(across, hosts, chunks=chunks)
    return nest_over_hosts(f"hierarchical, {across}", scatter, across_schedule, gather)


def __getattr__(name: str) -> Any:
    return get_renamed(__name__, name)
