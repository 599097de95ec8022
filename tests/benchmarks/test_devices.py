"""--devices of the measurements: which rows there are, what the workers are told, and what is said
and recorded.
"""

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gradients, host, peers
from gluonlab.bench.harness.command import Asked, MeasuredOn, cpu_devices, measured_on
from gluonlab.bench.harness.record import Record
from gluonlab.devices import devices
from gluonlab.errors import DeviceError

GPUS = MeasuredOn("gpu", (0, 3, 5), "gpu(0) gpu(3) gpu(5)", asked=True)


@pytest.mark.cpu_only("names of CPU devices, and nothing is computed")
def test_devices_that_are_named_are_found_and_told_in_words():
    on = measured_on("cpu:2,0")
    assert (on.kind, on.numbers, on.words) == ("cpu", (2, 0), "cpu(2) cpu(0)")
    assert on.title() == {"devices": "cpu(2) cpu(0)"}
    assert devices(on.first(2)) == devices("cpu:2,0")
    with pytest.raises(DeviceError, match=r"^--devices 'cqu'"):
        measured_on("cqu")


def test_workers_are_told_nothing_new_where_nobody_names_devices():
    """Those of another checkout (--beside) may not know of it."""
    for subject in [
        *peers.lenet(),
        *peers.resnet18(),
        *host.subjects(),
        *gradients.ours(cpu_devices(4), ["ring"], [2, 4], 8),
    ]:
        assert "devices" not in subject.options
    assert (cpu_devices(2).title(), cpu_devices(2).first(1)) == ({}, "cpu*1")


@given(count=st.integers(2, 8))
def test_every_row_of_ours_gets_as_many_devices_as_it_is_named_after(count):
    on = MeasuredOn("gpu", tuple(range(1, count + 1)), "", asked=True)
    rows = [
        *peers.lenet(on),
        *peers.resnet18(on),
        *host.subjects(on),
        *gradients.ours(on, ["ring"], on.counts([2, 4]), 8),
    ]
    ours = [row for row in rows if row.missing is None]
    assert len(ours) > 8
    for row in ours:
        told = row.options["devices"].partition(":")[2].split(",")
        assert told == [str(number) for number in range(1, len(told) + 1)]
        assert len(told) == row.options.get("device_count", row.options.get("world_size"))


def test_what_is_measured_on_cpus_only_says_so():
    missing = [row for row in [*peers.lenet(GPUS), *host.subjects(GPUS)] if row.missing]
    assert {row.job for row in missing} == {"torch", "torch-ddp", "efficiency"}
    assert all("CPU" in str(row.missing) for row in missing)


@pytest.mark.cpu_only("names of CPU devices, and nothing is computed")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["peers", "--devices", "cpu:0"],
            "--devices cpu:0: the rows compare several devices with one: name two or more",
        ),
        (
            ["gradients", "--devices", "cpu:0"],
            "--devices cpu:0: one device has no other to sum with: name two or more",
        ),
        (["gradients", "--devices", "cpu:0,1", "--world-sizes", "4"], "--world-sizes 4"),
        (["host", "--devices", "gpu:x"], "--devices 'gpu:x'"),
    ],
)
def test_devices_that_say_nothing_to_a_measurement_are_refused(words, said):
    command = {"gradients": gradients, "host": host, "peers": peers}[words[0]]
    ended = CliRunner().invoke(command.main, words[1:])
    assert ended.exit_code == 2
    assert said in ended.output + str(ended.stderr_bytes or b"")


def test_text_and_record_say_on_what_was_measured(capsys):
    record = Record("host", GPUS.title(), 1, "0", {}, ())
    Asked(1, True, None).say(record, "table", GPUS)
    assert '"options": {"devices": "gpu(0) gpu(3) gpu(5)"}' in capsys.readouterr().out
    Asked(1, False, None).say(record, "table", GPUS)
    assert re.search(r"\ndevices: gpu\(0\) gpu\(3\) gpu\(5\)\n\ntable\n$", capsys.readouterr().out)
