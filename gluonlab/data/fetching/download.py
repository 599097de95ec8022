"""Downloads data sets from mirrors, and verifies the digests of the files.

A file has the suffix .part until its digest has been verified. The next call resumes an interrupted
download. An archive is unpacked into a temporary folder, which is then moved into place. A
downloaded archive is deleted afterwards, but an archive that the user provided is kept.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple, Optional

import requests
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from gluonlab.data.fetching.data_folders import (
    MANIFEST,
    OK,
    file_digest,
    find_dataset_folder,
    has_valid_files,
    manifest_text,
    verify_files,
)
from gluonlab.data.fetching.download_sources import KnownFile, Source
from gluonlab.data.fetching.extract_archive import unpack_archive
from gluonlab.errors import ConfigError, DataError, DownloadError, OutputError
from gluonlab.files.atomic_files import raise_output_errors

OTHER_FOLDER_HINT = "choose another directory with --data-dir"
CHUNK_BYTES = 2**14  # bytes per read; at most this many are lost when a connection fails
TIMEOUT_S = 30.0  # maximum time to connect, and between two bytes
MIN_BYTES_PER_S = 1024  # a server that is slower during TIMEOUT_S is given up
SMALL_CHUNK_BYTES = 1024  # bytes per read, for old releases of urllib3
MAX_FAILURES = 3  # lost connections in a row without progress
CONNECTION_ENDED = "the connection was closed"
DISK_FULL_HINT = (
    "free disk space, or choose another directory with --data-dir; downloaded files are "
    "kept: run the same command again to resume"
)
Log = Callable[[str], object]


def download(
    source: Source, root: Path, mirror: Optional[str] = None, timeout_s: float = TIMEOUT_S, log: Log = lambda line: None
) -> Path:
    """Download a data set's missing and damaged files. Return the folder that contains the files.

    ``root``: the folder of all data sets. ``mirror``: an address from the user that is tried first,
    as mirror/FILE and mirror/NAME/FILE. ``log`` is called with one line per step. Processes that
    download the same data set wait for each other.

    Raises DownloadError if a file is not available at any address. The message describes how to
    fetch the file by hand. Raises OutputError if the disk is full, and ConfigError if ``mirror``
    does not start with http:// or https://.
    """
    mirrors = _user_mirrors(source, mirror) + list(source.mirrors)
    folder = root / source.name
    if has_valid_files(source, root):
        return find_dataset_folder(source, root) or folder
    with raise_output_errors(root, OTHER_FOLDER_HINT):
        root.mkdir(parents=True, exist_ok=True)
    message = f"waiting for another process that downloads {source.name}"
    with _hold_lock(root / f".{source.name}.lock", partial(log, message)):
        if not has_valid_files(source, root):
            with make_http_session() as session:
                job = _DatasetDownload(source, root, mirrors, session, timeout_s, log)
                job.fetch_archive() if source.contents else job.fetch_files()
    return folder


def _user_mirrors(source: Source, mirror: Optional[str]) -> List[str]:
    """Return the addresses to try on the user's mirror, without and with the data set's name."""
    if mirror is None:
        return []
    if not re.match(r"(?i)https?://[^/\s]", mirror):
        raise ConfigError(f"--mirror {redact_password(mirror)}: use an address that starts with http:// or https://")
    address = mirror.rstrip("/") + "/"
    return [address, f"{address}{source.name}/"]


@contextmanager
def _hold_lock(path: Path, on_wait: Callable[[], object]) -> Iterator[None]:
    """Lock ``path`` in the with block. If another process has the lock, call ``on_wait`` and wait.

    The lock file is never deleted: otherwise, two processes could hold the lock at once.
    """
    with raise_output_errors(path, OTHER_FOLDER_HINT):
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            on_wait()
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise OutputError(f"{path} cannot be locked ({error}): {OTHER_FOLDER_HINT}") from None
        yield


class _DatasetDownload(NamedTuple):
    """Downloads one data set to its folder. ``root``: the folder that contains all data sets."""

    source: Source
    root: Path
    mirrors: List[str]
    session: requests.Session
    timeout_s: float
    log: Log

    def fetch_files(self) -> None:
        """Download the files of a data set that is not an archive."""
        folder = self.root / self.source.name
        with raise_output_errors(folder, OTHER_FOLDER_HINT):
            folder.mkdir(exist_ok=True)
        findings = verify_files(self.source, self.root)
        missing = [file for file, current in zip(self.source.files, findings) if current.state != OK]
        for position, file in enumerate(missing):
            by_hand = [
                f"to download these files by hand, put them into {folder}",
                *(f"  {missing_file}" for missing_file in missing[position:]),
            ]
            self._fetch_from_mirrors(file, folder, partial(_install_file, file, folder), by_hand)

    def fetch_archive(self) -> None:
        """Download and unpack an archive.

        If the user has put a copy of the archive into ``root``, that copy is used.
        """
        [file] = self.source.files
        install = partial(_install_archive, self.source, self.root / self.source.name)
        archive = self.root / file.name
        if archive.is_file():
            try:
                install(archive)
                return
            except DataError as error:
                self.log(f"{error}; the file is kept, and another copy is downloaded")
        by_hand = [
            f"to download this file by hand, put it into {self.root} and run the same command again",
            f"  {file}",
        ]
        self._fetch_from_mirrors(file, self.root, install, by_hand)

    def _fetch_from_mirrors(
        self, file: KnownFile, folder: Path, install: Callable[[Path], None], by_hand: List[str]
    ) -> None:
        """Download one file to ``folder`` from the first mirror that has it.

        ``install``: a function that moves a correct file into place, and raises DataError for a
        wrong file. ``by_hand``: lines for the error message that describe how to fetch the file by
        hand.
        """
        sizes = range(file.size, file.size + 1)  # allowed sizes in bytes
        if self.source.contents and self.source.contents.known_files:
            # A repacked archive of the same files may have a different size.
            sizes = range(1, self.source.contents.max_bytes + 1)
        part = folder / f"{file.name}.part"
        if file_size(part) >= sizes.stop:
            part.unlink(missing_ok=True)
        errors: List[str] = []
        for mirror in self.mirrors:
            if errors:
                self.log(f"{errors[-1]}; trying the next address")
            try:
                return self._fetch_from_address(mirror + file.name, file, part, sizes, install)
            except DownloadError as error:
                errors.append(str(error))
        addresses = ["from one of these addresses", *(f"  {redact_password(mirror)}" for mirror in self.source.mirrors)]
        raise DownloadError(
            f"{self.source.name} cannot be downloaded, because {file.name} could not be fetched from any address",
            [*errors, *by_hand, *addresses],
        )

    def _fetch_from_address(
        self, url: str, file: KnownFile, part: Path, sizes: range, install: Callable[[Path], None]
    ) -> None:
        """Download a file from one address to ``part``, and install it.

        ``sizes``: the allowed sizes in bytes. Raises DownloadError if the file is missing or wrong.
        """
        for is_last_attempt in (False, True):
            is_single_response = not part.exists()
            offset_note = "" if is_single_response else f", resuming from byte {file_size(part):,}"
            self.log(f"{redact_password(url)} -> {part.with_suffix('')}{offset_note}")
            if is_single_response or file_size(part) != file.size:
                is_single_response &= fetch_file(self.session, url, part, sizes, self.timeout_s)
            try:
                install(part)
            except DataError as error:
                part.unlink(missing_ok=True)
                # If several responses were joined, they may be from different versions of the file.
                # Then download the whole file once more.
                if is_single_response or is_last_attempt:
                    raise DownloadError(
                        f"{redact_password(url)} sent a different file than expected: {error}"
                    ) from None
            else:
                part.unlink(missing_ok=True)
                return


def _install_file(file: KnownFile, folder: Path, part: Path) -> None:
    """Verify a downloaded file, and rename it to its final name.

    Raise DataError if the file is wrong.
    """
    _check_digest(file, part)
    with raise_output_errors(folder / file.name, OTHER_FOLDER_HINT):
        os.replace(part, folder / file.name)


def _install_archive(source: Source, folder: Path, archive: Path) -> None:
    """Verify an archive, and unpack it to ``folder``. Raise DataError if the archive is wrong."""
    [file], contents = source.files, source.contents
    assert contents is not None
    if not contents.known_files:
        _check_digest(file, archive)
    temporary = folder.with_name(f".{folder.name}.unpacking")
    try:
        with raise_output_errors(temporary, OTHER_FOLDER_HINT):
            shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
            temporary.mkdir()
        digests = unpack_archive(archive, temporary, contents, DISK_FULL_HINT)
        with raise_output_errors(folder, DISK_FULL_HINT):
            if not contents.known_files:
                (temporary / MANIFEST).write_text(manifest_text(digests), encoding="utf-8")
            _move_folder(temporary, folder)
    except DataError as error:
        digest = file_digest(archive, file.algorithm)
        if digest == file.digest:
            raise
        raise DataError(f"{error} (its {file.algorithm} is {digest} instead of {file.digest})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_digest(file: KnownFile, path: Path) -> None:
    digest = file_digest(path, file.algorithm)
    if digest != file.digest:
        raise DataError(f"the {file.algorithm} of {path.name} is {digest} instead of {file.digest}")


def _move_folder(source: Path, target: Path) -> None:
    """Move ``source`` to ``target``: as a folder, or file by file if ``target`` exists."""
    if not target.exists():
        os.replace(source, target)
        return
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    # The manifest is moved last, because it marks the folder as complete.
    for name in sorted(files, key=lambda name: name == Path(MANIFEST)):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / name, target / name)


# --- download from one address to one file, which is resumed after a lost connection


def make_http_session() -> requests.Session:
    """Return a session that retries if a connection fails or the server is busy.

    The session uses the proxies in the environment (HTTPS_PROXY, NO_PROXY, ...).
    """
    retry = Retry(
        connect=2,
        read=1,
        status=3,
        backoff_factor=0.3,
        status_forcelist=(429, 500, 502, 503, 504),
        raise_on_status=False,
        respect_retry_after_header=False,  # a server may ask to wait for hours
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    session.headers["Accept-Encoding"] = "identity"  # the digests are those of the compressed files
    return session


def fetch_file(session: requests.Session, url: str, part: Path, sizes: range, timeout_s: float = TIMEOUT_S) -> bool:
    """Download the rest of ``url``, and append it to the file ``part``.

    If the server cannot resume, the download starts over. Returns whether a single connection was
    enough. Raises DownloadError if the server does not return the file, and OutputError if the file
    cannot be written. Bytes received before an error are kept.

    ``sizes``: the allowed sizes of the file in bytes.
    """
    failures, largest, connections = 0, file_size(part), 1
    while True:
        try:
            _download_rest(session, url, part, sizes, timeout_s)
            return connections == 1
        except _ConnectionLost as error:
            failures = 0 if file_size(part) - largest >= CHUNK_BYTES else failures + 1
            largest = max(largest, file_size(part))  # receiving the same bytes again is no progress
            if failures == MAX_FAILURES:
                raise DownloadError(f"the download from {redact_password(url)} failed ({error})") from None
        connections += 1
        time.sleep(0.2 * failures)


def file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if there is no such file."""
    return path.stat().st_size if path.exists() else 0


