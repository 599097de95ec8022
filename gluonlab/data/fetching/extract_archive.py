"""Unpacks tar archives safely: no links, devices or paths outside the target, and limited size."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Dict, Iterator, Optional

from gluonlab.data.fetching.data_folders import CHUNK_BYTES, file_digest
from gluonlab.data.fetching.download_sources import ArchiveContents
from gluonlab.errors import DataError, OutputError
from gluonlab.files.atomic_files import raise_output_errors

MAX_READ_BYTES = 2**20  # limit of a single read by tarfile, which reads a header or a long name
END_BYTES = 64 * 2**10  # limit of the padding that tar adds at the end of an archive
HEADER_BYTES = 4 * 512  # limit per file: a header, and another one for a long name or times
# tarfile does not document its exceptions for hostile headers. Fuzzing found these.
TARFILE_ERRORS = (
    tarfile.TarError, zlib.error, EOFError, OSError, ValueError, ArithmeticError, LookupError,
    RecursionError,
)  # fmt: skip
NOT_USED = "the archive is not used"
ALLOWED_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


def unpack_archive(
    archive: Path, target: Path, contents: ArchiveContents, disk_full_hint: str = "free disk space"
) -> Dict[str, str]:
    """Write the files in a .tar.gz or .tar to the empty folder ``target``. Return their digests.

    If ``contents`` lists known files, only these files are written, without folders, and their
    digests are verified. Otherwise, the archive's top folder is removed from all paths. Owners,
    permissions and times are not restored.

    Raises DataError for a damaged archive, a link, a device, a path outside the target, a duplicate
    name, or more bytes or files than ``contents`` allows. Bytes are counted as they are read, so
    wrong sizes in headers do not matter. Raises OutputError if the disk is full. After an error,
    some files may already have been written.
    """
    digests: Dict[str, str] = {}
    with _open_archive(archive, contents) as tar:
        for member in _iterate_accepted_members(tar, archive, contents):
            name = _path_below_target(member.name, contents)
            if name is None or member.isdir():
                continue
            if name in digests:
                raise DataError(f"{archive} contains {member.name!r} twice: {NOT_USED}")
            digests[name] = _write_member(tar, member, archive, target / name, disk_full_hint)
    _check_known_files(archive, target, contents)
    return digests


class _BoundedReader:
    """Forward-only reader for tarfile.

    Raises TarError if one read is larger than MAX_READ_BYTES, or all reads together are larger than
    ``max_bytes``.
    """

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        self.file, self.max_bytes, self.position = file, max_bytes, 0

    def tell(self) -> int:
        return self.position

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes. Raises TarError if ``size`` or the total read is too large."""
        if not 0 <= size <= MAX_READ_BYTES:
            raise tarfile.TarError(f"a header has an invalid size of {size:,} bytes")
        data = self.file.read(size)
        self.position += len(data)
        if self.position > self.max_bytes:
            raise tarfile.TarError(f"its content has more than {self.max_bytes:,} bytes")
        return data

    def seek(self, position: int) -> int:
        """Skip to a later position by reading. Raises TarError for an earlier position."""
        if position < self.position:
            raise tarfile.TarError("a header points backward")
        while self.position < position and self.read(min(MAX_READ_BYTES, position - self.position)):
            pass
        return self.position


@contextmanager
def _open_archive(archive: Path, contents: ArchiveContents) -> Iterator[tarfile.TarFile]:
    """Open the archive as a tarfile, and convert errors due to damaged headers to DataErrors.

    The number of bytes read is limited, because a small compressed file can inflate to a huge file.
    """
    max_bytes = contents.max_bytes + contents.max_files * HEADER_BYTES + END_BYTES
    try:
        with archive.open("rb") as file:
            is_uncompressed = file.read(2) != b"\x1f\x8b"
            file.seek(0)
            stream: Any = file if is_uncompressed else gzip.GzipFile(fileobj=file)
            bounded: Any = _BoundedReader(stream, max_bytes)
            with tarfile.TarFile(fileobj=bounded) as tar:
                yield tar
    except (DataError, OutputError):
        raise
    except TARFILE_ERRORS as error:
        raise DataError(f"{archive} is not a valid archive ({error}): download it again") from None


def _iterate_accepted_members(
    tar: tarfile.TarFile, archive: Path, contents: ArchiveContents
) -> Iterator[tarfile.TarInfo]:
    """Yield the files and folders of an archive.

    Raises DataError for any other member before it is written.
    """
    bytes_left, count = contents.max_bytes, 0
    for member in iter(tar.next, None):
        count, bytes_left = count + 1, bytes_left - member.size
        fault = _member_fault(member)
        if not fault and (bytes_left < 0 or count > contents.max_files):
            limits = f"{contents.max_bytes:,} bytes in {contents.max_files:,} files"
            fault = f"is too large: at most {limits} are allowed"
        if fault:
            raise DataError(f"{archive}: {member.name!r} {fault}: {NOT_USED}")
        yield member


def _member_fault(member: tarfile.TarInfo) -> str:
    """Return why a member of an archive is rejected, or "" if it is accepted."""
    parts = member.name.split("/")
    if member.issym() or member.islnk():
        return f"is a link to {member.linkname!r}"
    if member.type not in ALLOWED_TYPES or member.issparse() or member.size < 0:
        return "is neither a file nor a folder"
    if member.name.startswith("/"):
        return "is an absolute path"
    if ".." in parts:
        return "points outside the folder"
    longest = max(len(part.encode()) for part in parts)
    if not member.name.isprintable() or "\\" in member.name or longest > 255:
        return "is not a valid file name"
    return ""


def _path_below_target(name: str, contents: ArchiveContents) -> Optional[str]:
    """Return a member's path below the target folder, or None for a member to skip."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if contents.known_files:
        known = [file.name for file in contents.known_files]
        return parts[-1] if parts and parts[-1] in known else None
    return "/".join(parts[1:]) or None


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, path: Path, disk_full_hint: str) -> str:
    """Write a file from the archive to ``path``. Return the file's SHA-256 digest."""
    content, digest = tar.extractfile(member), hashlib.sha256()
    # Errors of reading mean a damaged archive. Errors of open, write and close mean a disk problem.
    with raise_output_errors(path, disk_full_hint):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise DataError(f"{archive}: {member.name!r} is both a file and a folder: {NOT_USED}") from None
    try:
        for chunk in iter(lambda: content.read(CHUNK_BYTES), b""):  # type: ignore[union-attr]
            digest.update(chunk)
            with raise_output_errors(path, disk_full_hint):
                file.write(chunk)
    finally:
        with raise_output_errors(path, disk_full_hint):
            file.close()
    return digest.hexdigest()


def _check_known_files(archive: Path, target: Path, contents: ArchiveContents) -> None:
    """Raise DataError if a known file is missing or has a different digest."""
    for file in contents.known_files:
        if not (target / file.name).is_file():
            raise DataError(f"{archive} does not contain {file.name}: download the archive again")
        digest = file_digest(target / file.name, file.algorithm)
        if digest != file.digest:
            raise DataError(
                f"the {file.algorithm} of {file.name} in {archive} is {digest} instead of {file.digest}: download "
                "the archive again"
            )
