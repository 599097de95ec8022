"""Unpacking: what is in an archive comes out, and a hostile one leaves nothing outside its target."""

import gzip
import hashlib
import io
import tarfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.full_disk import limit_file_size
from support.made_up_sources import make_known_file, make_tar, random_bytes, read_files

from gluonlab.data.fetching.data_folders import file_digest
from gluonlab.data.fetching.download_sources import ArchiveContents
from gluonlab.data.fetching.extract_archive import unpack_archive
from gluonlab.errors import DataError, OutputError

ROOMY = ArchiveContents(max_bytes=10**6, max_files=50)


@pytest.fixture
def target(tmp_path):
    """A folder in a folder around it, which nothing may be written into."""
    (tmp_path / "around" / "target").mkdir(parents=True)
    return tmp_path / "around" / "target"


def write_archive(target, content):
    """Write an archive with these bytes outside of the folder around the target."""
    path = target.parent.with_suffix(".tgz")
    path.write_bytes(content)
    return path


def make_tar_info(name, kind, linkname="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, linkname, size
    return info


FILES = {
    "train/a/1.jpg": b"one",
    "train/b/2.jpg": random_bytes(5000),
    "val/a/empty.jpg": b"",
    "kör/äß.txt": b"x" * 1024,
}


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_file_is_unpacked_without_the_top_folder(target, compress, tar_format):
    long = "/".join(["a" * 60] * 3)  # a name that needs a header of its own
    files = FILES if tar_format == tarfile.USTAR_FORMAT else {**FILES, long: b"long"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tar_format) as tar:
        tar.addfile(make_tar_info("./top", tarfile.DIRTYPE))
        for name, content in files.items():
            info = tarfile.TarInfo(f"./top/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive = write_archive(target, gzip.compress(packed.getvalue()) if compress else packed.getvalue())
    digests = unpack_archive(archive, target, ROOMY)
    assert read_files(target) == files
    assert digests == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_permissions_and_owners_of_the_archive_are_not_taken_over(target):
    info = tarfile.TarInfo("top/run-me")
    info.mode, info.uid = 0o6777, 12345
    unpack_archive(write_archive(target, make_tar([info])), target, ROOMY)
    (target / "ordinary").write_bytes(b"")
    ordinary, run_me = ((target / name).stat() for name in ("ordinary", "run-me"))
    assert (run_me.st_mode, run_me.st_uid) == (ordinary.st_mode, ordinary.st_uid)


KNOWN = ArchiveContents(
    10**6, known_files=(make_known_file("a.bin", b"a", "sha1"), make_known_file("b.bin", b"b", "sha1"))
)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("x/a.bin", b"a")], "does not contain b.bin"),
        ([("x/a.bin", b"a"), ("x/b.bin", b"B")], "is ae4f281df5a5d0ff3cad6371f76d5c29b6d953ec instead of e9d71f5ee7"),
        ([("x/a.bin", b"a"), ("y/a.bin", b"a"), ("x/b.bin", b"b")], "contains 'y/a.bin' twice"),
    ],
)
def test_a_known_archive_with_other_files_is_refused(target, members, message):
    with pytest.raises(DataError, match=message):
        unpack_archive(write_archive(target, make_tar(members)), target, KNOWN)


def test_known_files_are_unpacked_from_any_folder(target):
    members = [("x/y/a.bin", b"a"), ("b.bin", b"b"), ("x/readme.html", b"<p>")]
    unpack_archive(write_archive(target, make_tar(members)), target, KNOWN)
    assert read_files(target) == {"a.bin": b"a", "b.bin": b"b"}


