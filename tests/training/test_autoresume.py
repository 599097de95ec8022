"""The same command each time: it begins a run, goes on with it, or says that it has ended."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import device_spec
from support.drawn_runs import load_few_digits
from support.examples import examples
from support.interrupted_runs import interrupt_run, read_comparable_metrics, read_parameter_bytes
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


class Listening(Reporter):
    def __init__(self):
        self.said = []

    def say(self, line):
        self.said.append(line)


def again(folder, **given):
    """The same command once more; its result, and what it said."""
    reporter = Listening()
    config = TrainConfig(**{**SETTINGS, **given}, out=str(folder))
    result = train(config, reporter=reporter, dataset=load_few_digits(), autoresume=True)
    return result, [line for line in reporter.said if line.split()[0] in ("begins", "resumed", "ended")]


def content(folder):
    """Name -> bytes of every file; those that vanish meanwhile are left out."""
    found = {}
    for above, _, names in os.walk(folder):
        for name in names:
            file = Path(above) / name
            with suppress(OSError):
                if name != ".in-use":
                    found[str(file.relative_to(folder))] = file.read_bytes()
    return found


class Syncing(Reporter):
    """Notes what the folder holds after each step."""

    def __init__(self, folder):
        self.folder, self.moments = folder, [{}]

    def step_done(self, images, known):
        self.moments.append(content(self.folder))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a whole run, moment -> what it held then, and its result."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    syncing = Syncing(folder)
    config = TrainConfig(**SETTINGS, out=str(folder))
    result = train(config, reporter=syncing, dataset=load_few_digits())
    return folder, Files(enumerate([*syncing.moments, content(folder)])), result


def assert_alike(folder, whole, picture=True):
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


class Files(dict):
    """Name -> bytes; a failed test prints the names."""

    def __repr__(self):
        return str({name: len(text) for name, text in self.items()})


@st.composite
def synced(draw, moments):
    """What a store puts back: each file as it was at some moment, perhaps cut, with markers."""
    last = draw(st.integers(0, len(moments) - 1))
    early = draw(st.sampled_from([0, 1, 3, len(moments)]))
    names = sorted({name for moment in range(last + 1) for name in moments[moment]})
    files = Files()
    for name in names:
        age = draw(st.integers(max(0, last - early), last))
        text = moments[age].get(name)
        if text is not None:
            kept = draw(st.sampled_from(["all", "all", "all", "all", "all", "a part", "none"]))
            files[name] = text[: draw(st.integers(0, len(text)))] if kept == "a part" else text
            if kept == "none":
                del files[name]
            if draw(st.booleans()):
                files[name + draw(st.sampled_from(MARKERS))] = b""
    return files


@examples(8, 100)
@given(st.data())
@pytest.mark.long
def test_any_restored_part_of_a_folder_gives_the_same_final_bits(undisturbed, tmp_path_factory, data):
    whole, moments, _ = undisturbed
    folder = tmp_path_factory.mktemp("synced") / "run"
    for name, text in data.draw(synced(moments)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    _, said = again(folder)
    assert_alike(folder, whole)
    before = content(folder)
    result, said = again(folder)
    assert said == [f"{'ended':<11}{folder} has finished its 2 epochs"]
    assert content(folder) == before
    assert [epoch.epoch for epoch in result.history] == [1, 2]
    shutil.rmtree(folder.parent)


NO_PICTURE = {"confusion": False}  # which takes more time than the training


def stopped(folder, steps, **given):
    """A run that was broken off after so many steps."""
    assert interrupt_run(steps, folder, load_few_digits(), **{**SETTINGS, **given})
    return content(folder)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A run that was broken off in its second epoch: nobody changes it."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stopped(folder, 13)
    return folder


def test_a_new_or_empty_folder_begins_a_run_that_writes_checkpoints(undisturbed, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        _, said = again(tmp_path / name, checkpoint_every=None, **NO_PICTURE)
        assert said == []
        assert_alike(tmp_path / name, undisturbed[0], picture=False)
        assert {each.name for each in (tmp_path / name / "checkpoints").iterdir()} == {
            "step-000000008", "step-000000016"
        }  # fmt: skip


def test_a_run_that_was_broken_off_goes_on(undisturbed, stopped_once, tmp_path):
    shutil.copytree(stopped_once, tmp_path / "run")
    result, said = again(tmp_path / "run")
    assert said in ([f"{'resumed':<11}goes on from step {step}"] for step in (8, 11))
    assert [epoch.epoch for epoch in result.history] == [1, 2]
    assert_alike(tmp_path / "run", undisturbed[0])


def test_a_run_without_a_checkpoint_restarts_in_its_folder(undisturbed, tmp_path):
    assert stopped(tmp_path / "run", 2)
    _, said = again(tmp_path / "run", **NO_PICTURE)
    assert said == [
        f"{'begins':<11}anew: the run in {tmp_path / 'run'} had no checkpoint to go on from; it had finished no epoch"
    ]
    assert_alike(tmp_path / "run", undisturbed[0], picture=False)
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("left", ["parameters.params", "checkpoints/step-000000008/state.json"])
def test_valuable_files_are_archived_when_a_run_restarts(undisturbed, stopped_once, tmp_path, left):
    folder, aside = tmp_path / "run", tmp_path / "run-earlier"
    shutil.copytree(stopped_once, folder)
    before = content(folder)
    shutil.rmtree(folder / "checkpoints")
    (folder / "parameters.params").unlink()
    (folder / left).parent.mkdir(parents=True, exist_ok=True)
    (folder / left).write_bytes(before[left])
    there = content(folder)
    _, [said] = again(folder, **NO_PICTURE)
    assert said.endswith(f"checkpoint to go on from; what it has left is in {aside}")
    assert content(aside) == there
    assert_alike(folder, undisturbed[0], picture=False)


@pytest.mark.parametrize("lost", ["checkpoints", "checkpoints/step-000000016", "config.json"])
def test_a_complete_run_stays_complete_without_its_checkpoints(undisturbed, tmp_path, lost):
    shutil.copytree(undisturbed[0], tmp_path / "run")
    (tmp_path / "run" / lost).rename(tmp_path / "lost")
    result, _ = again(tmp_path / "run")
    assert_alike(tmp_path / "run", undisturbed[0])
    assert result.confusion.sum() == 40 and result.accuracy == result.history[-1].accuracy


def test_an_ended_run_gives_its_result_again_and_changes_nothing(undisturbed, tmp_path):
    shutil.copytree(undisturbed[0], tmp_path / "run")
    before = content(tmp_path / "run")
    result, said = again(tmp_path / "run")
    assert said == [f"{'ended':<11}{tmp_path / 'run'} has finished its 2 epochs"]
    assert content(tmp_path / "run") == before
    net = result.net.collect_params().values()
    whole = undisturbed[2]
    for one, other in zip(net, whole.net.collect_params().values()):
        assert (one.list_data()[1].asnumpy() == other.list_data()[1].asnumpy()).all()
    assert (result.confusion == whole.confusion).all()


def test_an_ended_run_goes_on_with_more_epochs(undisturbed, tmp_path):
    shutil.copytree(undisturbed[0], tmp_path / "run")
    again(tmp_path / "run", epochs=3)
    config = TrainConfig(**{**SETTINGS, "epochs": 3}, out=str(tmp_path / "whole"))
    train(config, reporter=Reporter(), dataset=load_few_digits())
    assert_alike(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("ended", "given", "said"),
    [
        (True, {"lr": 0.02}, "--learning-rate was 0.01, and would be 0.02: leave it as it was"),
        (False, {"lr": 0.02}, "--learning-rate was 0.01, and would be 0.02: leave it as it was"),
        (True, {"epochs": 1}, "give --epochs 2 or more, or another --out"),
        (False, {"epochs": 1}, "1 of 1 epochs are finished"),
    ],
    ids=str,
)
def test_another_command_is_refused_and_changes_nothing(undisturbed, stopped_once, tmp_path, ended, given, said):
    folder = tmp_path / "run"
    shutil.copytree(undisturbed[0] if ended else stopped_once, folder)
    before = content(folder)
    with pytest.raises(ConfigError) as raised:
        again(folder, **given)
    assert str(raised.value).startswith("--autoresume: ") and said in str(raised.value)
    assert content(folder) == before


def test_other_content_is_refused(tmp_path):
    for name, text in (("notes.txt", "mine"), ("config.json", "{}")):
        (tmp_path / name).write_text(text)
    with pytest.raises(OutputError, match="is not empty: give a new folder"):
        again(tmp_path)
    assert content(tmp_path) == {"notes.txt": b"mine", "config.json": b"{}"}


def test_a_config_json_of_somebody_else_stays_beside(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    again(tmp_path / "run", epochs=1, **NO_PICTURE)
    assert content(tmp_path / "run-earlier") == {"config.json": b"{}"}


def test_a_folder_that_another_process_has_is_refused(stopped_once, tmp_path):
    shutil.copytree(stopped_once, tmp_path / "run")
    lock = FolderLock(tmp_path / "run")
    with pytest.raises(OutputError, match="is in use by process"):
        again(tmp_path / "run")
    lock.release()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"out": None}, "there is none: add --out DIR"),
        ({"compress": "2bit"}, "--autoresume and --compress 2bit:0.5 contradict each other"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(tmp_path, given, said):
    config = TrainConfig(**{**SETTINGS, "out": str(tmp_path / "run"), **given})
    with pytest.raises(ConfigError, match=said):
        train(config, reporter=Reporter(), dataset=load_few_digits(), autoresume=True)
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_named_twice(stopped_once):
    with pytest.raises(ConfigError, match="--autoresume contradict each other: give one of them"):
        train(reporter=Reporter(), resume=stopped_once, autoresume=True)


def test_an_incomplete_export_is_written_again(tmp_path):
    given = {"export": True, "epochs": 1, **NO_PICTURE}
    again(tmp_path / "run", **given)
    before = content(tmp_path / "run")
    [params] = (tmp_path / "run" / "export").glob("*.params")
    params.write_bytes(b"a part")
    _, said = again(tmp_path / "run", **given)
    assert said == [f"{'resumed':<11}goes on from step 8"]
    assert content(tmp_path / "run")[f"export/{params.name}"] == before[f"export/{params.name}"]
