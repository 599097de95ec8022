"""Steps under each split, and the stages of pipelines by themselves, in turns.

What is found is one list of series, from which the tables are made:

    step WAY              seconds of a step
    at once               seconds in which the stages of 1f1b work at once, each for itself
    alone WAY STAGE       seconds of a stage by itself, forward and backward of all microbatches
    forward WAY STAGE     the same, forward alone
    update WAY DEVICE     seconds of a device's update by itself
    host WAY              seconds for which the host's thread computes to queue an instruction, the
                          mean of all but the updates
    moved WAY             bytes that devices send each other in a step
    links WAY             seconds that takes on LINKS, one message after the other
    memory WAY DEVICE     bytes, as --memory plans them
    price WAY             seconds of a step on LINKS, with the times of stages and updates measured
    price bubble WAY      the share of that in which devices are idle
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from statistics import median
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import Call, progress, time_in_turns
from gluonlab.bench.harness.measurement_command import MeasuredOn
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.splits import (
    APART,
    CHANNELS,
    CUT_APART,
    DATA,
    GPIPE,
    INTERLEAVED,
    LAYERS,
    LINKS,
    NAMES,
    ONE,
    ONE_F_ONE_B,
    PIPELINES,
    SUMS,
    run_options,
)
from gluonlab.bench.workloads import CLASSES, Task
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost_model import price, traffic
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
from gluonlab.parallel.pipeline.pipeline_cost import Costs
from gluonlab.parallel.pipeline.pipeline_cost import price as price_pipeline
from gluonlab.parallel.pipeline.pipeline_executor import StepProgram
from gluonlab.parallel.pipeline.pipeline_schedule import (
    SEND_BACKWARD,
    SEND_FORWARD,
    UPDATE,
    Instruction,
)
from gluonlab.parallel.pipeline.strategy import PipelineParallel
from gluonlab.parallel.strategy import Strategy
from gluonlab.parallel.tensor.replica import TensorReplica
from gluonlab.parallel.tensor.strategy import TensorParallel
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.training_setup import prepare

# The same batch comes again and again. If it were learnt, its gradients would become denormal
# numbers, with which the CPU computes slowly.
LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Way:
    """A strategy that is ready to train, and a batch for it; or the ``reason`` why there is none.

    ``name``: one of NAMES. ``cuts``: the layers with which stages begin, but the first.
    """

    name: str
    plan: Optional[Plan] = None
    strategy: Optional[Strategy] = None
    batch: Optional[Batch] = None
    reason: Optional[str] = None

    @property
    def staged(self) -> Optional[PipelineParallel]:
        """The strategy, if it is one of stages."""
        return self.strategy if isinstance(self.strategy, PipelineParallel) else None

    @property
    def cuts(self) -> str:
        """``3,7``, or nothing."""
        return ",".join(map(str, self.staged.cuts)) if self.staged is not None else ""

    def step(self) -> None:
        """Queue the training on the batch."""
        assert self.strategy is not None and self.batch is not None
        self.strategy.step(self.batch)

    def program(self) -> StepProgram:
        """What a step of stages queues."""
        assert self.staged is not None and self.batch is not None
        [program] = self.staged.programs(self.batch)
        return program


def make_ways(
    task: Task,
    on: MeasuredOn,
    devices: int,
    microbatches: int,
    cuts: Optional[Mapping[str, str]] = None,
) -> Iterator[Way]:
    """All of NAMES, on the first ``devices`` of ``on``; stages as many as devices are cut alike.

    ``cuts``: where those of `cuts_of` begin; what is not among them is chosen by measured time.
    """
    chosen = dict(cuts or {})
    found = {}
    for name in (ONE_F_ONE_B, GPIPE, INTERLEAVED, LAYERS, CHANNELS, DATA, ONE):
        options = run_options(name, microbatches)
        alike = ONE_F_ONE_B if name in (GPIPE, LAYERS) else name
        if alike in chosen:
            options["cut"] = chosen[alike]
        way = found[name] = _make(name, task, on.first(1 if name == ONE else devices), options)
        if name == ONE_F_ONE_B and way.cuts:
            chosen[name] = way.cuts
    yield from (found[name] for name in NAMES)


def cuts_of(task: Task, on: MeasuredOn, devices: int, microbatches: int) -> Dict[str, str]:
    """The cuts of pipelines by name, as measured times choose them now: not always alike."""
    ways = make_ways(task, on, devices, microbatches)
    return {way.name: way.cuts for way in ways if way.name in CUT_APART and way.cuts}


def _make(name: str, task: Task, devices: str, options: Dict[str, Any]) -> Way:
    size = task.global_batch_size
    dataset = load_dataset("synthetic", samples=size, shape=task.shape, classes=CLASSES)
    config = TrainConfig(
        model=task.model, dataset="synthetic", devices=devices,
        threads=1 if devices.startswith("cpu") else None, global_batch_size=size, optimizer="sgd",
        lr=LEARNING_RATE, momentum=0.9, kvstore=SUMS, **options,
    )  # fmt: skip
    try:
        plan = make_plan(config, dataset)
        strategy = prepare(plan).strategy
    except UsageError as error:
        return Way(name, reason=str(error))
    loader = Loader(
        dataset.train, strategy.inputs, size, raw=True, resident_bytes=plan.resident_bytes
    )
    return Way(name, plan, strategy, next(iter(loader)))


# --- what a step moves, and its price


class Message(NamedTuple):
    """Bytes that one device sends another."""

    src: int
    dst: int
    size_bytes: int

    def seconds(self, topology: Topology) -> float:
        """Its price there."""
        route = topology.routes[self.src, self.dst]
        return route.latency_s + self.size_bytes / route.bytes_per_s


class Moves(NamedTuple):
    """Of a step: messages, and the sizes of what all ``devices`` sum by the schedule SUMS."""

    devices: int
    messages: List[Message]
    sums: List[int]

    @property
    def total_bytes(self) -> float:
        """All that devices send."""
        schedule = make_schedule(SUMS, self.devices)
        summed = (each.sent for size in self.sums for each in traffic(schedule, size))
        return sum(message.size_bytes for message in self.messages) + sum(summed)

    def seconds(self, topology: Topology) -> float:
        """The price of all, one after the other."""
        schedule = make_schedule(SUMS, self.devices)
        summed = sum(price(schedule, topology, size).seconds for size in self.sums)
        return sum(message.seconds(topology) for message in self.messages) + summed


def moves(way: Way) -> Moves:
    """What a step on several devices moves, once one has been queued."""
    assert way.plan is not None and way.strategy is not None and way.batch is not None
    devices = len(way.plan.ctxs)
    if way.staged is not None:
        return Moves(devices, list(_of_stages(way, devices)), [])
    if isinstance(way.strategy, TensorParallel):
        [replica] = way.strategy.replicas
        assert isinstance(replica, TensorReplica)
        inputs, sums = replica.traffic()
        each = inputs // (devices - 1)
        return Moves(devices, [Message(0, other, each) for other in range(1, devices)], sums)
    assert isinstance(way.strategy, DataParallel)
    buckets = [bucket.grads[0] for bucket in way.strategy.trainer.buckets]
    return Moves(devices, [], [_bytes(bucket) for bucket in buckets])


def taken(way: Way) -> List[MemoryEstimate]:
    """What each device takes, as --memory plans it."""
    assert way.plan is not None and way.strategy is not None
    of_copy = way.strategy.estimate_memory(ShardSizes((way.plan.largest_share,)))
    return of_copy * len(way.plan.split.copies)


def _of_stages(way: Way, devices: int) -> Iterator[Message]:
    """Activations, their gradients, and the labels for the last device."""
    assert way.batch is not None
    program = way.program()
    for instruction in (each for own in program.schedule.programs for each in own):
        if instruction.op in (SEND_FORWARD, SEND_BACKWARD):
            message = _message(program, instruction)
            if message.size_bytes:
                yield message
    yield Message(0, devices - 1, _bytes(way.batch.ys[0]))


def _message(program: StepProgram, send: Instruction) -> Message:
    to = send.stage + (1 if send.op == SEND_FORWARD else -1)
    device = program.schedule.device
    return Message(device(send.stage), device(to), program.message_bytes(send))


def _bytes(array: nd.NDArray) -> int:
    return array_bytes((array.shape, array.dtype))


def costs(
    program: StepProgram,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    update_s: Sequence[float],
    topology: Topology,
) -> Costs:
    """Of a pipeline whose messages take such links; seconds of each stage for a microbatch."""
    transfers = []
    for stage in range(program.schedule.stages - 1):
        there, back = Instruction(SEND_FORWARD, stage, 0), Instruction(SEND_BACKWARD, stage + 1, 0)
        both = [_message(program, send).seconds(topology) for send in (there, back)]
        transfers.append((both[0], both[1]))
    return Costs(tuple(forward_s), tuple(backward_s), tuple(transfers), tuple(update_s))


# --- measurement

QUEUED = 4  # steps that the host queues in a row, as in training
LABELS = {ONE: "one device"}
Seconds = Mapping[str, Sequence[float]]


def check_devices(on: MeasuredOn) -> int:
    """How many devices split the network. Raises DeviceError for more or fewer than possible."""
    count, most = len(on.numbers), make_topology(LINKS).world_size
    if not 2 <= count <= most:
        raise DeviceError(
            f"--devices {on.first(count)}: a network is split over 2 to {most} devices, as many as "
            f"{LINKS} has: name so many"
        )
    return count


def splits(
    task: Task,
    on: MeasuredOn,
    devices: int,
    microbatches: int,
    rounds: int,
    cuts: Optional[Mapping[str, str]] = None,
) -> List[Series]:
    """All series of the ways of a network over devices; what a way cannot do has the reason.

    ``cuts``: of `cuts_of`, so that measurements at other times are of the same stages.
    """
    ways = {way.name: way for way in make_ways(task, on, devices, microbatches, cuts)}
    there = {name: way for name, way in ways.items() if way.reason is None}
    for way in there.values():
        way.step()  # everything is bound
    with progress(rounds) as bar:
        seconds = time_in_turns(dict(_calls(there)), rounds, done=bar.update)
    for name in filter(there.__contains__, PIPELINES):
        seconds[f"host {name}"] = [_host_seconds(there[name]) for _ in range(rounds)]
    found = [
        Series(f"step {name}", _label(ways[name]), "s", tuple(seconds.get(f"step {name}", ())),
               ways[name].reason)
        for name in NAMES
    ]  # fmt: skip
    found += [
        Series(name, name, "s", tuple(values))
        for name, values in seconds.items()
        if not name.startswith("step ")
    ]
    return [*found, *(each for way in there.values() for each in _told(way, seconds))]


def _label(way: Way) -> str:
    return LABELS.get(way.name, way.name) + (f", cut {way.cuts}" if way.cuts else "")


def _calls(ways: Mapping[str, Way]) -> Iterator[Tuple[str, Call]]:
    for name, way in ways.items():
        yield f"step {name}", way.step
    for name in (ONE_F_ONE_B, INTERLEAVED):
        if name in ways:
            yield from _apart(ways[name])
    if ONE_F_ONE_B in ways:
        program = ways[ONE_F_ONE_B].program()
        stages = [program.passes(stage) for stage in range(program.schedule.stages)]
        in_turns = chain.from_iterable(zip_longest(*stages))
        yield "at once", _all([call for call in in_turns if call is not None])


def _apart(way: Way) -> Iterator[Tuple[str, Call]]:
    """A pipeline's stages and updates, each for itself."""
    assert way.staged is not None and way.batch is not None and way.plan is not None
    program = way.program()
    for stage in range(program.schedule.stages):
        yield f"alone {way.name} {stage}", _all(program.passes(stage))
        yield f"forward {way.name} {stage}", _all(program.passes(stage, backward=False))
    for trainer in way.staged.updates.trainers:
        device = way.plan.ctxs.index(trainer._contexts[0])
        yield f"update {way.name} {device}", partial(_update, trainer, way.batch.size)


