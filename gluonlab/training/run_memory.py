"""The memory of a run: estimated for each device, or measured on a run that is cut down.

A strategy tells by MXNet's own plan what its graphs and parameters take (`taken`); what the data
take is added here. Not counted are the scratch memory of single operators, the buffers in which a
kvstore sums, and on the host the whole parameters of split channels. On the CPU that makes the
figures 1 to 12 % too small for LeNet, and 20 to 40 % where its channels are padded for oneDNN,
which then rearranges them there; with --sync-bn 21 to 32 % for resnet8 and cifar_resnet20. The plan
counts four bytes for every number: with float16, of which most have two, the figures are an upper
bound.

No plan knows oneDNN's scratch memory and rearranged copies, buffers of kvstores, what Python and
its libraries take, or how the allocator rounds. So `measure` runs `gluonlab.training.memory_trial`
in a process of its own. It measures

- on CPU devices, which share one memory: the peak of the resident memory of the whole process, with
  all devices, Python, MXNet and the data set, and of the processes that decode images for it; that
  is what counts for the limit of a container;
- on GPUs: the memory that the device with the least left has lost by the end, before which MXNet
  gives nothing back. CUDA's own context is not included.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

import gluonlab
from gluonlab import errors
from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch_loader import stays_on_devices
from gluonlab.data.sets.dataset import Dataset
from gluonlab.errors import RunError
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.host.out_of_memory import OUT_OF_MEMORY_MESSAGES
from gluonlab.host.resources import peak_bytes
from gluonlab.parallel import strategy_class
from gluonlab.parallel.compiled_graph import bytes_of
from gluonlab.parallel.data.memory import ReplicaMemory
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.memory_estimate import MIB, ShardSizes, Taken, input_kinds
from gluonlab.parallel.strategy import DATA, Parallelism
from gluonlab.parallel.training_loss import label_columns
from gluonlab.training.build_network import make_net
from gluonlab.training.config_checks import ArrayLimit
from gluonlab.training.parallel_options import largest_part, weights_of
from gluonlab.training.plan import Plan

Takes = Callable[[ShardSizes], List[Taken]]  # `Strategy.taken`
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

    def _shards(self, images: int) -> ShardSizes:
        """A copy's images of whole batches, of an epoch's last, and of those of the test images."""
        total, tested = len(self.plan.dataset.train), len(self.plan.dataset.test)
        batch = int(images / self._part)
        ragged = total > batch and not self.plan.drop_last
        last = math.ceil(total % batch * self._part) if ragged else 0
        return ShardSizes((images, last), (min(images, math.ceil(tested * self._part)),))

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
    ctxs, used = plan.ctxs, plan.resolved.config
    split = Parallelism(DATA, [[ctx] for ctx in ctxs], plan.split.model, 0, plan.split.image_shape)
    return dataclasses.replace(
        plan, split=split, device_counts=(len(ctxs),),
        microbatches=Microbatches(used.microbatches, used.microbatch_size),
    )  # fmt: skip


def _name(ctxs: Sequence[object]) -> str:
    """A device, and how many others do the same in their copies of the network."""
    return f"{ctxs[0]}" + f" +{len(ctxs) - 1}" * (len(ctxs) > 1)


LOOK_S = 0.02  # a process that takes too much is ended after so long


class TooMuch(Exception):
    """The process took more than it should, or than there is."""


class OtherData(Exception):
    """The data set of that name is not the one that was meant."""


class DeviceMemory:
    """What a GPU loses of its free memory from now on; nothing on CPUs."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        self._gpus = [ctx.device_id for ctx in ctxs if ctx.device_type == "gpu"]
        self.on_gpus = bool(self._gpus)
        self._before = self._free()

    def taken(self) -> int:
        """Bytes, of the GPU that lost most."""
        mx.nd.waitall()
        return max((before - now for before, now in zip(self._before, self._free())), default=0)

    def _free(self) -> List[int]:
        return [int(mx.context.gpu_memory_info(gpu)[0]) for gpu in self._gpus]


def about(dataset: Dataset) -> List[Any]:
    """The sizes of a data set that decide its memory, as plain values."""
    return [len(dataset.train), len(dataset.test), list(dataset.image_shape), len(dataset.classes)]


def measure(
    config: TrainConfig, dataset: Optional[Dataset] = None, ceiling: Optional[int] = None
) -> int:
    """The bytes that a run of ``config`` takes at its peak, see above; its folder is not made.

    Raises TooMuch once the process has more than ``ceiling`` bytes resident, or gets none any more,
    OtherData where the config names another data set than ``dataset``, if that is given, and what
    the run itself would raise.
    """
    with temporary_folder("trial") as folder:
        settings = config.replace(
            out=str(Path(folder, "run")), memory=False, profile=None, tensorboard=False
        ).to_dict()
        package = str(Path(gluonlab.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        said, complaints = Path(folder, "said"), Path(folder, "complaints")
        words = [json.dumps(settings), json.dumps(dataset and about(dataset))]
        command = [sys.executable, "-m", "gluonlab.training.memory_trial", *words]
        with said.open("wb") as out, complaints.open("wb") as err:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # it ends when this is closed, however this process ends
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent
            )
        try:
            _watch(child, ceiling)
        finally:
            _end(child)
        answer = _answer(said)
        if answer is None:
            _explain(child.returncode, complaints.read_text(errors="replace"))
        return _taken(answer or {}, ceiling)


def in_words(config: TrainConfig, dataset: Dataset, ctxs: Sequence[mx.Context]) -> str:
    """A line that says what `measure` found.

    Raises RunError where there is not enough, and what the run would raise.
    """
    whose = "each GPU" if ctxs[0].device_type == "gpu" else "process"
    try:
        mebibytes = measure(config, dataset) / 2**20
    except OtherData:
        why = f"the data set is not the one that {config.dataset} names"
        return f"{'':<11}{whose:<16}not measured: {why}"
    except TooMuch:
        raise RunError(
            "such batches need more memory than there is: "
            "choose a smaller --batch-size, or --microbatches"
        ) from None
    of_what = "" if whose == "each GPU" else ": all devices, Python, data"
    return f"{'':<11}{whose:<16}{mebibytes:10,.1f} MiB at its peak, measured{of_what}"


def _watch(child: "subprocess.Popen[bytes]", ceiling: Optional[int]) -> None:
    """Wait for its end, or until it has too much."""
    while True:
        try:
            child.wait(LOOK_S)
            return
        except subprocess.TimeoutExpired:
            if ceiling is not None and peak_bytes(child.pid) > ceiling:
                raise TooMuch from None


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # by itself, meanwhile
        pass
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def _answer(said: Path) -> Optional[Dict[str, Any]]:
    """The last line that is a JSON object; libraries may have printed others."""
    for line in reversed(said.read_text(errors="replace").split("\n")):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer
    return None


def _explain(status: int, complaints: str) -> None:
    if status == -signal.SIGKILL or any(words in complaints for words in OUT_OF_MEMORY_MESSAGES):
        raise TooMuch
    last = next(
        (line.strip() for line in reversed(complaints.split("\n")) if line.strip()),
        "no message",
    )
    raise RunError(
        f"the process that measures memory ended with status {status}: {last}; "
        "try to train with these settings"
    )


def _taken(answer: Dict[str, Any], ceiling: Optional[int]) -> int:
    if "other" in answer:
        raise OtherData
    if "error" in answer:
        raise getattr(errors, answer["raised"])(answer["error"])
    taken = int(answer["bytes"])
    if ceiling is not None and taken > ceiling:
        raise TooMuch
    return taken
