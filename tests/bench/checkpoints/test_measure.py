"""The command measures a run's own checkpoints and checks; each costs what it is, where it is."""

import json
from contextlib import ExitStack

import pytest
from mxnet import nd
from support.commands import the_error
from support.devices import named

from gluonlab.bench.checkpoints import measure, names
from gluonlab.bench.harness.measured_on import measured_on
from gluonlab.bench.splits.names import Task
from gluonlab.errors import DriftError
from gluonlab.runs import checkpoint
from gluonlab.runs.reader import read_lines
from gluonlab.runs.schema import Step

TINY = Task("LeNet 28x28", "lenet", (1, 28, 28), 4)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(names.TASKS, "lenet", TINY)


def make_ways(folder, stack):
    return dict(measure.make_ways(TINY, measured_on(named(2)).first(2), 1, folder, stack))


@pytest.mark.long
def test_the_command_measures_all_ways_and_leaves_nothing(bench, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    args = ["checkpoints", "--network", "lenet", "--devices", named(2), "--rounds", "1"]
    status, out, err = bench(*args, "--json")
    assert (status, err) == (0, "")
    record = json.loads(out)
    found = {one["name"]: one["values"] for one in record["series"]}
    assert tuple(found) == names.NAMES
    assert all(len(values) == 1 and values[0] > 0 for values in found.values())
    assert record["options"]["network"] == "lenet" and not list(tmp_path.iterdir())


def test_a_block_holds_one_checkpoint_which_is_on_disk_at_its_end(tmp_path):
    with ExitStack() as stack:
        ways = make_ways(tmp_path, stack)
        way = ways[names.CHECKPOINTS]
        for block in range(3):
            way.block()
            found = checkpoint.newest(way.run.path)
            assert found.damaged == []
            assert found.checkpoint.step == measure.MIDDLE + names.EVERY * block
            assert len(checkpoint.checkpoints(way.run.path)) == block + 1
        way.close()
        steps = [line.step for line in read_lines(way.run.path) if isinstance(line, Step)]
        assert steps == list(range(1, 3 * names.EVERY + 1))
        ways[names.NONE].block()
        ways[names.FILES].block()
        for name in (names.NONE, names.FILES):
            assert not checkpoint.checkpoints(tmp_path / name)
        files = {path.name for path in (tmp_path / names.FILES).iterdir()}
        assert {"net.params", "trainer.states"} <= files
        assert "net.params" not in {path.name for path in (tmp_path / names.NONE).iterdir()}


def test_each_check_is_made_as_often_as_it_says(tmp_path):
    with ExitStack() as stack:
        ways = make_ways(tmp_path, stack)
        assert [ways[names.check_name(n)].steps for n in (1, 10, 100)] == [50, 50, 100]
        params = ways[names.NONE].strategy.net.collect_params().values()
        drifted = next(iter(params)).list_data()[1]
        drifted[:] = drifted + 1
        nd.waitall()
        ways[names.NONE].block()
        for every in names.CHECKS:
            first = every * (measure.MIDDLE // every + 1)  # its checks are not at an epoch's end
            with pytest.raises(DriftError, match=f"after step {first}[;,]"):
                ways[names.check_name(every)].block()


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
