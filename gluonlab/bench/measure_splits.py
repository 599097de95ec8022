"""Measures a training step with each way to split a network over devices.

The ways are data, tensor and pipeline parallelism. Each stage of a pipeline is also measured alone.

The result is one list of series, from which `gluonlab.bench.splits` makes the tables. The series
have the following names, in which WAY is a name of SPLIT_NAMES:

    step WAY              seconds per step
    at once               seconds to run all stages of 1f1b at the same time, without any stage
                          waiting for another
    alone WAY STAGE       seconds to run only one stage, forward and backward for all microbatches
    forward WAY STAGE     the same, but only forward
    update WAY DEVICE     seconds to run only the update of a device
    host WAY              CPU seconds that the host needs to queue an instruction: the mean over
                          all instructions except updates
    moved WAY             bytes that devices send each other in a step
    links WAY             predicted seconds to send these bytes on COST_TOPOLOGY, one message after
                          another
    memory WAY DEVICE     bytes of memory that --estimate-memory predicts
    price WAY             seconds per step on COST_TOPOLOGY, predicted from measured stages and
                          updates
    price bubble WAY      the predicted fraction of a step in which devices are idle
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from statistics import median
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import Call, call_all, progress_bar, time_interleaved
from gluonlab.bench.harness.measurement_command import MeasuredDevices
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.splits import (
    ALLREDUCE_STORE,
    CHANNELS,
    COST_TOPOLOGY,
    DATA,
    GPIPE,
    INTERLEAVED,
    ISOLATED_STAGES_OF,
    LAYERS,
    ONE,
    ONE_F_ONE_B,
    PIPELINES,
    SEPARATELY_CUT,
    SPLIT_NAMES,
    run_options,
)
from gluonlab.bench.workloads import CLASSES, Task
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost_model import estimate_cost, traffic
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.topology import Topology
from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.loading.split_batch import Batch
from gluonlab.data.sets.dataset_registry import load_dataset
from gluonlab.errors import DeviceError, UsageError
from gluonlab.parallel.compiled_graph import array_bytes
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.memory_estimate import MemoryEstimate, ShardSizes
from gluonlab.parallel.pipeline.pipeline_cost import Costs, predict_timeline
from gluonlab.parallel.pipeline.pipeline_executor import StepProgram
from gluonlab.parallel.pipeline.pipeline_schedule import SEND_BACKWARD, SEND_FORWARD, UPDATE, Instruction
from gluonlab.parallel.pipeline.strategy import PipelineParallel
from gluonlab.parallel.strategy import Strategy
from gluonlab.parallel.tensor.replica import TensorReplica
from gluonlab.parallel.tensor.strategy import TensorParallel
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.training_setup import prepare

# All steps train on the same batch. After the network has learned it, gradients would become
# denormal numbers, with which the CPU computes slowly. So the learning rate is very small.
LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class PreparedSplit:
    """A strategy that is ready to train, and a batch for it.

    ``name``: a name of SPLIT_NAMES. ``reason``: why this split is impossible, or None.
    """

    name: str
    plan: Optional[Plan] = None
    strategy: Optional[Strategy] = None
    batch: Optional[Batch] = None
    reason: Optional[str] = None

    @property
    def staged_strategy(self) -> Optional[PipelineParallel]:
        """Return the strategy if it has stages, else None."""
        return self.strategy if isinstance(self.strategy, PipelineParallel) else None

    @property
    def cuts(self) -> str:
        """Return the numbers of the layers before which the network is cut: ``3,7``, or ""."""
        return ",".join(map(str, self.staged_strategy.cuts)) if self.staged_strategy is not None else ""

    def step(self) -> None:
        """Queue a training step on the batch."""
        assert self.strategy is not None and self.batch is not None
        self.strategy.step(self.batch)

    def make_program(self) -> StepProgram:
        """Return the instructions that a pipeline queues in a training step."""
        assert self.staged_strategy is not None and self.batch is not None
        [program] = self.staged_strategy.programs(self.batch)
        return program


def prepare_splits(
    task: Task, available: MeasuredDevices, devices: int, microbatches: int, cuts: Optional[Mapping[str, str]] = None
) -> Iterator[PreparedSplit]:
    """Yield all splits in SPLIT_NAMES on the first ``devices`` devices in ``available``.

    ``cuts``: the layers at which stages begin, by split name, as `choose_cuts` returns them.
    Missing cuts are chosen according to measured times. Splits with as many stages as 1f1b have the
    same cuts as 1f1b.
    """
    cuts_by_name = dict(cuts or {})
    splits = {}
    for name in (ONE_F_ONE_B, GPIPE, INTERLEAVED, LAYERS, CHANNELS, DATA, ONE):
        options = run_options(name, microbatches)
        cut_name = ONE_F_ONE_B if name in (GPIPE, LAYERS) else name
        if cut_name in cuts_by_name:
            options["cut"] = cuts_by_name[cut_name]
        split = splits[name] = _prepare_split(name, task, available.device_spec(1 if name == ONE else devices), options)
        if name == ONE_F_ONE_B and split.cuts:
            cuts_by_name[name] = split.cuts
    yield from (splits[name] for name in SPLIT_NAMES)


def choose_cuts(task: Task, available: MeasuredDevices, devices: int, microbatches: int) -> Dict[str, str]:
    """Choose the layers at which each pipeline's stages begin, according to measured times.

    Measured times vary, so the cuts may differ from call to call.
    """
    splits = prepare_splits(task, available, devices, microbatches)
    return {split.name: split.cuts for split in splits if split.name in SEPARATELY_CUT and split.cuts}


def _prepare_split(name: str, task: Task, devices: str, options: Dict[str, Any]) -> PreparedSplit:
    """Prepare the split ``name`` for measurement, or return why the split is impossible."""
    size = task.global_batch_size
    dataset = load_dataset("synthetic", samples=size, shape=task.shape, classes=CLASSES)
    config = TrainConfig(
        model=task.model, dataset="synthetic", devices=devices,
        threads=1 if devices.startswith("cpu") else None, global_batch_size=size, optimizer="sgd",
        lr=LEARNING_RATE, momentum=0.9, kvstore=ALLREDUCE_STORE, **options,
    )  # fmt: skip
    try:
        plan = make_plan(config, dataset)
        strategy = prepare(plan).strategy
    except UsageError as error:
        return PreparedSplit(name, reason=str(error))
    loader = Loader(dataset.train, strategy.inputs, size, raw=True, resident_bytes=plan.device_cache_bytes)
    return PreparedSplit(name, plan, strategy, next(iter(loader)))


# --- the messages of a step, and their predicted time


class Message(NamedTuple):
    """A message of ``size_bytes`` from device ``src`` to device ``dst``."""

    src: int
    dst: int
    size_bytes: int

    def seconds(self, topology: Topology) -> float:
        """Return the predicted seconds of the message on a topology."""
        route = topology.routes[self.src, self.dst]
        return route.latency_s + self.size_bytes / route.bytes_per_s


class StepTraffic(NamedTuple):
    """The traffic between ``devices`` devices during a step.

    ``sums``: the bytes of each buffer that is summed over all devices.
    """

    devices: int
    messages: List[Message]
    sums: List[int]

    @property
    def total_bytes(self) -> float:
        """Return the bytes that all devices send."""
        schedule = make_schedule(ALLREDUCE_STORE, self.devices)
        allreduce_bytes = (device_traffic.sent for size in self.sums for device_traffic in traffic(schedule, size))
        return sum(message.size_bytes for message in self.messages) + sum(allreduce_bytes)

    def seconds(self, topology: Topology) -> float:
        """Return the predicted seconds of all messages and sums if they run one after another."""
        schedule = make_schedule(ALLREDUCE_STORE, self.devices)
        allreduce_s = sum(estimate_cost(schedule, topology, size).seconds for size in self.sums)
        return sum(message.seconds(topology) for message in self.messages) + allreduce_s


def count_traffic(split: PreparedSplit) -> StepTraffic:
    """Return the traffic during a step on several devices.

    At least one step must have been queued before this call.
    """
    assert split.plan is not None and split.strategy is not None and split.batch is not None
    devices = len(split.plan.ctxs)
    if split.staged_strategy is not None:
        return StepTraffic(devices, list(_stage_messages(split, devices)), [])
    if isinstance(split.strategy, TensorParallel):
        [replica] = split.strategy.replicas
        assert isinstance(replica, TensorReplica)
        inputs, sums = replica.traffic()
        input_bytes = inputs // (devices - 1)
        return StepTraffic(devices, [Message(0, device, input_bytes) for device in range(1, devices)], sums)
    assert isinstance(split.strategy, DataParallel)
    buckets = [bucket.grads[0] for bucket in split.strategy.trainer.buckets]
    return StepTraffic(devices, [], [_array_bytes(bucket) for bucket in buckets])


def planned_memory(split: PreparedSplit) -> List[MemoryEstimate]:
    """Return the memory that each device is expected to need, as in --estimate-memory."""
    assert split.plan is not None and split.strategy is not None
    copy_memory = split.strategy.estimate_memory(ShardSizes((split.plan.largest_shard_size,)))
    return copy_memory * len(split.plan.parallelism.copies)


def _stage_messages(split: PreparedSplit, devices: int) -> Iterator[Message]:
    """Yield the messages that devices send each other in one step of a pipeline.

    The messages contain activations, gradients of activations, and labels for the last device.
    """
    assert split.batch is not None
    program = split.make_program()
    for instruction in chain.from_iterable(program.schedule.programs):
        if instruction.op in (SEND_FORWARD, SEND_BACKWARD):
            message = _make_message(program, instruction)
            if message.size_bytes:
                yield message
    yield Message(0, devices - 1, _array_bytes(split.batch.ys[0]))


def _make_message(program: StepProgram, send: Instruction) -> Message:
    to = send.stage + (1 if send.op == SEND_FORWARD else -1)
    device = program.schedule.device
    return Message(device(send.stage), device(to), program.message_bytes(send))


def _array_bytes(array: nd.NDArray) -> int:
    return array_bytes((array.shape, array.dtype))


def pipeline_costs(
    program: StepProgram,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    update_s: Sequence[float],
    topology: Topology,
) -> Costs:
    """Return the costs of a pipeline: measured seconds for stages, predicted seconds for messages.

    ``forward_s``, ``backward_s``: seconds that each stage takes for a microbatch. ``update_s``:
    seconds that each stage's update takes. ``topology``: the links that carry the messages.
    """
    transfers = []
    for stage in range(program.schedule.stages - 1):
        sends = Instruction(SEND_FORWARD, stage, 0), Instruction(SEND_BACKWARD, stage + 1, 0)
        forward_send_s, backward_send_s = (_make_message(program, send).seconds(topology) for send in sends)
        transfers.append((forward_send_s, backward_send_s))
    return Costs(tuple(forward_s), tuple(backward_s), tuple(transfers), tuple(update_s))


# --- measurement

QUEUED_STEPS = 4  # steps that the host queues in a row, as in training
LABELS = {ONE: "one device"}
Seconds = Mapping[str, Sequence[float]]


def check_devices(available: MeasuredDevices) -> int:
    """Return the number of devices. Raises DeviceError if a network cannot be split over them."""
    count, maximum = len(available.numbers), make_topology(COST_TOPOLOGY).world_size
    if not 2 <= count <= maximum:
        raise DeviceError(
            f"--devices {available.device_spec(count)}: the number of devices must be from 2 to "
            f"{maximum}, because times are also predicted for {COST_TOPOLOGY}, which has {maximum} GPUs"
        )
    return count


def measure_splits(
    task: Task,
    available: MeasuredDevices,
    devices: int,
    microbatches: int,
    rounds: int,
    cuts: Optional[Mapping[str, str]] = None,
) -> List[Series]:
    """Time a training step with each way to split a network, in interleaved rounds.

    Returns a series of seconds for each split. The series of an impossible split has a reason
    instead of times.

    ``devices``: the number of devices in ``available`` to use. ``cuts``: the result of
    `choose_cuts`; pass the same cuts to compare several measurements.
    """
    splits = {split.name: split for split in prepare_splits(task, available, devices, microbatches, cuts)}
    prepared = {name: split for name, split in splits.items() if split.reason is None}
    for split in prepared.values():
        split.step()  # binds all graphs
    with progress_bar(rounds) as bar:
        seconds = time_interleaved(dict(_timed_calls(prepared)), rounds, on_round=bar.update)
    for name in filter(prepared.__contains__, PIPELINES):
        seconds[f"host {name}"] = [_queue_seconds_per_instruction(prepared[name]) for _ in range(rounds)]
    steps = [
        Series(f"step {name}", _row_label(split), "s", tuple(seconds.get(f"step {name}", ())), split.reason)
        for name, split in splits.items()
    ]
    others = (name for name in seconds if not name.startswith("step "))
    calls = [Series(name, name, "s", tuple(seconds[name])) for name in others]
    return [*steps, *calls, *(item for split in prepared.values() for item in _computed_series(split, seconds))]


def _row_label(split: PreparedSplit) -> str:
    return LABELS.get(split.name, split.name) + (f", cut {split.cuts}" if split.cuts else "")


def _timed_calls(splits: Mapping[str, PreparedSplit]) -> Iterator[Tuple[str, Call]]:
    """Yield (name, call) for everything that is timed: steps, and isolated pipeline stages."""
    for name, split in splits.items():
        yield f"step {name}", split.step
    for name in (ONE_F_ONE_B, INTERLEAVED):
        if name in splits:
            yield from _isolated_calls(splits[name])
    if ONE_F_ONE_B in splits:
        program = splits[ONE_F_ONE_B].make_program()
        stages = [program.passes(stage) for stage in range(program.schedule.stages)]
        alternating = chain.from_iterable(zip_longest(*stages))
        yield "at once", call_all([call for call in alternating if call is not None])


def _isolated_calls(split: PreparedSplit) -> Iterator[Tuple[str, Call]]:
    """Yield a named call for each stage of a pipeline, and for each device's update."""
    assert split.staged_strategy is not None and split.batch is not None and split.plan is not None
    program = split.make_program()
    for stage in range(program.schedule.stages):
        yield f"alone {split.name} {stage}", call_all(program.passes(stage))
        yield f"forward {split.name} {stage}", call_all(program.passes(stage, backward=False))
    for trainer in split.staged_strategy.trainer.trainers:
        device = split.plan.ctxs.index(trainer._contexts[0])
        yield f"update {split.name} {device}", partial(_run_update, trainer, split.batch.size)


