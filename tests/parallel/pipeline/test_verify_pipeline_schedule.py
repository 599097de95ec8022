"""The check of schedules agrees with a graph of dependencies, and names what is wrong."""

from dataclasses import replace
from itertools import accumulate, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.pipeline_reference import (
    SCHEDULE_NAMES,
    blocked_instructions,
    expected_instructions,
    first_fault,
    make_schedule,
    prerequisites,
)

from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_schedule import OPS, SCHEDULES, Instruction, PipelineSchedule
from gluonlab.parallel.pipeline.verify_pipeline_schedule import execution_order, peaks, verify

MUTATIONS = ("remove", "duplicate", "swap", "move", "op", "stage", "microbatch", "device")


def find_fault(schedule, queue=1):
    try:
        verify(schedule, queue)
    except ScheduleError as error:
        return error


@st.composite
def schedules(draw, most_devices=8, most_microbatches=32, most_stages=3):
    name, devices = draw(st.sampled_from(SCHEDULE_NAMES)), draw(st.integers(1, most_devices))
    return make_schedule(name, devices, draw(st.integers(1, most_microbatches)), draw(st.integers(1, most_stages)))


@st.composite
def mutants(draw):
    """A schedule of which one thing is changed, and the devices whose programs it is in."""
    valid = draw(schedules(4, 4, 2))
    programs = [list(program) for program in valid.programs]
    device = draw(st.integers(0, valid.devices - 1))
    program, touched = programs[device], {device}
    index = draw(st.integers(0, len(program) - 1))
    instruction, kind = program[index], draw(st.sampled_from(MUTATIONS))
    if kind == "duplicate":
        program.insert(draw(st.integers(0, len(program))), instruction)
    elif kind == "swap":
        other = draw(st.integers(0, len(program) - 1))
        program[index], program[other] = program[other], instruction
    elif kind in ("remove", "move", "device"):
        del program[index]
        if kind != "remove":
            target = device if kind == "move" else draw(st.integers(0, valid.devices - 1))
            touched.add(target)
            programs[target].insert(draw(st.integers(0, len(programs[target]))), instruction)
    else:
        limits = {"stage": valid.stages, "microbatch": valid.microbatches}
        values = st.sampled_from(OPS) if kind == "op" else st.integers(-1, limits[kind])
        program[index] = instruction._replace(**{kind: draw(values)})
    return replace(valid, programs=tuple(map(tuple, programs))), touched


@st.composite
def reordered(draw):
    """Programs that are valid each alone, in any order that this leaves."""
    valid = draw(schedules(4, 3, 2))
    programs = []
    for required in expected_instructions(valid):
        program, left = [], sorted(required)
        while left:
            ready = [
                i
                for i in left
                if not {*prerequisites(valid, i), *((i.op, i.stage, m) for m in range(i.microbatch))} & {*left}
            ]
            program.append(draw(st.sampled_from(ready)))
            left.remove(program[-1])
        programs.append(tuple(program))
    return replace(valid, name="reordered", programs=tuple(programs))


@examples(15, 30)
@given(schedules())
def test_every_schedule_is_valid_with_queues_of_one_message(schedule):
    assert find_fault(schedule) is None
    assert blocked_instructions(schedule, 1) == set()


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_every_schedule_of_the_grid_is_valid(name):
    for sizes in product(range(1, 9), range(1, 33), range(1, 4)):
        verify(make_schedule(name, *sizes))


@examples(160, 400)
@given(mutants(), st.integers(1, 3))
def test_a_mutant_is_refused_exactly_when_it_is_wrong_and_its_first_fault_is_named(mutated, queue):
    mutant, touched = mutated
    error = find_fault(mutant, queue)
    faults = [first_fault(mutant, device) for device in range(mutant.devices)]
    wrong = [device for device, fault in enumerate(faults) if fault is not None]
    if wrong:
        assert (error.device, error.place) == (wrong[0], faults[wrong[0]])
        assert error.device in touched
    else:
        assert_deadlock_is_named(mutant, queue, error)


