"""Callbacks are told what metrics.jsonl says; runs that they stop, or that go on, repeat."""

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
from gluonlab.training.callbacks import EVENT_METHODS, LOSS_DELAY, Callback
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

STEPS = -(-IMAGE_COUNT // BATCH_SIZE)  # of an epoch
BASE = {
    "threads": 1, "model": "mlp", "lr": 0.05, "global_batch_size": BATCH_SIZE, "optimizer": "sgd",
}  # fmt: skip


def config(folder, devices=2, epochs=3, **more):
    return TrainConfig(
        **{**BASE, **more}, devices=device_spec(devices), epochs=epochs, out=str(folder)
    )  # fmt: skip


def run(folder, callbacks=(), reporter=None, **more):
    return train(
        config(folder, **more), reporter=reporter or Reporter(), dataset=load_few_digits(),
        callbacks=callbacks,
    )  # fmt: skip


class Listening(Callback):
    """Notes all that it is told, and how many steps were queued then."""

    def __init__(self):
        self.told = []

    def on_run_start(self, run):
        self.told.append(("run_start", run.step))

    def on_epoch_start(self, run, epoch):
        self.told.append(("epoch_start", run.step, epoch))

    def on_step(self, run, step):
        self.told.append(("step", run.step, step))

    def on_evaluation(self, run, score):
        assert len(run.history) == run.step // STEPS - 1
        self.told.append(("evaluation", run.step, score.accuracy, score.loss))

    def on_epoch_end(self, run, epoch):
        assert read_lines(run.path)[-1] == epoch == run.history[-1]
        assert (run.path / "parameters.params").exists()
        self.told.append(("epoch_end", run.step, epoch))

    def on_run_end(self, run, end):
        self.told.append(("run_end", run.step, end))


def test_callbacks_get_the_lines_of_the_run_with_a_delay_and_in_order(tmp_path):
    listening = Listening()
    result = run(tmp_path / "run", [listening])
    written = read_lines(tmp_path / "run")
    kinds = [each[0] for each in listening.told]
    of_epoch = ["epoch_start", *["step"] * STEPS, "evaluation", "epoch_end"]
    assert kinds == ["run_start", *of_epoch * 3, "run_end"]
    told = [each[2] for each in listening.told if each[0] in ("step", "epoch_end")]
    assert told == [line for line in written if isinstance(line, (Step, Epoch))]
    for _, queued, step in (each for each in listening.told if each[0] == "step"):
        end_of_epoch = -(-step.step // STEPS) * STEPS
        assert queued == min(step.step + LOSS_DELAY, end_of_epoch)
    scored = [each[2:] for each in listening.told if each[0] == "evaluation"]
    assert scored == [(epoch.accuracy, epoch.validation_loss) for epoch in result.history]
    end = listening.told[-1][2]
    assert (end.how, end.message, end.step, end.epoch) == ("finished", "", 3 * STEPS, 3)


def test_callbacks_change_no_bit(tmp_path):
    run(tmp_path / "with", [Listening])
    run(tmp_path / "without")
    assert read_parameter_bytes(tmp_path / "with") == read_parameter_bytes(tmp_path / "without")
    assert read_comparable_metrics(tmp_path / "with") == read_comparable_metrics(tmp_path / "without")


class StopsAt(Callback):
    """Stops at the first fact of a kind from step ``step`` on, and keeps a sum of all losses."""

    def __init__(self, kind, step):
        self.kind, self.step, self.sum = kind, step, 0.0

    def _look(self, run, kind):
        if kind == self.kind and run.step >= self.step:
            run.stop(f"sum {self.sum:.6f}")

    def on_epoch_start(self, run, epoch):
        self._look(run, "epoch_start")

    def on_step(self, run, step):
        self.sum += step.loss
        self._look(run, "step")

    def on_evaluation(self, run, score):
        self._look(run, "evaluation")

    def on_epoch_end(self, run, epoch):
        self._look(run, "epoch_end")

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]


DRAWN = dict(kind=st.sampled_from(["epoch_start", "step", "evaluation", "epoch_end"]), step=st.integers(0, 3 * STEPS))


def last_event(folder, event):
    found = [line for line in read_metrics(folder) if line.get("event") == event]
    return found[-1] if found else None


@settings(max_examples=2)
@given(**DRAWN, plug=st.integers(1, 3 * STEPS), every=st.integers(1, 5))
@pytest.mark.long
def test_a_stopped_run_repeats_when_it_was_broken_off_and_goes_on(tmp_path_factory, kind, step, plug, every):
    """Wherever it was broken off: also between the wish to stop and the end."""
    folder = tmp_path_factory.mktemp("runs")
    more = {"checkpoint_every": f"{every} steps"}
    whole = run(folder / "whole", [StopsAt(kind, step)], **more)
    try:
        run(folder / "run", [StopsAt(kind, step)], StoppingReporter(plug), **more)
        broken_off = False
    except RunStopped:
        broken_off = True
    if broken_off and plug > every:
        again = train(
            resume=folder / "run", reporter=Reporter(), dataset=load_few_digits(),
            callbacks=[StopsAt(kind, step)],
        )  # fmt: skip
        assert again.stopped == whole.stopped
        assert read_parameter_bytes(folder / "run") == read_parameter_bytes(folder / "whole")
        assert read_comparable_metrics(folder / "run") == read_comparable_metrics(folder / "whole")


@settings(max_examples=2)
@given(**DRAWN)
def test_a_stop_is_recorded_and_its_network_is_the_one_that_was_evaluated(tmp_path_factory, kind, step):
    folder = tmp_path_factory.mktemp("runs") / "run"
    ends = []

    class Ends:
        def on_run_end(self, run, end):
            ends.append(end)

    result = run(folder, [StopsAt(kind, step), Ends])
    steps = [line.step for line in read_lines(folder) if isinstance(line, Step)]
    last = steps[-1]
    assert steps == list(range(1, last + 1))
    stopped, [end] = last_event(folder, "stopped"), ends
    if stopped is None:
        assert result.stopped is None and last == 3 * STEPS and end.how == "finished"
    else:
        assert result.stopped == stopped["message"] == end.message
        assert stopped["message"].startswith("StopsAt: sum ") and stopped["step"] == last
        assert end.how == "stopped"
    assert last_event(folder, "ended")["step"] == last
    done = sum(epoch.images for epoch in result.history)
    assert done == last // STEPS * IMAGE_COUNT + last % STEPS * BATCH_SIZE
    assert few_digits_accuracy(result.net) == pytest.approx(result.accuracy, abs=1e-9)
    result.net.load_parameters(str(folder / "parameters.params"), ctx=result.plan.ctxs)
    assert few_digits_accuracy(result.net) == pytest.approx(result.accuracy, abs=1e-9)


@settings(max_examples=2)
@given(**DRAWN)
def test_processes_stop_after_the_same_step_by_a_callback_that_one_has_heard(tmp_path_factory, kind, step):
    """Within `consensus.WITHIN` steps of the wish, or with the epoch; the others hear why."""
    folder, wished = tmp_path_factory.mktemp("runs"), []

    class Noted(StopsAt):
        def _look(self, run, kind):
            super()._look(run, kind)
            if run.stopped and not wished:
                wished.append(run.step)

    def work(group):
        mine = config(folder / "run", devices=1)
        data, callbacks = load_few_digits(), [Noted(kind, step)]
        return train(mine, reporter=Reporter(), dataset=data, group=group, callbacks=callbacks)

    first, second = run_in_threads(2, work)
    assert first.stopped == second.stopped and (first.stopped is None) == (not wished)
    assert [vars(epoch)["step"] for epoch in first.history] == [vars(epoch)["step"] for epoch in second.history]
    last = first.history[-1].step
    if wished:
        end_of_epoch = -(-max(1, wished[0]) // STEPS) * STEPS
        boundary = kind in ("evaluation", "epoch_end")
        assert last <= (wished[0] if boundary else max(wished[0] + stop_consensus.STOP_DELAY, end_of_epoch))


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
    listening = Listening()
    with pytest.raises(CallbackError) as caught:
        run(tmp_path / "run", [Fails(method), listening], epochs=1)
    said = rf"callback Fails failed in {method} after step \d+: ValueError: no such file"
    assert re.fullmatch(said, str(caught.value)) and caught.value.exit_status == 1
    end = listening.told[-1][2]
    assert method == "on_run_end" or (end.how, end.message) == ("failed", str(caught.value))
    read_lines(tmp_path / "run")
    assert last_event(tmp_path / "run", "ended") is None
    assert evaluate_run_works(tmp_path / "run") == (method in ("on_epoch_end", "on_run_end"))


def evaluate_run_works(folder):
    return (folder / "parameters.params").exists() and bool(evaluate_run(str(folder)).score)


def test_an_interrupted_run_calls_on_run_end(tmp_path):
    listening = Listening()
    with pytest.raises(RunStopped):
        run(tmp_path / "run", [listening], StoppingReporter(3))
    assert listening.told[-1][2].how == "failed" and listening.told[-1][2].step == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (object(), "callback object has no method that could be called: give it one of on_run_start"),
        (type("A", (), {"on_epoch_ends": 1}), "'on_epoch_ends'.*did you mean 'on_epoch_end'"),
        (type("B", (), {"on_step": 1, "state_dict": 1}), "callback B has no load_state_dict"),
        (Fails.__init__, "callback function has no method"),
        (type("C", (), {"__init__": lambda self, a: None}), "callback C cannot be made: TypeError"),
    ],
)
def test_an_invalid_callback_is_refused_before_anything_is_written(tmp_path, wrong, said):
    with pytest.raises(ConfigError, match=said):
        run(tmp_path / "run", [wrong])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("state", [{"x": object()}, {"x": float("nan")}, {1: {2}}])
