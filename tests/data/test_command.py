"""gluonlab data downloads, verifies and finds data sets; a mistake is one line with its remedy."""

import dataclasses
import fcntl
import functools
import gzip
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from support import made_up_sources
from support.devices import device_spec
from support.file_server import FileServer
from support.made_up_sources import BATCHES, CIFAR_ARCHIVE, IDX_NAMES, cifar_source, make_source, make_tar, mnist_files
from support.processes import clean_environment
from support.waiting import LIMIT_S

from gluonlab.data import load_dataset
from gluonlab.data.__main__ import main
from gluonlab.data.fetching.data_folders import data_root
from gluonlab.data.fetching.download_sources import SOURCES, ArchiveContents
from gluonlab.run import main as run_main

MNIST = mnist_files()
BATCH_FILES = made_up_sources.cifar_batches()
ARCHIVE = made_up_sources.cifar_archive(BATCH_FILES)
IMAGES = {f"train/n{label}/{i}.JPEG": bytes(range(100)) for label in range(3) for i in range(10)}
IMAGENETTE = make_tar([(f"imagenette2-320/{name}", content) for name, content in IMAGES.items()])


@pytest.fixture(scope="module")
def server():
    serving = FileServer({**MNIST, CIFAR_ARCHIVE: ARCHIVE, "imagenette2-320.tgz": IMAGENETTE})
    yield serving
    serving.close()


@pytest.fixture
def sources(server):
    """The real names, with made-up files."""
    archive, contents = {"imagenette2-320.tgz": IMAGENETTE}, ArchiveContents(10**6)
    return {
        "mnist": make_source("mnist", MNIST, server.url),
        "cifar10": cifar_source(BATCH_FILES, ARCHIVE, server.url),
        "imagenette2-320": make_source("imagenette2-320", archive, server.url, contents=contents),
    }


@pytest.fixture
def data(ended, empty_cwd, sources):
    """``data(*arguments)`` runs the command in an empty folder with made-up sources, by default with --data-dir D."""

    def run(*arguments):
        folder = [] if "--data-dir" in arguments or arguments[1:] == () else ["--data-dir", "D"]
        return ended(functools.partial(main, sources=sources), *arguments, *folder)

    return run


@pytest.mark.parametrize("name", ["mnist", "cifar10", "imagenette2-320"])
def test_a_data_set_is_downloaded_verified_and_found(data, name):
    status, out, err = data("download", name)
    assert (status, out) == (0, f"{name} is complete in D/{name}\n")
    assert " -> D/" in err
    assert data("path", name) == (0, f"D/{name}\n", "")
    status, out, err = data("verify", name)
    assert (status, err) == (0, "")
    assert all(line.startswith("ok ") for line in out.splitlines())
    assert re.search(rf"^{name} .* D/{name}$", data("list", "--data-dir", "D")[1], re.M)


def test_a_run_finds_downloads_in_the_default_folder(ended, empty_cwd, sources, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONLAB_DATA", str(tmp_path / "usual"))
    assert ended(functools.partial(main, sources=sources), "download", "mnist")[0] == 0
    words = ["--dataset", "mnist", "--model", "mlp", "--epochs", "1", "--devices", device_spec(1)]
    status, out, _ = ended(run_main, *words, "--json")
    assert (status, json.loads(out)["history"][0]["images"]) == (0, 40)


def test_files_that_are_missing_or_damaged_are_named_with_their_digests(data, sources):
    data("download", "mnist")
    damaged, missing = Path("D/mnist") / IDX_NAMES[1], Path("D/mnist") / IDX_NAMES[2]
    damaged.write_bytes(gzip.compress(b"damaged"))
    missing.unlink()
    status, out, err = data("verify", "mnist")
    message = "error: mnist has 1 damaged and 1 missing files out of 4: run gluonlab data download mnist --data-dir D\n"
    assert (status, err) == (1, message)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "damaged", "missing", "ok"]
    expected = sources["mnist"].files[1].digest
    assert re.fullmatch(rf"damaged {damaged}: sha256 \w{{64}}, expected {expected}", lines[1])
    assert [data(command, "mnist")[0] for command in ("path", "download", "verify")] == [2, 0, 0]


