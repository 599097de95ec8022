"""Unpack a tar archive that may be hostile: no links, no devices, nothing outside or too large."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Dict, Iterator, Optional

from gluonlab.data.fetching.data_folders import READ_BYTES, digest_of
from gluonlab.data.fetching.download_sources import Contents
from gluonlab.errors import DataError, OutputError
from gluonlab.files.atomic_files import raise_output_errors

LONGEST_READ = 2**20  # of tarfile at once: a header, or a long name
TAR_BLOCKS = 64 * 2**10  # what tar adds at the end of the archive, at most
HEADER_BYTES = 4 * 512  # and before each file: a header, with a long name or times in another one
# There is no list of what tarfile raises on hostile headers: besides its own errors, these.
HOSTILE = (
    tarfile.TarError, zlib.error, EOFError, OSError, ValueError, ArithmeticError, LookupError,
    RecursionError,
)  # fmt: skip
UNUSED = "the archive is not used"
REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


def unpack(
    archive: Path, target: Path, contents: Contents, no_room: str = "make room"
) -> Dict[str, str]:
    """Write the files of a .tar.gz (or .tar) below the empty folder ``target``, each once.

    Where ``contents`` knows its files these alone are written, into ``target`` itself, and
    compared; else the folder that all lie in is left out. Returns the SHA-256 of each file. Owners,
    permissions and times are those of any new file.

    Raises DataError for an archive that is damaged, or holds a link, a device, a path that leads
    out of the target, a name twice, or more than ``contents`` allows, whatever its headers promise;
    OutputError when there is no room. A part may be written then.
    """
    rename = _known_name if contents.known else _without_first_folder
    digests: Dict[str, str] = {}
    with _opened(archive, contents) as tar:
        for member in _checked(tar, archive, contents):
            name = rename(member.name, contents)
            if name is None or member.isdir():
                continue
            if name in digests:
                raise DataError(f"{archive}: {member.name!r} is in it twice: {UNUSED}")
            digests[name] = _write(tar, member, archive, target / name, no_room)
    _compare(archive, target, contents)
    return digests


class _Bounded:
    """What tarfile reads from: forwards only, never much at once, and at most ``most_bytes``."""

    def __init__(self, file: IO[bytes], most_bytes: int) -> None:
        self.file, self.most_bytes, self.position = file, most_bytes, 0

    def tell(self) -> int:
        return self.position

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LONGEST_READ:
            raise tarfile.TarError(f"a header of {size:,} bytes")
        data = self.file.read(size)
        self.position += len(data)
        if self.position > self.most_bytes:
            raise tarfile.TarError(f"it unpacks to more than {self.most_bytes:,} bytes")
        return data

    def seek(self, position: int) -> int:
        if position < self.position:
            raise tarfile.TarError("a header that points backwards")
        while self.position < position and self.read(min(LONGEST_READ, position - self.position)):
            pass
        return self.position


@contextmanager
def _opened(archive: Path, contents: Contents) -> Iterator[tarfile.TarFile]:
    """The archive as a tarfile, and all that it may say of damaged headers as a DataError.

    What it reads is bounded, so that a small file cannot inflate without end, be it in memory or in
    a part that is skipped.
    """
    most_bytes = contents.most_bytes + contents.most_files * HEADER_BYTES + TAR_BLOCKS
    try:
        with archive.open("rb") as packed:
            plain = packed.read(2) != b"\x1f\x8b"
            packed.seek(0)
            stream: Any = packed if plain else gzip.GzipFile(fileobj=packed)
            bounded: Any = _Bounded(stream, most_bytes)
            with tarfile.TarFile(fileobj=bounded) as tar:
                yield tar
    except (DataError, OutputError):
        raise
    except HOSTILE as error:
        raise DataError(f"{archive}: not a usable archive ({error}): fetch it again") from None


def _checked(tar: tarfile.TarFile, archive: Path, contents: Contents) -> Iterator[tarfile.TarInfo]:
    """The files and folders of an archive.

    Raises DataError for anything else, before it is written.
    """
    room, count = contents.most_bytes, 0
    for member in iter(tar.next, None):
        count, room = count + 1, room - member.size
        wrong = _what_is_wrong(member)
        if not wrong and (room < 0 or count > contents.most_files):
            limits = f"{contents.most_bytes:,} bytes in {contents.most_files:,} files"
            wrong = f"is too much: at most {limits} are allowed"
        if wrong:
            raise DataError(f"{archive}: {member.name!r} {wrong}: {UNUSED}")
        yield member


def _what_is_wrong(member: tarfile.TarInfo) -> str:
    parts = member.name.split("/")
    if member.issym() or member.islnk():
        return f"is a link to {member.linkname!r}"
    if member.type not in REGULAR or member.issparse() or member.size < 0:
        return "is neither a file nor a folder"
    if member.name.startswith("/"):
        return "is an absolute path"
    if ".." in parts:
        return "points outside the folder"
    longest = max(len(part.encode()) for part in parts)
    if not member.name.isprintable() or "\\" in member.name or longest > 255:
        return "is not a valid file name"
    return ""


def _known_name(name: str, contents: Contents) -> Optional[str]:
    """The last part of a name, if that is a file that is wanted."""
    last = name.split("/")[-1]
    return last if any(file.name == last for file in contents.known) else None


def _without_first_folder(name: str, contents: Contents) -> Optional[str]:
    """a/b/c -> b/c; None for what is not below a folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts[1:]) or None


def _write(
    tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, path: Path, no_room: str
) -> str:
    """Write one file; its SHA-256."""
    content, digest = tar.extractfile(member), hashlib.sha256()
    # what goes wrong in reading is the archive's fault, in opening, writing and closing the disk's
    with raise_output_errors(path, no_room):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise DataError(
                f"{archive}: {member.name!r} is both a file and a folder: {UNUSED}"
            ) from None
    try:
        for chunk in iter(lambda: content.read(READ_BYTES), b""):  # type: ignore[union-attr]
            digest.update(chunk)
            with raise_output_errors(path, no_room):
                file.write(chunk)
    finally:
        with raise_output_errors(path, no_room):
            file.close()
    return digest.hexdigest()


def _compare(archive: Path, target: Path, contents: Contents) -> None:
    """Raise DataError when a known file is missing, or has another digest."""
    for file in contents.known:
        if not (target / file.name).is_file():
            raise DataError(f"{archive}: {file.name} is not in it: fetch it again")
        found = digest_of(target / file.name, file.algorithm)
        if found != file.digest:
            raise DataError(
                f"{archive}: {file.name} in it has {file.algorithm} {found}, "
                f"expected {file.digest}: fetch it again"
            )