def redact_password(text: str) -> str:
    """Remove the passwords from the URLs in ``text``, so that it can be printed."""
    return re.sub("(?<=//)[^/]*@", "", text)


class _ConnectionLost(Exception):
    """The connection ended early. A new connection may return the rest of the file."""


def _download_rest(session: requests.Session, url: str, part: Path, sizes: range, timeout_s: float) -> None:
    """Request the missing bytes of a file, and append them to ``part``, in one connection.

    Raises _ConnectionLost if bytes are still missing, and DownloadError for other failures.
    """
    present = file_size(part)
    try:
        headers = {"Range": f"bytes={present}-"} if present else {}
        response = session.get(url, headers=headers, stream=True, timeout=timeout_s)
    # the session has already retried
    except (requests.RequestException, HTTPError, ValueError) as error:
        raise DownloadError(redact_password(f"{url} cannot be reached ({_root_cause_message(error)})")) from None
    with response:
        start = _find_response_start(response, present)
        if start is None:  # the response does not continue the local file
            part.unlink(missing_ok=True)
            raise _ConnectionLost("the server does not support resuming")
        if response.status_code not in (200, 206):
            status = f"{response.status_code} {response.reason or ''}".rstrip()
            raise DownloadError(f"{redact_password(url)} answered with status {status}")
        length = re.fullmatch(r"[0-9]{1,18}", response.headers.get("Content-Length", ""))
        total = start + int(length[0]) if length else None
        if total is not None:
            _check_size(url, total, sizes)
        failure = _write_response(response, url, part, start, sizes, total, timeout_s)
    if failure or (total is not None and file_size(part) < total):
        of_total = "" if total is None else f" of {total:,}"
        raise _ConnectionLost(f"after {file_size(part):,} bytes{of_total}: {failure or CONNECTION_ENDED}")
    try:
        _check_size(url, file_size(part), sizes)
    except DownloadError:
        part.unlink()
        raise


