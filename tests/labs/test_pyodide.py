"""Pyodide comes from npm in one exact version, and is verified before it is used."""

import base64
import hashlib
import tarfile
from unittest.mock import patch

import pytest

from gluonlab.errors import ConfigError, RunError
from gluonlab_labs import pyodide


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Return a function that puts a program named npm, a shell script, on an otherwise empty path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(script):
        (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "npm").chmod(0o755)

    return install


def test_a_missing_npm_is_named_with_what_to_install(npm, tmp_path):
    with pytest.raises(ConfigError, match=r"no npm here, which downloads Pyodide: install it \(apt-get install npm\)"):
        pyodide.fetch_pyodide(tmp_path)


def test_a_download_that_fails_shows_the_last_line_of_npm(npm, tmp_path):
    npm("echo one >&2; echo no network >&2; exit 1")
    with pytest.raises(RunError, match=rf"npm could not download pyodide@{pyodide.VERSION}: no network: check"):
        pyodide.fetch_pyodide(tmp_path)


def test_an_archive_with_another_hash_is_deleted(npm, tmp_path):
    npm(f'echo changed > "{tmp_path}/pyodide-{pyodide.VERSION}.tgz"')
    with pytest.raises(RunError, match=r"the file's sha512 is .*, expected .*: the file was deleted; try again"):
        pyodide.fetch_pyodide(tmp_path)
    assert not list(tmp_path.glob("*.tgz"))


def test_only_the_files_that_the_page_needs_are_unpacked(tmp_path):
    archive = tmp_path / "made.tgz"
    with tarfile.open(archive, "w:gz") as content:
        for name in (*pyodide.FILES, "console.html"):
            (tmp_path / name).write_text(name)
            content.add(tmp_path / name, f"package/{name}")
    pyodide.unpack_pyodide(archive, tmp_path / "out")
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        name: name for name in pyodide.FILES
    }


def test_a_present_archive_is_not_downloaded_again(npm, tmp_path):
    archive = tmp_path / f"pyodide-{pyodide.VERSION}.tgz"
    archive.write_bytes(b"x")
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(b'x').digest()).decode()}"
    with patch.object(pyodide, "INTEGRITY", integrity):
        assert pyodide.fetch_pyodide(tmp_path) == archive
