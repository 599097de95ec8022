"""Binary trees of ranks, and the pipelined way of chunks up and down them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence, Tuple

from gluonlab.collectives.schedule import ADD, COPY, Step, Transfer


@dataclass(frozen=True)
class Tree:
    """``parent[rank]``, of the root itself; ``wait[rank]``: in how many steps, at the earliest, its
    children have sent to it.
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
    """Two trees of the same shape; no rank has children in both (but a root, which has one, where
    the number of ranks is odd).
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


def reduce_up(tree: Tree, chunks: Sequence[int]) -> List[Step]:
    """Every rank adds a chunk to its parent's when its children have added theirs; the next chunk
    follows one step later.
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


def gather_down(tree: Tree, chunks: Sequence[int]) -> List[Step]:
    """The same way back, copying."""
    return [
        tuple(Transfer(t.dst, t.src, t.chunk, COPY) for t in step)
        for step in reversed(reduce_up(tree, chunks))
    ]
