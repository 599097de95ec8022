"""Reference implementation of pipeline schedules as dependency graphs, without execution.

A schedule is valid if its programs contain exactly the required instructions, each operation of a
stage in the order of microbatches, and if the graph has no cycle.
"""

from functools import lru_cache

from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, Instruction

SCHEDULE_NAMES = sorted(SCHEDULES)
SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")  # on each device


def make_schedule(name, devices, microbatches, stages_per_device):
    """Return a schedule; single-stage schedules ignore ``stages_per_device``."""
    stage_count = 1 if name in SINGLE_STAGE_SCHEDULES else stages_per_device
    return SCHEDULES[name](devices, microbatches, stage_count)


def expected_instructions(schedule):
    """Return the set of required instructions of each device."""
    last, many = schedule.stages - 1, range(schedule.microbatches)
    device_instructions = [set() for _ in range(schedule.devices)]
    for stage in range(schedule.stages):
        ops = ["forward", "backward"]
        if schedule.devices > 1:
            ops += ["recv_forward", "send_backward"] if stage > 0 else []
            ops += ["send_forward", "recv_backward"] if stage < last else []
        own = device_instructions[stage % schedule.devices]
        own.update(Instruction(op, stage, m) for op in ops for m in many)
        own.add(Instruction("update", stage, -1))
    return device_instructions


def prerequisites(schedule, instruction, queue=None):
    """Yield the instructions on which an instruction depends, on any device."""
    op, stage, m = instruction
    last, apart = schedule.stages - 1, schedule.devices > 1
    if op == "forward" and stage > 0:
        yield ("recv_forward", stage, m) if apart else ("forward", stage - 1, m)
    if op == "backward":
        yield "forward", stage, m
        if stage < last:
            yield ("recv_backward", stage, m) if apart else ("backward", stage + 1, m)
    if op == "send_forward":
        yield "forward", stage, m
        if queue and m >= queue:
            yield "recv_forward", stage + 1, m - queue
    if op == "send_backward":
        yield "backward", stage, m
        if queue and m >= queue:
            yield "recv_backward", stage - 1, m - queue
    if op == "recv_forward":
        yield "send_forward", stage - 1, m
    if op == "recv_backward":
        yield "send_backward", stage + 1, m
    if op == "update":
        yield from (("backward", stage, other) for other in range(schedule.microbatches))


def first_fault(schedule, device):
    """Return the index of a device's first invalid instruction; None if all are valid."""
    required, program = expected_instructions(schedule)[device], schedule.programs[device]
    for index, instruction in enumerate(program):
        op, stage, m = instruction
        earlier = set(program[:index])
        dependencies = [n for n in prerequisites(schedule, instruction) if n in required]
        in_order = all((op, stage, other) in earlier for other in range(m))
        is_unique = instruction in required and instruction not in earlier
        if not (is_unique and in_order and earlier.issuperset(dependencies)):
            return index
    return None if required == set(program) else len(program)


def blocked_instructions(schedule, queue):
    """Return the instructions on a cycle of the graph or after one; programs are complete."""
    before = {}
    for program in schedule.programs:
        for place, instruction in enumerate(program):
            before[instruction] = {Instruction(*n) for n in prerequisites(schedule, instruction, queue)}
            before[instruction].update(program[max(place - 1, 0) : place])
    left, free = set(before), [i for i, needs in before.items() if not needs]
    while free:
        left.difference_update(free)
        free = [i for i in left if not before[i] & left]
    return left


def end_times(schedule, costs):
    """Return {instruction: end time}, by the longest paths through the graph."""
    at = {i: (program, n) for program in schedule.programs for n, i in enumerate(program)}

    @lru_cache(maxsize=None)
    def end(instruction):
        op, stage, m = instruction
        program, place = at[instruction]
        before = [end(Instruction(*n)) for n in prerequisites(schedule, instruction)]
        # a send delays only the next send of its device to the same stage
        earlier = [i for i in program[:place] if not i.op.startswith("send")][-1:]
        if op.startswith("send") and m:
            earlier.append(Instruction(op, stage, m - 1))
        seconds = {
            "forward": lambda: costs.forward_s[stage],
            "backward": lambda: costs.backward_s[stage],
            "update": lambda: costs.update_s[stage],
            "send_forward": lambda: costs.transfer_s[stage][0],
            "send_backward": lambda: costs.transfer_s[stage - 1][1],
        }.get(op, lambda: 0)()
        return max([0, *before, *map(end, earlier)]) + seconds

    return {instruction: end(instruction) for instruction in at}