def _all(calls: Sequence[Callable[[], object]]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def _update(trainer: BucketedTrainer, batch_size: int) -> None:
    for _, call in trainer.phases(batch_size):
        call()


def _host_seconds(way: Way) -> float:
    """Of the processor's time: what other threads do to the clock is not the host's cost."""
    assert way.staged is not None and way.batch is not None
    programs = way.program().schedule.programs
    instructions = sum(each.op != UPDATE for program in programs for each in program)
    nd.waitall()
    began = time.thread_time()
    for _ in range(QUEUED):
        _, queue = next(way.staged.phases(way.batch))
        queue()
    seconds = time.thread_time() - began
    nd.waitall()
    return seconds / QUEUED / instructions


def _told(way: Way, seconds: Seconds) -> Iterator[Series]:
    """What needs no clock, and prices of what was measured."""
    for device, each in enumerate(taken(way)):
        name = f"memory {way.name} {device}"
        yield Series(name, name, "B", (float(sum(each)),))
    if way.name == ONE:
        return  # nothing is moved
    moved = moves(way)
    topology = make_topology(LINKS, moved.devices)
    yield _one(f"moved {way.name}", "B", moved.total_bytes)
    yield _one(f"links {way.name}", "s", moved.seconds(topology))
    if way.name in PIPELINES:
        program = way.program()
        timeline = price_pipeline(
            program.schedule, costs(program, *_stage_costs(way, seconds), topology)
        )
        yield _one(f"price {way.name}", "s", timeline.seconds)
        yield _one(f"price bubble {way.name}", "of the time", timeline.bubble)


def _one(name: str, unit: str, value: float) -> Series:
    return Series(name, name, unit, (value,))


def _stage_costs(way: Way, seconds: Seconds) -> Tuple[List[float], List[float], List[float]]:
    """Seconds of each stage: forward and backward of a microbatch, and update."""
    schedule, name = way.program().schedule, APART.get(way.name, way.name)
    middle: Dict[str, float] = {each: median(values) for each, values in seconds.items()}
    forward, backward, update = [], [], []
    for stage in range(schedule.stages):
        forward.append(middle[f"forward {name} {stage}"] / schedule.microbatches)
        both = middle[f"alone {name} {stage}"] / schedule.microbatches
        backward.append(max(0.0, both - forward[-1]))
        of_device = middle.get(f"update {name} {schedule.device(stage)}", 0.0)
        update.append(of_device / len(schedule.stages_of(schedule.device(stage))))
    return forward, backward, update
