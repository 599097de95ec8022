"""Checks that pipeline schedules are valid, by simulating their programs without training.

`verify` simulates the programs twice. First it runs each program alone. Every instruction must be on
the right device, after its prerequisites on this device, and in the order of microbatches. Then it
runs all programs together, with bounded queues between neighboring stages. No device may wait
forever.
"""

from __future__ import annotations

from collections import Counter
from typing import Counter as Counts
from typing import Dict, Iterator, List, Tuple

from gluonlab.config.option_checks import is_positive_integer
from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_schedule import (
    BACKWARD,
    FORWARD,
    NO_MICROBATCH,
    OPS,
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    UPDATE,
    Instruction,
    PipelineSchedule,
)

DoneCounts = Counts[Tuple[str, int]]  # (op, stage) -> number of microbatches that are done
QueuedMessages = Counts[Tuple[str, int]]  # (send_..., sending stage) -> number of messages


def verify(schedule: PipelineSchedule, queue: int = 1) -> None:
    """Check that a schedule runs every microbatch forward and backward through all stages.

    - Every op of a stage processes each microbatch once, in the order 0, 1, 2, ..., on the stage's
      device. So messages reach the right receivers even without labels, and all schedules add
      gradients in the same order.
    - No instruction runs before its prerequisites. A forward needs the activation of the previous
      stage, which is received, or computed on the same device. A backward needs the forward of the
      same microbatch, and the gradient from the next stage. A stage is updated once, after all its
      backwards.
    - No device waits forever if the queue between two neighboring stages holds at most ``queue``
      messages in each direction.

    Raises:
        ScheduleError: The schedule is wrong. The attributes ``device`` and ``place`` of the error
            locate the first wrong instruction.
    """
    _check_shape(schedule, queue)
    for device in range(schedule.devices):
        _check_program(schedule, device)
    for _ in _simulate(schedule, queue):
        pass


def execution_order(schedule: PipelineSchedule, queue: int = 1) -> List[Tuple[int, Instruction]]:
    """Return all pairs (device, instruction), with each instruction after its prerequisites.

    A single host thread can queue the instructions in this order. The order switches to the next
    device after each forward or backward, so that no device waits long for its first pass. Raises
    ScheduleError if a device waits forever.
    """
    return list(_simulate(schedule, queue))


def peaks(schedule: PipelineSchedule) -> Tuple[int, ...]:
    """Return the largest number of microbatches whose activations each stage keeps at once.

    A stage keeps an activation from its recv, or from its forward, to the end of its backward.
    """
    largest = [0] * schedule.stages
    for device, program in enumerate(schedule.programs):
        current = dict.fromkeys(schedule.stages_of(device), 0)
        for instruction in program:
            current[instruction.stage] += activation_change(schedule, instruction)
            largest[instruction.stage] = max(largest[instruction.stage], current[instruction.stage])
    return tuple(largest)


def activation_change(schedule: PipelineSchedule, instruction: Instruction) -> int:
    """Return the change in the number of microbatches that the stage keeps: 1, 0 or -1."""
    first = RECV_FORWARD if schedule.crosses_devices(instruction.stage - 1) else FORWARD
    return (instruction.op == first) - (instruction.op == BACKWARD)


def _check_shape(schedule: PipelineSchedule, queue: int) -> None:
    """Raise ScheduleError for impossible numbers of devices, stages, programs or messages."""
    devices, stages, fault = schedule.devices, schedule.stages, ""
    if not all(map(is_positive_integer, (devices, stages, schedule.microbatches))):
        fault = f"{devices} devices, {stages} stages and {schedule.microbatches} microbatches: use at least one of each"
    elif stages < devices:
        fault = f"there are {stages} stages on {devices} devices: use at least one stage for each device"
    elif len(schedule.programs) != devices:
        fault = f"there are {len(schedule.programs)} programs for {devices} devices: use one for each device"
    elif not is_positive_integer(queue):
        fault = f"queue={queue!r}: use a whole number of messages, at least 1"
    if fault:
        raise ScheduleError(f"{schedule.name}: {fault}")


def _check_program(schedule: PipelineSchedule, device: int) -> None:
    """Check the program of one device alone, as if all messages to it had arrived."""
    done: DoneCounts = Counter()
    for index, instruction in enumerate(schedule.programs[device]):
        fault = _find_fault(schedule, device, done, instruction)
        if fault:
            raise _instruction_error(schedule, device, index, instruction, fault)
        done[instruction.op, instruction.stage] += 1
    for stage in schedule.stages_of(device):
        for op in _stage_ops(schedule, stage):
            count = done[op, stage]
            if count < (1 if op == UPDATE else schedule.microbatches):
                missing = Instruction(op, stage, NO_MICROBATCH if op == UPDATE else count)
                index = len(schedule.programs[device])
                raise _instruction_error(schedule, device, index, missing, "the program ends before this instruction")


def _find_fault(schedule: PipelineSchedule, device: int, done: DoneCounts, instruction: Instruction) -> str:
    """Return what is wrong with a device's next instruction, or ""."""
    op, stage, microbatch = instruction
    if op not in OPS:
        return f"{op!r} is not a valid instruction: choose {', '.join(OPS)}"
    if not (isinstance(stage, int) and 0 <= stage < schedule.stages):
        return f"the stage must be below {schedule.stages}, counted from 0"
    if schedule.device(stage) != device:
        return f"stage {stage} is on device {schedule.device(stage)}"
    if op not in _stage_ops(schedule, stage):
        return f"stage {stage} has no neighbor for this exchange"
    if op == UPDATE:
        if microbatch != NO_MICROBATCH:
            return f"an update applies to all microbatches: set its microbatch to {NO_MICROBATCH}"
        if done[op, stage]:
            return "the stage is already updated"
        if done[BACKWARD, stage] < schedule.microbatches:
            missing = Instruction(BACKWARD, stage, done[BACKWARD, stage])
            return f"it comes before {missing}, which must come first"
        return ""
    if not 0 <= microbatch < schedule.microbatches:
        return f"the microbatch must be below {schedule.microbatches}, counted from 0"
    if microbatch != done[op, stage]:
        due = done[op, stage]
        repeated = "it is already done; " if microbatch < due else ""
        return repeated + (f"microbatch {due} comes next" if due < schedule.microbatches else "no microbatch is left")
    for needed in _prerequisites(schedule, instruction):
        if done[needed.op, needed.stage] <= needed.microbatch:
            return f"it comes before {needed}, which must come first"
    return ""