@pytest.mark.parametrize("below", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_files_that_were_unpacked_by_hand_are_found(data, below):
    folder = Path("D") / below
    folder.mkdir(parents=True)
    for name, content in BATCH_FILES.items():
        (folder / name).write_bytes(content)
    assert len(load_dataset("cifar10", "D", records=3).test) == 3
    assert data("verify", "cifar10")[0] == 0
    assert data("path", "cifar10") == (0, f"{folder}\n", "")
    assert data("download", "cifar10") == (0, f"cifar10 is complete in {folder}\n", "")


def test_only_damaged_files_of_a_large_set_are_printed(data):
    data("download", "imagenette2-320")
    assert data("verify", "imagenette2-320")[1] == "ok      30 files of imagenette2-320\n"
    Path("D/imagenette2-320/train/n1/4.JPEG").write_bytes(b"damaged")
    status, out, _ = data("verify", "imagenette2-320")
    assert (status, len(out.splitlines())) == (1, 1)
    assert out.startswith("damaged D/imagenette2-320/train/n1/4.JPEG: sha256 ")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"no digests\n"]
    + [b"a" * 64 + name for name in (b"  /etc/passwd\n", b"  a/../../../b\n", b"  \x1b[2J\n")],
)
def test_an_invalid_list_of_digests_is_damaged(data, content):
    data("download", "imagenette2-320")
    Path("D/imagenette2-320/SHA256SUMS").write_bytes(content)
    status, out, _ = data("verify", "imagenette2-320")
    assert (status, out.split()[0]) == (1, "damaged") and out[:-1].isprintable()
    assert data("download", "imagenette2-320")[0] == 0


def test_json_is_one_document_and_nothing_else(data):
    data("download", "cifar10")
    status, out, err = data("verify", "cifar10", "--json")
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [Path(row["path"]).name for row in rows] == BATCHES
    assert {(row["state"], row["algorithm"]) for row in rows} == {("ok", "sha1")}
    folders = {row["name"]: row["folder"] for row in json.loads(data("list", "--json")[1])}
    assert folders == {"mnist": None, "cifar10": "D/cifar10", "imagenette2-320": None}


MISTAKES = {
    ("download", "mnits"): ["'mnits'", "choose cifar10", "did you mean 'mnist'?"],
    ("verify", "mnits"): ["'mnits'", "did you mean 'mnist'?"],
    ("path", "mnits"): ["'mnits'", "did you mean 'mnist'?"],
    ("download", "digits"): ["digits needs no download", "choose mnist"],
    ("download", "imagenette2"): [
        "gluonlab cannot download imagenette2, because", "its address and digest are unknown",
        "choose imagenette2-320, or download imagenette2 yourself and unpack it",
    ],
    ("path", "imagenette"): ["gluonlab cannot download imagenette,", "choose mnist, cifar10, imagen"],
    ("verify", "mnist", "x", "y"): ["unexpected 'x y'", "write NAME and options only", "--help"],
    ("download",): ["NAME", "--help"],
    ("download", "mnist", "cifar10"): ["unexpected 'cifar10'", "such as --data-dir DIR"],
    ("download", "mnist", "--data-dir", ""): ["--data-dir is empty"],
    ("download", "mnist", "--data-dir", "/proc/gluonlab"): ["cannot write /proc/gluonlab"],
    ("download", "mnist", "--mirror", "ftp://x"): ["--mirror ftp://x", "http://"],
    ("download", "mnist", "--timeout", "0"): ["--timeout 0", "a number greater than 0"],
    ("download", "mnist", "--timeout", "soon"): ["--timeout soon", "a number greater than 0"],
    ("download", "mnist", "--miror", "x"): ["'--miror'", "did you mean '--mirror'?"],
    ("path", "mnist"): ["mnist was not found in", "gluonlab data download mnist"],
    ("donwload", "mnist"): ["'donwload'", "did you mean 'download'?"],
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.items(), ids=" ".join)
def test_a_mistake_is_one_line_with_value_and_remedy(data, empty_cwd, arguments, said):
    status, out, err = data(*arguments)
    assert (status, out, err.count("\n"), list(empty_cwd.iterdir())) == (2, "", 1, []), err
    assert err.startswith("error: ")
    assert [words for words in said if words not in err] == [], err