@examples(40)
@given(reordered(), st.integers(1, 3))
def test_every_deadlock_is_refused(schedule, queue):
    assert all(first_fault(schedule, device) is None for device in range(schedule.devices))
    assert_deadlock_is_named(schedule, queue, find_fault(schedule, queue))


def assert_deadlock_is_named(schedule, queue, error):
    stuck = blocked_instructions(schedule, queue)
    assert (error is None) == (not stuck)
    if error is None:
        return
    program = schedule.programs[error.device]
    named = program[error.place]
    assert named in stuck and not stuck & set(program[: error.place])
    assert f"device {error.device}, instruction {error.place} ({named}): it waits" in str(error)
    # it depends on itself, through others
    before, seen = [named], set()
    while before:
        op = before.pop()
        at = next(p for p in schedule.programs if op in p)
        place = at.index(op)
        steps = {Instruction(*n) for n in prerequisites(schedule, op, queue)} | set(at[:place][-1:])
        before += steps & stuck - seen
        seen |= steps
    assert named in seen


@settings(max_examples=100)
@given(schedules(5, 9))
def test_execution_order_has_prerequisites_first(schedule):
    order = execution_order(schedule)
    for device, program in enumerate(schedule.programs):
        assert [i for on, i in order if on == device] == list(program)
    place = {i: n for n, (_, i) in enumerate(order)}
    for i, n in place.items():
        assert all(place[before] < n for before in prerequisites(schedule, i, queue=1))


def test_execution_order_alternates_between_devices():
    order = execution_order(SCHEDULES["gpipe"](3, 4))
    forwards = [f"{device}:{i.microbatch}" for device, i in order if i.op == "forward"]
    assert forwards[:6] == ["0:0", "0:1", "1:0", "0:2", "1:1", "2:0"]


@examples(40)
@given(st.integers(1, 8), st.integers(1, 32))
def test_peaks_are_those_of_the_papers(devices, microbatches):
    stages = range(devices)
    assert peaks(SCHEDULES["sequential"](devices, microbatches)) == (1,) * devices
    assert peaks(SCHEDULES["gpipe"](devices, microbatches)) == (microbatches,) * devices
    assert peaks(SCHEDULES["1f1b"](devices, microbatches)) == tuple(
        min(microbatches, devices - stage) for stage in stages
    )


@settings(max_examples=50)
@given(st.integers(2, 6), st.integers(2, 3), st.integers(1, 4))
def test_interleaved_keeps_as_many_microbatches_as_in_narayanan_et_al(devices, stages_per_device, groups):
    """Device 0 has one more in flight than it warms up with."""
    schedule = SCHEDULES["interleaved"](devices, groups * devices, stages_per_device)
    kept = accumulate((op == "forward") - (op == "backward") for op, _, _ in schedule.programs[0])
    warmup = 2 * (devices - 1) + (stages_per_device - 1) * devices
    assert max(kept) == min(warmup + 1, groups * devices * stages_per_device)


def change_schedule(change, name="1f1b"):
    """1f1b of 2 devices and 3 microbatches: device 0 has 3 * 4 + 1 instructions."""
    schedule = SCHEDULES[name](2, 3)
    programs = [list(program) for program in schedule.programs]
    change(*programs)
    return replace(schedule, programs=tuple(map(tuple, programs)))


def swap(program, one, other):
    program[one], program[other] = program[other], program[one]