def _stage_ops(schedule: PipelineSchedule, stage: int) -> List[str]:
    """Return the ops that the program of a device may contain for ``stage``."""
    before = [RECV_FORWARD, SEND_BACKWARD] * schedule.crosses_devices(stage - 1)
    after = [SEND_FORWARD, RECV_BACKWARD] * schedule.crosses_devices(stage)
    return [FORWARD, BACKWARD, *before, *after, UPDATE]


def _prerequisites(schedule: PipelineSchedule, instruction: Instruction) -> Iterator[Instruction]:
    """Yield the instructions that must precede ``instruction`` on the same device."""
    op, stage, microbatch = instruction
    if op == SEND_FORWARD:
        yield Instruction(FORWARD, stage, microbatch)
    elif op == SEND_BACKWARD:
        yield Instruction(BACKWARD, stage, microbatch)
    elif op == FORWARD and stage > 0:
        crosses = schedule.crosses_devices(stage - 1)
        yield Instruction(*((RECV_FORWARD, stage) if crosses else (FORWARD, stage - 1)), microbatch)
    elif op == BACKWARD:
        yield Instruction(FORWARD, stage, microbatch)
        if stage < schedule.stages - 1:
            crosses = schedule.crosses_devices(stage)
            after = (RECV_BACKWARD, stage) if crosses else (BACKWARD, stage + 1)
            yield Instruction(*after, microbatch)


def _simulate(schedule: PipelineSchedule, queue: int) -> Iterator[Tuple[int, Instruction]]:
    """Simulate all programs with their messages, and yield each (device, instruction) that runs.

    Raises ScheduleError for a deadlock.
    """
    next_index = [0] * schedule.devices
    queued: QueuedMessages = Counter()
    while any(index < len(program) for index, program in zip(next_index, schedule.programs)):
        previous_index = list(next_index)
        for device, program in enumerate(schedule.programs):
            while next_index[device] < len(program):
                instruction = program[next_index[device]]
                if _is_blocked(instruction, queued, queue):
                    break
                _update_queue(instruction, queued)
                next_index[device] += 1
                yield device, instruction
                if instruction.op in (FORWARD, BACKWARD):
                    break  # the device's sends, which cost no time, come in its next turn
        if next_index == previous_index:
            raise _deadlock_error(schedule, next_index, queue)


# recv -> (matching send, sending stage relative to the receiving one)
_SENDERS: Dict[str, Tuple[str, int]] = {RECV_FORWARD: (SEND_FORWARD, -1), RECV_BACKWARD: (SEND_BACKWARD, 1)}
_RECEIVERS = {SEND_FORWARD: 1, SEND_BACKWARD: -1}  # send -> receiving stage relative to the sending one


def _is_blocked(instruction: Instruction, queued: QueuedMessages, queue: int) -> bool:
    """Return True for a recv whose message has not arrived, and for a send if its queue is full."""
    op, stage, _ = instruction
    if op in _SENDERS:
        send, offset = _SENDERS[op]
        return not queued[send, stage + offset]
    return op in _RECEIVERS and queued[op, stage] >= queue


def _update_queue(instruction: Instruction, queued: QueuedMessages) -> None:
    """Add the message of a send to its queue, or remove the message of a recv."""
    op, stage, _ = instruction
    if op in _SENDERS:
        send, offset = _SENDERS[op]
        queued[send, stage + offset] -= 1
    elif op in _RECEIVERS:
        queued[op, stage] += 1


def _deadlock_error(schedule: PipelineSchedule, next_index: List[int], queue: int) -> ScheduleError:
    """Return the error for the first device in a cycle of devices that wait for each other."""

    def waits_for(device: int) -> int:
        op, stage, _ = schedule.programs[device][next_index[device]]
        offset = _SENDERS[op][1] if op in _SENDERS else _RECEIVERS[op]
        return schedule.device(stage + offset)

    device = next(d for d, program in enumerate(schedule.programs) if next_index[d] < len(program))
    for _ in range(schedule.devices):  # into the cycle
        device = waits_for(device)
    cycle = [device]
    while waits_for(cycle[-1]) != device:
        cycle.append(waits_for(cycle[-1]))
    device = min(cycle)
    instruction = schedule.programs[device][next_index[device]]
    room = f"space in a queue of {queue} message{'s' * (queue > 1)}"
    for_what = "its message" if instruction.op in _SENDERS else room
    fault = f"it waits forever for {for_what}, because device {waits_for(device)} waits as well"
    return _instruction_error(schedule, device, next_index[device], instruction, fault)


def _instruction_error(
    schedule: PipelineSchedule, device: int, index: int, instruction: Instruction, fault: str
) -> ScheduleError:
    """Return the error that reports ``fault`` at instruction ``index`` of a device's program."""
    where = f"{schedule.name}, device {device}, instruction {index} ({instruction})"
    return ScheduleError(f"{where}: {fault}", device=device, place=index)
