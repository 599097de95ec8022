"""--patience ends a run where the textbook's count does, and keeps the best epoch's network."""

import hashlib
import shutil
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import device_spec
from support.drawn_runs import few_digits_accuracy, load_few_digits
from support.interrupted_runs import RunStopped, StoppingReporter, read_comparable_metrics, read_parameter_bytes
from support.process_group import run_in_threads
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.config.option_types import Patience
from gluonlab.errors import ConfigError
from gluonlab.runs.checkpoint import find_parameters_file, list_checkpoints
from gluonlab.runs.run_schema import Epoch
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.training.builtin_callbacks import EarlyStopping, find_best_epoch
from gluonlab.training.loop import BestWeights, train
from gluonlab.training.reporter import Reporter
from gluonlab.training.resume import read_resume_point, resumed_config

EPOCHS = 12
# a rate at which accuracy goes up and down, soon
NOISY = {"threads": 1, "model": "mlp", "lr": 0.9, "global_batch_size": 50, "epochs": EPOCHS}


def config(folder, devices=2, **more):
    return TrainConfig(**{**NOISY, **more}, devices=device_spec(devices), out=str(folder))


def run(folder, reporter=None, **more):
    return train(config(folder, **more), reporter=reporter or Reporter(), dataset=load_few_digits())


def textbook(scores, patience):
    """(epochs trained, the best of them, from 1)."""
    best = 0
    for place, score in enumerate(scores):
        if score > scores[best]:
            best = place
        if place - best == patience:
            return place + 1, best + 1
    return len(scores), best + 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """All epochs of the seeds, without patience."""
    folder = tmp_path_factory.mktemp("whole")
    return {seed: run(folder / str(seed), seed=seed) for seed in range(2)}


@settings(max_examples=3)
@given(seed=st.integers(0, 1), patience=st.integers(1, 4), by_loss=st.booleans())
def test_it_stops_as_the_reference_and_keeps_the_best(tmp_path_factory, undisturbed, seed, patience, by_loss):
    folder = tmp_path_factory.mktemp("run") / "run"
    history = undisturbed[seed].history
    scores = [-each.validation_loss if by_loss else each.accuracy for each in history]
    result = run(folder, seed=seed, patience=f"{patience}:loss" if by_loss else patience)
    epochs, best = textbook(scores, patience)
    assert (len(result.history), result.best_epoch) == (epochs, best)
    assert (result.stopped is None) == (epochs == EPOCHS)
    assert result.accuracy == history[best - 1].accuracy
    assert few_digits_accuracy(result.net) == pytest.approx(result.accuracy, abs=1e-9)
    result.net.load_parameters(str(folder / "parameters.params"), ctx=result.plan.ctxs)
    assert few_digits_accuracy(result.net) == pytest.approx(result.accuracy, abs=1e-9)


@pytest.mark.long
@settings(max_examples=5)
@given(seed=st.integers(0, 2), plug=st.integers(4, 30), every=st.sampled_from(["2", "1 epoch"]))
def test_a_resumed_run_continues_counting(tmp_path_factory, seed, plug, every):
    folder = tmp_path_factory.mktemp("runs")
    more = {"seed": seed, "patience": 2, "checkpoint_every": every, "keep": 1, "confusion": True}
    whole = run(folder / "whole", **more)
    try:
        run(folder / "run", StoppingReporter(plug), **more)
        again = whole
    except RunStopped:
        again = train(resume=folder / "run", reporter=Reporter(), dataset=load_few_digits())
    assert (again.stopped, again.best_epoch) == (whole.stopped, whole.best_epoch)
    assert np.array_equal(again.confusion, whole.confusion)
    assert np.trace(again.confusion) == round(again.accuracy * 40)
    assert read_parameter_bytes(folder / "run") == read_parameter_bytes(folder / "whole")
    assert read_comparable_metrics(folder / "run") == read_comparable_metrics(folder / "whole")


def test_processes_stop_together_and_have_the_best_network(tmp_path, undisturbed):
    def work(group):
        mine = config(tmp_path / "run", devices=1, patience=1)
        return train(mine, reporter=Reporter(), dataset=load_few_digits(), group=group)

    first, second = run_in_threads(2, work)
    epochs, best = textbook([each.accuracy for each in undisturbed[0].history], 1)
    for result in (first, second):
        assert (len(result.history), result.best_epoch) == (epochs, best)
        assert few_digits_accuracy(result.net) == pytest.approx(result.accuracy, abs=1e-9)
    assert first.stopped == second.stopped


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that patience has ended, with a checkpoint of each of its last epochs."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    return run(folder, patience=3, checkpoint_every="1 epoch", keep=9)


