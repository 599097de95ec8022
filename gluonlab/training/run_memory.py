"""Memory of a run: estimated for each device, or measured with a shortened run.

`MemoryEstimator` adds the memory of the data to the memory of the strategy's graphs and parameters
(`Strategy.estimate_memory`, from MXNet's memory plan). The estimate excludes the scratch memory of
operators, the buffers of kvstores, and the complete parameters of tensor parallelism on the host.

On the CPU, the estimates are too small by

- 1 to 12 % for LeNet,
- 20 to 40 % for LeNet with channels padded for oneDNN, which reorders arrays,
- 21 to 32 % for resnet8 and cifar_resnet20 with --sync-bn.

MXNet's plan counts four bytes for every number, so with float16 the estimates are an upper bound.

`measure_run_memory` runs `gluonlab.training.memory_trial_child` in a child process. The measured
memory includes everything, even scratch memory, kvstore buffers, and Python with its libraries.

- For CPU devices, the measurement is the peak resident memory of the child and its decoder
  processes. The memory limit of a container applies to the same memory.
- For GPUs, the measurement is the decrease of free memory from start to end, on the GPU with the
  largest decrease. MXNet does not release memory in between. CUDA's context is not included.
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
from gluonlab.data.loading.batch_loader import fits_on_devices
from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.data.sets.dataset import Dataset
from gluonlab.errors import RunError
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.host.child_processes import signal_group
from gluonlab.host.out_of_memory import OUT_OF_MEMORY_MESSAGES
from gluonlab.host.resources import peak_bytes
from gluonlab.parallel import strategy_class
from gluonlab.parallel.compiled_graph import array_bytes
from gluonlab.parallel.data.memory import ReplicaMemory
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.memory_estimate import MIB, MemoryEstimate, ShardSizes, input_specs
from gluonlab.parallel.strategy import DATA, Parallelism
from gluonlab.parallel.training_loss import label_columns
from gluonlab.training.build_network import make_net
from gluonlab.training.config_checks import ArrayLimit
from gluonlab.training.parallel_options import largest_batch_fraction, resolve_device_weights
from gluonlab.training.plan import Plan

EstimateParts = Callable[[ShardSizes], List[MemoryEstimate]]  # `strategy.estimate_memory`
LABEL_BYTES = 4  # of a label; an image's weight has the same size
# Widths of the columns of the table of several devices. A line has 80 columns, since it starts with
# two titles of 11.
COLUMN_WIDTHS = {"parameters": 11, "gradients": 10, "states": 8, "activations": 12, "data": 8, "total": 9}


class DeviceMemory(NamedTuple):
    """The memory of one device for batches with ``images`` images per device, in bytes."""

    images: int
    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    data: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self[1:])

    def lines(self) -> List[str]:
        """Return the lines of a table with the sizes of all parts, in MiB."""
        names = (*self._fields[1:], "total")
        rows = [(name.replace("_", " "), getattr(self, name)) for name in names]
        images = f"{self.images:,} image{'s' * (self.images != 1)}"
        head = f"{'memory':<11}per device, for {images} of a batch"
        return [head, *(f"{'':<11}{name:<16}{size / MIB:10,.1f} MiB" for name, size in rows)]


MemoryRow = Tuple[str, DeviceMemory]  # (label of the row, memory)


def format_memory_table(rows: Sequence[MemoryRow]) -> List[str]:
    """Return the lines of a table in MiB, with a row per device; for one device, a row per size."""
    if len(rows) == 1:
        return rows[0][1].lines()
    images_text = f"{rows[0][1].images} image{'s' * (rows[0][1].images != 1)}"
    lines = [f"{'memory':<11}MiB per device, for {images_text} per replica and step"]
    lines.append(" " * 22 + "".join(f"{name:>{width}}" for name, width in COLUMN_WIDTHS.items()))
    for name, memory in rows:
        sizes = (*memory[1:], memory.total)
        cells = (f"{size / MIB:{width},.1f}" for size, width in zip(sizes, COLUMN_WIDTHS.values()))
        lines.append(f"{'':<11}{name:<11}" + "".join(cells))
    return lines


class MemoryEstimator:
    """Estimates the memory of a plan for any batch size, without allocating it."""

    def __init__(self, plan: Plan, net: gluon.HybridBlock, estimate_parts: Optional[EstimateParts] = None) -> None:
        """Prepare the estimates.

        ``estimate_parts``: the strategy's method ``estimate_memory``; by default, the estimate for
        data parallelism.
        """
        self.plan = plan
        loss = plan.make_loss()
        self._estimate_parts = estimate_parts or ReplicaMemory(net, loss, plan).estimate_memory
        self._copies = len(plan.parallelism.copies)
        self._part = largest_batch_fraction(resolve_device_weights(plan.device_weights), self._copies)
        self._mixed, self._columns = bool(plan.mixup), label_columns(loss)
        self._weighted = plan.weights is not None
        graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
        self.limit = ArrayLimit(graph, net, plan.dataset.image_shape, 1 / self._part, plan.microbatches, self._columns)

    def memory(self, images: int) -> DeviceMemory:
        """Return the estimate for the device that needs the most memory.

        ``images``: images in a batch for each copy of the network.

        Raises ConfigError for a batch that needs larger arrays than MXNet allows.
        """
        return max((memory for _, memory in self.rows(images)), key=lambda memory: memory.total)

    def rows(self, images: int) -> List[MemoryRow]:
        """Return (label, estimate) for each device of a copy of the network.

        Only the first device of a copy holds images and labels. Raises ConfigError for a batch that
        needs larger arrays than MXNet allows.
        """
        self.limit.check(images)
        data = self._data_bytes(images)
        return [
            (_device_label(ctxs), DeviceMemory(images, *parts[:4], parts.inputs + data * (index == 0)))
            for index, (ctxs, parts) in enumerate(
                zip(zip(*self.plan.parallelism.copies), self._estimate_parts(self._shards(images)))
            )
        ]

    def _shards(self, images: int) -> ShardSizes:
        """Return how many images a replica gets from a full, a last and a validation batch."""
        total, validation_images = len(self.plan.dataset.train), len(self.plan.dataset.test)
        batch = int(images / self._part)
        has_partial_batch = total > batch and not self.plan.drop_last
        last_shard = math.ceil(total % batch * self._part) if has_partial_batch else 0
        return ShardSizes((images, last_shard), (min(images, math.ceil(validation_images * self._part)),))

    @property
    def _image_bytes(self) -> int:
        split = self.plan.parallelism
        image = math.prod(split.image_shape) * np.dtype(split.image_dtype).itemsize
        return image + LABEL_BYTES * (1 + self._weighted)

    @property
    def _input_bytes(self) -> int:
        """The bytes of an image and its labels as inputs of the network."""
        split = self.plan.parallelism
        kinds = input_specs(1, split.image_shape, self._columns, split.image_dtype)
        return sum(map(array_bytes, kinds.values()))

    def _data_bytes(self, images: int) -> int:
        """Return the bytes of all images and labels on a device with ``images`` images per batch.

        The result includes the splits that stay on the device, the shuffled copy for the epoch, the
        prefetched batches, the batch in use, and the batch that is being made. With mixup, the
        shuffled copy counts twice, since each image is mixed with another image.
        """
        plan, dataset = self.plan, self.plan.dataset
        splits = (dataset.train, dataset.test)
        resident = [split for split in splits if fits_on_devices(split, plan.device_cache_bytes)]
        is_augmented = bool(self._mixed or plan.crop_padding or plan.flip)
        is_streamed = dataset.train not in resident
        ordered = is_augmented * images if is_streamed else math.ceil(len(dataset.train) * self._part)
        prefetched = (plan.prefetch + 2) * images if is_streamed or is_augmented else 0
        resident_images = sum(len(split) for split in resident) + (1 + self._mixed) * ordered
        return resident_images * self._image_bytes + prefetched * self._input_bytes


def make_memory_estimator(plan: Plan) -> MemoryEstimator:
    """Create the strategy of the plan's options, and the estimator of its memory."""
    make = strategy_class(plan.parallelism.mode)
    strategy = make(partial(make_net, plan), plan.make_loss(), plan, plan.group)
    return MemoryEstimator(plan, strategy.net, strategy.estimate_memory)


