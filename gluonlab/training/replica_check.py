"""--check-replicas: whether all replicas still hold the same parameters, bit for bit.

Every replica makes the same update of the same sum, so parameters that differ in one bit mean a
fault: of memory, of a link, of the kvstore, or of code that writes to one replica.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, List, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.errors import DriftError
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.data.statistics import graph_with_states
from gluonlab.parallel.strategy import Replicated

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ReplicaCheck:
    """Compares a network's parameters over its devices and the processes of ``group``.

    ``statistics``: compare BatchNorm's running statistics, too; they differ by design until they
    are averaged, unless ``sync_bn`` shares them. ``replicated``: the parameters, on all devices
    that should hold the same, where they are not simply those of ``net``.
    """

    def __init__(
        self,
        net: gluon.HybridBlock,
        statistics: bool = False,
        group: Group = ALONE,
        replicated: Optional[Sequence[Replicated]] = None,
    ) -> None:
        graph = None if statistics else graph_with_states(net)
        left_out = set() if graph is None else set(graph.list_auxiliary_states())
        params = list(net.collect_params().values()) if replicated is None else replicated
        self._params = [param for param in params if param.name not in left_out]
        self._ctxs = list(dict.fromkeys(ctx for p in self._params for ctx in p.list_ctx()))
        self._group = group
        self._names = self._all_names()
        self._agreed = 0  # the last step after which all were equal

    def _all_names(self) -> List[str]:
        """The devices of all processes, an equal number of places for each."""
        counts = self._group.everyones(np.array(len(self._ctxs)))
        self._places = int(counts.max())
        known = [[ctx.device_typeid, ctx.device_id] for ctx in self._ctxs]
        table = self._of_group(np.array(known, float)).astype(int)
        several = self._group.size > 1
        return [
            f"{mx.Context(kind, number)}" + several * f" of process {place // self._places}"
            if (kind := mx.Context.devtype2str.get(typeid))
            else ""
            for place, (typeid, number) in enumerate(table)
        ]

    def _of_group(self, rows: "NDArray[Any]") -> "NDArray[Any]":
        """The rows of this process's devices, among those of all processes."""
        padded = np.zeros((self._places, rows.shape[1]))
        padded[: len(rows)] = rows
        return self._group.everyones(padded).reshape(-1, rows.shape[1])

    def after(self, step: int) -> None:
        """Compare, once all that is queued is done; every process calls this after the same steps.

        Raises DriftError, in every process, for the first parameter that differs.
        """
        nd.waitall()  # BatchNorm's backward writes behind the engine's back
        digests = np.zeros((len(self._ctxs), len(self._params)))  # 0: the device has no replica
        for column, param in enumerate(self._params):
            for ctx in param.list_ctx():
                # one bit, or several next to each other, always change the CRC
                digest = zlib.crc32(param.data(ctx).asnumpy().data)
                digests[self._ctxs.index(ctx), column] = digest + 1
        everywhere = self._of_group(digests)
        for param, column in zip(self._params, everywhere.T):
            self._compare(param.name, column, step)
        self._agreed = step

    def _compare(self, name: str, digests: "NDArray[Any]", step: int) -> None:
        held = {place: digest for place, digest in zip(self._names, digests) if digest}
        counts = Counter(held.values()).most_common(2)
        if len(counts) < 2:
            return
        (usual, most), (_, next_most) = counts
        drifted = [place for place, digest in held.items() if digest != usual]
        rest = ", ".join(place for place in held if place not in drifted)
        which = f"on {', '.join(drifted)} differs from {rest}"
        if most == next_most:
            which = f"differs between {', '.join(held)}"
        before = f", not yet after step {self._agreed}" if self._agreed else ""
        raise DriftError(
            f"replicas have drifted apart: {name} {which} after step {step}{before}; "
            "train again with another --kvstore, or on other devices, to see whose fault it is"
        )