def test_a_state_that_json_cannot_hold_is_refused(tmp_path, state):
    class Odd(StopsAt):
        def state_dict(self):
            return state

    with pytest.raises(CallbackError, match="callback Odd: its state_dict holds what JSON cannot"):
        run(tmp_path / "run", [Odd("step", 99)], checkpoint_every="2 steps")


@pytest.mark.long
def test_changed_callbacks_are_reported_when_a_run_is_resumed(tmp_path):
    class Other(StopsAt):
        pass

    with pytest.raises(RunStopped):
        run(
            tmp_path / "run", [StopsAt("step", 99)], StoppingReporter(5),
            checkpoint_every="2 steps",
            epochs=1,
        )  # fmt: skip
    others = [Other("step", 99)]
    train(resume=tmp_path / "run", reporter=Reporter(), dataset=load_few_digits(), callbacks=others)
    said = last_event(tmp_path / "run", "resumed")["message"]
    assert "callback Other is new" in said and "callback StopsAt, which the run had, is not" in said


def test_a_stopped_run_goes_on_where_somebody_says_so_and_has_ended_for_autoresume(tmp_path):
    settings = {"epochs": 2, "checkpoint_every": "1 epoch"}
    stopped = run(tmp_path / "run", [StopsAt("epoch_end", 1)], **settings)
    assert len(stopped.history) == 1
    bits = read_parameter_bytes(tmp_path / "run")
    again = train(
        config(tmp_path / "run", **settings), reporter=Reporter(), dataset=load_few_digits(),
        callbacks=[StopsAt("epoch_end", 1)], autoresume=True,
    )  # fmt: skip
    assert (again.stopped, again.accuracy) == (stopped.stopped, stopped.accuracy)
    assert read_parameter_bytes(tmp_path / "run") == bits
    on = train(resume=tmp_path / "run", reporter=Reporter(), dataset=load_few_digits())
    assert on.stopped is None and len(on.history) == 2
    run(tmp_path / "whole", **settings)
    assert read_parameter_bytes(tmp_path / "run") == read_parameter_bytes(tmp_path / "whole")
    assert "a callback had stopped it" in last_event(tmp_path / "run", "resumed")["message"]


@pytest.mark.parametrize("given", [Callback, Callback(), 3, None])
def test_callbacks_that_are_no_list_are_one_line(given):
    with pytest.raises(ConfigError, match=r"is no list: put it into one, callbacks=\[\.\.\.\]"):
        train(TrainConfig(epochs=1), callbacks=given)
