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
from functools import partial
from itertools import chain, zip_longest
from statistics import median
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxnet import nd

from gluonlab.bench.harness.measured_on import MeasuredOn
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import progress
from gluonlab.bench.harness.turns import Call, time_in_turns
from gluonlab.bench.splits.moves import costs, moves, taken
from gluonlab.bench.splits.names import (
    APART,
    INTERLEAVED,
    LINKS,
    NAMES,
    ONE,
    ONE_F_ONE_B,
    PIPELINES,
    Task,
)
from gluonlab.bench.splits.ways import Way, make_ways
from gluonlab.collectives.topology import make_topology
from gluonlab.errors import DeviceError
from gluonlab.parallel.pipeline.price import price
from gluonlab.parallel.pipeline.schedule import UPDATE
from gluonlab.update.trainer import BucketedTrainer

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
        timeline = price(program.schedule, costs(program, *_stage_costs(way, seconds), topology))
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
