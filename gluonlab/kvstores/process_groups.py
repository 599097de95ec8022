"""Groups of processes that train one network together; each of them owns some devices."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Hashable,
    List,
    Optional,
    Protocol,
    Sequence,
    Type,
)

import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import CopyInto, ndarray_from_numpy
from gluonlab.errors import DivergedError, RunError
from gluonlab.optimizers.server_optimizer import Flat

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

WORDS = 3  # float32 numbers that hold the 53 bits of a float64
PAIR = "<u2"  # two bytes travel as a float32, which holds whole numbers up to 2**24
MOST_PAIRS = 2**21  # that travel at once: 8 MiB


class Served(Protocol):
    """Weights that servers keep and update."""

    def update(self, place: int, array: nd.NDArray, priority: int = 0) -> None:
        """Queue: the gradient ``array``, of the weights at ``place``, becomes the new weights."""

    def meet(self, arrays: Sequence[nd.NDArray]) -> None:
        """Wait for all processes, and put the weights into ``arrays``, the same in all of them."""


class Group:
    """This process among those of its group. Every process makes the same calls, in one order.

    As it is here, it is a group of one process: what it has is the sum. ``rank``: this process's
    place, from 0 to ``size - 1``; rank 0 alone writes files and reports. ``name``: what carries the
    numbers, as ``--backend`` calls it; empty for a process alone. ``servers``: how many servers
    could update the weights, 0 where there are none. ``waits``: whether a process waits for the
    others' gradients in each step; all other calls do. ``sums_float16``: whether it sums arrays of
    float16, too, in half the bytes. ``command``: the words that start such a group, to which
    options of the run can be added.
    """

    name, command = "", "python -m gluonlab.run"
    rank, size = 0, 1
    servers, waits, sums_float16 = 0, True, False

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        """Replace each flat array by its sum over the processes; nothing waits but the first time.

        Give the same arrays in every step: the group keeps them, and a place for the sum of each.
        ``priority``: the larger, the earlier, as for a kvstore.
        """

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """Replace each array by the one of rank 0, and wait for them."""

    def everyones(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """What each process gives: arrays of the host as float64, a row for each; waits for all."""
        return values.astype("float64")[np.newaxis]

    def total(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """The float64 sum of small arrays of the host over the processes; waits for all of them.

        All get the same bits.
        """
        return values.astype("float64")

    def everyones_bytes(self, data: bytes) -> List[bytes]:
        """What each process gives, of any length each; waits for all of them."""
        return [data]

    def bytes_of_first(self, data: bytes) -> bytes:
        """What rank 0 gives, however long; waits for it."""
        return data

    def own_devices(self, gpus: Optional[int] = None) -> Optional[str]:
        """This process's devices, where its options name none: as --devices, or None for the usual.

        ``gpus``: how many, if they say that.
        """
        return None

    def begin_together(self) -> None:
        """From here on a signal that comes to one process ends all of them after the same step."""

    def end_together(self) -> None:
        """From here on every process ends, and leaves the group, whatever it raises."""

    def serve(self, optimizer: Any, flats: Sequence[Flat], weights: Sequence[nd.NDArray]) -> Served:
        """Have the servers keep these weights, as rank 0 has them, and update them from now on.

        ``flats``: how each array of ``weights`` is laid out. Waits for all processes. Raises
        RunError without servers, and where they have weights already.
        """
        what = self.name or "a process alone"
        raise RunError(f"{what} has no servers: leave update_on_servers out")

    def staleness(self) -> Optional[List[int]]:
        """How stale the pushes were until the processes last met (`Served.meet`), in rank 0.

        Element i: how many of them found weights that i updates of others had changed since the
        worker got them; the last one is for all above. None where there is none.
        """
        return None


ALONE = Group()


class SummingGroup(Group):
    """A group of more processes, by whatever can sum an array over them: `sum_array`.

    What rank 0 has is the sum where the others give zeros, so nothing else needs to travel. With
    the block ``with group:`` the process leaves the group. ``tell_begin``: called when a training
    begins.
    """

    name = "a group"

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.command = f"python -m gluonlab.launch --backend {self.name}"
        self.tell_begin: Callable[[], None] = lambda: None
        self._numbers: Dict[Hashable, int] = {}  # of sums, the same in every process
        self._kept: Dict[int, nd.NDArray] = {}  # by id, which belongs to an array while it lives
        self._together = False  # whether every process ends, whatever is raised

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *error: Any) -> None:
        together = self._together or kind is None or issubclass(kind, DivergedError)
        if not self._kept:  # nothing is trained yet: a mistake ends all of them, a signal this one
            together = together or issubclass(kind or Exception, Exception)
        if together:
            nd.waitall()  # what is queued needs every process
        self.leave(together)

    def leave(self, together: bool) -> None:
        """Be no part of the group any more. ``together``: whether the others leave it now, too."""

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        """Queue the sum of a flat array over the processes, in place.

        Every array that comes with a ``number`` has the same size and type; those of two sums that
        may be under way at once have different numbers.
        """
        raise NotImplementedError

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        for array in arrays:
            self._kept.setdefault(id(array), array)
            self.sum_array(self._number(id(array)), array, priority)

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        for array in (array.as_nd_ndarray() for array in arrays if array.size):
            flat = nd.zeros((array.size,), array.context, array.dtype)
            shaped = flat.reshape(array.shape)  # the same memory
            if self.rank == 0:
                CopyInto(shaped).copy(array)
            self.sum_array(self._number(("broadcast", array.size, np.dtype(array.dtype))), flat, 0)
            CopyInto(array).copy(shaped)
            array.wait_to_read()

    def everyones(self, values: "NDArray[Any]") -> "NDArray[Any]":
        # each fills a row of a table of zeros, and the tables are summed
        table = np.zeros((self.size, WORDS, values.size), "float32")
        table[self.rank] = _in_words(values.astype("float64").reshape(-1))
        flat = ndarray_from_numpy(table.reshape(-1))
        self.sum_array(self._number(("everyones", flat.size)), flat, 0)
        rows = flat.asnumpy().reshape(table.shape).astype("float64").sum(axis=1)
        return np.asarray(rows.reshape((self.size, *values.shape)))

    def total(self, values: "NDArray[Any]") -> "NDArray[Any]":
        return np.asarray(self.everyones(values).sum(axis=0))

    def everyones_bytes(self, data: bytes) -> List[bytes]:
        # each fills a row of a table of zeros, and the tables are summed
        lengths = self.everyones(np.array(len(data))).astype(int).tolist()
        table = np.zeros((self.size, _room(max(lengths))), "float32")
        _put_pairs(table[self.rank], data)
        rows = self._sum_of_pairs(table)
        return [row.tobytes()[:length] for row, length in zip(rows, lengths)]

    def bytes_of_first(self, data: bytes) -> bytes:
        # piece by piece, as sums in which the others have zeros
        own = memoryview(data if self.rank == 0 else b"")
        length, pieces = int(self.total(np.array(len(own)))), []
        room = min(MOST_PAIRS, _room(length))
        for begin in range(0, length, 2 * room):
            piece = np.zeros((1, room), "float32")
            _put_pairs(piece[0], own[begin : begin + 2 * room])
            pieces.append(self._sum_of_pairs(piece).tobytes())
        return b"".join(pieces)[:length]

    def _sum_of_pairs(self, table: "NDArray[Any]") -> "NDArray[Any]":
        flat = ndarray_from_numpy(table.reshape(-1))
        self.sum_array(self._number(("bytes", flat.size)), flat, 0)
        return np.asarray(flat.asnumpy().astype(PAIR).reshape(table.shape))

    def begin_together(self) -> None:
        self.tell_begin()

    def end_together(self) -> None:
        self._together = True

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


def _in_words(values: "NDArray[Any]") -> "NDArray[Any]":
    """float64 (n,) as float32 (WORDS, n) that add up to it, for servers that know float32."""
    words = []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(WORDS):
            words.append(values.astype("float32"))
            values = np.where(np.isfinite(words[-1]), values - words[-1], 0)
    return np.stack(words)


def _room(length: int) -> int:
    """The pairs to have for so many bytes: few different numbers, as each takes a sum's place."""
    pairs = (length + 1) // 2
    return int(2 ** max(8, (pairs - 1).bit_length()))


def _put_pairs(row: "NDArray[Any]", data: "bytes | memoryview") -> None:
    """Write bytes into a row of float32 zeros, two in each."""
    pairs = np.frombuffer(bytes(data) + b"\0" * (len(data) % 2), PAIR)
    row[: len(pairs)] = pairs