def _write_response(
    response: requests.Response, url: str, part: Path, start: int, sizes: range, total: Optional[int], timeout_s: float
) -> str:
    """Write the response to ``part``, from byte ``start`` on.

    Returns the reason why the connection was lost, or "" if the connection was not lost. Raises
    DownloadError if fewer than MIN_BYTES_PER_S arrive during ``timeout_s``.

    ``total``: the expected size of the whole file, if it is known.
    """
    # disable=None hides the bar if the output is not a terminal
    units = dict(unit="B", unit_scale=True, unit_divisor=1024, disable=None)
    bar = tqdm(desc=part.stem, initial=start, total=total, **units)
    window_start, window_bytes = time.monotonic(), 0
    with raise_output_errors(part, DISK_FULL_HINT), part.open("ab" if start else "wb") as file, bar:
        try:
            while file.tell() < sizes.stop:
                chunk = _read_chunk(response, sizes.stop - file.tell())
                if not chunk:
                    break
                file.write(chunk)
                bar.update(len(chunk))
                window_bytes, seconds = window_bytes + len(chunk), time.monotonic() - window_start
                if seconds < timeout_s:
                    continue
                if window_bytes < MIN_BYTES_PER_S * seconds:
                    speed = f"{window_bytes:,} bytes in {seconds:.3g} s"
                    required = f"but at least {MIN_BYTES_PER_S:,} bytes per second are required"
                    raise DownloadError(f"{redact_password(url)} is too slow: it sent {speed}, {required}")
                window_start, window_bytes = time.monotonic(), 0
        except HTTPError as error:
            return _root_cause_message(error)
    return ""


