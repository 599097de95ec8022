"""The commands of tools/benchmarks: mistakes, tables, and records."""

import importlib
import json
import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench_command import AVAILABLE_ALGORITHMS, make_measurement
from support.commands import read_error_line
from support.devices import device_spec, runs_on_gpus
from support.processes import REPOSITORY

from benchmarks import advice, checkpoints, frameworks, gradients, images, overhead
from benchmarks.__main__ import COMMANDS, main
from benchmarks.images import BATCH_SIZE, Photographs
from gluonlab.bench import splits, workloads
from gluonlab.bench.__main__ import TOOLS
from gluonlab.bench.harness.interleaved_rounds import Measurement
from gluonlab.bench.harness.machine_info import OtherProcessLoad
from gluonlab.bench.harness.measurement_command import MeasuredDevices, cpu_devices
from gluonlab.bench.harness.measurement_record import Series, read_record
from gluonlab.bench.workloads import Task
from gluonlab.errors import GluonlabWarning
from gluonlab.host.resources import ISA_LIMIT_VARIABLE

REFERENCE = frameworks.lenet_subjects()[0].name
# an answer for any job
ANSWER = {"seconds": 0.5, "images": 64.0, "beside": 0.5, **dict.fromkeys([*overhead.COLUMNS, *overhead.KERNELS], 2.0)}


@pytest.fixture
def one_row(monkeypatch):
    measure = lambda subjects, rounds: [make_measurement(REFERENCE, 10, [1.0] * rounds)]  # noqa: E731
    monkeypatch.setattr(frameworks, "measure_subjects", measure)


def test_the_command_lists_its_measurements(capsys):
    main([])
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert set(COMMANDS) == {name for name in TOOLS if TOOLS[name] == f"benchmarks.{name}"}


@pytest.mark.cpu_only("names of CPU devices, and nothing is computed")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("framework", "did you mean 'frameworks'?"),
        ("frameworks --rounds 0", "--rounds 0: must be a whole number"),
        ("frameworks --model resnet", "unknown model 'resnet'"),
        ("frameworks --devices cpu:0", "the rows compare several devices with one: pass at least two"),
        ("overhead --devices gpu:x", "--devices 'gpu:x'"),
        ("overhead --restart-every 2", "2 requires --baseline DIR: add it"),
        ("overhead --baseline .", "does not contain gluonlab/bench"),
        (f"overhead --baseline {REPOSITORY} --json", "use --out-file FILE"),
        (f"overhead --baseline {REPOSITORY} --restart-every 0", "--restart-every 0: must be a whole number"),
        ("threads --spin-counts many", "--spin-counts many"),
        ("overlap --model lenett", "choose lenet, resnet18 (did you mean 'lenet'?)"),
        ("overlap --devices cpu", "one device has nothing to reduce: pass at least two"),
        ("checkpoints --model lanet", "unknown model 'lanet': choose lenet, "),
        ("checkpoints --devices cpu:0", "a comparison of replicas requires at least 2 devices"),
        ("gradients --kvstores devise", "unknown kvstore 'devise': choose all, "),
        ("gradients --kvstores nccl", "unknown kvstore 'nccl'"),
        ("gradients --device-counts 1", "--device-counts 1: must be a whole number from 2 to 256"),
        ("gradients --devices cpu:0", "an allreduce requires several devices: pass at least two"),
        ("gradients --devices cpu:0,1 --device-counts 4", "--device-counts 4"),
        ("gradients --bytes 1KB,2KB", "--bytes 1KB,2KB: pass a single size"),
        ("gradients --bytes x", "--bytes x: use a size"),
    ],
)
def test_a_mistake_is_one_line(words, message, bench, empty_cwd):
    assert message in read_error_line(bench(*words.split()), empty_cwd)


BENCH_IN_RECORDS = {"frameworks": "peers", "overhead": "host"}  # earlier versions read these names, too


@pytest.mark.parametrize("name", ["frameworks", "overhead", "optimize", "overlap", "images", "threads"])
def test_answers_of_workers_become_a_table_of_80_columns_and_a_record(name, bench, monkeypatch):
    """The last subject could not be measured."""

    def measure(subjects, rounds, *_):
        measurements = [Measurement(subject, [ANSWER] * rounds, 1) for subject in subjects]
        measurements[-1].fail("it died " * 30)
        return measurements

    monkeypatch.setattr(importlib.import_module(f"benchmarks.{name}"), "measure_subjects", measure)
    monkeypatch.setattr(images, "SETS", (Photographs(20, 16, 8, BATCH_SIZE + 2),))
    status, out, err = bench(name, "--rounds", "2")
    assert (status, err) == (0, "") and max(map(len, out.splitlines())) <= 81
    assert "it died" in out or name == "threads"
    record = json.loads(bench(name, "--rounds", "2", "--json")[1])
    *complete, broken = record["series"]
    assert record["bench"] == BENCH_IN_RECORDS.get(name, name) and broken["reason"].startswith("it died")
    assert {len(series["values"]) for series in complete if "reason" not in series} == {2}


@given(count=st.integers(2, 8))
def test_workers_get_as_many_of_the_users_devices_as_their_row_has(count):
    """They get none if the user names no devices: an older checkout may not know the option."""
    named = MeasuredDevices("gpu", tuple(range(1, count + 1)), "", named_by_user=True)
    for devices in (named, cpu_devices(4)):
        rows = [
            *frameworks.lenet_subjects(devices),
            *frameworks.resnet18_subjects(devices),
            *overhead.make_subjects(devices),
        ]
        rows += gradients.our_subjects(devices, ["ring"], devices.available_counts([2, 4]), 8)
        with_devices = [row.options for row in rows if row.missing is None and "devices" in row.options]
        assert len(with_devices) > 8 if devices.named_by_user else not with_devices
        for options in with_devices:
            row_count = options.get("device_count", options.get("world_size"))
            assert options["devices"] == f"gpu:{','.join(map(str, range(1, row_count + 1)))}"


