"""What a batch needs on each device, estimated before anything is trained.

A strategy tells by MXNet's own plan what its graphs and parameters take (`taken`); what the data
take is added here. Not counted are the scratch memory of single operators, the buffers in which a
kvstore sums, and on the host the whole parameters of split channels. On the CPU that makes the
figures 1 to 12 % too small for LeNet, and 20 to 40 % where its channels are padded for oneDNN,
which then rearranges them there; with --sync-bn 21 to 32 % for resnet8 and cifar_resnet20. The plan
counts four bytes for every number: with float16, of which most have two, the figures are an upper
bound.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from mxnet import gluon

from gluonlab.data.loading.loader import stays_on_devices
from gluonlab.parallel import strategy_class
from gluonlab.parallel.data.memory import ReplicaMemory
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.memory import MIB, Shards, Taken, input_kinds
from gluonlab.parallel.objective import label_columns
from gluonlab.parallel.part import bytes_of
from gluonlab.parallel.strategy import DATA, Split
from gluonlab.training.array_limit import ArrayLimit
from gluonlab.training.device_weights import largest_part, weights_of
from gluonlab.training.network import make_net
from gluonlab.training.plan import Plan

Takes = Callable[[Shards], List[Taken]]  # `Strategy.taken`
LABEL_BYTES = 4  # and as many for a weight
COLUMNS = {  # of the table of several devices, whose titles have 11: 80 in all
    "parameters": 11, "gradients": 10, "states": 8, "activations": 12, "data": 8, "total": 9,
}  # fmt: skip


class Memory(NamedTuple):
    """What one device needs for batches of ``images`` images of its own, in bytes."""

    images: int
    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    data: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self[1:])

    def lines(self) -> List[str]:
        """A table for people, in MiB."""
        names = (*self._fields[1:], "total")
        rows = [(name.replace("_", " "), getattr(self, name)) for name in names]
        images = f"{self.images:,} image{'s' * (self.images != 1)}"
        head = f"{'memory':<11}per device, for {images} of a batch"
        return [head, *(f"{'':<11}{name:<16}{size / MIB:10,.1f} MiB" for name, size in rows)]


Row = Tuple[str, Memory]  # and the device, or that which all take


def table(rows: Sequence[Row]) -> List[str]:
    """Lines for people, in MiB: of several devices a row for each."""
    if len(rows) == 1:
        return rows[0][1].lines()
    of = f"{rows[0][1].images} image{'s' * (rows[0][1].images != 1)}"
    lines = [f"{'memory':<11}MiB per device, for {of} of a batch per copy of the network"]
    lines.append(" " * 22 + "".join(f"{name:>{width}}" for name, width in COLUMNS.items()))
    for name, memory in rows:
        sizes = (*memory[1:], memory.total)
        cells = (f"{size / MIB:{width},.1f}" for size, width in zip(sizes, COLUMNS.values()))
        lines.append(f"{'':<11}{name:<11}" + "".join(cells))
    return lines


class Needs:
    """Estimates the Memory of any batch size for a plan, without allocating it."""

    def __init__(self, plan: Plan, net: gluon.HybridBlock, takes: Optional[Takes] = None) -> None:
        """``takes``: the `taken` of the plan's strategy; by default, of data parallelism."""
        self.plan = plan
        loss = plan.make_loss()
        self._takes = takes or ReplicaMemory(net, loss, plan).taken
        self._copies = len(plan.split.copies)
        self._part = largest_part(weights_of(plan.device_weights), self._copies)
        self._mixed, self._columns = bool(plan.mixup), label_columns(loss)
        self._weighted = plan.weights is not None
        graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
        self.limit = ArrayLimit(
            graph, net, plan.dataset.image_shape, 1 / self._part, plan.microbatches, self._columns
        )

    def memory(self, images: int) -> Memory:
        """What the device needs that needs most, for ``images`` images of a batch in its copy.

        Raises ConfigError for a batch that takes larger arrays than MXNet has.
        """
        return max((memory for _, memory in self.rows(images)), key=lambda memory: memory.total)

    def rows(self, images: int) -> List[Row]:
        """What each device of a copy of the network needs; ConfigError as in `memory`.

        It is the first one that has the data.
        """
        self.limit.check(images)
        data = self._data_bytes(images)
        return [
            (_name(ctxs), Memory(images, *taken[:4], taken.inputs + data * (number == 0)))
            for number, (ctxs, taken) in enumerate(
                zip(zip(*self.plan.split.copies), self._takes(self._shards(images)))
            )
        ]

    def _shards(self, images: int) -> Shards:
        """A copy's images of whole batches, of an epoch's last, and of those of the test images."""
        total, tested = len(self.plan.dataset.train), len(self.plan.dataset.test)
        batch = int(images / self._part)
        ragged = total > batch and not self.plan.drop_last
        last = math.ceil(total % batch * self._part) if ragged else 0
        return Shards((images, last), (min(images, math.ceil(tested * self._part)),))

    @property
    def _image_bytes(self) -> int:
        split = self.plan.split
        image = math.prod(split.image_shape) * np.dtype(split.image_dtype).itemsize
        return image + LABEL_BYTES * (1 + self._weighted)

    @property
    def _input_bytes(self) -> int:
        """Of an image and its labels when they go into the network."""
        split = self.plan.split
        kinds = input_kinds(1, split.image_shape, self._columns, split.image_dtype)
        return sum(map(bytes_of, kinds.values()))

    def _data_bytes(self, images: int) -> int:
        """Resident splits, their share of this epoch in order, and batches that are made ahead.

        One batch is in use, and one in the making. With mixup the partners of the share, or of the
        batch in the making, are as many.
        """
        plan, dataset = self.plan, self.plan.dataset
        splits = (dataset.train, dataset.test)
        resident = [split for split in splits if stays_on_devices(split, plan.resident_bytes)]
        changed = bool(self._mixed or plan.crop_padding or plan.flip)
        streamed = dataset.train not in resident
        unchanged = changed * images if streamed else math.ceil(len(dataset.train) * self._part)
        ready = (plan.prefetch + 2) * images if streamed or changed else 0
        stored = sum(len(split) for split in resident) + (1 + self._mixed) * unchanged
        return stored * self._image_bytes + ready * self._input_bytes


def needs_of(plan: Plan) -> Needs:
    """The Needs of the strategy that the plan's options choose, which is made for that."""
    make = strategy_class(plan.split.way)
    strategy = make(partial(make_net, plan), plan.make_loss(), plan, plan.group)
    return Needs(plan, strategy.net, strategy.taken)


def told(plan: Plan, net: gluon.HybridBlock, takes: Takes) -> List[str]:
    """What --memory prints of a plan and its strategy: of a split, beside data parallelism."""
    rows = Needs(plan, net, takes).rows(plan.largest_share)
    if plan.split.way != DATA:
        other = as_data(plan)
        rows.append(("split data", Needs(other, net).memory(other.largest_share)))
    return table(rows)


def as_data(plan: Plan) -> Plan:
    """The plan of data parallelism on the same devices, for the same batch."""
    ctxs, used = plan.ctxs, plan.settled.config
    split = Split(DATA, [[ctx] for ctx in ctxs], plan.split.model, 0, plan.split.image_shape)
    return dataclasses.replace(
        plan, split=split, device_counts=(len(ctxs),),
        microbatches=Microbatches(used.microbatches, used.microbatch_size),
    )  # fmt: skip


def _name(ctxs: Sequence[object]) -> str:
    """A device, and how many others do the same in their copies of the network."""
    return f"{ctxs[0]}" + f" +{len(ctxs) - 1}" * (len(ctxs) > 1)
