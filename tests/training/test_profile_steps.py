"""--profile records some steps, changes none of them, and leaves what it has seen in the folder."""

import json
import xml.etree.ElementTree as ElementTree
from unittest.mock import Mock

import pytest
from mxnet import nd
from support.devices import device_spec
from support.drawn_runs import load_few_digits
from support.interrupted_runs import read_parameter_bytes
from support.quick_runs import run_quickly

from gluonlab.errors import ConfigError
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import ProfileEvent


def read_profile_event(folder):
    [event] = [line for line in read_lines(folder) if isinstance(line, ProfileEvent)]
    return event


@pytest.mark.parametrize(("devices", "model"), [(1, "mlp"), (2, "lenet")])
def test_a_recorded_run_ends_with_the_same_bits_and_reports_its_time_shares(tmp_path, devices, model):
    settings = {"devices": device_spec(devices), "model": model, "seed": 3, "batch_size": 12 // devices}
    plain = run_quickly(tmp_path, "plain", dataset=load_few_digits(), **settings)
    run = run_quickly(tmp_path, "recorded", dataset=load_few_digits(), **settings, profile=3)
    assert read_parameter_bytes(plain.run_dir) == read_parameter_bytes(run.run_dir)
    event = read_profile_event(run.run_dir)
    assert (event.step, event.steps) == (11, 3) and event.step_seconds > 0
    assert list(event.shares) == [str(ctx) for ctx in run.plan.ctxs]
    for shares in event.shares.values():
        assert sum(shares.values()) == pytest.approx(1)
        assert shares["forward"] > 0 and shares["backward"] > 0
    assert (event.overlap is None) == (devices == 1)


def test_the_files_are_a_picture_and_a_trace_with_rows_of_devices_and_host(tmp_path):
    run = run_quickly(tmp_path, profile=2)
    rows, phases = [str(ctx) for ctx in run.plan.ctxs] + ["host"], {"forward", "backward", "sum", "update"}
    picture = ElementTree.fromstring((run.run_dir / "timeline.svg").read_text())
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in rows] == rows
    groups = picture.iter("{http://www.w3.org/2000/svg}g")
    assert phases <= {group.get("id", "").partition(":")[2] for group in groups}
    events = json.loads((run.run_dir / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name[10:] for name in names if name.startswith("gluonlab: ")] == rows
    durations = {event["name"]: event["dur"] for event in events if event.get("cat") == "phase"}
    assert phases | {"step 11", "step 12"} <= set(durations) and min(durations.values()) >= 0


def test_the_window_lies_in_one_epoch(tmp_path):
    run = run_quickly(tmp_path, profile=11, epochs=2)  # all steps of an epoch except the first
    event = read_profile_event(run.run_dir)
    assert (run.plan.steps_per_epoch, event.step, event.steps) == (12, 2, 11)
    with pytest.raises(ConfigError, match=r"--profile 12: an epoch has only 12 steps.*use --profile 11 or less"):
        run_quickly(tmp_path, "more", profile=12)
    assert not (tmp_path / "more").exists()


def test_recording_ends_with_an_interrupted_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("gluonlab.timeline.recorder.Recorder.record", Mock(side_effect=KeyboardInterrupt))
        run_quickly(tmp_path, profile=2)
    (nd.ones(3) + 1).wait_to_read()  # not part of the next recording
    for name in ("second", "third"):
        assert read_profile_event(run_quickly(tmp_path, name, profile=2).run_dir).steps == 2
