"""A checkpoint is written whole or not at all; damage is detected."""

import errno
import io
import os
import pickle
import resource
import shutil
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.commands import file_names
from support.full_disk import limit_file_size

from gluonlab.errors import DataError, OutputError
from gluonlab.runs import checkpoint
from gluonlab.runs.checkpoint import Checkpoint, list_checkpoints, read_newest_checkpoint, write_checkpoint

pytestmark = pytest.mark.cpu_only("files, whose arrays lie on the CPU")


SHAPES = {"weight": (3, 2), "bias": (3,)}


def make_checkpoint(step, accuracy=None):
    arrays = [
        {f"{kind}/{name}": nd.array(np.full(shape, step + index)) for name, shape in SHAPES.items()}
        for index, kind in enumerate(("parameter", "state", "device"))
    ]
    return Checkpoint(*arrays, {"step": step, "accuracy": accuracy, "nested": {"text": "äö"}})


def to_plain(checkpoint):
    *arrays, state = checkpoint
    return [{name: array.asnumpy().tolist() for name, array in group.items()} for group in arrays], state


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """A run with checkpoints of the steps 4 and 8."""
    run = tmp_path_factory.mktemp("run")
    (run / "metrics.jsonl").touch()
    for step in (4, 8):
        write_checkpoint(run, make_checkpoint(step))
    return run


@pytest.fixture
def run(two_checkpoints, tmp_path):
    return Path(shutil.copytree(two_checkpoints, tmp_path / "run"))


def test_a_written_checkpoint_is_read_unchanged(two_checkpoints):
    newest = read_newest_checkpoint(two_checkpoints)
    assert to_plain(newest.checkpoint) == to_plain(make_checkpoint(8)) and not newest.damaged
    names = [folder.name for folder in list_checkpoints(two_checkpoints)]
    assert names == ["step-000000008", "step-000000004"]


@settings(max_examples=60)
@given(st.data())
def test_any_damage_is_detected(two_checkpoints, tmp_path_factory, data):
    """Bits flipped, bytes cut or added, files removed, swapped, added, or made links."""
    run = Path(shutil.copytree(two_checkpoints, tmp_path_factory.mktemp("runs") / "run"))
    folder = list_checkpoints(run)[0]
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = file.read_bytes()
    index = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "add", "remove", "swap", "more", "link"]))
    if kind == "flip":
        flipped = content[index] ^ (1 << data.draw(st.integers(0, 7)))
        file.write_bytes(content[:index] + bytes([flipped]) + content[index + 1 :])
    elif kind == "cut":
        file.write_bytes(content[:index])
    elif kind == "add":
        file.write_bytes(content + data.draw(st.binary(min_size=1, max_size=9)))
    elif kind == "remove":
        file.unlink()
    elif kind == "swap":
        other = data.draw(st.sampled_from(sorted({*folder.iterdir()} - {file})))
        assume(other.read_bytes() != content)
        file.write_bytes(other.read_bytes())
    elif kind == "more":
        (folder / data.draw(st.sampled_from(["more.params", "state.json~"]))).write_bytes(content)
    else:
        file.rename(run / "elsewhere")
        file.symlink_to(run / "elsewhere")
    newest = read_newest_checkpoint(run)
    assert to_plain(newest.checkpoint) == to_plain(make_checkpoint(4))
    [line] = newest.damaged
    assert str(folder) in line and "\n" not in line


def test_a_renamed_checkpoint_is_detected(run):
    folder = list_checkpoints(run)[0]
    folder.rename(folder.with_name("step-000000016"))
    newest = read_newest_checkpoint(run)
    assert newest.checkpoint.step == 4 and "belongs to step 8" in newest.damaged[0]


def test_partial_checkpoints_are_removed_and_markers_are_ignored(run):
    """SageMaker writes markers while checkpoints are written and removed."""
    partial = run / "checkpoints" / ".step-000000002-0123abcd.part"
    partial.mkdir()
    for folder in (partial, *list_checkpoints(run)):
        for name in ("state.json.sagemaker-uploading", "state.json.sagemaker-uploaded"):
            (folder / name).touch()
    newest = read_newest_checkpoint(run)
    assert newest.checkpoint.step == 8 and not newest.damaged
    checkpoint.remove_later_checkpoints(run, 4)
    assert file_names(run / "checkpoints") == ["step-000000004"]


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
def test_hostile_content_is_refused_at_once(run, attack, empty_cwd):
    """Also if the manifest agrees with it."""
    folder, (name, content) = list_checkpoints(run)[0], HOSTILE[attack]
    (folder / name).write_bytes(content)
    files = {name: checkpoint._size_and_digest(folder / name) for name in (*checkpoint.ARRAYS, "state.json")}
    (folder / "manifest.json").write_text(checkpoint._manifest_text(files, "1"))
    peak_kib, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    newest = read_newest_checkpoint(run)
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 100 * 1024
    assert newest.checkpoint.step == 4 and len(newest.damaged) == 1
    assert not list(empty_cwd.iterdir())


