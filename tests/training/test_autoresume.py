"""--autoresume: the same command starts a run, resumes it, or reports that it has ended."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import file_names
from support.devices import device_spec
from support.drawn_runs import load_few_digits
from support.examples import examples
from support.interrupted_runs import interrupt_run, read_comparable_metrics, read_parameter_bytes
from support.reference import arrays_equal, parameter_arrays
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, OutputError
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.runs.run_writer import FolderLock
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

SETTINGS = {
    "devices": device_spec(2), "threads": 1, "model": "mlp", "epochs": 2, "global_batch_size": 20,
    "optimizer": "sgd", "lr": 0.01, "checkpoint_every": "3 steps", "confusion": True,
}  # fmt: skip
MARKERS = (".sagemaker-uploading", ".sagemaker-uploaded")


def autoresume(folder, **settings):
    """Return the result of the same command once more, and the lines about starting or resuming."""
    reporter, lines = Reporter(), []
    reporter.say = lines.append
    config = TrainConfig(**{**SETTINGS, **settings}, out=str(folder))
    result = train(config, reporter=reporter, dataset=load_few_digits(), autoresume=True)
    return result, [line for line in lines if line.split()[0] in ("restarted", "resumed", "ended")]


class Files(dict):
    """Name -> bytes; a failed test prints the names."""

    def __repr__(self):
        return str({name: len(text) for name, text in self.items()})


def read_files(folder):
    """Return the files of a folder, without those that vanish meanwhile."""
    files = Files()
    for parent, _, names in os.walk(folder):
        for file in (Path(parent, name) for name in names if name != ".in-use"):
            with suppress(OSError):
                files[str(file.relative_to(folder))] = file.read_bytes()
    return files


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a whole run, its files after each step, and its result."""
    folder, snapshots, reporter = tmp_path_factory.mktemp("undisturbed") / "run", [Files()], Reporter()
    reporter.step_done = lambda images, known: snapshots.append(read_files(folder))
    result = train(TrainConfig(**SETTINGS, out=str(folder)), reporter=reporter, dataset=load_few_digits())
    return folder, [*snapshots, read_files(folder)], result


