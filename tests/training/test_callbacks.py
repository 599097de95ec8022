"""Callbacks get what metrics.jsonl contains; runs that they stop, and resumed runs, repeat."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import device_spec
from support.drawn_runs import BATCH_SIZE, IMAGE_COUNT, few_digits_accuracy, load_few_digits
from support.interrupted_runs import RunStopped, StoppingReporter, read_comparable_metrics, read_parameter_bytes
from support.process_group import run_in_threads
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.errors import CallbackError, ConfigError
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import Epoch, Step
from gluonlab.training import stop_consensus
from gluonlab.training.callbacks import EVENT_METHODS, LOSS_DELAY, Callback, RunEnd
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

STEPS = -(-IMAGE_COUNT // BATCH_SIZE)  # of an epoch
BASE = {"threads": 1, "model": "mlp", "lr": 0.05, "global_batch_size": BATCH_SIZE, "optimizer": "sgd"}


def config(folder, devices=2, epochs=3, **more):
    return TrainConfig(**{**BASE, **more}, devices=device_spec(devices), epochs=epochs, out=str(folder))


def run(folder, callbacks=(), reporter=None, **more):
    return train(config(folder, **more), None, reporter or Reporter(), load_few_digits(), callbacks=callbacks)


def resume(folder, callbacks=()):
    return train(resume=folder, reporter=Reporter(), dataset=load_few_digits(), callbacks=callbacks)


def assert_same_run(folder, other):
    assert read_parameter_bytes(folder) == read_parameter_bytes(other)
    assert read_comparable_metrics(folder) == read_comparable_metrics(other)


class Recording(Callback):
    """Records its calls, with the number of steps that were queued then."""

    def __init__(self):
        self.calls = []

    def on_run_start(self, run):
        self.calls.append(("run_start", run.step))

    def on_epoch_start(self, run, epoch):
        self.calls.append(("epoch_start", run.step, epoch))

    def on_step(self, run, step):
        self.calls.append(("step", run.step, step))

    def on_evaluation(self, run, score):
        assert len(run.history) == (run.step - 1) // STEPS
        self.calls.append(("evaluation", run.step, score.accuracy, score.loss))

    def on_epoch_end(self, run, epoch):
        assert read_lines(run.path)[-1] == epoch == run.history[-1]
        assert (run.path / "parameters.params").exists()
        self.calls.append(("epoch_end", run.step, epoch))

    def on_run_end(self, run, end):
        self.calls.append(("run_end", run.step, end))


def test_callbacks_get_the_lines_of_the_run_with_a_delay_and_in_order(tmp_path):
    """And they change no bit of it."""
    recording = Recording()
    result = run(tmp_path / "run", [recording])
    calls_of_epoch = ["epoch_start", *["step"] * STEPS, "evaluation", "epoch_end"]
    assert [call[0] for call in recording.calls] == ["run_start", *calls_of_epoch * 3, "run_end"]
    lines = [call[2] for call in recording.calls if call[0] in ("step", "epoch_end")]
    assert lines == [line for line in read_lines(tmp_path / "run") if isinstance(line, (Step, Epoch))]
    for _, queued, step in (call for call in recording.calls if call[0] == "step"):
        end_of_epoch = -(-step.step // STEPS) * STEPS
        assert queued == min(step.step + LOSS_DELAY, end_of_epoch)
    scores = [call[2:] for call in recording.calls if call[0] == "evaluation"]
    assert scores == [(epoch.val_accuracy, epoch.val_loss) for epoch in result.history]
    assert recording.calls[-1][2] == RunEnd("finished", "", 3 * STEPS, 3)
    run(tmp_path / "without")
    assert_same_run(tmp_path / "run", tmp_path / "without")


class StopsAt(Callback):
    """Stops at the first call of a kind from step ``step`` on, and keeps a sum of all losses."""

    def __init__(self, kind, step):
        self.kind, self.step, self.sum = kind, step, 0.0

    def _stop_if_due(self, run, kind):
        if kind == self.kind and run.step >= self.step:
            run.stop(f"sum {self.sum:.6f}")

    def on_epoch_start(self, run, epoch):
        self._stop_if_due(run, "epoch_start")

    def on_step(self, run, step):
        self.sum += step.loss
        self._stop_if_due(run, "step")

    def on_evaluation(self, run, score):
        self._stop_if_due(run, "evaluation")

    def on_epoch_end(self, run, epoch):
        self._stop_if_due(run, "epoch_end")

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]


DRAWN = dict(kind=st.sampled_from(["epoch_start", "step", "evaluation", "epoch_end"]), step=st.integers(0, 3 * STEPS))


def last_event(folder, event):
    return next((line for line in reversed(read_metrics(folder)) if line.get("event") == event), None)


@settings(max_examples=2)
@given(**DRAWN, interrupt_at=st.integers(1, 3 * STEPS), every=st.integers(1, 5))
@pytest.mark.long
def test_a_stopped_run_repeats_if_it_is_interrupted_and_resumed(tmp_path_factory, kind, step, interrupt_at, every):
    """Also if it is interrupted between the request to stop and the end."""
    folder, more = tmp_path_factory.mktemp("runs"), {"checkpoint_every": f"{every} steps"}
    whole = run(folder / "whole", [StopsAt(kind, step)], **more)
    try:
        run(folder / "run", [StopsAt(kind, step)], StoppingReporter(interrupt_at), **more)
    except RunStopped:
        if interrupt_at > every:
            assert resume(folder / "run", [StopsAt(kind, step)]).stopped == whole.stopped
            assert_same_run(folder / "run", folder / "whole")


@settings(max_examples=2)
@given(**DRAWN)
def test_a_stop_is_recorded_and_its_network_is_the_one_that_was_evaluated(tmp_path_factory, kind, step):
    folder, recording = tmp_path_factory.mktemp("runs") / "run", Recording()
    result = run(folder, [StopsAt(kind, step), recording])
    steps = [line.step for line in read_lines(folder) if isinstance(line, Step)]
    last, stopped, end = steps[-1], last_event(folder, "stopped"), recording.calls[-1][2]
    assert steps == list(range(1, last + 1))
    if stopped is None:
        assert result.stopped is None and last == 3 * STEPS and end.how == "finished"
    else:
        assert result.stopped == stopped["message"] == end.message
        assert stopped["message"].startswith("StopsAt: sum ") and stopped["step"] == last
        assert end.how == "stopped"
    assert last_event(folder, "ended")["step"] == last
    images = sum(epoch.images for epoch in result.history)
    assert images == last // STEPS * IMAGE_COUNT + last % STEPS * BATCH_SIZE
    assert few_digits_accuracy(result.net) == pytest.approx(result.val_accuracy, abs=1e-9)
    result.net.load_parameters(str(folder / "parameters.params"), ctx=result.plan.ctxs)
    assert few_digits_accuracy(result.net) == pytest.approx(result.val_accuracy, abs=1e-9)


@settings(max_examples=2)
@given(**DRAWN)
def test_processes_stop_after_the_same_step_by_the_callback_of_one(tmp_path_factory, kind, step):
    """Within STOP_DELAY steps of the request, or with the epoch; the others get the reason."""
    folder, requests = tmp_path_factory.mktemp("runs"), []

    class Stops(StopsAt):
        def _stop_if_due(self, run, kind):
            super()._stop_if_due(run, kind)
            if run.stopped:
                requests.append(run.step)

    def work(group):
        config_, callbacks = config(folder / "run", devices=1), [Stops(kind, step)]
        return train(config_, None, Reporter(), load_few_digits(), group=group, callbacks=callbacks)

    first, second = run_in_threads(2, work)
    assert first.stopped == second.stopped and (first.stopped is None) == (not requests)
    assert [epoch.step for epoch in first.history] == [epoch.step for epoch in second.history]
    if requests:
        end_of_epoch = -(-max(1, requests[0]) // STEPS) * STEPS
        at_boundary = kind in ("evaluation", "epoch_end")
        latest = requests[0] if at_boundary else max(requests[0] + stop_consensus.STOP_DELAY, end_of_epoch)
        assert first.history[-1].step <= latest


class Fails:
    def __init__(self, method="on_step"):
        def fail(*given):
            raise ValueError("no such file")

        setattr(self, method, fail)
        self.on_run_end = getattr(self, "on_run_end", lambda run, end: None)


@pytest.mark.parametrize(
    "method",
    [pytest.param(each, marks=[] if each in ("on_step", "on_run_end") else pytest.mark.long) for each in EVENT_METHODS],
)
def test_a_callback_that_fails_ends_the_run_in_one_line_and_leaves_its_folder(tmp_path, method):
    recording = Recording()
    with pytest.raises(CallbackError) as caught:
        run(tmp_path / "run", [Fails(method), recording], epochs=1)
    message = rf"callback Fails failed in {method} after step \d+: ValueError: no such file"
    assert re.fullmatch(message, str(caught.value)) and caught.value.exit_status == 1
    end = recording.calls[-1][2]
    assert method == "on_run_end" or (end.how, end.message) == ("failed", str(caught.value))
    assert last_event(tmp_path / "run", "ended") is None
    has_parameters = (tmp_path / "run" / "parameters.params").exists()
    assert has_parameters == (method in ("on_epoch_end", "on_run_end"))
    if has_parameters:
        evaluate_run(str(tmp_path / "run"))


def test_an_interrupted_run_calls_on_run_end(tmp_path):
    recording = Recording()
    with pytest.raises(RunStopped):
        run(tmp_path / "run", [recording], StoppingReporter(3))
    assert recording.calls[-1][2].how == "failed" and recording.calls[-1][2].step == 2


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (object(), "callback object has no callback method: add one of on_run_start"),
        (type("A", (), {"on_epoch_ends": 1}), "'on_epoch_ends'.*did you mean 'on_epoch_end'"),
        (type("B", (), {"on_step": 1, "state_dict": 1}), "callback B lacks load_state_dict"),
        (Fails.__init__, "callback function has no callback method"),
        (type("C", (), {"__init__": lambda self, a: None}), "callback C cannot be created: TypeError"),
    ],
)
def test_an_invalid_callback_is_refused_before_anything_is_written(tmp_path, callback, message):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "run", [callback])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("state", [{"x": object()}, {"x": float("nan")}, {1: {2}}])
def test_a_state_that_json_cannot_hold_is_refused(tmp_path, state):
    class Odd(StopsAt):
        def state_dict(self):
            return state

    with pytest.raises(CallbackError, match=r"state_dict\(\) of callback Odd cannot be saved as JSON"):
        run(tmp_path / "run", [Odd("step", 99)], checkpoint_every="2 steps")


@pytest.mark.long
def test_changed_callbacks_are_reported_when_a_run_is_resumed(tmp_path):
    other = type("Other", (StopsAt,), {})("step", 99)
    with pytest.raises(RunStopped):
        run(tmp_path / "run", [StopsAt("step", 99)], StoppingReporter(5), checkpoint_every="2 steps", epochs=1)
    resume(tmp_path / "run", [other])
    message = last_event(tmp_path / "run", "resumed")["message"]
    assert "callback Other is new: it starts without saved state" in message
    assert "callback StopsAt of the interrupted run is missing" in message


def test_a_stopped_run_is_resumed_by_resume_and_not_by_autoresume(tmp_path):
    settings = {"epochs": 2, "checkpoint_every": "1 epoch"}
    stopped = run(tmp_path / "run", [StopsAt("epoch_end", 1)], **settings)
    assert len(stopped.history) == 1
    bits = read_parameter_bytes(tmp_path / "run")
    again = train(
        config(tmp_path / "run", **settings), reporter=Reporter(), dataset=load_few_digits(),
        callbacks=[StopsAt("epoch_end", 1)], autoresume=True,
    )  # fmt: skip
    assert (again.stopped, again.val_accuracy) == (stopped.stopped, stopped.val_accuracy)
    assert read_parameter_bytes(tmp_path / "run") == bits
    resumed = resume(tmp_path / "run")
    assert resumed.stopped is None and len(resumed.history) == 2
    run(tmp_path / "whole", **settings)
    assert read_parameter_bytes(tmp_path / "run") == read_parameter_bytes(tmp_path / "whole")
    assert "a callback stopped the run before" in last_event(tmp_path / "run", "resumed")["message"]


@pytest.mark.parametrize("callbacks", [Callback, 3, None])
def test_callbacks_must_be_a_list(callbacks):
    with pytest.raises(ConfigError, match=r"is not a list: pass a list, callbacks=\[\.\.\.\]"):
        train(TrainConfig(epochs=1), callbacks=callbacks)
