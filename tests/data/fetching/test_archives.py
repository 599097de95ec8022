"""Archives from a real server: they are unpacked whole and right, or not at all."""

import re
import subprocess

import pytest
from support.full_disk import limit_file_size
from support.made_up_sources import (
    BATCHES,
    CIFAR_ARCHIVE,
    cifar_archive,
    cifar_batches,
    cifar_source,
    make_source,
    make_tar,
    random_bytes,
    read_files,
    sha256,
)

from gluonlab.data.fetching.data_folders import MANIFEST, has_valid_files
from gluonlab.data.fetching.download import download
from gluonlab.data.fetching.download_sources import ArchiveContents
from gluonlab.errors import DownloadError, OutputError

BATCH_FILES = cifar_batches()
ARCHIVE = cifar_archive(BATCH_FILES)
UNPACKED = {f"cifar10/{name}": content for name, content in BATCH_FILES.items()}


@pytest.fixture
def source(serve):
    """CIFAR-10's, at a server that has its archive."""
    return cifar_source(BATCH_FILES, ARCHIVE, serve({CIFAR_ARCHIVE: ARCHIVE}).url)


def test_an_archive_is_unpacked_and_not_kept(serve, root):
    server = serve({CIFAR_ARCHIVE: ARCHIVE})
    for _ in range(2):
        assert download(cifar_source(BATCH_FILES, ARCHIVE, server.url), root) == root / "cifar10"
        assert read_files(root) == UNPACKED
    assert len(server.request_headers()) == 1


@pytest.mark.parametrize("folder", ["", "elsewhere/deep/"])
@pytest.mark.parametrize("compress", [True, False])
def test_a_repacked_archive_of_the_same_files_is_accepted(serve, root, folder, compress):
    members = [(folder + name, content) for name, content in reversed(list(BATCH_FILES.items()))]
    server = serve({CIFAR_ARCHIVE: make_tar(members, compress)})
    download(cifar_source(BATCH_FILES, ARCHIVE), root, server.url)
    assert read_files(root) == UNPACKED


def test_a_repacked_archive_of_other_files_is_refused(serve, root):
    other = {**BATCH_FILES, BATCHES[2]: BATCH_FILES[BATCHES[2]][::-1]}
    packed = cifar_archive(other)
    server = serve({CIFAR_ARCHIVE: packed})
    with pytest.raises(DownloadError) as error:
        download(cifar_source(BATCH_FILES, ARCHIVE, server.url), root)
    assert re.search(r"the sha1 of data_batch_3\.bin in \S+ is \w{40} instead of \w{40}", str(error.value))
    assert f"(its sha256 is {sha256(packed)} instead of {sha256(ARCHIVE)})" in str(error.value)
    by_hand = f"put it into {root} and run the same command again\n    {CIFAR_ARCHIVE} "
    assert f"{by_hand}({len(ARCHIVE):,} bytes, sha256 {sha256(ARCHIVE)})\n" in str(error.value)
    server.files[f"/{CIFAR_ARCHIVE}"] = b""
    with pytest.raises(
        DownloadError, match=rf"has 0 bytes instead of 1 to {2**20:,}\n  to download this file by hand, put it into "
    ):
        download(cifar_source(BATCH_FILES, ARCHIVE, server.url), root)
    assert read_files(root) == {}


def test_an_archive_that_was_put_there_by_hand_needs_no_server_and_is_kept(root):
    root.mkdir()
    (root / CIFAR_ARCHIVE).write_bytes(ARCHIVE)
    download(cifar_source(BATCH_FILES, ARCHIVE, "http://127.0.0.1:9/"), root)
    assert read_files(root) == {**UNPACKED, CIFAR_ARCHIVE: ARCHIVE}


def test_a_damaged_archive_of_the_user_is_reported_and_kept(source, root):
    root.mkdir()
    (root / CIFAR_ARCHIVE).write_bytes(b"<html>")
    lines = []
    download(source, root, log=lines.append)
    assert read_files(root) == {**UNPACKED, CIFAR_ARCHIVE: b"<html>"}
    assert re.search(rf"{CIFAR_ARCHIVE} is not a valid archive .*the file is kept", lines[0])


def test_other_files_are_kept_but_not_what_a_killed_process_unpacked(source, root):
    before = {"cifar10/notes.txt": b"mine", f"cifar10/{BATCHES[0]}": b"damaged", ".cifar10.unpacking/folder/a": b"half"}
    for name, content in before.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    download(source, root)
    assert read_files(root) == {**UNPACKED, "cifar10/notes.txt": b"mine"}
    assert sorted(path.name for path in root.iterdir()) == [".cifar10.lock", "cifar10"]


IMAGES = {
    f"{split}/n{label}/{i}.JPEG": random_bytes(100 + i)
    for split in ("train", "val")
    for label in range(3)
    for i in range(4)
}
IMAGENETTE = make_tar([(f"imagenette2-320/{name}", content) for name, content in IMAGES.items()])


def imagenette_source(server, archive=IMAGENETTE):
    files = {"imagenette2-320.tgz": archive}
    return make_source("imagenette2-320", files, server.url, contents=ArchiveContents(10**6))


def test_the_files_of_an_archive_are_listed_with_their_digests(serve, root):
    source = imagenette_source(serve({"imagenette2-320.tgz": IMAGENETTE}))
    folder = download(source, root)
    digests = "".join(f"{sha256(content)}  {name}\n" for name, content in sorted(IMAGES.items()))
    assert read_files(folder) == {**IMAGES, MANIFEST: digests.encode()}
    assert subprocess.run(["sha256sum", "-c", "--quiet", MANIFEST], cwd=folder).returncode == 0
    (folder / "train/n0/0.JPEG").write_bytes(b"damaged")
    (folder / "val/n2/3.JPEG").unlink()
    assert not has_valid_files(source, root)
    download(source, root)  # fetches them again
    assert has_valid_files(source, root)


def test_a_repacked_archive_without_known_files_is_refused(serve, root):
    # of the same size, with another time stamp in gzip's header
    packed = IMAGENETTE[:4] + b"time" + IMAGENETTE[8:]
    server = serve({"imagenette2-320.tgz": packed})
    with pytest.raises(DownloadError, match=f"is {sha256(packed)} instead of {sha256(IMAGENETTE)}"):
        download(imagenette_source(server), root)
    assert read_files(root) == {}


@pytest.mark.parametrize("member", [("../evil", b"!"), ("/tmp/gluonlab-evil", b"!"), ("top/bomb", bytes(2_000_000))])
def test_a_hostile_archive_of_the_right_digest_leaves_nothing(serve, root, member):
    archive = make_tar([("top/first", b"1"), member])
    server = serve({"imagenette2-320.tgz": archive})
    with pytest.raises(DownloadError, match=f"'{member[0]}' .*: the archive is not used"):
        download(imagenette_source(server, archive), root)
    assert read_files(root.parent) == {}


def test_a_disk_that_is_full_when_an_archive_is_unpacked_keeps_the_archive(serve, root):
    archive = make_tar([("top/zeros", bytes(500_000))])
    assert len(archive) < 10_000
    server = serve({"imagenette2-320.tgz": archive})
    source = imagenette_source(server, archive)
    with limit_file_size(100_000), pytest.raises(OutputError, match="File too large"):
        download(source, root)
    assert set(read_files(root)) == {"imagenette2-320.tgz.part"}
    server.close()
    download(source, root)
    assert set(read_files(root)) == {"imagenette2-320/zeros", f"imagenette2-320/{MANIFEST}"}