def test_a_path_out_of_the_folder_is_refused(run):
    manifest = list_checkpoints(run)[0] / "manifest.json"
    manifest.write_text(manifest.read_text().replace("devices.params", "../../devices.params"))
    assert "manifest.json does not list the expected files)" in read_newest_checkpoint(run).damaged[0]


def test_without_a_complete_checkpoint_the_error_says_what_to_give(run):
    for folder in list_checkpoints(run):
        (folder / "state.json").unlink()
    with pytest.raises(DataError, match=r"contains no usable checkpoint to resume from: .* is damaged"):
        read_newest_checkpoint(run)


def write_with_fault(run, fail_at):
    """Write a checkpoint in which one call of the file system fails; return the number of calls."""
    count = 0

    def counted(call):
        def count_and_call(*arguments, **more):
            nonlocal count
            count += 1
            if count == fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **more)

        return count_and_call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fsync", "replace", "rename", "mkdir", "unlink"):
            patch.setattr(f"os.{name}", counted(getattr(os, name)))
        patch.setattr(io, "open", counted(io.open))
        write_checkpoint(run, make_checkpoint(12))
    return count


def check_newest(run, is_written):
    """Check that the newest checkpoint is the new one or the previous one; remove the new one."""
    newest = read_newest_checkpoint(run)
    assert newest.checkpoint.step in ((12,) if is_written else (8, 12)) and not newest.damaged
    if newest.checkpoint.step == 12:
        shutil.rmtree(list_checkpoints(run)[0])


def test_whatever_call_fails_a_whole_checkpoint_is_the_newest(two_checkpoints, run, tmp_path):
    calls = write_with_fault(Path(shutil.copytree(two_checkpoints, tmp_path / "whole")), None)
    failed = 0
    for fail_at in range(1, calls + 1):
        is_written = True
        try:
            write_with_fault(run, fail_at)
        except OutputError as error:
            assert "No space left on device; free disk space there" in str(error)
            is_written, failed = False, failed + 1
        check_newest(run, is_written)
    assert calls > 30 and failed > 15  # the other calls clean up
    write_checkpoint(run, make_checkpoint(12))
    assert file_names(run / "checkpoints") == ["step-000000004", "step-000000008", "step-000000012"]


def test_at_whatever_byte_the_disk_is_full_a_whole_checkpoint_is_the_newest(run):
    largest = max(file.stat().st_size for file in list_checkpoints(run)[0].iterdir())
    for size in range(0, largest, 7):
        with limit_file_size(size), pytest.raises(OutputError, match="File too large; free disk space there"):
            write_checkpoint(run, make_checkpoint(12))
        check_newest(run, is_written=False)


@given(st.lists(st.none() | st.floats(0, 1, width=16), min_size=1, max_size=6), st.integers(1, 4))
@settings(max_examples=25)
def test_the_newest_and_the_best_are_kept(tmp_path_factory, accuracies, keep):
    run = tmp_path_factory.mktemp("run")
    (run / "metrics.jsonl").touch()
    for step, accuracy in enumerate(accuracies, start=1):
        write_checkpoint(run, make_checkpoint(step, accuracy))
        checkpoint.remove_superseded_checkpoints(run, keep)
        states = [checkpoint._read_checkpoint(folder).state for folder in list_checkpoints(run)]
        kept = {state["step"]: state["accuracy"] for state in states}
        assert {*range(max(1, step - keep + 1), step + 1)} <= set(kept) and len(kept) <= keep + 1
        best = max((value for value in accuracies[:step] if value is not None), default=None)
        assert best is None or best in kept.values()


@pytest.mark.parametrize("remove", [checkpoint.remove_superseded_checkpoints, checkpoint.remove_later_checkpoints])
def test_a_file_in_place_of_the_folder_is_left_to_the_next_checkpoint(remove, tmp_path):
    (tmp_path / "checkpoints").write_text("somebody's")
    remove(tmp_path, 1)
    assert (tmp_path / "checkpoints").read_text() == "somebody's"
