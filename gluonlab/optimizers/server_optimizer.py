"""The optimizer on MXNet's parameter servers: what travels to them, and what runs there.

Parameters travel as flat arrays (`laid_out`). MXNet cuts an array of MXNET_KVSTORE_BIGARRAY_BOUND
elements or more into equal parts, one for each server; a smaller one goes whole to one of them.

`ServerRule` runs on the servers: the only pickle that gluonlab sends, from its workers to its
servers. MXNet's server unpickles what ``set_optimizer`` sends, and calls it for each array that is
pushed, or, where workers wait for each other, for each sum. It does so while it imports MXNet,
whose later modules are not there yet: so this module imports only optimizers.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import nd

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
    `gluonlab.kvstores.processes`, whose products with 9973 C's int holds.
    """
    return key * 9973 % servers


MOST = 62  # the most updates of others that are counted apart; one number more is for all above
NOTE = 2 + MOST + 1  # a server's numbers in a note: its place, 1 for an answer, the histogram


def first_note(servers: int) -> "List[List[float]]":
    """What a note begins with: a row for each server, with its place.

    So a server knows its place, whether it is sent the whole note or, with a small
    MXNET_KVSTORE_BIGARRAY_BOUND, the part that is its row.
    """
    return [[float(place)] + [0.0] * (NOTE - 1) for place in range(servers)]


class Described(NamedTuple):
    """What an Optimizer asks of a parameter."""

    name: str
    lr_mult: float
    wd_mult: float


@dataclass(frozen=True)
class EachShare:
    """A schedule, asked for a step whose parts ``workers`` processes push one by one."""

    rates: Any
    workers: int

    def __call__(self, updates: int) -> float:
        return float(self.rates(-(-updates // self.workers)))


class ServerRule(mx.optimizer.Optimizer):
    """What a server does with each array that it is sent, by the array's key.

    - ``flats``: weights, which ``optimizer`` updates with the sum of the workers' gradients;
    - ``copies``, as (key of the weights, rank): weights as one worker has them, which does not wait
      for the others: the weights are updated with what it pushes, and it gets them as they are now;
    - ``notes``, one key for each server (`first_note`): how many updates have met with how many of
      other workers' since theirs had last got the weights; all workers have got them now;
    - any other: what is pushed is what is kept.

    A mistake ends the server: MXNet would print it, and go on with the weights as they were.
    """

    def __init__(
        self,
        optimizer: Optional[mx.optimizer.Optimizer] = None,
        flats: Optional[Mapping[int, Flat]] = None,
        copies: Optional[Mapping[int, Tuple[int, int]]] = None,
        notes: Optional[Mapping[int, int]] = None,
    ) -> None:
        super().__init__()
        self.optimizer, self.flats = optimizer, dict(flats or {})
        self.copies, self.notes = dict(copies or {}), dict(notes or {})
        self._updater: Any = None
        self._place = 0
        self._weights: Dict[int, nd.NDArray] = {}
        self._pieces: Dict[int, List[Any]] = {}
        self._applied: Dict[int, int] = {}  # updates of each of ``flats``
        self._seen: Dict[int, int] = {}  # by key of ``copies``: those that the worker knows of
        self._histogram = [0] * (MOST + 1)

    def create_state_multi_precision(self, index: int, weight: nd.NDArray) -> None:
        """Nothing: the optimizer's states are of its own keys."""

    def update_multi_precision(
        self, index: int, weight: nd.NDArray, grad: nd.NDArray, state: None
    ) -> None:
        """Take in what came under the key ``index``; ``weight`` is what the server keeps of it."""
        try:
            self._take(index, weight, grad)
            # MXNet frees the message, and sends ``weight``, without waiting for either
            nd.waitall()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _take(self, key: int, kept: nd.NDArray, pushed: nd.NDArray) -> None:
        if key in self.notes:
            self._note(key, kept)
        elif key in self.flats:
            self._weights[key] = kept
            if key not in self._copied:
                self._update(key, pushed)
        elif key in self.copies:
            flat, _ = self.copies[key]
            self._count(flat, self._applied.get(flat, 0) - self._seen.get(key, 0))
            self._update(flat, pushed)
            self._seen[key] = self._applied[flat]
            self._weights[flat].copyto(kept)
        else:
            pushed.copyto(kept)

    @property
    def _copied(self) -> "set[int]":
        """The keys of ``flats`` of which each worker has a copy, which are only pulled."""
        return {flat for flat, _ in self.copies.values()}

    def _update(self, key: int, gradient: nd.NDArray) -> None:
        """Update this server's part of the weights."""
        if key not in self._pieces:
            weights = self._weights[key]
            begin, end = self.flats[key].part(self._place, weights.size)
            self._pieces[key] = list(self.flats[key].within(begin, end))
        if self._updater is None:
            assert self.optimizer is not None
            self._updater = mx.optimizer.get_updater(self.optimizer)
        for piece in self._pieces[key]:
            weight, grad = (
                array.reshape((-1,))[piece.begin : piece.end].reshape(piece.shape or (-1,))
                for array in (self._weights[key], gradient)
            )
            self._updater.optimizer.param_dict[piece.key] = Described(
                piece.name, piece.lr_mult, piece.wd_mult
            )
            self._updater(piece.key, grad, weight)
        self._applied[key] = self._applied.get(key, 0) + 1

    def _count(self, flat: int, others: int) -> None:
        self._histogram[min(others, MOST)] += 1

    def _note(self, key: int, kept: nd.NDArray) -> None:
        servers = len(self.notes)
        rows = kept.reshape((-1, NOTE)).asnumpy()  # of all servers, or, cut, of this one
        self._place = server_of(key, servers) if len(rows) == servers else int(rows[0, 0])
        rows[:, 1:] = 0
        rows[self._place if len(rows) == servers else 0, 1:] = [1, *self._histogram]
        kept[:] = nd.array(rows.reshape(-1))
        self._histogram = [0] * (MOST + 1)
        self._seen = {copy: self._applied.get(flat, 0) for copy, (flat, _) in self.copies.items()}
