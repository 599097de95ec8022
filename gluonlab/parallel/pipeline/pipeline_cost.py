"""Cost model of pipeline schedules: the start and end of each instruction, and idle times.

- A device runs the instructions of its program in order, one at a time. Each instruction starts as
  soon as its inputs exist.
- A send takes as long as the transfer, but the device continues in the meantime. Messages from one
  stage in one direction travel one after the other.
- A recv waits for its message. Queues are unlimited.

The bubble is the fraction of the devices' time in which they compute nothing. (Narayanan et al.,
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
from gluonlab.parallel.pipeline.verify_pipeline_schedule import activation_change, execution_order

COMPUTE_OPS = (FORWARD, BACKWARD, UPDATE)  # operations that keep a device busy


@dataclass(frozen=True)
class Costs:
    """Seconds that each operation takes for one microbatch.

    Attributes:
        forward_s: Duration of the forward pass, by stage.
        backward_s: Duration of the backward pass, by stage.
        transfer_s: Durations of the transfers (activation, gradient), by boundary between two
            stages.
        update_s: Duration of the update, by stage. A step has one update for all microbatches.
    """

    forward_s: Tuple[float, ...]
    backward_s: Tuple[float, ...]
    transfer_s: Tuple[Tuple[float, float], ...]
    update_s: Tuple[float, ...]

    @classmethod
    def uniform(
        cls,
        stages: int,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        transfer_s: float = 0.0,
        update_s: float = 0.0,
    ) -> Costs:
        """Return costs that are the same for all stages and for both directions of transfers."""
        return cls(
            (forward_s,) * stages,
            (backward_s,) * stages,
            ((transfer_s, transfer_s),) * (stages - 1),
            (update_s,) * stages,
        )

    def seconds(self, instruction: Instruction) -> float:
        """Return how many seconds an instruction takes: 0 for a recv, which only waits."""
        op, stage, _ = instruction
        if op == SEND_FORWARD:
            return self.transfer_s[stage][0]
        if op == SEND_BACKWARD:
            return self.transfer_s[stage - 1][1]
        by_op = {FORWARD: self.forward_s, BACKWARD: self.backward_s, UPDATE: self.update_s}
        return by_op[op][stage] if op in by_op else 0.0


def equal_shares(schedule: PipelineSchedule) -> Costs:
    """Return assumed costs, for comparing schedules of a network whose real costs are unknown.

    All stages have equal costs. On each device, the forward pass through all its stages takes 1 ms.
    The backward pass takes 2 ms, since it computes the gradients of both weights and inputs.
    Transfers take no time.
    """
    stages_per_device = schedule.stages / schedule.devices
    return Costs.uniform(schedule.stages, 1e-3 / stages_per_device, 2e-3 / stages_per_device)


class Event(NamedTuple):
    """An instruction with its start and end.

    For a send, ``begin_s`` and ``end_s`` refer to the transfer. For a recv, ``begin_s`` and
    ``end_s`` refer to the wait.
    """

    device: int
    instruction: Instruction
    begin_s: float
    end_s: float


class StashedActivations(NamedTuple):
    """Number of microbatches whose activations a device keeps from ``at_s`` on."""

    at_s: float
    microbatches: int


@dataclass(frozen=True)
class PipelineTimeline:
    """The result of `predict_timeline`.

    Attributes:
        events: All instructions, sorted by start time.
        seconds: Duration of the step.
        bubbles: The fraction of the time in which each device is idle.
        kept: For each device, the number of microbatches whose activations it keeps, over time.
    """

    events: Tuple[Event, ...]
    seconds: float
    bubbles: Tuple[float, ...]
    kept: Tuple[Tuple[StashedActivations, ...], ...]

    @property
    def bubble(self) -> float:
        """Fraction of all devices' time in which they are idle."""
        return math.fsum(self.bubbles) / len(self.bubbles)


