"""Groups of processes that train one network together; each of them owns some devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Sequence

from mxnet import nd

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Group(Protocol):
    """This process among those of its group. Every process makes the same calls, in one order."""

    @property
    def rank(self) -> int:
        """This process's place, from 0 to ``size - 1``; rank 0 alone writes files and reports."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        """Replace each flat array by its sum over the processes; nothing waits.

        ``priority``: the larger, the earlier, as for a kvstore.
        """

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """Replace each array by the one of rank 0."""

    def total(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """The sum of small arrays of the host over the processes; it waits for all of them."""


class _Alone:
    """A group of one process, which is the sum of itself."""

    rank, size = 0, 1

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        """The arrays are the sums."""

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """The arrays are those of rank 0."""

    def total(self, values: "NDArray[Any]") -> "NDArray[Any]":
        return values


ALONE: Group = _Alone()
