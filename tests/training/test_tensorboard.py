"""Event files contain what metrics.jsonl contains, however often the run was interrupted."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.devices import device_spec
from support.drawn_runs import BATCH_SIZE, IMAGE_COUNT, load_few_digits
from support.event_files import read_events, read_scalars, read_settings_text
from support.examples import examples
from support.full_disk import limit_file_size
from support.interrupted_runs import RunStopped, StoppingReporter
from support.process_group import run_in_threads

from gluonlab.config import TrainConfig
from gluonlab.errors import OutputError
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import Epoch, LossScaleEvent, Step
from gluonlab.runs.tensorboard_file import check_tensorboard
from gluonlab.study.compare_device_counts import compare
from gluonlab.training.builtin_callbacks import EPOCH_FIELDS, STEP_FIELDS, TensorBoard
from gluonlab.training.callbacks import FAILED, Callback, RunEnd
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

STEPS = -(-IMAGE_COUNT // BATCH_SIZE)  # of an epoch
BASE = {
    "threads": 1, "model": "mlp", "lr": 0.05, "global_batch_size": BATCH_SIZE, "optimizer": "sgd",
    "lr_schedule": "linear", "tensorboard": True,
}  # fmt: skip


def config(folder, devices=2, epochs=2, **more):
    return TrainConfig(**{**BASE, **more}, devices=device_spec(devices), epochs=epochs, out=str(folder))


TRAIN_ARGUMENTS = ("autoresume", "group", "callbacks")


def run(folder, reporter=None, **more):
    options = {name: more.pop(name) for name in TRAIN_ARGUMENTS if name in more}
    return train(config(folder, **more), reporter=reporter or Reporter(), dataset=load_few_digits(), **options)


def expected_scalars(folder):
    """Return what the event files must contain, by metrics.jsonl."""
    scalars = {}
    for line in read_lines(folder):
        for prefix, kind, names in (
            ("step", Step, STEP_FIELDS), ("epoch", Epoch, EPOCH_FIELDS), ("epoch", LossScaleEvent, ["loss_scale"]),
        ):  # fmt: skip
            for name in names if isinstance(line, kind) else ():
                if getattr(line, name) is not None:
                    value = float(np.float32(getattr(line, name)))
                    scalars.setdefault(f"{prefix}/{name}", []).append((line.step, value))
    return scalars


def assert_complete(folder):
    assert read_scalars(folder / "tensorboard") == expected_scalars(folder)


@examples(1, 20)
@given(interruptions=st.lists(st.integers(1, 2 * STEPS), min_size=1, max_size=4), every=st.integers(1, 9))
@example([STEPS + 3, 5], 4)
def test_an_interrupted_run_writes_every_step_once(tmp_path_factory, interruptions, every):
    """Interrupted within an epoch, or between a checkpoint and the events that followed it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    for steps in [*interruptions, 10**6]:
        with suppress(RunStopped):
            run(folder, StoppingReporter(steps), checkpoint_every=f"{every} steps", autoresume=True)
    assert_complete(folder)


@pytest.mark.parametrize("before", ["without", pytest.param("lost", marks=pytest.mark.long)])
def test_a_resumed_run_without_event_files_gets_those_of_all_its_steps(tmp_path, before):
    folder = tmp_path / "run"
    with pytest.raises(RunStopped):
        run(folder, StoppingReporter(STEPS + 3), checkpoint_every="2 steps", tensorboard=before == "lost")
    for file in folder.glob("tensorboard/*"):
        file.unlink()
    more = config(folder, checkpoint_every="2 steps").replace(out=None)
    train(more, resume=folder, reporter=Reporter(), dataset=load_few_digits())
    assert_complete(folder)


def test_only_rank_0_of_several_processes_writes(tmp_path):
    run_in_threads(2, lambda group: run(tmp_path / str(group.rank), devices=1, group=group))
    assert_complete(tmp_path / "0")
    assert not (tmp_path / "1").exists()


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_each_run_of_a_comparison_has_complete_event_files(tmp_path):
    config_ = config(tmp_path / "both", epochs=1).replace(devices=None)
    metrics = {"half": lambda scores, labels: 0.5, "nothing": lambda scores, labels: np.nan}
    for row in compare(config_, [1, 2], Reporter(), load_few_digits(), metrics=metrics):
        folder = tmp_path / "both" / f"{row.devices}-device{'s' * (row.devices > 1)}"
        scalars = read_scalars(folder / "tensorboard")
        assert scalars.pop("epoch/metrics/half") == [(STEPS, 0.5)]
        assert scalars == expected_scalars(folder)
        assert [step for step, _ in scalars["step/lr"]] == [*range(1, STEPS + 1)]
        settings = json.loads((folder / "config.json").read_text())["settings"]
        for name in ("model", "global_batch_size", "learning_rate", "seed"):
            assert f"| {name} | {settings[name]} |" in read_settings_text(folder / "tensorboard")
        times = [time for time, step, _ in read_events(folder / "tensorboard") if step]
        assert times == sorted(times) and times[-1] - times[0] < 60


def test_the_loss_scale_of_an_epoch_is_written(tmp_path):
    # no run on CPU devices has a loss scale
    view = SimpleNamespace(path=tmp_path, settings={}, step=0, loss_scale=1024.0)
    board = TensorBoard()
    board.on_run_start(view)
    board.on_epoch_end(view, Epoch(1, STEPS, 100, 1.0, 0.5, 0.9))
    board.on_run_end(view, RunEnd(FAILED, "", STEPS, 1))
    assert read_scalars(tmp_path / "tensorboard")["epoch/loss_scale"] == [(STEPS, 1024.0)]


class DiskFiller(Callback):
    """Fills the disk of the event file before the second epoch."""

    def on_epoch_start(self, run, epoch):
        for handle in Path("/proc/self/fd").iterdir() if epoch == 2 else ():
            if ".tfevents." in os.path.realpath(handle):
                full = os.open("/dev/full", os.O_WRONLY)
                os.dup2(full, int(handle.name))
                os.close(full)


def test_a_full_disk_ends_the_run_in_one_line_and_nothing_is_lost(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(OutputError) as raised:
        run(folder, checkpoint_every="1 epoch", callbacks=[DiskFiller])
    message = f"cannot write {folder / 'tensorboard'}: No space left on device; choose another path with --out"
    assert str(raised.value) == message
    assert (folder / "curves.png").exists() and (folder / "parameters.params").exists()
    train(resume=folder, reporter=Reporter(), dataset=load_few_digits())
    assert_complete(folder)


def test_a_disk_that_is_full_from_the_start_leaves_no_folder(tmp_path):
    check_tensorboard()  # imports all that it needs
    with limit_file_size(40), pytest.raises(OutputError, match=r"^cannot write [^\n]*$"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