def memory_report(plan: Plan, net: gluon.HybridBlock, estimate_parts: EstimateParts) -> List[str]:
    """Return the lines of --estimate-memory.

    If the network is split, the lines include a row for data parallelism.
    """
    rows = MemoryEstimator(plan, net, estimate_parts).rows(plan.largest_shard_size)
    if plan.parallelism.mode != DATA:
        data_parallel = as_data_parallel(plan)
        rows.append(("split data", MemoryEstimator(data_parallel, net).memory(data_parallel.largest_shard_size)))
    return format_memory_table(rows)


def as_data_parallel(plan: Plan) -> Plan:
    """Return the plan with data parallelism, on the same devices with the same batch size."""
    ctxs, used = plan.ctxs, plan.resolved.config
    split = Parallelism(DATA, [[ctx] for ctx in ctxs], plan.parallelism.model, 0, plan.parallelism.image_shape)
    return dataclasses.replace(
        plan, parallelism=split, device_counts=(len(ctxs),),
        microbatches=Microbatches(used.microbatches, used.microbatch_size),
    )  # fmt: skip


def _device_label(ctxs: Sequence[object]) -> str:
    """Return a label such as ``cpu(0) +3``, for devices with the same role in several replicas."""
    return f"{ctxs[0]}" + f" +{len(ctxs) - 1}" * (len(ctxs) > 1)


POLL_S = 0.02  # between two checks of the child's memory


class MemoryLimitExceeded(Exception):
    """Raised if a run needs more memory than allowed or available."""


class OtherDatasetError(Exception):
    """Raised if a config names a different data set than expected."""


