"""Unpacking: what is in an archive comes out, and a hostile one leaves nothing outside its
target.
"""

import gzip
import hashlib
import io
import tarfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_sources import files_of_at_most, known, noise, tar_of

from gluonlab.data.fetching.extract import unpack
from gluonlab.data.fetching.location import digest_of
from gluonlab.data.fetching.sources import Contents
from gluonlab.errors import DataError, OutputError

ROOMY = Contents(most_bytes=10**6, most_files=50)


@pytest.fixture(scope="module")
def around(tmp_path_factory):
    """The folder around all targets, which nothing may be written into."""
    return tmp_path_factory.mktemp("around")


@pytest.fixture
def target(around):
    yield from fresh_target(around)


def fresh_target(around):
    folder = around / "target"
    folder.mkdir()
    yield folder
    remove(folder)


def remove(folder):
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()


def files_below(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def special(name, kind, linkname="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, linkname, size
    return info


FILES = {
    "train/a/1.jpg": b"one",
    "train/b/2.jpg": noise(5000),
    "val/a/empty.jpg": b"",
    "kör/äß.txt": b"x" * 1024,
}


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    "tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_every_file_comes_out_without_the_folder_around_it(target, tmp_path, compress, tar_format):
    long = "/".join(["a" * 60] * 3)  # a name that needs a header of its own
    files = FILES if tar_format == tarfile.USTAR_FORMAT else {**FILES, long: b"long"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tar_format) as tar:
        tar.addfile(special("./top", tarfile.DIRTYPE))
        for name, content in files.items():
            info = tarfile.TarInfo(f"./top/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive = written(
        tmp_path, "a.tgz", gzip.compress(packed.getvalue()) if compress else packed.getvalue()
    )
    digests = unpack(archive, target, ROOMY)
    assert files_below(target) == files
    assert digests == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_permissions_and_owners_of_the_archive_are_not_taken_over(target, tmp_path):
    info = tarfile.TarInfo("top/run-me")
    info.mode, info.uid = 0o6777, 12345
    unpack(written(tmp_path, "a.tgz", tar_of([info])), target, ROOMY)
    ordinary = written(target, "ordinary", b"").stat()
    run_me = (target / "run-me").stat()
    assert (run_me.st_mode, run_me.st_uid) == (ordinary.st_mode, ordinary.st_uid)


def test_of_a_known_archive_only_the_known_files_are_kept_wherever_they_lie_in_it(target, tmp_path):
    contents = Contents(10**6, known=(known("a.bin", b"a", "sha1"), known("b.bin", b"b")))
    members = [("x/y/a.bin", b"a"), ("b.bin", b"b"), ("x/readme.html", b"<p>")]
    unpack(written(tmp_path, "a.tgz", tar_of(members)), target, contents)
    assert files_below(target) == {"a.bin": b"a", "b.bin": b"b"}


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("x/a.bin", b"a")], "b.bin is not in it"),
        (
            [("x/a.bin", b"a"), ("x/b.bin", b"B")],
            "b.bin in it has sha1 ae4f281df5a5d0ff3cad6371f76d5c29b6d953ec, expected e9d71f5ee7",
        ),
        ([("x/a.bin", b"a"), ("y/a.bin", b"a"), ("x/b.bin", b"b")], "'y/a.bin' is in it twice"),
    ],
)
def test_a_known_archive_with_other_files_is_refused(target, tmp_path, members, said):
    contents = Contents(10**6, known=(known("a.bin", b"a", "sha1"), known("b.bin", b"b", "sha1")))
    with pytest.raises(DataError, match=said):
        unpack(written(tmp_path, "a.tgz", tar_of(members)), target, contents)


