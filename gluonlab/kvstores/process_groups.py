"""Process groups: processes that train one network together, each with its own devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Hashable, List, Optional, Protocol, Sequence, Type

import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import CopyInto, ndarray_from_numpy
from gluonlab.errors import DivergedError, RunError
from gluonlab.optimizers.server_optimizer import FlatLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

FLOAT32_PARTS = 3  # number of float32 whose sum holds the 53 bits of a float64
PAIR_DTYPE = "<u2"  # two bytes are sent as one float32, which holds whole numbers up to 2**24
MAX_PAIRS = 2**21  # pairs of bytes in one sum, as float32: 8 MiB


class ServedWeightsProtocol(Protocol):
    """Weights that servers keep and update."""

    def update(self, index: int, array: nd.NDArray, priority: int = 0) -> None:
        """Queue an update with the gradient ``array``. The new weights then replace the gradient.

        ``index``: number of the array in the arguments of `start_serving_weights`.
        """

    def synchronize(self, arrays: Sequence[nd.NDArray]) -> None:
        """Wait for all processes, and copy the servers' weights into ``arrays``."""


class ProcessGroup:
    """A process group of a single process, and the interface of all groups.

    Every process makes the same calls, in the same order.

    Attributes:
        rank: the rank of this process, from 0 to ``size - 1``; only rank 0 writes files and prints
            output.
        name: the name of the backend in ``--backend``; empty for a single process.
        servers: the number of servers that could update the weights.
        is_synchronous: whether a process waits for the others' gradients in each step. All other
            calls always wait.
        sums_float16: whether the group can sum float16 arrays, which take half the bytes of
            float32.
        command: the command line that starts such a group, as a list of words; options of the run
            can be appended.
    """

    name, command = "", "gluonlab"
    rank, size = 0, 1
    servers, is_synchronous, sums_float16 = 0, True, False

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        """Replace each flat array with its sum over the processes. Only the first call waits.

        Pass the same arrays in every step: the group keeps them, together with memory for each sum.
        ``priority``: larger numbers are sent earlier, as in a kvstore.
        """

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """Replace each array with rank 0's array, and wait for the arrays."""

    def all_gather(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """Return the values of all processes as float64, with one row for each rank.

        Wait for all processes.
        """
        return values.astype("float64")[np.newaxis]

    def all_reduce_values(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """Return the sum of the values of all processes, as float64.

        The sum is bit-identical in all processes. Wait for all processes.
        """
        return values.astype("float64")

    def all_gather_bytes(self, data: bytes) -> List[bytes]:
        """Return the bytes of each process, which may differ in length.

        Wait for all processes.
        """
        return [data]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Wait for rank 0's bytes, of any length, and return them."""
        return data

    def own_devices(self, gpus: Optional[int] = None) -> Optional[str]:
        """Return this process's devices, in the format of --devices, or None for the default.

        This method is called if the options name no devices. ``gpus``: the number of GPUs, if the
        options set it.
        """
        return None

    def announce_training_start(self) -> None:
        """Announce that, from now on, a signal to one process stops all processes after a step."""

    def mark_common_exit(self) -> None:
        """Declare that all processes now exit and leave the group, even if they raise errors."""

    def start_serving_weights(
        self, optimizer: Any, flats: Sequence[FlatLayout], weights: Sequence[nd.NDArray]
    ) -> ServedWeightsProtocol:
        """Send rank 0's weights to the servers.

        From now on, the servers update these weights.

        ``flats``: the layout of each array of ``weights``. Waits for all processes. Raises RunError
        if there are no servers, or if they already have weights.
        """
        raise RunError(f"{self.name or 'a single process'} has no parameter servers: omit update_on_servers")

    def staleness(self) -> Optional[List[int]]:
        """Return the histogram of staleness up to the last ``synchronize``, on rank 0.

        The staleness of a push is the number of other workers' updates since the worker received
        the weights. Element i is the number of pushes with staleness i. The last element also
        counts higher staleness. Returns None if there are no servers.
        """
        return None


SINGLE_PROCESS = ProcessGroup()


class SummingGroup(ProcessGroup):
    """Base class of groups of several processes. A subclass only needs to define `sum_array`.

    Broadcasts and gathers are sums in which the other processes contribute zeros. The process
    leaves the group at the end of the ``with group:`` block. ``on_training_start`` is called when
    training starts.
    """

    name = "a group"

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.command = f"gluonlab launch --backend {self.name} --"
        self.on_training_start: Callable[[], None] = lambda: None
        # purpose of a sum -> its number, which is the same in every process
        self._sum_numbers: Dict[Hashable, int] = {}
        self._kept_arrays: Dict[int, nd.NDArray] = {}  # by id, unique while the arrays are kept
        self._all_leave = False  # whether every process exits, whatever is raised

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *error: Any) -> None:
        all_leave = self._all_leave or kind is None or issubclass(kind, DivergedError)
        if not self._kept_arrays:  # before training, an error ends all processes, a signal only one
            all_leave = all_leave or issubclass(kind or Exception, Exception)
        if all_leave:
            nd.waitall()  # queued sums need every process
        self.leave(all_leave)

    def leave(self, all_leave: bool) -> None:
        """Leave the group.

        ``all_leave``: whether all other processes leave the group at the same time.
        """

    def sum_array(self, number: int, array: nd.NDArray, priority: int) -> None:
        """Queue the sum of a flat array over the processes. The sum replaces the array's values.

        ``number`` identifies the sum in all processes. All arrays with the same number must have
        the same size and type. Two sums that may run at the same time must have different numbers.
        """
        raise NotImplementedError

    def allreduce(self, arrays: Sequence[nd.NDArray], priority: int = 0) -> None:
        for array in arrays:
            self._kept_arrays.setdefault(id(array), array)
            self.sum_array(self._sum_number(id(array)), array, priority)

    def broadcast(self, arrays: Sequence[nd.NDArray]) -> None:
        """Copy rank 0's arrays into the arrays of the other processes."""
        for array in (array.as_nd_ndarray() for array in arrays if array.size):
            flat = nd.zeros((array.size,), array.context, array.dtype)
            shaped = flat.reshape(array.shape)  # the same memory
            if self.rank == 0:
                CopyInto(shaped).copy(array)
            self.sum_array(self._sum_number(("broadcast", array.size, np.dtype(array.dtype))), flat, 0)
            CopyInto(array).copy(shaped)
            array.wait_to_read()

    def all_gather(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """Return the values of all processes as float64, with one row for each rank."""
        # each process fills its row of a table of zeros, and the tables are summed
        table = np.zeros((self.size, FLOAT32_PARTS, values.size), "float32")
        table[self.rank] = _split_float64(values.astype("float64").reshape(-1))
        flat = ndarray_from_numpy(table.reshape(-1))
        self.sum_array(self._sum_number(("all_gather", flat.size)), flat, 0)
        rows = flat.asnumpy().reshape(table.shape).astype("float64").sum(axis=1)
        return np.asarray(rows.reshape((self.size, *values.shape)))

    def all_reduce_values(self, values: "NDArray[Any]") -> "NDArray[Any]":
        return np.asarray(self.all_gather(values).sum(axis=0))

    def all_gather_bytes(self, data: bytes) -> List[bytes]:
        """Return the bytes of all processes, in order of rank."""
        # as in all_gather, each process fills its row of a table
        lengths = self.all_gather(np.array(len(data))).astype(int).tolist()
        table = np.zeros((self.size, _padded_float_count(max(lengths))), "float32")
        _write_byte_pairs(table[self.rank], data)
        rows = self._sum_byte_pairs(table)
        return [row.tobytes()[:length] for row, length in zip(rows, lengths)]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Return rank 0's ``data`` in all processes."""
        # in pieces, as sums in which the other processes contribute zeros
        sent = memoryview(data if self.rank == 0 else b"")
        length, pieces = int(self.all_reduce_values(np.array(len(sent)))), []
        float_count = min(MAX_PAIRS, _padded_float_count(length))
        for start in range(0, length, 2 * float_count):
            piece = np.zeros((1, float_count), "float32")
            _write_byte_pairs(piece[0], sent[start : start + 2 * float_count])
            pieces.append(self._sum_byte_pairs(piece).tobytes())
        return b"".join(pieces)[:length]

    def _sum_byte_pairs(self, table: "NDArray[Any]") -> "NDArray[Any]":
        flat = ndarray_from_numpy(table.reshape(-1))
        self.sum_array(self._sum_number(("bytes", flat.size)), flat, 0)
        return np.asarray(flat.asnumpy().astype(PAIR_DTYPE).reshape(table.shape))

    def announce_training_start(self) -> None:
        self.on_training_start()

    def mark_common_exit(self) -> None:
        self._all_leave = True

    def _sum_number(self, purpose: Hashable) -> int:
        return self._sum_numbers.setdefault(purpose, len(self._sum_numbers))


def _split_float64(values: "NDArray[Any]") -> "NDArray[Any]":
    """Split float64 ``values`` into float32 rows whose sum over axis 0 equals ``values``.

    The result has shape (FLOAT32_PARTS, n). The split is necessary because servers only sum
    float32.
    """
    parts = []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(FLOAT32_PARTS):
            parts.append(values.astype("float32"))
            values = np.where(np.isfinite(parts[-1]), values - parts[-1], 0)
    return np.stack(parts)


def _padded_float_count(length: int) -> int:
    """Return a number of float32 values that can hold ``length`` bytes, two bytes in each value.

    The number is a power of two, at least 256, to limit the number of sizes: the group keeps a
    buffer for each size.
    """
    pairs = (length + 1) // 2
    return int(2 ** max(8, (pairs - 1).bit_length()))


def _write_byte_pairs(row: "NDArray[Any]", data: "bytes | memoryview") -> None:
    """Write bytes into a row of float32 zeros, two bytes into each."""
    pairs = np.frombuffer(bytes(data) + b"\0" * (len(data) % 2), PAIR_DTYPE)
    row[: len(pairs)] = pairs
