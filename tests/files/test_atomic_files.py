"""No file is ever half there, temporary folders go, and files of others are read up to a size."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
from support.commands import file_names
from support.processes import clean_environment

import gluonlab
from gluonlab.errors import DataError, OutputError
from gluonlab.files.atomic_files import (
    atomic_folder,
    atomic_path,
    new_file,
    raise_output_errors,
    read_bounded,
    temporary_folder,
    write_text,
)


@pytest.fixture
def old_file(tmp_path):
    (tmp_path / "file").write_text("old")
    return tmp_path / "file"


def test_a_file_is_replaced_when_the_block_ends(old_file):
    with atomic_path(old_file) as temporary:
        temporary.write_text("new")
        assert old_file.read_text() == "old"
    assert (old_file.read_text(), file_names(old_file.parent)) == ("new", ["file"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("exists", [True, False])
def test_the_folder_stays_as_it_was_when_the_block_raises(old_file, error, exists):
    if not exists:
        old_file.unlink()
    with pytest.raises(error), atomic_path(old_file) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert file_names(old_file.parent) == ["file"] * exists
    assert not exists or old_file.read_text() == "old"


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
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w"):
        for path in (tmp_path / "pipe", tmp_path / "null", Path(f"/dev/fd/{writing}")):
            with pytest.raises(OutputError, match="it is a device, a pipe or a socket"):
                write_text(path, "content")
    assert (tmp_path / "pipe").is_fifo() and Path("/dev/null").is_char_device()


def test_links_that_lead_to_each_other_stay(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(OutputError, match=r"cannot write .*/one: Too many levels of symbolic links"):
        write_text(tmp_path / "one", "content")
    assert [path.is_symlink() for path in tmp_path.iterdir()] == [True, True]


@pytest.mark.parametrize("path", ["folder", "link", "/"])
def test_a_folder_is_refused_before_the_work_for_a_file_begins(tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(OSError, match="Is a directory"), atomic_path(tmp_path / path):
        pytest.fail("it has begun")


def test_a_folder_appears_when_the_block_ends(tmp_path):
    with atomic_folder(tmp_path / "below" / "folder") as temporary:
        (temporary / "file").write_text("new")
        assert not (tmp_path / "below" / "folder").exists()
    assert (tmp_path / "below" / "folder" / "file").read_text() == "new"
    assert file_names(tmp_path / "below") == ["folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_folder_appears_when_the_block_raises(tmp_path, error):
    with pytest.raises(error), atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "file").write_text("half")
        raise error
    assert file_names(tmp_path) == []


KILLED = """
import os, pathlib, signal
from gluonlab.files.atomic_files import atomic_folder
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
    assert file_names(tmp_path) == sorted(["folder", ".folder-00000000.part", *others])


def test_an_error_that_names_the_place_already_is_not_wrapped_in_another(tmp_path):
    for block in (raise_output_errors, partial(new_file, "--out")):
        with pytest.raises(OutputError, match=r"^cannot write inner: full$"), block(tmp_path / "outer"):
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
    assert set(file_names(tmp_path)) == {"file", *(each.name for each in others)}


# --- temporary folders

HOLDS = """
import os, time
from gluonlab.files.atomic_files import temporary_folder
with temporary_folder("trial") as folder:
    (folder / "file").write_text("x")
    folder.chmod(0o1700)  # as Jupyter does it
    inner = folder / "closed"
    inner.mkdir()
    os.chdir(inner)
    for _ in range(1050):  # deeper than Python's own functions go
        os.mkdir("d")
        os.chdir("d")
    inner.chmod(0)
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary_place(tmp_path, monkeypatch):
    """Make temporary files in ``tmp_path``; return it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_goes_when_the_block_ends_however_that_ends(temporary_place):
    with pytest.raises(KeyError), temporary_folder("trial") as folder:
        (folder / "below").mkdir()
        assert folder.parent == temporary_place
        raise KeyError
    assert file_names(temporary_place) == []


def test_a_killed_process_folder_goes_at_the_next_beginning_and_a_living_ones_stays(temporary_place):
    environment = clean_environment(TMPDIR=str(temporary_place))
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        try:
            folder = Path(process.stdout.readline().strip())
            with temporary_folder("trial"):
                assert (folder / "file").exists()
        finally:
            process.kill()
    with temporary_folder("prove"):
        assert (folder / "file").exists(), "of another kind"
    with temporary_folder("trial") as own:
        assert file_names(temporary_place) == [own.name]


def test_every_temporary_folder_of_gluonlab_goes_this_way():
    package = Path(gluonlab.__file__).parent
    paths = [*package.rglob("*.py"), *(package.parent / "labs/gluonlab_labs").rglob("*.py")]
    makers = [path for path in paths if re.search(r"\b(mkdtemp|TemporaryDirectory)\(", path.read_text("utf-8"))]
    assert makers == [package / "files/atomic_files.py"]


def test_what_is_not_surely_left_behind_stays(temporary_place):
    target = temporary_place / "target"
    (target / "inside").mkdir(parents=True)
    for name in ("gluonlab-trial-results1x", "gluonlab-trial-shared_1", "gluonlab-trial-a.b_c.d_"):
        (temporary_place / name).mkdir(mode=0o700)
    (temporary_place / "gluonlab-trial-shared_1").chmod(0o755)
    (temporary_place / "gluonlab-trial-a_link_x").symlink_to(target)
    (temporary_place / "gluonlab-trial-a_file_x").touch()
    if os.getuid() == 0:
        (temporary_place / "gluonlab-trial-another1").mkdir(mode=0o700)
        os.chown(temporary_place / "gluonlab-trial-another1", 12345, 12345)
    before = file_names(temporary_place)
    with temporary_folder("trial"):
        pass
    assert file_names(temporary_place) == before and file_names(target) == ["inside"]


# --- files of others


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_file_up_to_the_limit_is_read(tmp_path, size):
    (tmp_path / "a").write_bytes(b"x" * size)
    (tmp_path / "link").symlink_to("a")
    assert read_bounded(tmp_path / "a", 100) == read_bounded(tmp_path / "link", 100) == b"x" * size


def test_a_larger_file_is_refused_even_if_it_is_sparse_or_has_no_size(tmp_path):
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 10**10)
    for path, most in ((tmp_path / "a", 100), ("/proc/self/status", 5)):
        with pytest.raises(DataError, match=f"is larger than the maximum of {most} bytes"):
            read_bounded(path, most)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing", "loop", "no name"])
def test_what_is_no_file_is_an_error_at_once(tmp_path, kind):
    path = tmp_path / ("a\0b" if kind == "no name" else "a")
    make_by_kind = {
        "pipe": os.mkfifo, "folder": os.mkdir, "device": lambda path: path.symlink_to("/dev/zero"),
        "loop": lambda path: path.symlink_to(path),
    }  # fmt: skip
    make_by_kind.get(kind, str)(path)
    with pytest.raises(OSError):
        read_bounded(path, 100)


def test_a_link_is_not_followed_unless_that_is_wanted(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError):
        read_bounded(tmp_path / "link", 100, follow=False)
