"""The proof that a pipeline schedule is right, by running its programs on symbols.

`check` goes through the programs twice. First each alone: whether every instruction stands on the
right device, after all that it needs from this device, and in the order of microbatches. Then all
together, with queues of bounded length between neighbouring stages: whether anyone waits for ever.
"""

from __future__ import annotations

from collections import Counter
from typing import Counter as Counts
from typing import Dict, Iterator, List, Tuple

from gluonlab.config.option_types import is_positive_integer
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

Done = Counts[Tuple[str, int]]  # of each (op, stage): how many microbatches, from 0 on
Lying = Counts[Tuple[str, int]]  # messages, of each (send_..., the stage that sent them)


def check(schedule: PipelineSchedule, queue: int = 1) -> None:
    """Prove that ``schedule`` carries every microbatch forward and backward through all stages.

    - Every op of a stage takes the microbatches in the order 0, 1, 2, ..., each once, on the
      stage's device. So messages, which neither MPI nor NCCL tell apart, reach those for whom they
      are, and gradients are added up in the same order under every schedule.
    - Nothing runs before what it needs. A forward needs the activation of the stage before, which
      is received, or computed on the same device. A backward needs its own forward, and the
      gradient of the stage after. A stage's update comes once, after all its backwards.
    - Nothing waits for ever where at most ``queue`` messages lie between two neighbouring stages,
      each way.

    Raises ScheduleError, whose ``device`` and ``place`` are those of the first wrong instruction.
    """
    _check_shape(schedule, queue)
    for device in range(schedule.devices):
        _check_program(schedule, device)
    for _ in _run(schedule, queue):
        pass


def in_order(schedule: PipelineSchedule, queue: int = 1) -> List[Tuple[int, Instruction]]:
    """(device, instruction) for all of them, each after all that it needs.

    It is what a single host thread queues: devices take turns of one forward or backward each, so
    that none waits long for its first work. Raises ScheduleError where a device waits for ever.
    """
    return list(_run(schedule, queue))


def peaks(schedule: PipelineSchedule) -> Tuple[int, ...]:
    """For each stage: the most microbatches whose activations it keeps at once.

    It keeps one from when it is received, or goes forward, until its backward has ended.
    """
    most = [0] * schedule.stages
    for device, program in enumerate(schedule.programs):
        kept = dict.fromkeys(schedule.stages_of(device), 0)
        for instruction in program:
            kept[instruction.stage] += keeps(schedule, instruction)
            most[instruction.stage] = max(most[instruction.stage], kept[instruction.stage])
    return tuple(most)


def keeps(schedule: PipelineSchedule, instruction: Instruction) -> int:
    """By how many the instruction changes the number of microbatches that its stage keeps."""
    first = RECV_FORWARD if schedule.joined(instruction.stage - 1) else FORWARD
    return (instruction.op == first) - (instruction.op == BACKWARD)


def _check_shape(schedule: PipelineSchedule, queue: int) -> None:
    devices, stages, fault = schedule.devices, schedule.stages, ""
    if not all(map(is_positive_integer, (devices, stages, schedule.microbatches))):
        fault = (
            f"{devices} devices, {stages} stages and {schedule.microbatches} microbatches: "
            "there must be one of each"
        )
    elif stages < devices:
        fault = f"stages={stages} on {devices} devices: each device must have one"
    elif len(schedule.programs) != devices:
        fault = f"{len(schedule.programs)} programs for {devices} devices: each has one"
    elif not is_positive_integer(queue):
        fault = f"queues of {queue!r} messages: a whole number from 1 up is possible"
    if fault:
        raise ScheduleError(f"{schedule.name}: {fault}")


def _check_program(schedule: PipelineSchedule, device: int) -> None:
    """Check what a device does, as far as it depends on nobody else."""
    done: Done = Counter()
    for place, instruction in enumerate(schedule.programs[device]):
        fault = _fault(schedule, device, done, instruction)
        if fault:
            raise _error(schedule, device, place, instruction, fault)
        done[instruction.op, instruction.stage] += 1
    for stage in schedule.stages_of(device):
        for op in _ops_of(schedule, stage):
            count = done[op, stage]
            if count < (1 if op == UPDATE else schedule.microbatches):
                missing = Instruction(op, stage, NO_MICROBATCH if op == UPDATE else count)
                place = len(schedule.programs[device])
                raise _error(schedule, device, place, missing, "the program ends without it")


def _fault(schedule: PipelineSchedule, device: int, done: Done, instruction: Instruction) -> str:
    """What is wrong with the instruction after those of this device that are done; or nothing."""
    op, stage, microbatch = instruction
    if op not in OPS:
        return f"{op!r} is no instruction: choose {', '.join(OPS)}"
    if not (isinstance(stage, int) and 0 <= stage < schedule.stages):
        return f"there are {schedule.stages} stages, counted from 0"
    if schedule.device(stage) != device:
        return f"stage {stage} lies on device {schedule.device(stage)}"
    if op not in _ops_of(schedule, stage):
        return f"stage {stage} has nobody to exchange this with"
    if op == UPDATE:
        if microbatch != NO_MICROBATCH:
            return f"an update is for all microbatches: its microbatch is {NO_MICROBATCH}"
        if done[op, stage]:
            return "the stage has been updated before"
        if done[BACKWARD, stage] < schedule.microbatches:
            missing = Instruction(BACKWARD, stage, done[BACKWARD, stage])
            return f"it comes before {missing}, which it needs"
        return ""
    if not 0 <= microbatch < schedule.microbatches:
        return f"there are {schedule.microbatches} microbatches, counted from 0"
    if microbatch != done[op, stage]:
        again = "it is done already; " if microbatch < done[op, stage] else ""
        due = done[op, stage]
        return again + (
            f"microbatch {due} comes next"
            if due < schedule.microbatches
            else "no microbatch is left"
        )
    for needed in _needs(schedule, instruction):
        if done[needed.op, needed.stage] <= needed.microbatch:
            return f"it comes before {needed}, which it needs"
    return ""


