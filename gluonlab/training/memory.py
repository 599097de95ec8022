"""What a batch needs on each device, estimated before anything is trained.

Activations are taken from MXNet's own plan: graphs are bound to arrays that have shapes but no
memory, as training binds them, and tell how much they would allocate. Not counted are the scratch
memory of single operators and the buffers in which a kvstore sums. On the CPU that makes the
figures 1 to 12 % too small for LeNet, and 20 to 40 % where its channels are padded for oneDNN,
which then rearranges them there; with --sync-bn 21 to 32 % for resnet8 and cifar_resnet20. The plan
counts four bytes for every number: with float16, of which most have two, the figures are an upper
bound.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.ndarray.ndarray import _new_alloc_handle

from gluonlab.data.loading.loader import stays_on_devices
from gluonlab.kvstores.sharded import ShardedKVStore
from gluonlab.optimizers.states.states import flat
from gluonlab.parallel.data.replica import IMAGES, LABELS, fitted, loss_graph
from gluonlab.parallel.data.stage_gradients import Kinds
from gluonlab.parallel.data.stage_memory import allocated_mib, planned_mib
from gluonlab.parallel.objective import make_loss
from gluonlab.training.array_limit import LABELS_MIXED, ArrayLimit, check_inside
from gluonlab.training.plan import Plan

MIB = 2**20
LABEL_BYTES = 4
PRECISE_MIB = 256  # MXNet tells whole MiB: of a plan as large as this they are precise enough
PRECISE_MIB_OF_STAGES = 4096  # the same where it tells them of each of some 20 to 60 stages


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
        images = f"{self.images} image{'s' * (self.images != 1)}"
        head = f"{'memory':<11}per device, for {images} of a batch"
        return [head, *(f"{'':<11}{name:<16}{size / MIB:10,.1f} MiB" for name, size in rows)]


class Needs:
    """Estimates the Memory of any batch size for a plan, without allocating it."""

    def __init__(self, plan: Plan, net: gluon.HybridBlock) -> None:
        self.plan, self.cut = plan, plan.microbatches
        self._mixed = bool(plan.mixup)
        loss = make_loss(mixed=self._mixed)
        self._graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
        self._params = dict(net.collect_params().items())
        self.limit = ArrayLimit(
            self._graph, net, plan.dataset.image_shape, len(plan.ctxs), plan.microbatches,
            self._mixed,
        )  # fmt: skip
        self._staged = plan.sync_bn
        self._activations: Dict[Tuple[int, ...], int] = {}
        trained = [param for param in self._params.values() if param.grad_req != "null"]
        self._parameters = sum(_bytes(param.shape, param.dtype) for param in self._params.values())
        self._gradients = sum(_bytes(param.shape, param.dtype) for param in trained)
        self._state = sum(self._state_bytes(param) for param in trained)
        if isinstance(plan.kvstore, ShardedKVStore):
            self._state //= len(plan.ctxs)

    def memory(self, images: int) -> Memory:
        """What a device needs when ``images`` images of every batch are its own.

        Raises ConfigError for a batch that takes larger arrays than MXNet has.
        """
        self.limit.check_host(images)
        part = self.cut.largest(images)
        # of two or more parts, the first and the others have graphs with inputs of their own
        copies = 2 if part < images else 1
        data = self._data_bytes(images) + copies * part * self._input_bytes
        always = self._parameters, self._gradients, self._state
        return Memory(images, *always, self._activation_bytes(images), data)

    def _state_bytes(self, param: gluon.Parameter) -> int:
        optimizer = self.plan.make_optimizer()
        # states are as large as their weights
        one = nd.zeros([1] * len(param.shape), ctx=mx.cpu(), dtype=param.dtype)
        arrays = flat(optimizer.create_state_multi_precision(0, one))
        return sum(_bytes(param.shape, array.dtype) * int(array.size) for array in arrays)

    @property
    def _image_bytes(self) -> int:
        return math.prod(self.plan.dataset.image_shape) + LABEL_BYTES

    @property
    def _input_bytes(self) -> int:
        """Of an image and its labels when they go into the network: mixtures are floats."""
        if not self._mixed:
            return self._image_bytes
        return 4 * (math.prod(self.plan.dataset.image_shape) + LABELS_MIXED)

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
        unchanged = changed * images if streamed else math.ceil(len(dataset.train) / len(plan.ctxs))
        ready = (plan.prefetch + 2) * images if streamed or changed else 0
        stored = sum(len(split) for split in resident) + (1 + self._mixed) * unchanged
        return stored * self._image_bytes + ready * self._input_bytes

    def _activation_bytes(self, images: int) -> int:
        """The bytes of activations on a device whose share of a batch is ``images`` images.

        Its own graphs, `Replica`'s, share the memory of the largest. With --sync-bn they only
        evaluate, and training has others, `StagedReplicas`'.
        """
        part = self.cut.largest(images)
        if not self._staged:
            return self._planned(part)
        of_test = math.ceil(len(self.plan.dataset.test) / len(self.plan.ctxs))
        evaluated = self.cut.largest(min(images, of_test))
        return self._planned(evaluated) + self._planned_in_stages(*self._parts(images))

    def _parts(self, images: int) -> List[int]:
        """The images of each graph that training binds, for whole batches and an epoch's last.

        Where gradients add to those of parts before, it is a graph of its own.
        """
        devices, total = len(self.plan.ctxs), len(self.plan.dataset.train)
        last = math.ceil(total % (images * devices) / devices) if total > images * devices else 0
        cuts = (enumerate(self.cut.bounds(share)) for share in (images, last))
        bound = {(end - begin, number > 0) for cut in cuts for number, (begin, end) in cut}
        return sorted((part for part, _ in bound), reverse=True)

    def _planned(self, images: int) -> int:
        """MXNet's plan of one graph, in bytes.

        Where MiB are too coarse to tell it, that of many times as many images, divided.
        """
        return self._divided((images,), PRECISE_MIB, lambda n: self._planned_mib(images * n))

    def _planned_in_stages(self, *parts: int) -> int:
        """The same for all graphs of `StagedReplicas`, each of many stages."""

        def told(times: int) -> float:
            return self._staged_mib([part * times for part in parts])

        return self._divided((0, *parts), PRECISE_MIB_OF_STAGES, told)

    def _divided(self, key: Tuple[int, ...], precise: float, told: Callable[[int], float]) -> int:
        if key not in self._activations:
            times = 1
            while (mebibytes := told(times)) < precise:
                times *= 4
            self._activations[key] = math.ceil(mebibytes * MIB / times)
        return self._activations[key]

    def _staged_mib(self, parts: Sequence[int]) -> float:
        make = partial(_without_memory, ctx=mx.cpu())
        return planned_mib([self._fitted(part) for part in parts], self._params, make)

    def _fitted(self, images: int) -> Tuple[mx.sym.Symbol, Kinds]:
        """The graph for ``images`` images, and the shapes and types of its arguments."""
        image_shape = (images, *self.plan.dataset.image_shape)
        labels_shape = (images, *[LABELS_MIXED] * self._mixed)
        pixel, label = (np.float32, np.float32) if self._mixed else (np.uint8, np.int32)
        kinds: Kinds = {name: (param.shape, param.dtype) for name, param in self._params.items()}
        kinds.update({IMAGES: (image_shape, pixel), LABELS: (labels_shape, label)})
        graph = fitted(self._graph, mx.cpu(), image_shape, labels_shape)
        check_inside(graph, {name: kinds[name][0] for name in graph.list_arguments()}, images)
        return graph, kinds

    def _planned_mib(self, images: int) -> int:
        graph, kinds = self._fitted(images)
        arrays = {name: _without_memory(kind[0], mx.cpu(), kind[1]) for name, kind in kinds.items()}
        names = graph.list_arguments()
        learned = {name for name, param in self._params.items() if param.grad_req != "null"}
        trained = learned.intersection(names)
        executor = graph.bind(
            mx.cpu(), {name: arrays[name] for name in names},
            {name: arrays[name] for name in trained},
            {name: "write" if name in trained else "null" for name in names},
            {name: arrays[name] for name in graph.list_auxiliary_states()},
        )  # fmt: skip
        return allocated_mib(executor)


def _without_memory(shape: Tuple[int, ...], ctx: mx.Context, dtype: Any = np.float32) -> nd.NDArray:
    """An array that takes its memory when it is first used."""
    return nd.NDArray(_new_alloc_handle(shape, ctx, True, dtype))


def _bytes(shape: Tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * int(np.dtype(dtype).itemsize)
