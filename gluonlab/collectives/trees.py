"""The allreduces on binary trees of ranks, which chunks pass in a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import List, Optional, Sequence, Tuple

from gluonlab.collectives.definition import Definition, chunk_count, defines
from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Step, Transfer


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


@defines("tree", ALLREDUCE)
def tree(world_size: int, chunks: Optional[int]) -> Definition:
    """Up a balanced binary tree and down again, one chunk after the other.

    Several chunks make a pipeline: each level is busy with another one.

    Cost with c chunks and depth d = floor(log2(p)): (4 (d+c-1) - 2e) (alpha + n/c beta) + (2
    (d+c-1) - e) n/c gamma, where e = 1 if p is a power of two, whose last level has a single rank,
    else 0; for p = 2: 2c (alpha + n/c beta) + n gamma; for p = 1 nothing. Source: Sanders, Speck,
    Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009), section 1.
    """
    count = chunk_count("tree", chunks, 1)
    return [0] * count, _up_and_down([(balanced_tree(world_size), range(count))])


@defines("double_tree", ALLREDUCE)
def double_tree(world_size: int, chunks: Optional[int]) -> Definition:
    """Two trees at once, half of the chunks each; inner ranks of one are leaves of the other.

    So every port is used.

    Cost with c chunks in each tree, for p = 2**d > 2: 2 (2 (d+c-1) - 1) (alpha + n/2c beta) + (2
    (d+c-1) - 1) n/2c gamma; for p = 2: 2c (alpha + n/2c beta) + n/2 gamma. Trees for other p are as
    deep as for the next power of two. Source: Sanders, Speck, Träff, "Two-tree algorithms for full
    bandwidth broadcast, reduction and scan" (2009), section 3.
    """
    count = chunk_count("double_tree", chunks, 2, at_least=2)
    trees = mirrored_trees(world_size)
    owner = [trees[chunk % 2].root for chunk in range(count)]
    return owner, _up_and_down([(trees[half], range(half, count, 2)) for half in (0, 1)])


def _up_and_down(loads: Sequence[Tuple[Tree, Sequence[int]]]) -> List[Step]:
    """Trees that work at once, each on its own chunks: all sums first, then all copies."""
    up = [_reduce_up(tree, chunks) for tree, chunks in loads]
    down = [[_reversed(step) for step in reversed(steps)] for steps in up]
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


def _reversed(step: Step) -> Step:
    return tuple(Transfer(dst, src, chunk, COPY) for src, dst, chunk, _ in step)
