"""The commands: what they list and refuse, and how a measurement ends."""

import re
import warnings

import pytest
from support.bench_command import measured
from support.processes import REPOSITORY

from benchmarks import checkpoints, peers
from benchmarks.__main__ import COMMANDS, main
from gluonlab.bench import splits, tasks
from gluonlab.bench.__main__ import TOOLS
from gluonlab.bench.harness.machine import Others
from gluonlab.bench.harness.record import Series, read_record
from gluonlab.errors import GluonlabWarning
from gluonlab.host.resources import LIMIT

REFERENCE = peers.lenet()[0].name


@pytest.fixture
def one_row(monkeypatch):
    monkeypatch.setattr(
        peers, "measure", lambda subjects, rounds: [measured(REFERENCE, 10, [1.0] * rounds)]
    )


def test_the_command_lists_its_measurements(capsys):
    main([])
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert set(COMMANDS) == {name for name in TOOLS if TOOLS[name] == f"benchmarks.{name}"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["peer"], "did you mean 'peers'?"),
        (["peers", "--rounds", "0"], "--rounds 0: give a whole number"),
        (["peers", "--network", "resnet"], "unknown network 'resnet'"),
        (["host", "--restart-every", "2"], "2 is for --beside DIR: give both, or neither"),
        (
            ["host", "--beside", str(REPOSITORY), "--restart-every", "0"],
            "--restart-every 0: give a whole number",
        ),
    ],
)
def test_a_mistake_is_one_line(ended, args, message):
    status, _, error = ended(main, *args)
    assert status == 2 and message in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_table_from_a_busy_machine_comes_with_a_warning(ended, one_row, monkeypatch):
    monkeypatch.setattr(Others, "cores", lambda self: 1.25)
    with warnings.catch_warnings():
        warnings.simplefilter("always", GluonlabWarning)
        status, _, error = ended(main, "peers")
    assert status == 0 and "warning: other processes kept 1.2 of " in error


def test_json_is_a_record_alone_on_standard_output_and_out_writes_the_same(
    bench, one_row, monkeypatch, tmp_path
):
    monkeypatch.delenv(LIMIT, raising=False)
    path = tmp_path / "record.json"
    status, printed, _ = bench("peers", "--rounds", "2", "--json", "--out", str(path))
    assert status == 0 and printed == path.read_text()
    record = read_record(path)
    assert (record.bench, dict(record.options), record.rounds) == ("peers", {"network": "lenet"}, 2)
    assert record.series == (Series(REFERENCE, REFERENCE, "images/s", (1280.0, 1280.0)),)
    assert set(record.about) == {
        "gluonlab", "commit", "cpu", "processor", "instruction_set", "cores", "versions", "began",
        "seconds", "load", "others",
    }  # fmt: skip
    versions = set(record.about["versions"])
    assert {"python", "numpy"} <= versions and {"mxnet", "mxnet-cu112"} & versions


@pytest.mark.parametrize("networks", [checkpoints.TASKS, splits.TASKS, tasks.TASKS])
def test_networks_are_measured_on_images_as_large_as_their_titles_say(networks):
    """LeNet and the MLP are for grey digits, and all others for images in colour."""
    for name, task in networks.items():
        [(height, width)] = re.findall(r"(\d+)x(\d+)", task.title)
        assert task.shape == (1 if name in ("lenet", "mlp") else 3, int(height), int(width))
        assert task.model.startswith(name)
