"""Optimizer for MXNet's parameter servers, and the layout of the arrays that are sent to them.

Parameters are sent as flat arrays (`make_layout`). MXNet splits an array of
MXNET_KVSTORE_BIGARRAY_BOUND elements or more into equal parts, one for each server. The workers
send `ServerOptimizer` as a pickle. It is the only pickle that gluonlab sends. The server unpickles
the optimizer during its own ``import mxnet``, so this module may only import modules that have been
loaded by then.

A *staleness report* is a small array with which the servers send the workers a histogram of
staleness. The staleness of an update is the number of updates by other workers that its gradient
does not take into account.
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
    """Consecutive elements of an optimizer key, from ``begin`` up to ``end`` (exclusive).

    If the piece is a parameter that must not be split, ``shape`` and ``name`` are those of the
    parameter. If the piece can be split anywhere, ``shape`` and ``name`` are empty. The optimizer
    reads ``lr_mult``, ``wd_mult`` and ``name``.
    """

    key: int
    begin: int
    end: int
    shape: Tuple[int, ...] = ()
    lr_mult: float = 1.0
    wd_mult: float = 1.0
    name: str = ""


@dataclass(frozen=True)
class FlatLayout:
    """Layout of ``pieces`` in a flat array of ``size`` elements, divided between servers."""

    size: int
    servers: int
    pieces: Tuple[Piece, ...]

    def server_range(self, server: int, size: int) -> Tuple[int, int]:
        """Return (begin, end) of the elements that server number ``server`` holds.

        ``size``: number of elements on the server. Raises KVStoreError if ``size`` is neither the
        size of the whole array nor that of the server's part.
        """
        if size == self.size:
            return 0, size
        begin, end = (self.size * i // self.servers for i in (server, server + 1))
        if size != end - begin:
            raise KVStoreError(
                f"server {server} of {self.servers} stores {size} elements of an array of {self.size} elements, "
                f"but its part of the array has {end - begin} elements"
            )
        return begin, end

    def pieces_between(self, begin: int, end: int) -> Iterator[Piece]:
        """Yield the pieces in a range of elements, with their offsets from ``begin``.

        Pieces are cut at both ends of the range. Raises KVStoreError if a piece that must stay
        whole would be split.
        """
        for piece in self.pieces:
            first, last = max(piece.begin, begin), min(piece.end, end)
            if first >= last:
                continue
            if piece.shape and last - first < piece.end - piece.begin:
                raise KVStoreError(f"key {piece.key} is split between servers, but must be on one server")
            yield replace(piece, begin=first - begin, end=last - begin)


def make_layout(pieces: Sequence[Piece], servers: int) -> FlatLayout:
    """Return a layout of the pieces in one flat array, divided equally between the servers.

    Pieces that can be split are consecutive, and the array is padded to a multiple of ``servers``,
    so that all servers get parts of equal size. Pieces that must stay whole are distributed over
    equal parts: each goes into the part with the fewest elements so far.
    """
    if not any(piece.shape for piece in pieces):
        moved, end = [], 0
        for piece in pieces:
            moved.append(_move_piece(piece, end))
            end = moved[-1].end
        return FlatLayout(-(-end // servers) * servers, servers, tuple(moved))
    parts: List[List[Piece]] = [[] for _ in range(servers)]
    sizes = [0] * servers
    for piece in sorted(pieces, key=lambda piece: piece.begin - piece.end):  # largest first
        server = sizes.index(min(sizes))
        parts[server].append(piece)
        sizes[server] += piece.end - piece.begin
    part_size, moved = max(sizes), []
    for server, part in enumerate(parts):
        end = server * part_size
        for piece in part:
            moved.append(_move_piece(piece, end))
            end = moved[-1].end
    return FlatLayout(part_size * servers, servers, tuple(moved))


def _move_piece(piece: Piece, begin: int) -> Piece:
    return replace(piece, begin=begin, end=begin + piece.end - piece.begin)


def assigned_server(key: int, servers: int) -> int:
    """Return the number of the server to which MXNet sends a small array with this key."""
    # EncodeDefaultKey of src/kvstore/kvstore_dist.h in MXNet 1.9.1. For keys of
    # gluonlab.kvstores.processes, the product does not overflow C's int.
    return key * 9973 % servers


MAX_COUNTED_UPDATES = 62  # the last cell of the histogram counts all larger numbers
# Elements of a server's row in a report: the server's number, 1 if the server has answered, and the
# histogram
STALENESS_REPORT_SIZE = 2 + MAX_COUNTED_UPDATES + 1


def initial_staleness_report(servers: int) -> "List[List[float]]":
    """Return the empty staleness report that a worker creates on the servers.

    The report has a row for each server: the number of the server, and zeros.

    With a small MXNET_KVSTORE_BIGARRAY_BOUND, MXNet sends each server only its row of the report. The
    server then reads its number from the row.
    """
    return [[float(server)] + [0.0] * (STALENESS_REPORT_SIZE - 1) for server in range(servers)]


class ParameterAttributes(NamedTuple):
    """The attributes that an Optimizer reads from a parameter."""

    name: str
    lr_mult: float
    wd_mult: float


@dataclass(frozen=True)
class PerWorkerSchedule:
    """Learning rate schedule in which ``workers`` updates count as one update of ``rates``."""

    rates: Any
    workers: int

    def __call__(self, updates: int) -> float:
        return float(self.rates(-(-updates // self.workers)))


class ServerOptimizer(mx.optimizer.Optimizer):
    """Handles each array that a server receives, depending on the array's key.

    - A key of ``flats`` (key -> layout): the array is the sum of the workers' gradients, with which
      ``optimizer`` updates the weights.
    - A key of ``copies`` (key -> (key of the weights, rank)): the array is the gradient of an
      asynchronous worker. The server updates the weights with this gradient, and returns a copy of
      the weights.
    - A key of ``staleness_reports`` (key -> number of the server): the server answers with a histogram
      of staleness. The staleness of an update is the number of other workers' updates since the worker
      received the weights. The request also means that all workers now have the current weights.
    - Any other key: the array is stored.

    An exception ends the server. MXNet itself would print the exception and continue with the old
    weights.
    """

    def __init__(
        self,
        optimizer: Optional[mx.optimizer.Optimizer] = None,
        flats: Optional[Mapping[int, FlatLayout]] = None,
        copies: Optional[Mapping[int, Tuple[int, int]]] = None,
        staleness_reports: Optional[Mapping[int, int]] = None,
    ) -> None:
        super().__init__()
        self.optimizer, self.flats = optimizer, dict(flats or {})
        self.copies, self.staleness_reports = dict(copies or {}), dict(staleness_reports or {})
        self._updater: Any = None
        self._server = 0
        self._weights: Dict[int, nd.NDArray] = {}
        self._pieces: Dict[int, List[Any]] = {}
        self._applied: Dict[int, int] = {}  # by key of ``flats``: number of updates
        # by key of ``copies``: number of updates in the weights that the worker last received
        self._seen: Dict[int, int] = {}
        self._histogram = [0] * (MAX_COUNTED_UPDATES + 1)

    def create_state_multi_precision(self, index: int, weight: nd.NDArray) -> None:
        """Return no state, because `optimizer` stores its states by key."""

    def update_multi_precision(self, index: int, weight: nd.NDArray, grad: nd.NDArray, state: None) -> None:
        """Handle the array ``grad`` that a worker pushed. ``weight``: the server's array."""
        try:
            self._handle_push(index, weight, grad)
            # MXNet frees the message and sends ``weight`` without waiting for these operations
            nd.waitall()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _handle_push(self, key: int, stored: nd.NDArray, pushed: nd.NDArray) -> None:
        """Handle an array pushed for ``key``. ``stored``: the array that is sent back."""
        if key in self.staleness_reports:
            self._write_staleness_report(key, stored)
        elif key in self.flats:
            self._weights[key] = stored
            if key not in self._copied_keys:
                self._update(key, pushed)
        elif key in self.copies:
            flat, _ = self.copies[key]
            self._count_staleness(self._applied.get(flat, 0) - self._seen.get(key, 0))
            self._update(flat, pushed)
            self._seen[key] = self._applied[flat]
            self._weights[flat].copyto(stored)
        else:
            pushed.copyto(stored)

    @property
    def _copied_keys(self) -> "set[int]":
        """The keys of ``flats`` that have copies. Workers push no gradients to these keys."""
        return {flat for flat, _ in self.copies.values()}

    def _update(self, key: int, gradient: nd.NDArray) -> None:
        """Update this server's part of the flat weight array ``key``."""
        if key not in self._pieces:
            weights = self._weights[key]
            begin, end = self.flats[key].server_range(self._server, weights.size)
            self._pieces[key] = list(self.flats[key].pieces_between(begin, end))
        if self._updater is None:
            assert self.optimizer is not None
            self._updater = mx.optimizer.get_updater(self.optimizer)
        for piece in self._pieces[key]:
            weight, grad = (
                array.reshape((-1,))[piece.begin : piece.end].reshape(piece.shape or (-1,))
                for array in (self._weights[key], gradient)
            )
            self._updater.optimizer.param_dict[piece.key] = ParameterAttributes(
                piece.name, piece.lr_mult, piece.wd_mult
            )
            self._updater(piece.key, grad, weight)
        self._applied[key] = self._applied.get(key, 0) + 1

    def _count_staleness(self, updates: int) -> None:
        self._histogram[min(updates, MAX_COUNTED_UPDATES)] += 1

    def _write_staleness_report(self, key: int, stored: nd.NDArray) -> None:
        """Write this server's staleness histogram into ``stored``, and start a new histogram."""
        servers = len(self.staleness_reports)
        rows = stored.reshape((-1, STALENESS_REPORT_SIZE)).asnumpy()  # of all servers, or only of this one
        self._server = assigned_server(key, servers) if len(rows) == servers else int(rows[0, 0])
        rows[:, 1:] = 0
        rows[self._server if len(rows) == servers else 0, 1:] = [1, *self._histogram]
        stored[:] = nd.array(rows.reshape(-1))
        self._histogram = [0] * (MAX_COUNTED_UPDATES + 1)
        self._seen = {copy: self._applied.get(flat, 0) for copy, (flat, _) in self.copies.items()}
