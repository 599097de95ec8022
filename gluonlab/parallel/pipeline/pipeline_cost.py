"""What a pipeline schedule costs: when each instruction begins and ends, and who is idle meanwhile.

A device computes one thing at a time, in its program's order, each as soon as what it needs is
there. A send costs the device no time: the message is on its way while the device goes on. It takes
its transfer's time, and messages of one stage the same way come one after the other. A recv waits
for its message. Queues are as long as need be.

The bubble is the share of the devices' time in which they compute nothing. (Narayanan et al.,
"Efficient large-scale language model training on GPU clusters using Megatron-LM", 2021, section
2.2, divide the idle time by the busy time instead.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Sequence, Tuple

from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_schedule import (
    BACKWARD,
    FORWARD,
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    UPDATE,
    Instruction,
    PipelineSchedule,
)
from gluonlab.parallel.pipeline.verify_pipeline import in_order, keeps

COMPUTE = (FORWARD, BACKWARD, UPDATE)  # what keeps a device busy


@dataclass(frozen=True)
class Costs:
    """Seconds of everything, for one microbatch.

    ``forward_s``, ``backward_s``, ``update_s``: of each stage. ``transfer_s``: of each boundary
    between two stages, (activation, gradient).
    """

    forward_s: Tuple[float, ...]
    backward_s: Tuple[float, ...]
    transfer_s: Tuple[Tuple[float, float], ...]
    update_s: Tuple[float, ...]

    @classmethod
    def equal(
        cls,
        stages: int,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        transfer_s: float = 0.0,
        update_s: float = 0.0,
    ) -> Costs:
        """The same for all stages, and for activations and their gradients."""
        return cls(
            (forward_s,) * stages,
            (backward_s,) * stages,
            ((transfer_s, transfer_s),) * (stages - 1),
            (update_s,) * stages,
        )

    def seconds(self, instruction: Instruction) -> float:
        """Of the instruction; a recv takes no time of its own."""
        op, stage, _ = instruction
        if op == SEND_FORWARD:
            return self.transfer_s[stage][0]
        if op == SEND_BACKWARD:
            return self.transfer_s[stage - 1][1]
        own = {FORWARD: self.forward_s, BACKWARD: self.backward_s, UPDATE: self.update_s}
        return own[op][stage] if op in own else 0.0


def equal_shares(schedule: PipelineSchedule) -> Costs:
    """Costs to compare schedules of one network by, where nothing is known of the real ones.

    Each device's share, in as many equal stages as there are, goes forward in 1 ms, and backward in
    2 ms, which computes the gradients of both weights and inputs; transfers take no time.
    """
    each = schedule.stages / schedule.devices
    return Costs.equal(schedule.stages, 1e-3 / each, 2e-3 / each)


class Event(NamedTuple):
    """An instruction and its time: of a send that of the transfer, of a recv that of the wait."""

    device: int
    instruction: Instruction
    begin_s: float
    end_s: float


class Kept(NamedTuple):
    """From ``at_s`` on, a device keeps the activations of so many microbatches, over its stages."""

    at_s: float
    microbatches: int


@dataclass(frozen=True)
class PipelineTimeline:
    """When everything happens; ``events`` by the time at which they begin.

    ``kept``: of each device, how many microbatches it keeps at what time; it begins with none.
    """

    events: Tuple[Event, ...]
    seconds: float
    bubbles: Tuple[float, ...]  # of each device: the share of the time in which it is idle
    kept: Tuple[Tuple[Kept, ...], ...]

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which they are idle."""
        return math.fsum(self.bubbles) / len(self.bubbles)


def price(schedule: PipelineSchedule, costs: Costs) -> PipelineTimeline:
    """When each instruction of a schedule, which `check` has proved, begins and ends.

    Raises ScheduleError for costs of another number of stages, for times below 0, and where a
    device waits for ever.
    """
    _check_costs(schedule, costs)
    free = [0.0] * schedule.devices  # when each device has done what came before
    ends: Dict[Instruction, float] = {}
    events: List[Event] = []
    for device, instruction in in_order(schedule, queue=schedule.microbatches):
        begin, seconds = free[device], costs.seconds(instruction)
        op, stage, microbatch = instruction
        end = begin + seconds
        if op in (SEND_FORWARD, SEND_BACKWARD):
            begin = max(begin, ends.get(Instruction(op, stage, microbatch - 1), 0.0))
            end = begin + seconds
        elif op == RECV_FORWARD:
            free[device] = end = max(begin, ends[Instruction(SEND_FORWARD, stage - 1, microbatch)])
        elif op == RECV_BACKWARD:
            free[device] = end = max(begin, ends[Instruction(SEND_BACKWARD, stage + 1, microbatch)])
        else:
            free[device] = end
        ends[instruction] = end
        events.append(Event(device, instruction, begin, end))
    whole = max(free)
    own: List[List[Event]] = [[] for _ in range(schedule.devices)]
    for event in events:
        own[event.device].append(event)
    bubbles = tuple(_idle(of_device, whole) for of_device in own)
    kept = tuple(_kept(schedule, of_device) for of_device in own)
    return PipelineTimeline(tuple(sorted(events, key=_when)), whole, bubbles, kept)


def ideal_bubble(devices: int, microbatches: int, stages_per_device: int = 1) -> float:
    """(p-1) / (v m + p-1): of equal stages and transfers that take no time, under 1F1B.

    p devices, m microbatches, v stages on each device; with v > 1, m is a multiple of p.
    """
    waits = devices - 1
    return waits / (stages_per_device * microbatches + waits)


def _check_costs(schedule: PipelineSchedule, costs: Costs) -> None:
    stages = schedule.stages
    counts = {
        "forward_s": (costs.forward_s, stages),
        "backward_s": (costs.backward_s, stages),
        "update_s": (costs.update_s, stages),
        "transfer_s": ([s for both in costs.transfer_s for s in both], 2 * (stages - 1)),
    }
    for name, (given, count) in counts.items():
        if len(given) != count:
            what = "boundaries" if name == "transfer_s" else "stages"
            raise ScheduleError(
                f"{schedule.name} has {stages} stages, {name} is {getattr(costs, name)}: "
                f"give one for each of the {what}"
            )
        if not all(0 <= seconds < math.inf for seconds in given):
            raise ScheduleError(
                f"{name} {getattr(costs, name)}: a time is a number of seconds from 0 up"
            )


def _when(event: Event) -> Tuple[float, float, int]:
    return event.begin_s, event.end_s, event.device


def _idle(events: Sequence[Event], whole: float) -> float:
    """The share of the time in which a device is idle; ``events``: its own."""
    computing = (event for event in events if event.instruction.op in COMPUTE)
    busy = math.fsum(event.end_s - event.begin_s for event in computing)
    return 1 - busy / whole if whole else 0.0


def _kept(schedule: PipelineSchedule, events: Sequence[Event]) -> Tuple[Kept, ...]:
    """How many microbatches a device keeps; ``events``: its own, in its order."""
    kept = [Kept(0.0, 0)]
    for event in events:
        change = keeps(schedule, event.instruction)
        if change:
            # an activation is there when its recv ends, or its forward begins
            at = event.begin_s if event.instruction.op == FORWARD else event.end_s
            kept.append(Kept(at, kept[-1].microbatches + change))
    return tuple(kept)
