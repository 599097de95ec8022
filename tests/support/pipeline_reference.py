"""What a pipeline schedule is, once more: as a graph of what must come before what.

Nothing is run here. A schedule is right when its programs hold exactly the instructions that they
must, every op of a stage in the order of microbatches, and the graph has no circle.
"""

from functools import lru_cache

from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, Instruction

SCHEDULE_NAMES = sorted(SCHEDULES)
SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")  # on each device


def make_schedule(name, devices, microbatches, stages_per_device):
    """The schedule; where it knows one stage on each device only, of one."""
    several = 1 if name in SINGLE_STAGE_SCHEDULES else stages_per_device
    return SCHEDULES[name](devices, microbatches, several)


def expected_instructions(schedule):
    """The instructions that each device must carry out."""
    last, many = schedule.stages - 1, range(schedule.microbatches)
    of_device = [set() for _ in range(schedule.devices)]
    for stage in range(schedule.stages):
        ops = ["forward", "backward"]
        if schedule.devices > 1:
            ops += ["recv_forward", "send_backward"] if stage > 0 else []
            ops += ["send_forward", "recv_backward"] if stage < last else []
        own = of_device[stage % schedule.devices]
        own.update(Instruction(op, stage, m) for op in ops for m in many)
        own.add(Instruction("update", stage, -1))
    return of_device


def prerequisites(schedule, instruction, queue=None):
    """What must be done before the instruction, wherever it is done."""
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
    """The place of the first instruction that is wrong, whatever others do; None if none is."""
    must, program = expected_instructions(schedule)[device], schedule.programs[device]
    for place, instruction in enumerate(program):
        op, stage, m = instruction
        earlier = set(program[:place])
        before = [n for n in prerequisites(schedule, instruction) if n in must]
        in_turn = all((op, stage, other) in earlier for other in range(m))
        alone = instruction in must and instruction not in earlier
        if not (alone and in_turn and earlier.issuperset(before)):
            return place
    return None if must == set(program) else len(program)


def blocked_instructions(schedule, queue):
    """The instructions that lie on a circle of the graph, or behind one; programs are complete."""
    before = {}
    for program in schedule.programs:
        for place, instruction in enumerate(program):
            before[instruction] = {
                Instruction(*n) for n in prerequisites(schedule, instruction, queue)
            }
            before[instruction].update(program[max(place - 1, 0) : place])
    left, free = set(before), [i for i, needs in before.items() if not needs]
    while free:
        left.difference_update(free)
        free = [i for i in left if not before[i] & left]
    return left


def end_times(schedule, costs):
    """{instruction: when it ends}: the longest way to it through the graph."""
    at = {i: (program, n) for program in schedule.programs for n, i in enumerate(program)}

    @lru_cache(maxsize=None)
    def end(instruction):
        op, stage, m = instruction
        program, place = at[instruction]
        before = [end(Instruction(*n)) for n in prerequisites(schedule, instruction)]
        # a send delays nothing on its own device, but the next send to the same stage
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
