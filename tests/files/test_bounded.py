"""Files are read up to a size, and nothing is waited for."""

import os

import pytest

from gluonlab.errors import DataError
from gluonlab.files.bounded import read_bounded


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_file_up_to_the_limit_is_read(tmp_path, size):
    (tmp_path / "a").write_bytes(b"x" * size)
    (tmp_path / "link").symlink_to("a")
    assert read_bounded(tmp_path / "a", 100) == read_bounded(tmp_path / "link", 100) == b"x" * size


def test_a_larger_one_is_refused_whatever_it_takes_on_the_disk(tmp_path):
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 10**10)
    with pytest.raises(DataError, match="has more than the 100 bytes that are read"):
        read_bounded(tmp_path / "a", 100)


def test_what_grows_without_a_size_is_refused():
    with pytest.raises(DataError, match="more than the 5 bytes"):
        read_bounded("/proc/self/status", 5)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing", "loop", "no name"])
def test_what_is_no_file_is_an_error_at_once(tmp_path, kind):
    path = tmp_path / "a"
    make = {
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "loop": lambda path: path.symlink_to(path),
    }
    make.get(kind, lambda path: None)(path)
    with pytest.raises(OSError):
        read_bounded(tmp_path / "a\0b" if kind == "no name" else path, 100)


def test_a_link_is_not_followed_unless_that_is_wanted(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError):
        read_bounded(tmp_path / "link", 100, follow=False)
