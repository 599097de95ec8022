"""Groups of processes that train one network together; each of them owns some devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Hashable, Optional, Protocol, Sequence, Type

import numpy as np
from mxnet import nd

from gluonlab.engine.invoke import CopyInto, from_host
from gluonlab.errors import DivergedError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

WORDS = 3  # float32 numbers that hold the 53 bits of a float64


class Group(Protocol):
    """This process among those of its group. Every process makes the same calls, in one order.

    ``name``: what carries the numbers, as ``--backend`` calls it; empty for a process alone.
    """

    name: str

    @property
    def rank(self) -> int:
        """This process's place, from 0 to ``size - 1``; rank 0 alone writes files and reports."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        """Replace each flat array by its sum over the processes; nothing waits but the first time.

        Give the same arrays in every step: the group keeps them, and a place for the sum of each.
        ``priority``: the larger, the earlier, as for a kvstore.
        """

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """Replace each array by the one of rank 0, and wait for them."""

    def total(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """The float64 sum of small arrays of the host over the processes; waits for all of them."""


class _Alone:
    """A group of one process: what it has is the sum."""

    name, rank, size = "", 0, 1

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        """The arrays are the sums."""

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """The arrays are those of rank 0."""

    def total(self, values: "NDArray[Any]") -> "NDArray[Any]":
        return values.astype("float64")


ALONE: Group = _Alone()


class SummingGroup:
    """A group of more processes, by whatever can sum an array over them: `sum_array`.

    What rank 0 has is the sum where the others give zeros, so nothing else needs to travel. With
    the block ``with group:`` the process leaves the group.
    """

    name = "a group"

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._numbers: Dict[Hashable, int] = {}  # of sums, the same in every process
        self._kept: Dict[int, nd.NDArray] = {}  # by id, which belongs to an array while it lives

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *error: Any) -> None:
        # unless this process fails in the middle of a training, all processes end here
        together = kind is None or issubclass(kind, DivergedError) or not self._kept
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
        """As `Group` says."""
        for array in arrays:
            self._kept.setdefault(id(array), array)
            self.sum_array(self._number(id(array)), array, priority)

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """As `Group` says."""
        for array in (array.as_nd_ndarray() for array in arrays if array.size):
            flat = nd.zeros((array.size,), array.context, array.dtype)
            shaped = flat.reshape(array.shape)  # the same memory
            if self.rank == 0:
                CopyInto(shaped).copy(array)
            self.sum_array(self._number(("broadcast", array.size, np.dtype(array.dtype))), flat, 0)
            CopyInto(array).copy(shaped)
            array.wait_to_read()

    def total(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """As `Group` says, and with the same bits in every process: each fills a row of a table."""
        table = np.zeros((self.size, WORDS, values.size), "float32")
        table[self.rank] = _in_words(values.astype("float64").reshape(-1))
        flat = from_host(table.reshape(-1))
        self.sum_array(self._number(("total", flat.size)), flat, 0)
        rows = flat.asnumpy().reshape(table.shape).astype("float64").sum(axis=1)
        return np.asarray(rows.sum(axis=0).reshape(values.shape))

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