HOSTILE = {
    "above": (("../evil", b"!"), "'../evil' points outside the folder"),
    "above, from below": (("top/../../evil", b"!"), "points outside the folder"),
    "dots at the end": (("top/..", b"!"), "points outside the folder"),
    "absolute": (("/tmp/evil", b"!"), "'/tmp/evil' is an absolute path"),
    "symlink": (make_tar_info("top/link", tarfile.SYMTYPE, "/etc/passwd"), "'top/link' is a link to '/etc/passwd'"),
    "symlink to a folder": (make_tar_info("top/link", tarfile.SYMTYPE, ".."), "is a link to '..'"),
    "hardlink": (make_tar_info("top/link", tarfile.LNKTYPE, "/etc/passwd"), "is a link to '/etc/passwd'"),
    "character device": (make_tar_info("top/null", tarfile.CHRTYPE), "'top/null' is neither a file nor a folder"),
    "block device": (make_tar_info("top/disk", tarfile.BLKTYPE), "is neither a file nor a folder"),
    "pipe": (make_tar_info("top/pipe", tarfile.FIFOTYPE), "is neither a file nor a folder"),
    "unknown kind": (make_tar_info("top/what", b"V"), "is neither a file nor a folder"),
    "sparse": (make_tar_info("top/holes", tarfile.GNUTYPE_SPARSE), "is neither a file nor a folder"),
    "line break": (("top/a\nb", b"!"), "is not a valid file name"),
    "escape sequence": (("top/\x1b[2J", b"!"), "is not a valid file name"),
    "backslash": (("top\\..\\evil", b"!"), "is not a valid file name"),
    "long name": (("top/" + "n" * 256, b"!"), "is not a valid file name"),
    "file below a file": (("top/first/below", b"!"), "'top/first/below' is both a file and a folder"),
    "folder again as a file": (("top/folder", b"!"), "'top/folder' is both a file and a folder"),
    "twice": (("other/first", b"!"), "contains 'other/first' twice"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing_outside(target, kind):
    member, message = HOSTILE[kind]
    archive = write_archive(target, make_tar([("top/first", b"1"), ("top/folder/second", b"2"), member]))
    with pytest.raises(DataError) as error:
        unpack_archive(archive, target, ROOMY)
    assert message in str(error.value)
    assert str(archive) in str(error.value)
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert set(read_files(target)) <= {"first", "folder/second"}
    assert not any(path.is_symlink() for path in target.rglob("*"))


def make_header(name, kind, size):
    """Return the header of a member without content."""
    return make_tar_info(name, kind, size=size).tobuf(tarfile.GNU_FORMAT)


RECORD = b"500000 comment=" + b"z" * (500_000 - 16) + b"\n"
# no member is a file, and the sizes are not counted as files' sizes
HEADERS_BOMB = (make_header("x", tarfile.XGLTYPE, 2**19) + RECORD + bytes(2**19 - len(RECORD))) * 60


TOO_LARGE = {
    "a file": (
        make_header("top/bomb", tarfile.REGTYPE, 2**40),
        "'top/bomb' is too large: at most 1,000,000 bytes in 50 files are allowed",
    ),
    "files": (make_tar([(f"top/{i}", bytes(300_000)) for i in range(5)], False), "'top/3' is too "),
    "many files": (make_tar([(f"top/{i}", b"") for i in range(60)], False), "'top/50' is too large"),
    "headers": (HEADERS_BOMB, "not a valid archive .its content has more than"),
    **{
        kind: (
            make_header("x", kind, 2**31) + bytes(2**26),
            "a valid archive .a header has an invalid size of 2,147,48",
        )
        for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
    },
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_too_large_content_is_refused_before_it_is_written(target, kind):
    content, message = TOO_LARGE[kind]
    archive = write_archive(target, gzip.compress(content, 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            unpack_archive(archive, target, ROOMY)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert not (target / "bomb").exists()


WHOLE = make_tar([("top/a", random_bytes(700)), ("top/b", b"b")])
PLAIN = gzip.decompress(WHOLE)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", WHOLE[:-200], PLAIN[:800], gzip.compress(random_bytes(2000)), b"\x1f\x8b"]
)
def test_a_damaged_archive_is_named(target, content):
    with pytest.raises(DataError, match=r"around\.tgz is not a valid archive"):
        unpack_archive(write_archive(target, content), target, ROOMY)


@given(st.data())
def test_no_damaged_archive_raises_anything_but_a_data_error(tmp_path_factory, data):
    """Bytes of the headers are changed at will; whatever comes of it stays in the target."""
    content = bytearray(PLAIN)
    for position in data.draw(st.lists(st.integers(0, len(PLAIN) - 1), min_size=1, max_size=8)):
        content[position] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # a header with the right check sum
        content[148:156] = b"%06o\0 " % (sum(content[:148]) + 256 + sum(content[156:512]))
    around = tmp_path_factory.mktemp("around")
    archive = around.with_suffix(".tgz")
    archive.write_bytes(content if data.draw(st.booleans()) else gzip.compress(content, 1))
    (around / "target").mkdir()
    try:
        unpack_archive(archive, around / "target", ROOMY)
    except DataError as error:
        assert str(archive) in str(error)
    assert [path.name for path in around.iterdir()] == ["target"]


@pytest.mark.parametrize("size", [0, 50, 699])
def test_a_full_disk_is_an_output_error(target, size):
    archive = write_archive(target, WHOLE)
    with limit_file_size(size), pytest.raises(
        OutputError, match=r"cannot write .*/target/a: File too large; free disk space"
    ):
        unpack_archive(archive, target, ROOMY)


def test_a_file_that_cannot_be_read_is_named(target, tmp_path):
    """Root may read all files, but not the beginning of its memory."""
    unreadable = tmp_path / "memory"
    unreadable.symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"/memory cannot be read \(Input/output error\)"):
        file_digest(unreadable)
    with pytest.raises(DataError, match=r"/memory is not a valid archive .*Input/output error"):
        unpack_archive(unreadable, target, ROOMY)
