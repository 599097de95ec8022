"""--patience ends a run after the epoch of the textbook, and keeps the best epoch's network."""

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
from gluonlab.config.option_checks import Patience
from gluonlab.errors import ConfigError
from gluonlab.runs.checkpoint import find_parameters_file, list_checkpoints
from gluonlab.runs.run_schema import Epoch
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.training.builtin_callbacks import EarlyStopping, find_best_epoch
from gluonlab.training.finish_run import BestWeights
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from gluonlab.training.resume import read_resume_point, resumed_config

EPOCHS = 12
# a rate at which accuracy soon goes up and down
NOISY = {"threads": 1, "model": "mlp", "lr": 0.9, "global_batch_size": 50, "epochs": EPOCHS}


def config(folder, devices=2, **more):
    return TrainConfig(**{**NOISY, **more}, devices=device_spec(devices), out=str(folder))


def run(folder, reporter=None, **more):
    return train(config(folder, **more), reporter=reporter or Reporter(), dataset=load_few_digits())


def resume(folder, config=None):
    return train(config, reporter=Reporter(), dataset=load_few_digits(), resume=folder)


def count_epochs(scores, patience):
    """Return the number of trained epochs and the best of them, from 1, as the textbook does."""
    best = 0
    for index, score in enumerate(scores):
        if score > scores[best]:
            best = index
        if index - best == patience:
            return index + 1, best + 1
    return len(scores), best + 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Runs of all epochs by seed, without patience."""
    folder = tmp_path_factory.mktemp("whole")
    return {seed: run(folder / str(seed), seed=seed) for seed in range(2)}


@settings(max_examples=3)
@given(seed=st.integers(0, 1), patience=st.integers(1, 4), by_loss=st.booleans())
def test_it_stops_as_the_reference_and_keeps_the_best(tmp_path_factory, undisturbed, seed, patience, by_loss):
    folder = tmp_path_factory.mktemp("run") / "run"
    history = undisturbed[seed].history
    scores = [-epoch.val_loss if by_loss else epoch.val_accuracy for epoch in history]
    result = run(folder, seed=seed, patience=f"{patience}:loss" if by_loss else patience)
    epochs, best = count_epochs(scores, patience)
    assert (len(result.history), result.best_epoch) == (epochs, best)
    assert (result.stopped is None) == (epochs == EPOCHS)
    assert result.val_accuracy == history[best - 1].val_accuracy
    assert few_digits_accuracy(result.net) == pytest.approx(result.val_accuracy, abs=1e-9)
    result.net.load_parameters(str(folder / "parameters.params"), ctx=result.plan.ctxs)
    assert few_digits_accuracy(result.net) == pytest.approx(result.val_accuracy, abs=1e-9)


@pytest.mark.long
@settings(max_examples=5)
@given(seed=st.integers(0, 2), steps=st.integers(4, 30), every=st.sampled_from(["2", "1 epoch"]))
def test_a_resumed_run_continues_counting(tmp_path_factory, seed, steps, every):
    folder = tmp_path_factory.mktemp("runs")
    more = {"seed": seed, "patience": 2, "checkpoint_every": every, "keep_checkpoints": 1, "confusion": True}
    whole = run(folder / "whole", **more)
    try:
        resumed = run(folder / "run", StoppingReporter(steps), **more)
    except RunStopped:
        resumed = resume(folder / "run")
    assert (resumed.stopped, resumed.best_epoch) == (whole.stopped, whole.best_epoch)
    assert np.array_equal(resumed.confusion, whole.confusion)
    assert np.trace(resumed.confusion) == round(resumed.val_accuracy * 40)
    assert read_parameter_bytes(folder / "run") == read_parameter_bytes(folder / "whole")
    assert read_comparable_metrics(folder / "run") == read_comparable_metrics(folder / "whole")


def test_processes_stop_together_and_have_the_best_network(tmp_path, undisturbed):
    def work(group):
        config_ = config(tmp_path / "run", devices=1, patience=1)
        return train(config_, reporter=Reporter(), dataset=load_few_digits(), group=group)

    first, second = run_in_threads(2, work)
    expected = count_epochs([epoch.val_accuracy for epoch in undisturbed[0].history], 1)
    for result in (first, second):
        assert (len(result.history), result.best_epoch) == expected
        assert few_digits_accuracy(result.net) == pytest.approx(result.val_accuracy, abs=1e-9)
    assert first.stopped == second.stopped


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that patience has ended, with checkpoints of its last epochs."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    return run(folder, patience=3, checkpoint_every="1 epoch", keep_checkpoints=9)


def write_last_parameters(folder):
    """Replace the best parameters by those of the last epoch, as in a run without a checkpoint since."""
    shutil.copy(list_checkpoints(folder)[0] / "parameters.params", folder)


def test_the_best_parameters_are_read_from_a_checkpoint_if_the_folder_has_later_ones(tmp_path, stopped):
    folder = shutil.copytree(stopped.run_dir, tmp_path / "run")
    best = read_parameter_bytes(folder)
    write_last_parameters(folder)
    assert read_parameter_bytes(folder) != best
    resumed = resume(folder)
    assert (resumed.stopped, resumed.best_epoch) == (stopped.stopped, stopped.best_epoch)
    assert read_parameter_bytes(folder) == best


@pytest.mark.parametrize("in_checkpoint", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_all_processes_forget_the_best_epoch_if_no_file_has_its_parameters(tmp_path, stopped, in_place, in_checkpoint):
    """Only rank 0 has the run's folder and the digest of the parameters."""
    folder = shutil.copytree(stopped.run_dir, tmp_path / "run")
    best = read_parameter_bytes(folder)
    digest = hashlib.sha256(best).hexdigest()
    if not in_place:
        write_last_parameters(folder)
    if not in_checkpoint:
        shutil.rmtree(find_parameters_file(folder, digest).parent)

    def work(group):
        early = EarlyStopping(Patience(3, "accuracy"))
        early.best_epoch, early.digest = stopped.best_epoch, digest if group.rank == 0 else ""
        return BestWeights(runs[group.rank], None, group, early).restore(), early.best_epoch

    with closing(RunDirectory(folder)) as first_run:
        runs = [first_run, NoRunDirectory()]
        results = run_in_threads(2, work)
    restored = in_place or in_checkpoint
    assert results == [(restored, stopped.best_epoch if restored else None)] * 2
    assert (read_parameter_bytes(folder) == best) == restored