HOSTILE = {
    "above": (("../evil", b"!"), "'../evil' points outside the folder"),
    "above, from below": (("top/../../evil", b"!"), "points outside the folder"),
    "dots at the end": (("top/..", b"!"), "points outside the folder"),
    "absolute": (("/tmp/evil", b"!"), "'/tmp/evil' is an absolute path"),
    "symlink": (
        special("top/link", tarfile.SYMTYPE, "/etc/passwd"),
        "'top/link' is a link to '/etc/passwd'",
    ),
    "symlink to a folder": (special("top/link", tarfile.SYMTYPE, ".."), "is a link to '..'"),
    "hardlink": (special("top/link", tarfile.LNKTYPE, "/etc/passwd"), "is a link to '/etc/passwd'"),
    "character device": (
        special("top/null", tarfile.CHRTYPE),
        "'top/null' is neither a file nor a folder",
    ),
    "block device": (special("top/disk", tarfile.BLKTYPE), "is neither a file nor a folder"),
    "pipe": (special("top/pipe", tarfile.FIFOTYPE), "is neither a file nor a folder"),
    "unknown kind": (special("top/what", b"V"), "is neither a file nor a folder"),
    "sparse": (special("top/holes", tarfile.GNUTYPE_SPARSE), "is neither a file nor a folder"),
    "line break": (("top/a\nb", b"!"), "is not a valid file name"),
    "escape sequence": (("top/\x1b[2J", b"!"), "is not a valid file name"),
    "backslash": (("top\\..\\evil", b"!"), "is not a valid file name"),
    "long name": (("top/" + "n" * 256, b"!"), "is not a valid file name"),
    "file below a file": (
        ("top/first/below", b"!"),
        "'top/first/below' is both a file and a folder",
    ),
    "folder again as a file": (("top/folder", b"!"), "'top/folder' is both a file and a folder"),
    "twice": (("other/first", b"!"), "'other/first' is in it twice"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing_outside(around, target, tmp_path, kind):
    member, said = HOSTILE[kind]
    archive = written(
        tmp_path, "evil.tgz", tar_of([("top/first", b"1"), ("top/folder/second", b"2"), member])
    )
    with pytest.raises(DataError) as error:
        unpack(archive, target, ROOMY)
    assert said in str(error.value)
    assert str(archive) in str(error.value)
    assert [path.name for path in around.iterdir()] == ["target"]
    assert set(files_below(target)) <= {"first", "folder/second"}
    assert not any(path.is_symlink() for path in target.rglob("*"))


def refused_with_little_memory(archive, target, contents, said):
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=said):
            unpack(archive, target, contents)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def header_only(info):
    """The header of a member whose content does not follow."""
    return info.tobuf(tarfile.GNU_FORMAT)


def test_a_file_that_says_it_is_too_large_is_refused_before_it_is_written(target, tmp_path):
    archive = written(
        tmp_path,
        "a.tgz",
        gzip.compress(header_only(special("top/bomb", tarfile.REGTYPE, size=2**40))),
    )
    refused_with_little_memory(
        archive, target, ROOMY, r"'top/bomb' is too much: at most 1,000,000 bytes in 50 files"
    )
    assert files_below(target) == {}


def test_files_that_are_too_large_together_are_refused(target, tmp_path):
    members = [(f"top/{i}", bytes(300_000)) for i in range(5)]
    with pytest.raises(DataError, match="'top/3' is too much"):
        unpack(written(tmp_path, "a.tgz", tar_of(members)), target, ROOMY)


def test_too_many_files_are_refused(target, tmp_path):
    with pytest.raises(DataError, match="'top/50' is too much"):
        unpack(
            written(tmp_path, "a.tgz", tar_of([(f"top/{i}", b"") for i in range(60)])),
            target,
            ROOMY,
        )


def test_headers_that_inflate_for_ever_are_refused(target, tmp_path):
    """A gzip bomb of headers: none of them is a file, and their sizes are not counted as files'
    sizes.
    """
    header = special("x", tarfile.XGLTYPE, size=2**19).tobuf(tarfile.USTAR_FORMAT)
    record = b"500000 comment=" + b"z" * (500_000 - 16) + b"\n"
    bomb = header + record + bytes(2**19 - len(record))
    archive = written(tmp_path, "a.tgz", gzip.compress(bomb * 60))
    assert archive.stat().st_size < 200_000
    refused_with_little_memory(
        archive, target, ROOMY, "not a usable archive .it unpacks to more than"
    )


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK]
)
def test_a_header_of_gigabytes_is_refused(target, tmp_path, kind):
    archive = written(
        tmp_path,
        "a.tgz",
        gzip.compress(special("x", kind, size=2**31).tobuf(tarfile.GNU_FORMAT) + bytes(2**26), 1),
    )
    refused_with_little_memory(archive, target, ROOMY, "not a usable archive .a header of 2,147,48")


WHOLE = tar_of([("top/a", noise(700)), ("top/b", b"b")])
PLAIN = gzip.decompress(WHOLE)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", WHOLE[:-200], PLAIN[:800], gzip.compress(noise(2000)), b"\x1f\x8b"]
)
def test_what_is_no_whole_archive_is_named(target, tmp_path, content):
    with pytest.raises(DataError, match=r"/a\.tgz: not a usable archive"):
        unpack(written(tmp_path, "a.tgz", content), target, ROOMY)


@given(st.data())
def test_no_damaged_archive_raises_anything_but_a_data_error(around, data):
    """Bytes of the headers are changed at will; whatever comes of it stays in the target."""
    content = bytearray(PLAIN)
    for position in data.draw(st.lists(st.integers(0, len(PLAIN) - 1), min_size=1, max_size=8)):
        content[position] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # a header with the right check sum
        content[148:156] = b"%06o\0 " % (sum(content[:148]) + 256 + sum(content[156:512]))
    compressed = bytes(content) if data.draw(st.booleans()) else gzip.compress(bytes(content), 1)
    for target in fresh_target(around):
        archive = around.parent / "damaged.tgz"
        archive.write_bytes(compressed)
        try:
            unpack(archive, target, ROOMY)
        except DataError as error:
            assert str(archive) in str(error)
        assert [path.name for path in around.iterdir()] == ["target"]


@given(st.binary(max_size=1500))
def test_no_bytes_raise_anything_but_a_data_error(around, content):
    archive = around.parent / "bytes.tgz"
    archive.write_bytes(content)
    for target in fresh_target(around):
        try:
            assert unpack(archive, target, ROOMY) == {}
        except DataError as error:
            assert str(archive) in str(error)


@pytest.mark.parametrize("size", [0, 50, 699])
def test_a_full_disk_is_no_fault_of_the_archive(target, tmp_path, size):
    archive = written(tmp_path, "a.tgz", WHOLE)
    with files_of_at_most(size), pytest.raises(
        OutputError, match=r"cannot write .*/target/a: File too large; make room"
    ):
        unpack(archive, target, ROOMY)


def test_a_file_that_cannot_be_read_is_named(target, tmp_path):
    """Root may read all files, but not the beginning of its memory."""
    unreadable = tmp_path / "memory"
    unreadable.symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"/memory: cannot be read \(Input/output error\)"):
        digest_of(unreadable)
    with pytest.raises(DataError, match=r"/memory: not a usable archive .*Input/output error"):
        unpack(unreadable, target, ROOMY)


def test_the_digest_is_that_of_the_content(tmp_path):
    content = noise(3_000_000)
    path = written(tmp_path, "file", content)
    assert digest_of(path) == hashlib.sha256(content).hexdigest()
    assert digest_of(path, "sha1") == hashlib.sha1(content).hexdigest()
