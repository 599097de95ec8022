"""Event files say what metrics.jsonl says, whatever the run, and however often it was broken off.

They are read by `support.event_files`, which has nothing of tensorboardX.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

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
from gluonlab.study.compare_devices import compare
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


def run(folder, reporter=None, **more):
    return train(config(folder, **more), reporter=reporter or Reporter(), dataset=load_few_digits())


def of_folder(folder):
    """What the event files are to say, from metrics.jsonl."""
    lines, found = read_lines(folder), {}
    kinds = (("step", Step, STEP_FIELDS), ("epoch", Epoch, EPOCH_FIELDS))
    for prefix, kind, names in (*kinds, ("epoch", LossScaleEvent, ["loss_scale"])):
        for line in [line for line in lines if isinstance(line, kind)]:
            for name in names:
                if getattr(line, name) is not None:
                    value = float(np.float32(getattr(line, name)))
                    found.setdefault(f"{prefix}/{name}", []).append((line.step, value))
    return found


@examples(1, 20)
@given(plugs=st.lists(st.integers(1, 2 * STEPS), min_size=1, max_size=4), every=st.integers(1, 9))
@example([STEPS + 3, 5], 4)
def test_a_run_that_goes_on_has_no_step_twice_and_misses_none(tmp_path_factory, plugs, every):
    """Broken off within an epoch, or between a checkpoint and what it had told."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    asked = config(folder, checkpoint_every=f"{every} steps")
    for plug in [*plugs, 10**6]:
        with suppress(RunStopped):
            train(asked, autoresume=True, dataset=load_few_digits(), reporter=StoppingReporter(plug))
    assert read_scalars(folder / "tensorboard") == of_folder(folder)


@pytest.mark.parametrize("before", ["without", pytest.param("lost", marks=pytest.mark.long)])
def test_a_run_that_has_no_event_files_gets_those_of_all_its_steps(tmp_path, before):
    with pytest.raises(RunStopped):
        run(tmp_path / "run", StoppingReporter(STEPS + 3), checkpoint_every="2 steps", tensorboard=before == "lost")
    for file in (tmp_path / "run").glob("tensorboard/*"):
        file.unlink()
    again = config(tmp_path / "run", checkpoint_every="2 steps").replace(out=None)
    train(again, resume=tmp_path / "run", reporter=Reporter(), dataset=load_few_digits())
    assert read_scalars(tmp_path / "run" / "tensorboard") == of_folder(tmp_path / "run")


def test_of_several_processes_rank_0_alone_writes(tmp_path):
    def work(group):
        mine = config(tmp_path / str(group.rank), devices=1)
        return train(mine, reporter=Reporter(), dataset=load_few_digits(), group=group)

    run_in_threads(2, work)
    assert read_scalars(tmp_path / "0" / "tensorboard") == of_folder(tmp_path / "0")
    assert not (tmp_path / "1").exists()


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_each_run_of_a_comparison_writes_what_its_folder_says(tmp_path):
    asked = config(tmp_path / "both", epochs=1).replace(devices=None)
    own = {"half": lambda scores, labels: 0.5, "nothing": lambda scores, labels: np.nan}
    for row in compare(asked, [1, 2], Reporter(), load_few_digits(), metrics=own):
        folder = tmp_path / "both" / f"{row.devices}-device{'s' * (row.devices > 1)}"
        told = read_scalars(folder / "tensorboard")
        assert told.pop("epoch/metrics/half") == [(STEPS, 0.5)]
        assert told == of_folder(folder)
        assert [step for step, _ in told["step/lr"]] == [*range(1, STEPS + 1)]
        assert len(told["epoch/accuracy"]) == 1
        used = json.loads((folder / "config.json").read_text())["settings"]
        for name in ("model", "global_batch_size", "learning_rate", "seed"):
            assert f"| {name} | {used[name]} |" in read_settings_text(folder / "tensorboard")
        times = [time for time, step, _ in read_events(folder / "tensorboard") if step]
        assert times == sorted(times) and times[-1] - times[0] < 60


def test_the_loss_scale_of_an_epoch_is_written(tmp_path):
    """On CPU devices no run has one: a view of a run stands for such a run."""

    class View:
        path, settings, step, loss_scale = tmp_path, {}, 0, 1024.0

    board = TensorBoard()
    board.on_run_start(View)
    board.on_epoch_end(View, Epoch(1, STEPS, 100, 1.0, 0.5, 0.9))
    board.on_run_end(View, RunEnd(FAILED, "", STEPS, 1))
    assert read_scalars(tmp_path / "tensorboard")["epoch/loss_scale"] == [(STEPS, 1024.0)]


class FillsTheDisk(Callback):
    """The event file's, before the second epoch."""

    def on_epoch_start(self, run, epoch):
        for handle in Path("/proc/self/fd").iterdir() if epoch == 2 else ():
            if ".tfevents." in os.path.realpath(handle):
                full = os.open("/dev/full", os.O_WRONLY)
                os.dup2(full, int(handle.name))
                os.close(full)


def test_a_full_disk_ends_the_run_in_one_line_and_nothing_is_lost(tmp_path):
    folder, data = tmp_path / "run", load_few_digits()
    asked = config(folder, checkpoint_every="1 epoch")
    with pytest.raises(OutputError) as raised:
        train(asked, reporter=Reporter(), dataset=data, callbacks=[FillsTheDisk])
    place, reason = f"cannot write {folder / 'tensorboard'}: ", "No space left on device"
    assert str(raised.value) == f"{place}{reason}; choose another place with --out"
    assert (folder / "curves.png").exists() and (folder / "parameters.params").exists()
    train(resume=folder, reporter=Reporter(), dataset=data)
    assert read_scalars(folder / "tensorboard") == of_folder(folder)


def test_a_disk_that_is_full_from_the_start_leaves_no_folder(tmp_path):
    check_tensorboard()  # what is imported is there
    with limit_file_size(40), pytest.raises(OutputError, match=r"^cannot write [^\n]*$"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