class GpuMemoryUse:
    """Measures the decrease of the free memory of GPUs since this object was created."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        self._gpus = [ctx.device_id for ctx in ctxs if ctx.device_type == "gpu"]
        self.on_gpus = bool(self._gpus)
        self._before = self._free_bytes()

    def used_bytes(self) -> int:
        """Wait for all operators, and return the largest decrease of free memory on a GPU."""
        mx.nd.waitall()
        return max((before - now for before, now in zip(self._before, self._free_bytes())), default=0)

    def _free_bytes(self) -> List[int]:
        return [int(mx.context.gpu_memory_info(gpu)[0]) for gpu in self._gpus]


def dataset_sizes(dataset: Dataset) -> List[Any]:
    """Return the sizes of a data set that determine its memory, as plain values."""
    return [len(dataset.train), len(dataset.test), list(dataset.image_shape), len(dataset.classes)]


def measure_run_memory(
    config: TrainConfig, dataset: Optional[Dataset] = None, limit_bytes: Optional[int] = None
) -> int:
    """Return the peak memory of a run of ``config`` in bytes, measured in a child process.

    The run's folder is not created. Raises the errors of the run, and:

    - MemoryLimitExceeded: The process uses more than ``limit_bytes``, or cannot allocate memory.
    - OtherDatasetError: The config names a different data set than ``dataset``.
    """
    with temporary_folder("trial") as folder:
        settings = config.replace(
            out=str(Path(folder, "run")), estimate_memory=False, profile=None, tensorboard=False
        ).to_dict()
        package = str(Path(gluonlab.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        output_file, error_file = Path(folder, "said"), Path(folder, "complaints")
        words = [json.dumps(settings), json.dumps(dataset and dataset_sizes(dataset))]
        command = [sys.executable, "-m", "gluonlab.training.memory_trial_child", *words]
        with output_file.open("wb") as output, error_file.open("wb") as errors_output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # the child exits when this is closed
                stdout=output,
                stderr=errors_output,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent
            )
        try:
            _wait_for_child(child, limit_bytes)
        finally:
            _kill_child(child)
        answer = _read_answer(output_file)
        if answer is None:
            _raise_child_error(child.returncode, error_file.read_text(errors="replace"))
        return _peak_bytes(answer or {}, limit_bytes)


def measure_and_format_memory(config: TrainConfig, dataset: Dataset, ctxs: Sequence[mx.Context]) -> str:
    """Measure the memory of a run, and return a line about it.

    Raises RunError if there is not enough memory. Also raises any error that the run raises.
    """
    owner = "each GPU" if ctxs[0].device_type == "gpu" else "process"
    try:
        mebibytes = measure_run_memory(config, dataset) / 2**20
    except OtherDatasetError:
        reason = f"the data set is not {config.dataset}"
        return f"{'':<11}{owner:<16}not measured: {reason}"
    except MemoryLimitExceeded:
        raise RunError(
            "the run needs more memory than is available: choose a smaller --batch-size, or add --microbatches"
        ) from None
    note = "" if owner == "each GPU" else ", including all devices, Python and data"
    return f"{'':<11}{owner:<16}{mebibytes:10,.1f} MiB measured at the peak{note}"


def _wait_for_child(child: "subprocess.Popen[bytes]", limit_bytes: Optional[int]) -> None:
    """Wait until the child exits.

    Raises MemoryLimitExceeded if the child uses more than ``limit_bytes``.
    """
    while True:
        try:
            child.wait(POLL_S)
            return
        except subprocess.TimeoutExpired:
            if limit_bytes is not None and peak_bytes(child.pid) > limit_bytes:
                raise MemoryLimitExceeded from None


def _kill_child(child: "subprocess.Popen[bytes]") -> None:
    """Kill the child and the processes it has started."""
    signal_group(child.pid, signal.SIGKILL)
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def _read_answer(output_file: Path) -> Optional[Dict[str, Any]]:
    """Return the last JSON object in the child's output. Libraries may print other lines."""
    for line in reversed(output_file.read_text(errors="replace").split("\n")):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer
    return None


def _raise_child_error(status: int, error_output: str) -> None:
    """Raise the error of a child that ended without an answer."""
    if status == -signal.SIGKILL or any(text in error_output for text in OUT_OF_MEMORY_MESSAGES):
        raise MemoryLimitExceeded
    last_line = next((line.strip() for line in reversed(error_output.split("\n")) if line.strip()), "no message")
    raise RunError(
        f"the process that measures memory exited with status {status} ({last_line}): remove --estimate-memory "
        "to see whether training works"
    )


def _peak_bytes(answer: Dict[str, Any], limit_bytes: Optional[int]) -> int:
    """Return the peak memory in ``answer``, or raise the child's error or MemoryLimitExceeded."""
    if "other" in answer:
        raise OtherDatasetError
    if "error" in answer:
        raise getattr(errors, answer["raised"])(answer["error"])
    peak = int(answer["bytes"])
    if limit_bytes is not None and peak > limit_bytes:
        raise MemoryLimitExceeded
    return peak