def predict_timeline(schedule: PipelineSchedule, costs: Costs) -> PipelineTimeline:
    """Compute the start and end of each instruction in a valid schedule.

    Raises:
        ScheduleError: The costs are for another number of stages, a duration is negative, or a
            device waits forever.
    """
    _check_costs(schedule, costs)
    free_at = [0.0] * schedule.devices  # by device: end of its previous instruction
    ends: Dict[Instruction, float] = {}
    events: List[Event] = []
    for device, instruction in execution_order(schedule, queue=schedule.microbatches):
        begin, seconds = free_at[device], costs.seconds(instruction)
        op, stage, microbatch = instruction
        end = begin + seconds
        if op in (SEND_FORWARD, SEND_BACKWARD):
            begin = max(begin, ends.get(Instruction(op, stage, microbatch - 1), 0.0))
            end = begin + seconds
        elif op == RECV_FORWARD:
            free_at[device] = end = max(begin, ends[Instruction(SEND_FORWARD, stage - 1, microbatch)])
        elif op == RECV_BACKWARD:
            free_at[device] = end = max(begin, ends[Instruction(SEND_BACKWARD, stage + 1, microbatch)])
        else:
            free_at[device] = end
        ends[instruction] = end
        events.append(Event(device, instruction, begin, end))
    total_s = max(free_at)
    events_by_device: List[List[Event]] = [[] for _ in range(schedule.devices)]
    for event in events:
        events_by_device[event.device].append(event)
    bubbles = tuple(_idle_share(of_device, total_s) for of_device in events_by_device)
    kept = tuple(_stashed_activations(schedule, of_device) for of_device in events_by_device)
    return PipelineTimeline(tuple(sorted(events, key=_event_order)), total_s, bubbles, kept)


def ideal_bubble(devices: int, microbatches: int, stages_per_device: int = 1) -> float:
    """Return the bubble of 1F1B with equal stages and free transfers: (p-1) / (v m + p-1).

    Here p is the number of devices, m the number of microbatches, and v the number of stages per
    device. If v > 1, m must be a multiple of p.
    """
    idle_slots = devices - 1
    return idle_slots / (stages_per_device * microbatches + idle_slots)


def _check_costs(schedule: PipelineSchedule, costs: Costs) -> None:
    """Raise ScheduleError for costs of another number of stages, or for a negative duration."""
    stages = schedule.stages
    counts = {
        "forward_s": (costs.forward_s, stages),
        "backward_s": (costs.backward_s, stages),
        "update_s": (costs.update_s, stages),
        "transfer_s": ([s for both in costs.transfer_s for s in both], 2 * (stages - 1)),
    }
    for name, (times, count) in counts.items():
        if len(times) != count:
            expected = "one pair for each boundary between stages" if name == "transfer_s" else "one number per stage"
            raise ScheduleError(
                f"{schedule.name} has {stages} stages, but {name} is {getattr(costs, name)}: use {expected}"
            )
        if not all(0 <= seconds < math.inf for seconds in times):
            raise ScheduleError(f"{name}={getattr(costs, name)}: must be durations in seconds, each at least 0")


def _event_order(event: Event) -> Tuple[float, float, int]:
    return event.begin_s, event.end_s, event.device


def _idle_share(events: Sequence[Event], total_s: float) -> float:
    """Return the fraction of the time in which a device with these events is idle."""
    computing = (event for event in events if event.instruction.op in COMPUTE_OPS)
    busy = math.fsum(event.end_s - event.begin_s for event in computing)
    return 1 - busy / total_s if total_s else 0.0


def _stashed_activations(schedule: PipelineSchedule, events: Sequence[Event]) -> Tuple[StashedActivations, ...]:
    """Return the number of microbatches whose activations a device keeps, after each change.

    The first item is the number at the start.
    """
    kept = [StashedActivations(0.0, 0)]
    for event in events:
        change = activation_change(schedule, event.instruction)
        if change:
            # Memory is needed from the end of a recv, or from the start of a forward.
            at = event.begin_s if event.instruction.op == FORWARD else event.end_s
            kept.append(StashedActivations(at, kept[-1].microbatches + change))
    return tuple(kept)
