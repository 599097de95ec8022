"""A checkpoint is there whole, or not at all; what is damaged is noticed, and not believed."""

import errno
import io
import os
import pickle
import resource
import shutil
import struct
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.full_disk import limit_file_size

from gluonlab.errors import DataError, OutputError
from gluonlab.runs import checkpoint
from gluonlab.runs.checkpoint import Checkpoint, list_checkpoints, read_newest_checkpoint, write_checkpoint

pytestmark = pytest.mark.cpu_only("files, whose arrays lie on the CPU")


def made(step, accuracy=None):
    """A checkpoint with arrays and values of its own."""
    arrays = [
        {f"{kind}/{name}": nd.array(np.full(shape, step + place)) for name, shape in SHAPES.items()}
        for place, kind in enumerate(("parameter", "state", "device"))
    ]
    return Checkpoint(*arrays, {"step": step, "accuracy": accuracy, "nested": {"text": "äö"}})


SHAPES = {"weight": (3, 2), "bias": (3,)}


def content(found):
    """Plain values, to be compared."""
    *arrays, state = found
    return [{name: array.asnumpy().tolist() for name, array in each.items()} for each in arrays], state


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    """A run with checkpoints of the steps 4 and 8."""
    run = tmp_path_factory.mktemp("run")
    (run / "metrics.jsonl").touch()
    for step in (4, 8):
        write_checkpoint(run, made(step))
    return run


def test_a_written_checkpoint_is_read_unchanged(run_of_two):
    found = read_newest_checkpoint(run_of_two)
    assert content(found.checkpoint) == content(made(8))
    assert not found.damaged
    assert [place.name for place in list_checkpoints(run_of_two)] == ["step-000000008", "step-000000004"]


@settings(max_examples=60)
@given(st.data())
def test_any_damage_is_detected(run_of_two, tmp_path_factory, data):
    """Bits flipped, bytes cut or added, files removed, swapped, added, or made links."""
    run = tmp_path_factory.mktemp("runs") / "run"
    shutil.copytree(run_of_two, run)
    place = list_checkpoints(run)[0]
    files = sorted(place.iterdir())
    file = data.draw(st.sampled_from(files))
    before = file.read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "add", "remove", "swap", "more", "link"]))
    if kind == "flip":
        at, bit = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7))
        file.write_bytes(before[:at] + bytes([before[at] ^ (1 << bit)]) + before[at + 1 :])
    elif kind == "cut":
        file.write_bytes(before[: data.draw(st.integers(0, len(before) - 1))])
    elif kind == "add":
        file.write_bytes(before + data.draw(st.binary(min_size=1, max_size=9)))
    elif kind == "remove":
        file.unlink()
    elif kind == "swap":
        other = data.draw(st.sampled_from([each for each in files if each != file]))
        assume(other.read_bytes() != before)
        file.write_bytes(other.read_bytes())
    elif kind == "more":
        (place / data.draw(st.sampled_from(["more.params", "state.json~"]))).write_bytes(before)
    else:
        file.rename(run / "elsewhere")
        file.symlink_to(run / "elsewhere")
    found = read_newest_checkpoint(run)
    assert content(found.checkpoint) == content(made(4))
    [line] = found.damaged
    assert str(place) in line and "\n" not in line


def test_a_renamed_checkpoint_is_detected(run_of_two, tmp_path):
    shutil.copytree(run_of_two, tmp_path / "run")
    places = list_checkpoints(tmp_path / "run")
    places[0].rename(places[0].with_name("step-000000016"))
    found = read_newest_checkpoint(tmp_path / "run")
    assert found.checkpoint.step == 4 and "it is that of step 8" in found.damaged[0]


def test_remains_are_removed_and_markers_are_ignored(run_of_two, tmp_path):
    """SageMaker writes markers while checkpoints are written and removed."""
    run = tmp_path / "run"
    shutil.copytree(run_of_two, run)
    left = run / "checkpoints" / ".step-000000002-0123abcd.part"
    left.mkdir()
    for place in (left, *list_checkpoints(run)):
        for name in ("state.json.sagemaker-uploading", "state.json.sagemaker-uploaded"):
            (place / name).touch()
    found = read_newest_checkpoint(run)
    assert found.checkpoint.step == 8 and not found.damaged
    checkpoint.remove_later_checkpoints(run, 4)
    assert [each.name for each in (run / "checkpoints").iterdir()] == ["step-000000004"]


def sealed(run, name, text):
    """Replace a file of the newest checkpoint, and have the manifest agree."""
    place = list_checkpoints(run)[0]
    (place / name).write_bytes(text)
    files = {each: checkpoint._size_and_digest(place / each) for each in (*checkpoint.ARRAYS, "state.json")}
    (place / "manifest.json").write_text(checkpoint._manifest_text(files, "1"))


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


