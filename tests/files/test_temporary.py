"""Temporary folders: gone at the end, those of killed processes at the next beginning, and nobody
else's ever.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.commands import names
from support.processes import clean_environment

import gluonlab
from gluonlab.files.temporary import temporary_folder

HOLDS = """
import os, time
from gluonlab.files.temporary import temporary_folder
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
def place(tmp_path, monkeypatch):
    """Where temporary files are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder(place):
    """A process that holds such a folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, encoding="utf-8",
        env=clean_environment(TMPDIR=str(place)),
    )  # fmt: skip
    return process, Path(process.stdout.readline().strip())


def test_it_goes_when_the_block_ends_however_that_ends(place):
    with pytest.raises(KeyError), temporary_folder("trial") as folder:
        (folder / "below").mkdir()
        assert folder.parent == place
        raise KeyError
    assert names(place) == []


def test_a_killed_process_folder_goes_at_the_next_beginning_and_a_living_ones_stays(place):
    process, folder = holder(place)
    try:
        with temporary_folder("trial"):
            assert (folder / "file").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        with temporary_folder("prove"):
            assert (folder / "file").exists(), "of another kind"
        with temporary_folder("trial") as own:
            assert names(place) == [own.name]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_every_temporary_folder_of_gluonlab_goes_this_way():
    root = Path(gluonlab.__file__).parent
    labs = root.parent / "labs/gluonlab_labs"
    makers = re.compile(r"\b(mkdtemp|TemporaryDirectory)\(")
    found = {
        str(path.relative_to(place))
        for place in (root, labs)
        for path in place.rglob("*.py")
        if makers.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"files/temporary.py"}


def test_what_is_not_surely_left_behind_stays(place):
    target = place / "target"
    (target / "inside").mkdir(parents=True)
    for name in ("gluonlab-trial-results1x", "gluonlab-trial-shared_1", "gluonlab-trial-a.b_c.d_"):
        (place / name).mkdir(mode=0o700)
    (place / "gluonlab-trial-shared_1").chmod(0o755)
    (place / "gluonlab-trial-a_link_x").symlink_to(target)
    (place / "gluonlab-trial-a_file_x").touch()
    if os.getuid() == 0:
        (place / "gluonlab-trial-another1").mkdir(mode=0o700)
        os.chown(place / "gluonlab-trial-another1", 12345, 12345)
    before = names(place)
    with temporary_folder("trial"):
        pass
    assert names(place) == before and names(target) == ["inside"]