def _read_chunk(response: requests.Response, max_bytes: int) -> bytes:
    """Wait for the next bytes, and return at most ``max_bytes`` bytes; b"" at the end."""
    read1 = getattr(response.raw, "read1", None)
    # urllib3 1.26 has no read1. Its read waits until a chunk is complete, so chunks must be small.
    if read1 is None:
        return bytes(response.raw.read(min(SMALL_CHUNK_BYTES, max_bytes), decode_content=False))
    return bytes(read1(min(CHUNK_BYTES, max_bytes), decode_content=False))


def _find_response_start(response: requests.Response, present: int) -> Optional[int]:
    """Return the file position at which a response starts: ``present`` if it resumes, else 0.

    Returns None if the response does not continue the local file. ``present``: the size of the
    local file in bytes.
    """
    if response.status_code == 206:
        match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        return present if match and int(match[1]) == present else None
    return None if response.status_code == 416 and present else 0


def _check_size(url: str, size: int, sizes: range) -> None:
    """Raise DownloadError unless the file's ``size`` in bytes is one of the allowed ``sizes``."""
    if size not in sizes:
        upper_limit = f" to {sizes.stop - 1:,}" if len(sizes) > 1 else ""
        expected = f"{sizes.start:,}{upper_limit}"
        raise DownloadError(f"the file at {redact_password(url)} has {size:,} bytes instead of {expected}")


def _root_cause_message(error: BaseException) -> str:
    """Return the message of a network error's root cause, without object addresses."""
    cause = error.__cause__ or error.__context__
    while isinstance(cause, (OSError, HTTPException, HTTPError)):
        error, cause = cause, cause.__cause__ or cause.__context__
    if isinstance(error, IncompleteRead):
        return CONNECTION_ENDED
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    return " ".join(re.sub(r"<[^>]*>:?", "", text).split())
