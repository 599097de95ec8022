"""--profile records some steps, changes none of them, and leaves what it has seen in the folder."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from mxnet import nd
from support.devices import device_spec
from support.drawn_runs import load_few_digits
from support.quick_runs import run_quickly

from gluonlab.errors import ConfigError
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import ProfileEvent


def the_event(folder):
    [event] = [line for line in read_lines(folder) if isinstance(line, ProfileEvent)]
    return event


@pytest.mark.parametrize(("devices", "model"), [(1, "mlp"), (2, "lenet")])
def test_a_recorded_run_ends_with_the_same_bits_and_says_where_its_time_went(tmp_path, devices, model):
    batches = {"dataset": load_few_digits(), "batch_size": 12 // devices}
    settings = {"devices": device_spec(devices), "model": model, "seed": 3, **batches}
    plain = run_quickly(tmp_path, "plain", **settings)
    run = run_quickly(tmp_path, "recorded", **settings, profile=3)
    parameters = "parameters.params"
    assert (plain.run_dir / parameters).read_bytes() == (run.run_dir / parameters).read_bytes()
    event = the_event(run.run_dir)
    assert (event.step, event.steps) == (11, 3) and event.step_seconds > 0
    assert list(event.shares) == [str(ctx) for ctx in run.plan.ctxs]
    for shares in event.shares.values():
        assert sum(shares.values()) == pytest.approx(1)
        assert shares["forward"] > 0 and shares["backward"] > 0
    assert (event.overlap is None) == (devices == 1)


def test_the_files_are_a_picture_and_a_trace_with_rows_of_ours(tmp_path):
    run = run_quickly(tmp_path, profile=2)
    picture = ElementTree.fromstring((run.run_dir / "timeline.svg").read_text())
    said = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    rows = [str(ctx) for ctx in run.plan.ctxs] + ["host"]
    assert [name for name in said if name in rows] == rows
    ids = [each.get("id", "") for each in picture.iter("{http://www.w3.org/2000/svg}g")]
    bars = {name.partition(":")[2] for name in ids}
    assert {"forward", "backward", "sum", "update"} <= bars
    events = json.loads((run.run_dir / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name[10:] for name in names if name.startswith("gluonlab: ")] == rows
    ours = [event for event in events if event.get("cat") == "phase"]
    assert {"forward", "backward", "sum", "update", "step 11", "step 12"} <= {event["name"] for event in ours}
    assert all(event["dur"] >= 0 for event in ours)


def test_a_process_records_as_often_as_it_is_asked_to(tmp_path):
    batches = {"dataset": load_few_digits(), "batch_size": 6}
    events = [the_event(run_quickly(tmp_path, str(n), profile=2, **batches).run_dir) for n in range(3)]
    assert [event.steps for event in events] == [2, 2, 2]
    assert all(shares["forward"] > 0 for event in events for shares in event.shares.values())


def test_the_window_lies_in_one_epoch(tmp_path):
    """All steps of an epoch but the first one, from which is learned."""
    run = run_quickly(tmp_path, profile=11, epochs=2)
    assert run.plan.steps_per_epoch == 12
    assert (the_event(run.run_dir).step, the_event(run.run_dir).steps) == (2, 11)
    with pytest.raises(ConfigError, match=r"--profile 12: an epoch has 12 steps.*at most 11"):
        run_quickly(tmp_path, "more", profile=12)
    assert not (tmp_path / "more").exists()


def test_nothing_is_recorded_after_an_early_end(tmp_path, monkeypatch):
    def interrupted(self, timeline):
        raise KeyboardInterrupt

    monkeypatch.setattr("gluonlab.timeline.recorder.Recorder.record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_quickly(tmp_path, profile=2)
    monkeypatch.undo()
    (nd.ones(3) + 1).wait_to_read()  # is not of the next one
    event = the_event(run_quickly(tmp_path, "again", profile=2).run_dir)
    assert event.steps == 2