def test_a_mirror_with_other_files_exits_with_the_digests_and_status_1(ended, empty_cwd, server):
    """The real table of sources, and a mirror with made-up files."""
    sources = {"cifar10": dataclasses.replace(SOURCES["cifar10"], mirrors=())}
    words = ["download", "cifar10", "--data-dir", "D", "--mirror", server.url]
    status, out, err = ended(functools.partial(main, sources=sources), *words)
    assert (status, out) == (1, "")
    assert re.search(r"data_batch_1\.bin in \S+ is \w+ instead of aadd24acce27caa71bf4b10992e9e7b2d74c2540", err)
    assert "instead of c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd" in err
    assert [path.name for path in Path("D").iterdir()] == [".cifar10.lock"]


# --- folders


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ("D", {"GLUONLAB_DATA": "/g"}, "D"),
        (None, {"GLUONLAB_DATA": "/g", "XDG_CACHE_HOME": "/x"}, "/g"),
        (None, {"GLUONLAB_DATA": "~/g", "HOME": "/h"}, "/h/g"),
        (None, {"GLUONLAB_DATA": "", "XDG_CACHE_HOME": "/x"}, "/x/gluonlab"),
        (None, {"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/gluonlab"),
        (None, {"HOME": "/h"}, "/h/.cache/gluonlab"),
    ],
)
def test_the_data_folder_is_from_the_option_or_the_environment(monkeypatch, given, environment, expected):
    for name in ("GLUONLAB_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert data_root(given) == Path(expected)


def test_the_folder_of_a_set_has_priority_over_its_parent(tmp_path):
    """MNIST and Fashion-MNIST have files of the same names."""
    for folder, seed in ((tmp_path, 1), (tmp_path / "mnist", 2)):
        folder.mkdir(exist_ok=True)
        for name, content in mnist_files(seed).items():
            (folder / name).write_bytes(content)
    own, default = (load_dataset("mnist", str(folder)).train for folder in (tmp_path / "mnist", tmp_path))
    assert (own.images == default.images).all()


# --- the table


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_every_source_is_complete(source):
    assert source.mirrors and all(re.match(r"https?://.*/$", mirror) for mirror in source.mirrors)
    known = source.files + (source.contents.known_files if source.contents else ())
    assert all(len(file.digest) == {"sha256": 64, "sha1": 40}[file.algorithm] and file.size > 4000 for file in known)
    assert len({file.digest for file in known}) == len(known)
    assert source.contents is None or source.contents.max_bytes > sum(file.size for file in source.contents.known_files)


# --- real processes


def test_help_names_the_commands(python):
    """It does not import MXNet, which takes a second."""
    code = (
        "import sys, gluonlab.data.__main__\ntry: gluonlab.data.__main__.main(['--help'])\n"
        "finally: print('mxnet' in sys.modules, file=sys.stderr)"
    )
    result = python("-c", code)
    assert result.stderr == "False\n"
    assert re.findall(r"^  (\w+) ", result.stdout, re.M) == ["list", "download", "verify", "path", "pack"]
    assert python("-m", "gluonlab", "data", "--help").stdout == result.stdout


def test_a_bar_is_drawn_on_a_terminal_only(sources, tmp_path):
    table = made_up_sources.write_table(tmp_path / "table", sources["mnist"])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    words = ["support.made_up_sources", str(table), "download", "mnist", "--data-dir"]

    def download(folder, stderr):
        return subprocess.run(
            [sys.executable, "-m", *words, folder], cwd=tmp_path, env=clean_environment(),
            stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8", check=True, timeout=LIMIT_S,
        )  # fmt: skip

    plain = download("D", subprocess.PIPE)
    download("E", theirs)
    os.close(theirs)
    terminal = os.read(ours, 2**16).decode()
    os.close(ours)
    assert f"{IDX_NAMES[0]}: 100%" in terminal
    assert "%" not in plain.stderr and len(plain.stderr.splitlines()) == 4
