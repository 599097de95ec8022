"""Symmetries of links: renamings of devices after which all wires are where some were before.

Rotations, rank + k, and reflections of bits, rank XOR k, are looked at: they are groups, they move
every rank, and the machines that people build have some of them.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from gluonlab.collectives.links import Pair
from gluonlab.collectives.synthesis.lanes import Lanes, Wire

Renaming = Tuple[int, ...]  # device d becomes renaming[d]


def symmetries(lanes: Lanes) -> List[List[Renaming]]:
    """The groups of renamings that ``lanes`` is proved to have, the largest first.

    The last one is the identity alone.
    """
    p = lanes.world_size
    rotations = [tuple((rank + k) % p for rank in range(p)) for k in range(p)]
    groups = [[each for each in rotations if holds(lanes, each)]]
    if p & (p - 1) == 0:
        bits = [tuple(rank ^ k for rank in range(p)) for k in range(p)]
        groups.append([each for each in bits if holds(lanes, each)])
    groups.append([tuple(range(p))])
    groups.sort(key=len, reverse=True)
    return [group for at, group in enumerate(groups) if group not in groups[:at]]


def holds(lanes: Lanes, renaming: Sequence[int]) -> bool:
    """Whether every wire, with its devices renamed, is a wire of as many lanes."""
    return {_renamed(wire, renaming) for wire in lanes.wires} == set(lanes.wires)


def _renamed(wire: Wire, renaming: Sequence[int]) -> Wire:
    pairs = sorted((renaming[src], renaming[dst]) for src, dst in wire.pairs)
    return Wire(tuple(pairs), wire.lanes)


def representatives(world_size: int, group: Sequence[Renaming]) -> List[int]:
    """One device of each set that the ``group`` renames into each other: the lowest."""
    return sorted({min(renaming[rank] for renaming in group) for rank in range(world_size)})


def isomorphism(one: Lanes, other: Lanes) -> Optional[Renaming]:
    """A renaming of the devices of ``one`` that makes its wires those of ``other``, or None.

    A pair is renamed to one that passes as many wires, as wide and as much shared.
    """
    if one.world_size != other.world_size or len(one.wires) != len(other.wires):
        return None
    kinds, others = _kinds(one), _kinds(other)
    p, wires = one.world_size, set(other.wires)

    def extended(renaming: List[int]) -> Optional[Renaming]:
        if len(renaming) == p:
            found = tuple(renaming)
            return found if {_renamed(wire, found) for wire in one.wires} == wires else None
        new = len(renaming)
        for device in range(p):
            if device not in renaming and all(
                kinds.get((rank, new)) == others.get((renaming[rank], device))
                and kinds.get((new, rank)) == others.get((device, renaming[rank]))
                for rank in range(new)
            ):
                whole = extended([*renaming, device])
                if whole:
                    return whole
        return None

    return extended([])


def _kinds(lanes: Lanes) -> Dict[Pair, List[Tuple[int, int]]]:
    kinds: Dict[Pair, List[Tuple[int, int]]] = {pair: [] for pair in lanes.pairs}
    for wire in lanes.wires:
        for pair in wire.pairs:
            kinds[pair].append((wire.lanes, len(wire.pairs)))
    return {pair: sorted(found) for pair, found in kinds.items()}
