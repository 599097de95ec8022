"""The commands: what they list and refuse, and how a measurement ends."""

import re
import warnings

import pytest
from support.bench_rows import measured
from support.processes import REPOSITORY as ROOT

from gluonlab.bench.__main__ import main
from gluonlab.bench.checkpoints import names as checkpoints
from gluonlab.bench.harness.machine import Others
from gluonlab.bench.harness.record import Series, read_record
from gluonlab.bench.peers import table as peers
from gluonlab.bench.peers import work
from gluonlab.bench.splits import names as splits
from gluonlab.errors import GluonlabWarning
from gluonlab.host.resources import LIMIT

REFERENCE = peers.lenet()[0].name


def test_the_command_lists_its_measurements_and_refuses_others(capsys):
    main([])
    listed = capsys.readouterr().out
    assert "  peers " in listed and "  host " in listed
    for args, message in (
        (["peer"], "did you mean 'peers'?"),
        (["peers", "--rounds", "0"], "--rounds 0: give a whole number"),
        (["peers", "--network", "resnet"], "unknown network 'resnet'"),
        (
            ["host", "--restart-every", "2"],
            "--restart-every 2 is for --beside DIR: give both, or neither",
        ),
        (
            ["host", "--beside", str(ROOT), "--restart-every", "0"],
            "--restart-every 0: give a whole number",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            main(args)
        error = capsys.readouterr().err
        assert (
            ended.value.code == 2
            and message in error
            and error.startswith("error: ")
            and error.count("\n") == 1
        )


def test_a_table_from_a_busy_machine_comes_with_a_warning(capsys, monkeypatch):
    monkeypatch.setattr(
        "gluonlab.bench.__main__.measure",
        lambda subjects, rounds: [measured(REFERENCE, 10, [1.0] * rounds)],
    )
    monkeypatch.setattr(Others, "cores", lambda self: 1.25)
    with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
        warnings.simplefilter("always", GluonlabWarning)
        main(["peers"])
    assert (
        ended.value.code == 0 and "warning: other processes kept 1.2 of " in capsys.readouterr().err
    )


def test_json_is_a_record_alone_on_standard_output_and_out_writes_the_same(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.delenv(LIMIT, raising=False)
    monkeypatch.setattr(Others, "cores", lambda self: 0.0)
    monkeypatch.setattr(
        "gluonlab.bench.__main__.measure",
        lambda subjects, rounds: [measured(REFERENCE, 10, [1.0] * rounds)],
    )
    with pytest.raises(SystemExit) as ended:
        main(["peers", "--rounds", "2", "--json", "--out", str(tmp_path / "record.json")])
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and printed == (tmp_path / "record.json").read_text()
    record = read_record(tmp_path / "record.json")
    assert (record.bench, dict(record.options), record.rounds) == ("peers", {"network": "lenet"}, 2)
    assert record.series == (Series(REFERENCE, REFERENCE, "images/s", (1280.0, 1280.0)),)
    assert set(record.about) == {
        "gluonlab", "commit", "cpu", "processor", "instruction_set", "cores", "versions", "began",
        "seconds", "load", "others",
    }  # fmt: skip
    flavours = {"mxnet", "mxnet-cu112"}
    assert {"python", "numpy"} <= set(record.about["versions"]) and flavours & set(
        record.about["versions"]
    )


@pytest.mark.parametrize("tasks", [checkpoints.TASKS, splits.TASKS, work.TASKS])
def test_networks_are_measured_on_images_as_large_as_their_titles_say(tasks):
    """LeNet and the MLP are for grey digits, and all others for images in colour."""
    for name, task in tasks.items():
        [(height, width)] = re.findall(r"(\d+)x(\d+)", task.title)
        assert task.shape == (1 if name in ("lenet", "mlp") else 3, int(height), int(width))
        assert task.model.startswith(name)
