"""The archive and the wheel that make dist has just built hold what people need, and it works from
there.
"""

import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import setuptools
from support.processes import REPOSITORY, clean_environment

ROOT = Path(REPOSITORY)
# What the Makefile's targets leave in a checkout, for where no Git says that it is ignored.
MADE = re.compile(r"\.venv|dist/|build/|runs/|bench-records|labs/handouts/|labs/slides/|.*(\.egg-info/|__pycache__/)")
LINK = re.compile(r"\]\(([^()\s]+)\)")


@pytest.fixture(scope="module")
def wheel():
    [path] = (ROOT / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as file:
        yield file


@pytest.fixture(scope="module")
def archive():
    [path] = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(path) as file:
        yield {name.partition("/")[2] for name in file.getnames()}


def tracked(*folders):
    """The repository's files, as Git lists them, or as they lie there where there is no Git."""
    try:
        listed = subprocess.check_output(["git", "ls-files", "-z", *folders], cwd=ROOT)
        return {name for name in listed.decode().split("\0") if name}
    except (OSError, subprocess.CalledProcessError):
        result = (path for folder in folders for path in (ROOT / folder).rglob("*"))
        return {
            str(path.relative_to(ROOT))
            for path in result
            if path.is_file() and not MADE.match(str(path.relative_to(ROOT)))
        }


def test_the_archive_is_a_checkout(archive):
    kept = {name for name in tracked(".") if not name.startswith(".")}
    assert kept - archive == set()
    assert not [name for name in archive if "__pycache__" in name or name.startswith(".venv")]


def test_the_wheel_holds_the_package_and_the_notebooks_and_no_solutions(wheel):
    names = set(wheel.namelist())
    assert tracked("gluonlab") - names == set()
    for name in tracked("labs/en", "labs/ja"):
        assert wheel.read(f"gluonlab/{name}") == (ROOT / name).read_bytes()
    others = {name for name in names if not re.match(r"gluonlab(/|-[\d.]+\.dist-info/)", name)}
    assert others == set()
    assert not [name for name in names if "solution" in name]


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_labs_come_out_of_the_wheel(wheel, language, tmp_path):
    wheel.extractall(tmp_path / "installed")
    command = [sys.executable, "-m", "gluonlab.labs", "mine", "--language", language]
    environment = clean_environment(PYTHONPATH=str(tmp_path / "installed"))
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    theirs = ROOT / "labs" / language
    for path in theirs.rglob("*"):
        if path.is_file() and ".ipynb_checkpoints" not in path.parts:
            mine = tmp_path / "mine" / path.relative_to(theirs)
            assert mine.read_bytes() == path.read_bytes()


def test_its_page_has_no_link_that_leads_nowhere(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    page = message_from_bytes(wheel.read(name)).get_payload()
    wrong = [to for to in LINK.findall(page) if not to.startswith(("https://", "http://", "#"))]
    assert wrong == []


def test_with_an_address_every_link_leads_to_a_file_below_it(monkeypatch):
    url, said = "https://example.org/somebody/gluonlab", {}
    monkeypatch.setenv("GLUONLAB_URL", url)
    monkeypatch.setattr(setuptools, "setup", lambda **words: said.update(words))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    links, now = LINK.findall(before), LINK.findall(said["long_description"])
    assert len(links) == len(now) and {"Changes", "Source"} <= set(said["project_urls"])
    for old, new in zip(links, now):
        if old != new:
            kind = "raw" if old.endswith((".png", ".svg")) else "blob"
            assert new == f"{url}/{kind}/HEAD/{old}"
            assert os.path.exists(ROOT / old.partition("#")[0])
        else:
            assert re.match(r"https?:|#", old)