def _ops_of(schedule: PipelineSchedule, stage: int) -> List[str]:
    """The ops that a stage has."""
    before = [RECV_FORWARD, SEND_BACKWARD] * schedule.joined(stage - 1)
    after = [SEND_FORWARD, RECV_BACKWARD] * schedule.joined(stage)
    return [FORWARD, BACKWARD, *before, *after, UPDATE]


def _needs(schedule: PipelineSchedule, instruction: Instruction) -> Iterator[Instruction]:
    """What must have been done on the same device before the instruction."""
    op, stage, microbatch = instruction
    if op == SEND_FORWARD:
        yield Instruction(FORWARD, stage, microbatch)
    elif op == SEND_BACKWARD:
        yield Instruction(BACKWARD, stage, microbatch)
    elif op == FORWARD and stage > 0:
        crosses = schedule.joined(stage - 1)
        yield Instruction(*((RECV_FORWARD, stage) if crosses else (FORWARD, stage - 1)), microbatch)
    elif op == BACKWARD:
        yield Instruction(FORWARD, stage, microbatch)
        if stage < schedule.stages - 1:
            crosses = schedule.joined(stage)
            after = (RECV_BACKWARD, stage) if crosses else (BACKWARD, stage + 1)
            yield Instruction(*after, microbatch)


def _run(schedule: PipelineSchedule, queue: int) -> Iterator[Tuple[int, Instruction]]:
    """Carry out all programs; raise for the first device when nobody can go on."""
    at = [0] * schedule.devices
    lying: Lying = Counter()
    while any(place < len(program) for place, program in zip(at, schedule.programs)):
        before = list(at)
        for device, program in enumerate(schedule.programs):
            while at[device] < len(program):
                instruction = program[at[device]]
                if _waits(instruction, lying, queue):
                    break
                _exchange(instruction, lying)
                at[device] += 1
                yield device, instruction
                if instruction.op in (FORWARD, BACKWARD):
                    break  # its sends, which cost it no time, come in its next turn
        if at == before:
            raise _deadlock(schedule, at, queue)


# Of each recv: the send whose message it takes, and how far from its own stage that comes from.
_SENDERS: Dict[str, Tuple[str, int]] = {
    RECV_FORWARD: (SEND_FORWARD, -1),
    RECV_BACKWARD: (SEND_BACKWARD, 1),
}
_RECEIVERS = {SEND_FORWARD: 1, SEND_BACKWARD: -1}  # how far from its own stage the message goes


def _waits(instruction: Instruction, lying: Lying, queue: int) -> bool:
    """Whether its message is not there yet, or there is no room for another one."""
    op, stage, _ = instruction
    if op in _SENDERS:
        send, beside = _SENDERS[op]
        return not lying[send, stage + beside]
    return op in _RECEIVERS and lying[op, stage] >= queue


def _exchange(instruction: Instruction, lying: Lying) -> None:
    """Take its message from the queue, or put it there."""
    op, stage, _ = instruction
    if op in _SENDERS:
        send, beside = _SENDERS[op]
        lying[send, stage + beside] -= 1
    elif op in _RECEIVERS:
        lying[op, stage] += 1


def _deadlock(schedule: PipelineSchedule, at: List[int], queue: int) -> ScheduleError:
    """Names the first device of those that wait for each other, all around."""

    def waits_for(device: int) -> int:
        op, stage, _ = schedule.programs[device][at[device]]
        beside = _SENDERS[op][1] if op in _SENDERS else _RECEIVERS[op]
        return schedule.device(stage + beside)

    device = next(d for d, program in enumerate(schedule.programs) if at[d] < len(program))
    for _ in range(schedule.devices):  # into the circle
        device = waits_for(device)
    circle = [device]
    while waits_for(circle[-1]) != device:
        circle.append(waits_for(circle[-1]))
    device = min(circle)
    instruction = schedule.programs[device][at[device]]
    room = f"room among {queue} message{'s' * (queue > 1)}"
    for_what = "its message" if instruction.op in _SENDERS else room
    fault = f"it waits for {for_what} for ever, as device {waits_for(device)} waits, too"
    return _error(schedule, device, at[device], instruction, fault)


def _error(
    schedule: PipelineSchedule, device: int, place: int, instruction: Instruction, fault: str
) -> ScheduleError:
    where = f"{schedule.name}, device {device}, instruction {place} ({instruction})"
    return ScheduleError(f"{where}: {fault}", device=device, place=place)
