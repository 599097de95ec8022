"""The command measures a run's own checkpoints and checks; its table follows from the series."""

import json
from contextlib import ExitStack

import pytest
from mxnet import nd
from support.commands import the_error
from support.devices import named

from benchmarks import checkpoints
from gluonlab.bench.harness.command import measured_on
from gluonlab.bench.harness.record import Series
from gluonlab.bench.tasks import Task
from gluonlab.errors import DriftError
from gluonlab.runs import checkpoint
from gluonlab.runs.reader import read_lines
from gluonlab.runs.schema import Step

TINY = Task("LeNet 28x28", "lenet", (1, 28, 28), 4)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(checkpoints.TASKS, "lenet", TINY)


def make_ways(folder, stack):
    return dict(checkpoints.make_ways(TINY, measured_on(named(2)).first(2), 1, folder, stack))


@pytest.mark.long
def test_the_command_measures_all_ways_and_leaves_nothing(bench, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    args = ["checkpoints", "--network", "lenet", "--devices", named(2), "--rounds", "1"]
    status, out, err = bench(*args, "--json")
    assert (status, err) == (0, "")
    record = json.loads(out)
    found = {one["name"]: one["values"] for one in record["series"]}
    assert tuple(found) == checkpoints.NAMES
    assert all(len(values) == 1 and values[0] > 0 for values in found.values())
    assert record["options"]["network"] == "lenet" and not list(tmp_path.iterdir())


def test_a_block_holds_one_checkpoint_which_is_on_disk_at_its_end(tmp_path):
    with ExitStack() as stack:
        ways = make_ways(tmp_path, stack)
        way = ways[checkpoints.CHECKPOINTS]
        for block in range(3):
            way.block()
            found = checkpoint.newest(way.run.path)
            assert found.damaged == []
            assert found.checkpoint.step == checkpoints.MIDDLE + checkpoints.EVERY * block
            assert len(checkpoint.checkpoints(way.run.path)) == block + 1
        way.close()
        steps = [line.step for line in read_lines(way.run.path) if isinstance(line, Step)]
        assert steps == list(range(1, 3 * checkpoints.EVERY + 1))
        ways[checkpoints.NONE].block()
        ways[checkpoints.FILES].block()
        for name in (checkpoints.NONE, checkpoints.FILES):
            assert not checkpoint.checkpoints(tmp_path / name)
        files = {path.name for path in (tmp_path / checkpoints.FILES).iterdir()}
        assert {"net.params", "trainer.states"} <= files
        assert "net.params" not in {path.name for path in (tmp_path / checkpoints.NONE).iterdir()}


def test_each_check_is_made_as_often_as_it_says(tmp_path):
    with ExitStack() as stack:
        ways = make_ways(tmp_path, stack)
        assert [ways[checkpoints.check_name(n)].steps for n in (1, 10, 100)] == [50, 50, 100]
        params = ways[checkpoints.NONE].strategy.net.collect_params().values()
        drifted = next(iter(params)).list_data()[1]
        drifted[:] = drifted + 1
        nd.waitall()
        ways[checkpoints.NONE].block()
        for every in checkpoints.CHECKS:
            first = every * (
                checkpoints.MIDDLE // every + 1
            )  # its checks are not at an epoch's end
            with pytest.raises(DriftError, match=f"after step {first}[;,]"):
                ways[checkpoints.check_name(every)].block()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--network", "lanet"], "unknown network 'lanet': choose lenet, "),
        (["--devices", named(1)], "replicas are compared on 2 devices or more: name so many"),
        (["--rounds", "0"], "--rounds 0: give a whole number"),
    ],
)
def test_a_mistake_about_checkpoints_is_one_line(args, message, bench, empty_cwd):
    assert message in the_error(bench("checkpoints", *args), empty_cwd)


RESNET, LENET = checkpoints.TASKS["resnet18"], checkpoints.TASKS["lenet"]


def series(**longer):
    """The machine was half as fast in the second of three rounds."""
    rounds = (1.0, 2.0, 1.0)
    return [
        Series(name, name, "s", tuple(seconds * (1 + more) for seconds in rounds))
        for name, more in {"none": 0.0, **longer}.items()
    ]


def test_what_is_kept_costs_what_its_steps_take_longer_round_by_round():
    rows = {row.name: row for row in checkpoints.make_rows(series(checkpoints=0.02, files=0.25))}
    assert tuple(rows) == checkpoints.NAMES
    assert rows["none"].step_s == 1.0 and rows["none"].longer is None
    assert rows["checkpoints"].longer == pytest.approx(0.02)
    assert rows["files"].longer == pytest.approx(0.25) and rows["files"].step_s == 1.25
    assert rows["check 1"].step_s is None and rows["check 1"].longer is None


def test_six_rounds_are_the_fewest_that_tell_how_sure_they_are():
    none = Series("none", "none", "s", (1.0,) * 6)
    taken = (1.01, 1.03, 1.02, 0.99, 1.1, 1.02)
    rows = checkpoints.make_rows([none, Series("checkpoints", "", "s", taken)])
    assert rows[1].interval == "-1.0..10.0 %" and rows[0].interval == ""
    assert checkpoints.make_rows(series(checkpoints=0.02))[1].interval == ""


def test_resnet18_on_two_devices_is_judged():
    promise = "a checkpoint every 50 steps <= 3% of the steps' time: "
    for longer, ending in ((0.0299, "3.0 % reached"), (0.0312, "3.1 % not reached")):
        rows = checkpoints.make_rows(series(checkpoints=longer))
        assert checkpoints.verdict(rows, RESNET, 2) == promise + ending
    assert (
        checkpoints.verdict(checkpoints.make_rows(series()), RESNET, 2) == f"{promise}not measured"
    )
    for task, devices in ((LENET, 2), (RESNET, 4)):
        assert "reached" not in checkpoints.verdict(rows, task, devices)


def test_the_text_fits_a_terminal_whatever_is_missing():
    text = checkpoints.text(series(checkpoints=0.02), RESNET, 2, 3)
    assert max(map(len, text.split("\n"))) <= 80 and "not measured" in text