def test_gradients_are_measured_and_judged(bench, monkeypatch):
    monkeypatch.setattr(gradients, "resnet18_shapes", lambda: [(3, 5), (70,)])
    options = "--rounds 1 --bytes 2KB --device-counts 2 --kvstores device,sharded-optimizer"
    args = ["gradients", "--devices", device_spec(2), *options.split()]
    status, out, err = bench(*args)
    assert (status, err) == (0, "") and max(map(len, out.split("\n"))) <= 80
    assert out.count("reached\n") == (6 if runs_on_gpus() else 8)
    assert "2 gradients, 85 numbers, on 2 devices" in out
    status, out, _ = bench(*args, "--json")
    values = {series["name"]: series["values"] for series in json.loads(out)["series"]}
    assert status == 0 and all(len(numbers) == 1 and numbers[0] > 0 for numbers in values.values())
    stores = ("device", "sharded-optimizer")
    steps = [f"step 2 {trainer} {store}" for trainer in gradients.TRAINERS for store in stores]
    assert [name for name in values if name.startswith("step")] == steps
    sums = {tuple(name.split(" ", 3)[1:]) for name in values if name.startswith("allreduce")}
    several, one = ({name for _, arrays, name in sums if arrays == count} for count in ("16", "1"))
    limit = () if runs_on_gpus() else (gradients.LIMIT,)  # of the host's memory
    assert several == {*AVAILABLE_ALGORITHMS, *limit} and one == several - {"sharded-whole"}


@pytest.mark.long
def test_checkpoints_are_measured_and_nothing_is_left(bench, tmp_path, monkeypatch):
    tiny = Task("LeNet 28x28", "lenet", (1, 28, 28), 4)
    monkeypatch.setitem(checkpoints.TASKS, "lenet", tiny)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    args = ["checkpoints", "--model", "lenet", "--devices", device_spec(2), "--rounds", "1"]
    status, out, err = bench(*args, "--json")
    assert (status, err) == (0, "") and not list(tmp_path.iterdir())
    series = [Series(**fields) for fields in json.loads(out)["series"]]
    assert tuple(row.name for row in series) == checkpoints.NAMES
    assert all(len(row.values) == 1 and row.values[0] > 0 for row in series)
    text = checkpoints.format_results(series[:2], checkpoints.TASKS["resnet18"], 2, 1)
    assert max(map(len, text.split("\n"))) <= 80 and "reached" in text and "not measured" in text


@pytest.mark.parametrize("kept", [7, 8])
def test_predictions_hold_if_eight_of_ten_trainings_reach_four_fifths_of_the_gain(kept):
    """Each training has a predicted gain of 2x, except the last one without advice."""
    *advised, last = advice.TRAININGS
    series = [
        Series("plain", "plain", "s", (1.0, 2.0, 1.0)),
        Series("profiled", "profiled", "s", (1.02, 2.04, 9.0)),
        Series(f"promised {last}", last, "times", (), "no advice"),
    ]
    for index, name in enumerate(advised):
        gain = 1.81 if index < kept else 1.79
        series.append(Series(f"promised {name}", f"{name}: --x", "times", (2.0,)))
        series.append(Series(f"delivered {name}", name, "times", (gain - 1, gain, 9.0)))
    text = advice.format_results(series)
    assert max(map(len, text.split("\n"))) <= 80 and text.endswith("2.0 % reached")
    assert f"8 of 10: {kept} of 10 {'not ' * (kept < 8)}reached\n" in text
    assert re.search(f"^{last} .* no advice$", text, re.M)
    assert "8 of 10: not measured\n" in advice.format_results([])


def test_a_table_from_a_busy_machine_comes_with_a_warning(ended, one_row, monkeypatch):
    monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 1.25)
    with warnings.catch_warnings():
        warnings.simplefilter("always", GluonlabWarning)
        status, _, error = ended(main, "frameworks")
    assert status == 0 and "warning: other processes kept 1.2 of " in error


def test_json_prints_only_a_record_and_out_writes_the_same(bench, one_row, monkeypatch, tmp_path):
    monkeypatch.delenv(ISA_LIMIT_VARIABLE, raising=False)
    path = tmp_path / "record.json"
    status, printed, _ = bench("frameworks", "--rounds", "2", "--json", "--out-file", str(path))
    assert status == 0 and printed == path.read_text()
    record = read_record(path)
    assert (record.bench, dict(record.options), record.rounds) == ("peers", {"network": "lenet"}, 2)
    assert record.series == (Series(REFERENCE, REFERENCE, "images/s", (1280.0, 1280.0)),)
    about = "gluonlab commit cpu processor instruction_set cores versions began seconds load others"
    assert set(record.about) == set(about.split())
    versions = set(record.about["versions"])
    assert {"python", "numpy"} <= versions and {"mxnet", "mxnet-cu112"} & versions


@pytest.mark.parametrize("networks", [checkpoints.TASKS, splits.TASKS, workloads.TASKS])
def test_networks_are_measured_on_images_of_the_size_in_their_titles(networks):
    """LeNet and the MLP are for gray digits, the others for color images."""
    for name, task in networks.items():
        [(height, width)] = re.findall(r"(\d+)x(\d+)", task.title)
        assert task.shape == (1 if name in ("lenet", "mlp") else 3, int(height), int(width))
        assert task.model.startswith(name)