def _run_update(trainer: BucketedTrainer, batch_size: int) -> None:
    for _, call in trainer.start_step(batch_size):
        call()


def _queue_seconds_per_instruction(split: PreparedSplit) -> float:
    """Return how many CPU seconds this thread needs to queue one pipeline instruction."""
    assert split.staged_strategy is not None and split.batch is not None
    programs = split.make_program().schedule.programs
    instructions = sum(instruction.op != UPDATE for program in programs for instruction in program)
    nd.waitall()
    started = time.thread_time()
    for _ in range(QUEUED_STEPS):
        _, queue = next(split.staged_strategy.phases(split.batch))
        queue()
    seconds = time.thread_time() - started
    nd.waitall()
    return seconds / QUEUED_STEPS / instructions


def _computed_series(split: PreparedSplit, seconds: Seconds) -> Iterator[Series]:
    """Yield the series that are not measured: memory, traffic, and predicted times.

    ``seconds``: the measured seconds of each call in each round, by the name of the call.
    """
    for device, memory in enumerate(planned_memory(split)):
        name = f"memory {split.name} {device}"
        yield Series(name, name, "B", (float(sum(memory)),))
    if split.name == ONE:
        return  # nothing is moved
    step_traffic = count_traffic(split)
    topology = make_topology(COST_TOPOLOGY, step_traffic.devices)
    yield _single_value_series(f"moved {split.name}", "B", step_traffic.total_bytes)
    yield _single_value_series(f"links {split.name}", "s", step_traffic.seconds(topology))
    if split.name in PIPELINES:
        program = split.make_program()
        timeline = predict_timeline(program.schedule, pipeline_costs(program, *_stage_costs(split, seconds), topology))
        yield _single_value_series(f"price {split.name}", "s", timeline.seconds)
        yield _single_value_series(f"price bubble {split.name}", "of the time", timeline.bubble)


def _single_value_series(name: str, unit: str, value: float) -> Series:
    return Series(name, name, unit, (value,))


def _stage_costs(split: PreparedSplit, seconds: Seconds) -> Tuple[List[float], List[float], List[float]]:
    """Return how many seconds each stage takes: (forward, backward, update).

    The forward and backward times are for one microbatch.
    """
    schedule, name = split.make_program().schedule, ISOLATED_STAGES_OF.get(split.name, split.name)
    medians: Dict[str, float] = {key: median(values) for key, values in seconds.items()}
    forward, backward, update = [], [], []
    for stage in range(schedule.stages):
        forward.append(medians[f"forward {name} {stage}"] / schedule.microbatches)
        passes_s = medians[f"alone {name} {stage}"] / schedule.microbatches
        backward.append(max(0.0, passes_s - forward[-1]))
        device_update_s = medians.get(f"update {name} {schedule.device(stage)}", 0.0)
        update.append(device_update_s / len(schedule.stages_of(schedule.device(stage))))
    return forward, backward, update