def assert_same_run(folder, whole, picture=True):
    """``picture``: whether the run in the folder draws its confusion, as the whole one does."""
    assert read_parameter_bytes(folder) == read_parameter_bytes(whole)
    if picture:
        assert read_comparable_metrics(folder) == read_comparable_metrics(whole)
        assert (folder / "confusion.png").read_bytes() == (whole / "confusion.png").read_bytes()
    else:
        assert read_comparable_metrics(folder) == [
            {**line, "files": {PARAMETERS: line["files"][PARAMETERS]}} if "files" in line else line
            for line in read_comparable_metrics(whole)
            if line.get("event") != "confusion"
        ]
    steps = [line["step"] for line in read_metrics(folder) if line["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))


@st.composite
def restored_files(draw, snapshots):
    """Draw what a store restores: each file as it was after some step, perhaps cut, with markers."""
    last = draw(st.integers(0, len(snapshots) - 1))
    oldest = max(0, last - draw(st.sampled_from([0, 1, 3, len(snapshots)])))
    files = Files()
    for name in sorted({name for files in snapshots[: last + 1] for name in files}):
        text = snapshots[draw(st.integers(oldest, last))].get(name)
        if text is not None:
            kept = draw(st.sampled_from([*["all"] * 5, "a part", "none"]))
            if kept != "none":
                files[name] = text[: draw(st.integers(0, len(text)))] if kept == "a part" else text
            if draw(st.booleans()):
                files[name + draw(st.sampled_from(MARKERS))] = b""
    return files


@examples(8, 100)
@given(st.data())
@pytest.mark.long
def test_any_restored_part_of_a_folder_gives_the_same_final_bits(undisturbed, tmp_path_factory, data):
    whole, snapshots, _ = undisturbed
    folder = tmp_path_factory.mktemp("restored") / "run"
    for name, text in data.draw(restored_files(snapshots)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    autoresume(folder)
    assert_same_run(folder, whole)
    expected = read_files(folder)
    result, lines = autoresume(folder)
    assert lines == [f"{'ended':<11}{folder} has finished its 2 epochs"]
    assert read_files(folder) == expected
    assert [epoch.epoch for epoch in result.history] == [1, 2]
    shutil.rmtree(folder.parent)


NO_PICTURE = {"confusion": False}  # the picture takes more time than the training


@pytest.fixture(scope="module")
def interrupted_once(tmp_path_factory):
    """A run that was interrupted in its second epoch."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    assert interrupt_run(13, folder, load_few_digits(), **SETTINGS)
    return folder


@pytest.fixture
def interrupted(interrupted_once, tmp_path):
    return Path(shutil.copytree(interrupted_once, tmp_path / "run"))


@pytest.fixture
def finished(undisturbed, tmp_path):
    return Path(shutil.copytree(undisturbed[0], tmp_path / "run"))


def test_a_new_or_empty_folder_starts_a_run_that_writes_checkpoints(undisturbed, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        assert autoresume(tmp_path / name, checkpoint_every=None, **NO_PICTURE)[1] == []
        assert_same_run(tmp_path / name, undisturbed[0], picture=False)
        assert file_names(tmp_path / name / "checkpoints") == ["step-000000008", "step-000000016"]


def test_an_interrupted_run_is_resumed(undisturbed, interrupted):
    result, lines = autoresume(interrupted)
    assert lines in ([f"{'resumed':<11}from step {step}"] for step in (8, 11))
    assert [epoch.epoch for epoch in result.history] == [1, 2]
    assert_same_run(interrupted, undisturbed[0])


def test_a_run_without_a_checkpoint_restarts_in_its_folder(undisturbed, tmp_path):
    assert interrupt_run(2, tmp_path / "run", load_few_digits(), **SETTINGS)
    reason = f"the run in {tmp_path / 'run'} had no checkpoint; it had not finished an epoch"
    assert autoresume(tmp_path / "run", **NO_PICTURE)[1] == [f"{'restarted':<11}{reason}"]
    assert_same_run(tmp_path / "run", undisturbed[0], picture=False)
    assert file_names(tmp_path) == ["run"]


@pytest.mark.parametrize("left", ["parameters.params", "checkpoints/step-000000008/state.json"])
def test_valuable_files_are_archived_when_a_run_restarts(undisturbed, interrupted, tmp_path, left):
    content = (interrupted / left).read_bytes()
    shutil.rmtree(interrupted / "checkpoints")
    (interrupted / "parameters.params").unlink()
    (interrupted / left).parent.mkdir(parents=True, exist_ok=True)
    (interrupted / left).write_bytes(content)
    expected = read_files(interrupted)
    _, [line] = autoresume(interrupted, **NO_PICTURE)
    assert line.endswith(f"checkpoint; its files were moved to {tmp_path / 'run-earlier'}")
    assert read_files(tmp_path / "run-earlier") == expected
    assert_same_run(interrupted, undisturbed[0], picture=False)


@pytest.mark.parametrize("lost", ["checkpoints", "checkpoints/step-000000016", "config.json"])
def test_a_complete_run_stays_complete_without_its_checkpoints(undisturbed, finished, tmp_path, lost):
    (finished / lost).rename(tmp_path / "lost")
    result, _ = autoresume(finished)
    assert_same_run(finished, undisturbed[0])
    assert result.confusion.sum() == 40 and result.val_accuracy == result.history[-1].val_accuracy


def test_an_ended_run_returns_its_result_again_and_changes_nothing(undisturbed, finished):
    files, expected = read_files(finished), undisturbed[2]
    result, lines = autoresume(finished)
    assert lines == [f"{'ended':<11}{finished} has finished its 2 epochs"]
    assert read_files(finished) == files
    ctx = result.plan.ctxs[1]
    assert arrays_equal(parameter_arrays(result.net, ctx), parameter_arrays(expected.net, ctx))
    assert (result.confusion == expected.confusion).all()


def test_an_ended_run_is_resumed_with_more_epochs(finished, tmp_path):
    autoresume(finished, epochs=3)
    config = TrainConfig(**{**SETTINGS, "epochs": 3}, out=str(tmp_path / "whole"))
    train(config, reporter=Reporter(), dataset=load_few_digits())
    assert_same_run(finished, tmp_path / "whole")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("finished", {"lr": 0.02}, "--learning-rate was 0.01, and would now be 0.02: use the same value"),
        ("interrupted", {"lr": 0.02}, "--learning-rate was 0.01, and would now be 0.02: use the same value"),
        ("finished", {"epochs": 1}, "use --epochs 2 or more, or another --out"),
        ("interrupted", {"epochs": 1}, "1 of 1 epochs are finished"),
    ],
    ids=str,
)
def test_another_command_is_refused_and_changes_nothing(request, kind, settings, message):
    folder = request.getfixturevalue(kind)
    expected = read_files(folder)
    with pytest.raises(ConfigError) as raised:
        autoresume(folder, **settings)
    assert str(raised.value).startswith("--autoresume: ") and message in str(raised.value)
    assert read_files(folder) == expected


def test_other_content_is_refused(tmp_path):
    for name, text in (("notes.txt", "mine"), ("config.json", "{}")):
        (tmp_path / name).write_text(text)
    with pytest.raises(OutputError, match="is not empty: use a new folder"):
        autoresume(tmp_path)
    assert read_files(tmp_path) == {"notes.txt": b"mine", "config.json": b"{}"}


def test_another_programs_config_json_is_archived(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    autoresume(tmp_path / "run", epochs=1, **NO_PICTURE)
    assert read_files(tmp_path / "run-earlier") == {"config.json": b"{}"}


def test_a_folder_that_another_process_uses_is_refused(interrupted):
    lock = FolderLock(interrupted)
    with pytest.raises(OutputError, match="is in use by process"):
        autoresume(interrupted)
    lock.release()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out": None}, "--autoresume needs --out, the directory of the run: add --out DIR"),
        ({"compress": "2bit"}, "--autoresume and --compress 2bit:0.5 contradict each other"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(empty_cwd, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(TrainConfig(**{**SETTINGS, "out": "run", **settings}), dataset=load_few_digits(), autoresume=True)
    assert not list(empty_cwd.iterdir())


def test_resume_and_autoresume_contradict_each_other(interrupted_once):
    with pytest.raises(ConfigError, match="and autoresume contradict each other: remove one of them"):
        train(reporter=Reporter(), resume=interrupted_once, autoresume=True)


def test_an_incomplete_export_is_written_again(tmp_path):
    settings = {"export": True, "epochs": 1, **NO_PICTURE}
    autoresume(tmp_path / "run", **settings)
    [file] = (tmp_path / "run" / "export").glob("*.params")
    expected = file.read_bytes()
    file.write_bytes(b"a part")
    assert autoresume(tmp_path / "run", **settings)[1] == [f"{'resumed':<11}from step 8"]
    assert file.read_bytes() == expected