LATE = Instruction("forward", 0, 3)


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (lambda a, b: swap(a, 0, 1), (0, 0), "before forward of microbatch 0, stage 0, which"),
        (lambda a, b: a.remove(a[1]), (0, 2), "microbatch 0 comes next"),  # send_forward 0
        (lambda a, b: a.remove(("send_forward", 0, 2)), (0, 12), "program ends before this instruction"),
        (lambda a, b: b.remove(("backward", 1, 2)), (1, 10), "before backward of microbatch 2"),
        (lambda a, b: a.insert(2, a[0]), (0, 2), "it is already done; microbatch 1 comes next"),
        (lambda a, b: a.insert(-1, LATE), (0, 12), "the microbatch must be below 3, counted from 0"),
        (lambda a, b: a.insert(9, a[0]), (0, 9), "it is already done; no microbatch is left"),
        (lambda a, b: b.insert(0, a.pop(0)), (0, 0), "before forward of microbatch 0"),
        (lambda a, b: b.insert(0, a[0]), (1, 0), "stage 0 is on device 0"),
        (lambda a, b: b.remove(("recv_forward", 1, 0)), (1, 0), "before recv_forward of microb"),
        (lambda a, b: b.insert(0, Instruction("recv_backward", 1, 0)), (1, 0), "has no neighbor"),
        (lambda a, b: b.insert(0, Instruction("recv", 1, 0)), (1, 0), "'recv' is not a valid instruction"),
        (lambda a, b: b.insert(0, Instruction("forward", 2, 0)), (1, 0), "the stage must be below 2, co"),
        (lambda a, b: a.insert(0, a.pop()), (0, 0), "before backward of microbatch 0, stage 0"),
        (lambda a, b: a.append(a[-1]), (0, 13), "the stage is already updated"),
        (lambda a, b: a.pop(), (0, 12), "(update, stage 0): the program ends before this instruction"),
        (lambda a, b: a.append(Instruction("update", 0, 0)), (0, 13), "its microbatch to -1"),
    ],
)
def test_a_fault_is_named(change, place, words):
    error = find_fault(change_schedule(change))
    assert (error.device, error.place) == place
    assert words in str(error) and "\n" not in str(error)
    assert str(error).startswith(f"1f1b, device {place[0]}, instruction {place[1]} (")


def test_devices_of_a_deadlock_are_named():
    """Device 0 waits for the gradient before it has sent the activation to device 1."""
    error = find_fault(change_schedule(lambda a, b: swap(a, 1, 2), "sequential"))
    assert (error.device, error.place) == (0, 1)
    assert str(error).endswith(
        "(recv_backward of microbatch 0, stage 0): it waits forever for its message, because device 1 waits as well"
    )


def test_a_queue_that_is_too_short_is_named():
    """Device 0 sends all activations before it receives a gradient; device 1 sends gradients before."""
    gpipe, one = SCHEDULES["gpipe"](2, 4), SCHEDULES["1f1b"](2, 4)
    mixed = replace(gpipe, name="mixed", programs=(gpipe.programs[0], one.programs[1]))
    assert find_fault(mixed, queue=2) is None
    assert str(find_fault(mixed)) == (
        "mixed, device 0, instruction 7 (send_forward of microbatch 3, stage 0): "
        "it waits forever for space in a queue of 1 message, because device 1 waits as well"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"devices": 0}, "0 devices, 2 stages and 3 microbatches: use at least one of each"),
        ({"microbatches": 0}, "2 devices, 2 stages and 0 microbatches"),
        ({"stages": 1}, "there are 1 stages on 2 devices: use at least one stage"),
        ({"programs": ()}, "0 programs for 2 devices"),
        ({"queue": 0}, "queue=0: use a whole number of messages"),
    ],
)
def test_malformed_schedules_are_refused(change, words):
    change = dict(change)
    queue = change.pop("queue", 1)
    error = find_fault(replace(SCHEDULES["gpipe"](2, 3), **change), queue)
    assert words in str(error) and (error.device, error.place) == (None, None)


def test_a_schedule_without_anything_to_do_is_refused():
    error = find_fault(PipelineSchedule("nothing", 1, 1, 1, ((),)))
    assert "nothing, device 0, instruction 0 (forward of microbatch 0, stage 0)" in str(error)
