"""Pipeline schedules are those of the papers."""

import pytest
from support.pipeline_reference import SCHEDULE_NAMES, expected_instructions, make_schedule

from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, from_orders, make_pipeline
from gluonlab.parallel.pipeline.verify_pipeline_schedule import verify


def list_passes(schedule, device):
    """``F0 B0``: forwards and backwards in order, with a stroke after those of a device's second stage."""
    return " ".join(
        f"{i.op[0].upper()}{i.microbatch}{chr(39) * (i.stage // schedule.devices)}"
        for i in schedule.programs[device]
        if i.op in ("forward", "backward")
    )


@pytest.mark.parametrize(
    ("name", "sizes", "device", "order"),
    [
        ("sequential", (3, 2), 1, "F0 B0 F1 B1"),
        ("sequential", (3, 2, 2), 0, "F0 F0' B0' B0 F1 F1' B1' B1"),
        # figure 2c of Huang et al.
        *(("gpipe", (4, 4), device, "F0 F1 F2 F3 B0 B1 B2 B3") for device in range(4)),
        # figure 4 of Narayanan et al.
        ("1f1b", (4, 8), 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        ("1f1b", (4, 8), 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"),
        ("1f1b", (4, 8), 2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
        ("1f1b", (4, 8), 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
        (
            "interleaved",
            (4, 8, 2),
            0,
            "F0 F1 F2 F3 F0' F1' F2' F3' F4 F5 F6 B0' F7 B1' F4' B2' F5' B3' F6' B0 F7' B1 "
            "B2 B3 B4' B5' B6' B7' B4 B5 B6 B7",
        ),
        (
            "interleaved",
            (4, 8, 2),
            3,
            "F0 F1 F2 F3 F0' B0' F1' B1' F2' B2' F3' B3' F4 B0 F5 B1 F6 B2 F7 B3 "
            "F4' B4' F5' B5' F6' B6' F7' B7' B4 B5 B6 B7",
        ),
        # no whole groups: what does not exist is left out
        ("interleaved", (2, 3, 2), 1, "F0 F1 F0' B0' F1' B1' F2 B0 B1 F2' B2' B2"),
    ],
)
def test_a_device_computes_in_the_order_of_the_papers(name, sizes, device, order):
    assert list_passes(SCHEDULES[name](*sizes), device) == order


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("microbatches", [1, 4, 7])
def test_interleaved_with_one_stage_on_each_device_is_1f1b(devices, microbatches):
    one, other = (SCHEDULES[name](devices, microbatches) for name in ("interleaved", "1f1b"))
    assert one.programs == other.programs


def test_messages_are_next_to_the_passes_that_send_and_receive_them():
    program = " ".join(f"{op}({m})" for op, _, m in SCHEDULES["1f1b"](3, 2).programs[1])
    assert program == (
        "recv_forward(0) forward(0) send_forward(0) "
        "recv_forward(1) forward(1) send_forward(1) "
        "recv_backward(0) backward(0) send_backward(0) "
        "recv_backward(1) backward(1) send_backward(1) update(-1)"
    )


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@pytest.mark.parametrize(("devices", "stages_per_device"), [(1, 1), (1, 3), (2, 2), (4, 1), (3, 3)])
def test_every_device_does_its_own_instructions_once(name, devices, stages_per_device):
    schedule = make_schedule(name, devices, 5, stages_per_device)
    assert [set(program) for program in schedule.programs] == expected_instructions(schedule)
    assert sum(map(len, schedule.programs)) == sum(map(len, expected_instructions(schedule)))


def test_custom_orders_get_messages_and_updates_and_wrong_ones_are_refused():
    first, last = ([("forward", stage, 0), ("backward", stage, 0)] for stage in (0, 1))
    own = from_orders("own", [first, last], 1)
    passes = [f"{op} of microbatch 0, stage 1" for op in ("recv_forward", "forward", "backward", "send_backward")]
    assert list(map(str, own.programs[1])) == [*passes, "update, stage 1"]
    verify(own)
    with pytest.raises(ScheduleError, match=r"device 1.*before forward of microbatch 0"):
        verify(from_orders("own", [first, last[::-1]], 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1bb", 2, 2), "unknown pipeline schedule '1f1bb': choose .* \\(did you mean '1f1b'"),
        (("gpipe", 0, 2), "gpipe: the number of devices is 0, but must be a whole number of at least 1"),
        (("gpipe", 2, 2.5), "gpipe: the number of microbatches is 2\\.5, but must be a whole number"),
        (("interleaved", 2, 2, 0), "interleaved: the number of stages on each device is 0, but must be a"),
        (("sequential", True, 2), "sequential: the number of devices is True"),
        (("gpipe", 2, 2, 2), "gpipe does not support 2 stages on each device: use one stage per device, or"),
        (("1f1b", 2, 2, 3), "1f1b does not support 3 stages on each device"),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    with pytest.raises(ScheduleError, match=message) as raised:
        make_pipeline(*arguments)
    assert "\n" not in str(raised.value)
