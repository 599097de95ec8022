"""Where parameters lie in the flat array that travels, and which server has which part of it.

MXNet cuts an array of MXNET_KVSTORE_BIGARRAY_BOUND elements or more into equal parts, one for each
server; a smaller one goes whole to one of them. Does not import MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator, List, Sequence, Tuple

from gluonlab.errors import KVStoreError


@dataclass(frozen=True)
class Piece:
    """Consecutive elements under one key of the optimizer, from ``begin`` to before ``end``.

    ``shape``: of a parameter that must stay whole, for an optimizer that looks at all of it; empty
    where the piece may be cut anywhere. ``lr_mult``, ``wd_mult``, and ``name``, that of such a
    parameter: what the optimizer asks of it.
    """

    key: int
    begin: int
    end: int
    shape: Tuple[int, ...] = ()
    lr_mult: float = 1.0
    wd_mult: float = 1.0
    name: str = ""


@dataclass(frozen=True)
class Flat:
    """A flat array of ``size`` elements for so many servers, and the ``pieces`` in it, in order."""

    size: int
    servers: int
    pieces: Tuple[Piece, ...]

    def part(self, place: int, held: int) -> Tuple[int, int]:
        """The first and the last but one element of the server at ``place``, which holds ``held``.

        Raises KVStoreError where that is neither the whole array nor the server's part of it.
        """
        if held == self.size:
            return 0, held
        begin, end = (self.size * at // self.servers for at in (place, place + 1))
        if held != end - begin:
            raise KVStoreError(
                f"server {place} of {self.servers} holds {held} elements of an array of "
                f"{self.size}, where {end - begin} are its part"
            )
        return begin, end

    def within(self, begin: int, end: int) -> Iterator[Piece]:
        """What lies between these elements, by places counted from ``begin``.

        Raises KVStoreError for a piece that is cut and must not be.
        """
        for piece in self.pieces:
            first, last = max(piece.begin, begin), min(piece.end, end)
            if first >= last:
                continue
            if piece.shape and last - first < piece.end - piece.begin:
                raise KVStoreError(f"key {piece.key} is cut between servers, and must not be")
            yield replace(piece, begin=first - begin, end=last - begin)


def laid_out(pieces: Sequence[Piece], servers: int) -> Flat:
    """One array for these pieces, whose ``begin`` and ``end`` are those that they have now.

    Pieces that may be cut lie one behind the other, and the rest up to a multiple of ``servers``,
    so that all parts are equal, is empty. Whole ones lie in as many equal parts, each piece in the
    emptiest so far.
    """
    if not any(piece.shape for piece in pieces):
        placed, end = [], 0
        for piece in pieces:
            placed.append(_moved(piece, end))
            end = placed[-1].end
        return Flat(-(-end // servers) * servers, servers, tuple(placed))
    parts: List[List[Piece]] = [[] for _ in range(servers)]
    ends = [0] * servers
    for piece in sorted(pieces, key=lambda piece: piece.begin - piece.end):  # the largest first
        place = ends.index(min(ends))
        parts[place].append(piece)
        ends[place] += piece.end - piece.begin
    room, whole = max(ends), []
    for place, inside in enumerate(parts):
        end = place * room
        for piece in inside:
            whole.append(_moved(piece, end))
            end = whole[-1].end
    return Flat(room * servers, servers, tuple(whole))


def _moved(piece: Piece, begin: int) -> Piece:
    return replace(piece, begin=begin, end=begin + piece.end - piece.begin)


def server_of(key: int, servers: int) -> int:
    """The server that MXNet gives a small array with this key.

    EncodeDefaultKey in MXNet 1.9.1's src/kvstore/kvstore_dist.h; for the keys of
    `gluonlab.kvstores.native`, whose products with 9973 C's int holds.
    """
    return key * 9973 % servers