SCORES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9)


@given(SCORES, st.booleans())
def test_the_best_epoch_of_a_finished_run_is_the_textbooks(scores, by_loss):
    """It is found from the lines of the run; of equal ones it is the first."""
    history = [
        Epoch(number, number, 1, 1.0, 0.0, correct / 3, val_loss=loss / 3)
        for number, (correct, loss) in enumerate(scores, 1)
    ]
    scores = [-loss if by_loss else correct for correct, loss in scores]
    patience = Patience(1, "loss" if by_loss else "accuracy")
    assert find_best_epoch(patience, history) == count_epochs(scores, len(scores))[1]
    assert find_best_epoch(None, history) is None


@pytest.mark.long
def test_a_stopped_run_is_resumed_with_more_patience(tmp_path):
    run(tmp_path / "run", patience=1, checkpoint_every="1 epoch")
    whole = run(tmp_path / "whole", patience=4)
    resume_point = read_resume_point(tmp_path / "run")
    resumed = resume(resume_point, resumed_config(resume_point, patience=4))
    assert (len(resumed.history), resumed.best_epoch) == (len(whole.history), whole.best_epoch)
    assert read_parameter_bytes(tmp_path / "run") == read_parameter_bytes(tmp_path / "whole")
    messages = [line["message"] for line in read_metrics(tmp_path / "run") if "message" in line]
    assert "patience 4 instead of 1" in messages[0]


@pytest.mark.parametrize("wrong", [0, -1, "loss", "3:f1", "3:loss:x", "x", 1.5, True, ""])
def test_a_wrong_patience_is_refused_in_one_line(wrong):
    with pytest.raises(ConfigError, match=r"--patience.*: use a number of epochs, such as 5"):
        TrainConfig(patience=wrong)


def test_patience_is_normalized():
    for patience, expected in ((3, 3), ("3", 3), ("3:accuracy", 3), (" 2:Loss ", "2:loss")):
        assert TrainConfig(patience=patience).patience == expected