HOSTILE = {
    "a pickle": ("parameters.params", pickle.dumps(Evil())),
    "a claim of 10 GB": (
        "optimizer.states",
        struct.pack("<3QIiiqiii", 0x112, 0, 1, 0xF993FAC9, 0, 1, 10 * 2**30 // 4, 1, 0, 0),
    ),
    "a claim of many arrays": ("devices.params", struct.pack("<3Q", 0x112, 0, 2**60)),
    "no object": ("state.json", b"[1]"),
    "deep JSON": ("state.json", b"[" * 10**6),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_content_is_refused_at_once(run_of_two, tmp_path, attack, empty_cwd):
    """Also where the manifest agrees with it."""
    shutil.copytree(run_of_two, tmp_path / "run")
    sealed(tmp_path / "run", *HOSTILE[attack])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()  # however busy the machine is
    found = read_newest_checkpoint(tmp_path / "run")
    assert time.process_time() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100 * 1024
    assert found.checkpoint.step == 4 and len(found.damaged) == 1
    assert not list(empty_cwd.iterdir())


def test_a_path_out_of_the_folder_is_refused(run_of_two, tmp_path):
    shutil.copytree(run_of_two, tmp_path / "run")
    place = list_checkpoints(tmp_path / "run")[0]
    text = (place / "manifest.json").read_text().replace("devices.params", "../../devices.params")
    (place / "manifest.json").write_text(text)
    assert "names other files" in read_newest_checkpoint(tmp_path / "run").damaged[0]


def test_without_a_complete_checkpoint_the_error_says_what_to_give(run_of_two, tmp_path):
    shutil.copytree(run_of_two, tmp_path / "run")
    for place in list_checkpoints(tmp_path / "run"):
        (place / "state.json").unlink()
    with pytest.raises(DataError, match=r"has no whole checkpoint to go on from: .* is damaged"):
        read_newest_checkpoint(tmp_path / "run")


class Failing:
    """Counts what a block asks of the file system, and fails the n-th of it."""

    def __init__(self, patch, fail_at=None):
        self.count, self.fail_at = 0, fail_at
        for name in ("open", "fsync", "replace", "rename", "mkdir", "unlink"):
            patch.setattr(f"os.{name}", self.counted(getattr(os, name)))
        patch.setattr(io, "open", self.counted(io.open))

    def counted(self, call):
        def counting(*arguments, **more):
            self.count += 1
            if self.count == self.fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **more)

        return counting


def attempt(run, fail_at):
    """Write a checkpoint; how many calls that took."""
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch, fail_at)
        write_checkpoint(run, made(12))
        return failing.count


def one_is_whole(run, written):
    """The newest is the new one, or the one before; then the new one is taken away again."""
    found = read_newest_checkpoint(run)
    assert found.checkpoint.step in ((12,) if written else (8, 12)) and not found.damaged
    if found.checkpoint.step == 12:
        shutil.rmtree(list_checkpoints(run)[0])


def test_whatever_call_fails_a_whole_checkpoint_is_the_newest(run_of_two, tmp_path):
    run, failed = tmp_path / "run", 0
    shutil.copytree(run_of_two, tmp_path / "whole")
    calls = attempt(tmp_path / "whole", None)
    assert calls > 30
    shutil.copytree(run_of_two, run)
    for fail_at in range(1, calls + 1):
        try:
            attempt(run, fail_at)
            written = True
        except OutputError as error:
            assert "No space left on device; free space there" in str(error)
            written, failed = False, failed + 1
        one_is_whole(run, written)
    assert failed > 15  # the others tidy up
    write_checkpoint(run, made(12))
    inside = sorted(each.name for each in (run / "checkpoints").iterdir())
    assert inside == ["step-000000004", "step-000000008", "step-000000012"]


def test_at_whatever_byte_the_disk_is_full_a_whole_checkpoint_is_the_newest(run_of_two, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(run_of_two, run)
    largest = max(file.stat().st_size for file in list_checkpoints(run)[0].iterdir())
    for size in range(0, largest, 7):
        with limit_file_size(size), pytest.raises(OutputError, match="File too large; free space there"):
            write_checkpoint(run, made(12))
        one_is_whole(run, written=False)


@given(st.lists(st.none() | st.floats(0, 1, width=16), min_size=1, max_size=6), st.integers(1, 4))
@settings(max_examples=25)
def test_the_newest_and_the_best_are_kept(tmp_path_factory, accuracies, keep):
    run = tmp_path_factory.mktemp("run")
    (run / "metrics.jsonl").touch()
    for step, accuracy in enumerate(accuracies, start=1):
        write_checkpoint(run, made(step, accuracy))
        checkpoint.remove_old_checkpoints(run, keep)
        steps = {
            found.state["step"]: found.state["accuracy"]
            for found in map(checkpoint._read_checkpoint, list_checkpoints(run))
        }
        newest_ones = set(range(max(1, step - keep + 1), step + 1))
        assert newest_ones <= set(steps) and len(steps) <= keep + 1
        so_far = [each for each in accuracies[:step] if each is not None]
        assert not so_far or max(so_far) in steps.values()


@pytest.mark.parametrize("remove", [checkpoint.remove_old_checkpoints, checkpoint.remove_later_checkpoints])
def test_a_file_in_place_of_the_folder_is_left_to_the_next_checkpoint(remove, tmp_path):
    """Somebody may put it there between a checkpoint and the removal of those before it."""
    (tmp_path / "checkpoints").write_text("somebody's")
    remove(tmp_path, 1)
    assert (tmp_path / "checkpoints").read_text() == "somebody's"
