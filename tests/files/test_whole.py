"""No file is ever half there."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from gluonlab.errors import OutputError
from gluonlab.files.whole import atomic_folder, atomic_path, new_file, on_disk, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_when_the_block_ends(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_old_file_stays_when_the_block_raises(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_no_file_appears_when_there_was_none_and_the_block_raises(tmp_path):
    with pytest.raises(ValueError, match="half"), atomic_path(tmp_path / "file"):
        raise ValueError("half")
    assert names(tmp_path) == []


def test_whole_files_have_the_permissions_of_ordinary_ones(tmp_path):
    (tmp_path / "ordinary").write_text("")
    write_text(tmp_path / "whole", "")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "link").symlink_to("file")
    for content in ("new", "newer"):
        write_text(tmp_path / "link", content)
        assert (tmp_path / "file").read_text() == content and (tmp_path / "link").is_symlink()


def test_no_pipe_or_device_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "null"):
        with pytest.raises(OutputError, match="it is a device, a pipe or a socket"):
            write_text(path, "content")
    assert (tmp_path / "pipe").is_fifo() and Path("/dev/null").is_char_device()


def test_links_that_lead_to_each_other_stay(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(
        OutputError, match=r"cannot write .*/one: Too many levels of symbolic links"
    ):
        write_text(tmp_path / "one", "content")
    assert (
        all((tmp_path / name).is_symlink() for name in names(tmp_path))
        and len(names(tmp_path)) == 2
    )


@pytest.mark.parametrize("path", ["folder", "link", "/"])
def test_a_folder_is_refused_before_the_work_for_a_file_begins(tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(OSError, match="Is a directory"), atomic_path(tmp_path / path):
        pytest.fail("it has begun")


def test_a_pipe_is_refused_by_whatever_name(tmp_path):
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w"), pytest.raises(
        OutputError, match="it is a device, a pipe or a socket"
    ):
        write_text(Path(f"/dev/fd/{writing}"), "content")


def test_a_folder_appears_when_the_block_ends(tmp_path):
    with atomic_folder(tmp_path / "below" / "folder") as temporary:
        (temporary / "file").write_text("new")
        assert not (tmp_path / "below" / "folder").exists()
    assert (tmp_path / "below" / "folder" / "file").read_text() == "new"
    assert names(tmp_path / "below") == ["folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_folder_appears_when_the_block_raises(tmp_path, error):
    with pytest.raises(error), atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "file").write_text("half")
        raise error
    assert names(tmp_path) == []


KILLED = """
import os, pathlib, signal
from gluonlab.files.whole import atomic_folder
with atomic_folder(pathlib.Path("folder")) as temporary:
    (temporary / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_fills_is_not(tmp_path, python):
    assert python("-c", KILLED).returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    others = [".folder-", ".folder-mine.part", "folder-00000000.part", ".folders-00000000.part"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".folder-00000000.part").symlink_to(tmp_path / ".folder-")
    with atomic_folder(tmp_path / "folder") as living:
        assert not left.exists()
        with atomic_folder(tmp_path / "folder") as another:
            assert living.is_dir() and another.is_dir() and living != another
    assert names(tmp_path) == sorted(["folder", ".folder-00000000.part", *others])


def test_an_error_that_names_the_place_already_is_not_wrapped_in_another(tmp_path):
    for block in (on_disk, partial(new_file, "--out")):
        with pytest.raises(OutputError, match=r"^cannot write inner: full$"), block(
            tmp_path / "outer"
        ):
            raise OutputError("cannot write inner: full")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*/missing/file: No such file .*--out"):
        write_text(tmp_path / "missing" / "file", "text")


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path):
    path = tmp_path / "file"
    left = [tmp_path / ".file-0123abcd", tmp_path / ".file-89abcdef"]
    others = [tmp_path / ".file-0123abc", tmp_path / "file-0123abcd", tmp_path / ".other-0123abcd"]
    for each in [*left, *others]:
        each.touch()
    with atomic_path(path) as first, atomic_path(path) as second:
        assert not any(each.exists() for each in left)
        assert first.exists()
        second.write_text("second")
    assert set(names(tmp_path)) == {"file", *(each.name for each in others)}