def a_later_epochs_are_there(folder):
    (folder / "parameters.params").write_bytes((list_checkpoints(folder)[0] / "parameters.params").read_bytes())


def test_the_best_parameters_are_taken_from_a_checkpoint_where_a_later_epochs_are_there(tmp_path, stopped):
    """A run that had come further than its last checkpoint, and then goes on otherwise."""
    folder = shutil.copytree(stopped.run_dir, tmp_path / "run")
    best = read_parameter_bytes(folder)
    assert find_parameters_file(folder, hashlib.sha256(best).hexdigest()) is not None
    a_later_epochs_are_there(folder)
    assert read_parameter_bytes(folder) != best
    again = train(resume=folder, reporter=Reporter(), dataset=load_few_digits())
    assert again.stopped == stopped.stopped and again.best_epoch == stopped.best_epoch
    assert read_parameter_bytes(folder) == best


@pytest.mark.parametrize("in_checkpoint", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_all_processes_forget_the_best_epoch_where_its_parameters_are_nowhere_and_only_there(
    tmp_path, stopped, in_place, in_checkpoint
):
    """Rank 0 alone has the run's folder, and knows what the parameters should be."""
    folder = shutil.copytree(stopped.run_dir, tmp_path / "run")
    best = read_parameter_bytes(folder)
    digest = hashlib.sha256(best).hexdigest()
    if not in_place:
        a_later_epochs_are_there(folder)
    if not in_checkpoint:
        shutil.rmtree(find_parameters_file(folder, digest).parent)

    def work(group):
        early = EarlyStopping(Patience(3, "accuracy"))
        early.best_epoch, early.digest = stopped.best_epoch, digest if group.rank == 0 else ""
        return BestWeights(runs[group.rank], None, group, early).restore(), early.best_epoch

    with closing(RunDirectory(folder)) as of_first:
        runs = [of_first, NoRunDirectory()]
        found = run_in_threads(2, work)
    there = in_place or in_checkpoint
    assert found == [(there, stopped.best_epoch if there else None)] * 2
    assert (read_parameter_bytes(folder) == best) == there


EPOCHS_SEEN = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9)


@given(EPOCHS_SEEN, st.booleans())
def test_the_best_epoch_of_a_finished_run_is_the_textbooks(seen, by_loss):
    """As a run that is found finished is read, by its lines alone; the first of several."""
    history = [
        Epoch(number, number, 1, 1.0, 0.0, right / 3, validation_loss=loss / 3)
        for number, (right, loss) in enumerate(seen, 1)
    ]
    patience = Patience(1, "loss" if by_loss else "accuracy")
    scores = [-loss if by_loss else right for right, loss in seen]
    assert find_best_epoch(patience, history) == textbook(scores, len(scores))[1]
    assert find_best_epoch(None, history) is None


@pytest.mark.long
def test_more_patience_has_a_stopped_run_go_on(tmp_path):
    run(tmp_path / "run", patience=1, checkpoint_every="1 epoch")
    whole = run(tmp_path / "whole", patience=4)
    before = read_resume_point(tmp_path / "run")
    more = resumed_config(before, patience=4)
    again = train(more, reporter=Reporter(), dataset=load_few_digits(), resume=before)
    assert (len(again.history), again.best_epoch) == (len(whole.history), whole.best_epoch)
    assert read_parameter_bytes(tmp_path / "run") == read_parameter_bytes(tmp_path / "whole")
    said = [line["message"] for line in read_metrics(tmp_path / "run") if "message" in line]
    assert "patience 4 instead of 1" in said[0]


@pytest.mark.parametrize("wrong", [0, -1, "loss", "3:f1", "3:loss:x", "x", 1.5, True, ""])
def test_a_wrong_patience_is_refused_in_one_line(wrong):
    with pytest.raises(ConfigError, match=r"--patience.*: give a number of epochs, such as 5"):
        TrainConfig(patience=wrong)


def test_values_are_what_config_json_can_give_again():
    for given_, kept in ((3, 3), ("3", 3), ("3:accuracy", 3), (" 2:Loss ", "2:loss")):
        assert TrainConfig(patience=given_).patience == kept
        assert TrainConfig(patience=kept).patience == kept
