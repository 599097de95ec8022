"""Fetch a data set: mirrors in order, and nothing under its final name before its digest is right.

A file that is being fetched ends in .part; it stays when the command is interrupted, and the next
one goes on from there. An archive is unpacked beside its place and moved there whole; it is not
kept, unless somebody had put it there by hand.
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
    digest_of,
    folder_of,
    is_complete,
    manifest_text,
    verify,
)
from gluonlab.data.fetching.download_sources import KnownFile, Source
from gluonlab.data.fetching.extract_archive import unpack
from gluonlab.errors import ConfigError, DataError, DownloadError, OutputError
from gluonlab.files.atomic_files import raise_output_errors

ELSEWHERE = "choose another place with --data-dir"
CHUNK_BYTES = 2**14  # what a connection that breaks off loses at most
TIMEOUT_S = 30.0  # to connect, and between two bytes
SLOWEST_BYTES_PER_S = 1024  # over as long a time: a server that trickles is as good as silent
SMALL_BYTES = 1024  # what is waited for at once where a read cannot take what is there
ATTEMPTS = 3  # that bring nothing, one after the other
ENDED = "the connection ended"
NO_ROOM = (
    "make room or choose another place with --data-dir; "
    "what has been downloaded is kept: run the same command again to resume"
)
Say = Callable[[str], object]


def download(
    source: Source,
    root: Path,
    mirror: Optional[str] = None,
    timeout_s: float = TIMEOUT_S,
    say: Say = lambda text: None,
) -> Path:
    """Fetch what is missing or damaged of a data set, and return the folder that holds it.

    The folder lies below ``root``. ``mirror``: an address of the user's own, tried before the
    others, as mirror/FILE and as mirror/NAME/FILE. ``say`` gets a line for each thing that is done.
    Processes that fetch the same data set wait for each other, and the second finds it there.

    Raises DownloadError when no address gives a file, with what to put where by hand; OutputError
    when there is no room for it; ConfigError for a ``mirror`` that is not an http:// or https://
    address.
    """
    mirrors = _own_mirrors(source, mirror) + list(source.mirrors)
    folder = root / source.name
    if is_complete(source, root):
        return folder_of(source, root) or folder
    with raise_output_errors(root, ELSEWHERE):
        root.mkdir(parents=True, exist_ok=True)
    waiting = f"waiting for another process that fetches {source.name}"
    with _locked(root / f".{source.name}.lock", partial(say, waiting)):
        if not is_complete(source, root):
            with make_session() as session:
                job = _DatasetDownload(source, root, mirrors, session, timeout_s, say)
                job.fetch_archive() if source.contents else job.fetch_files()
    return folder


def _own_mirrors(source: Source, mirror: Optional[str]) -> List[str]:
    if mirror is None:
        return []
    if not re.match(r"(?i)https?://[^/\s]", mirror):
        raise ConfigError(
            f"--mirror {shown(mirror)}: give an address that begins with http:// or https://"
        )
    own = mirror.rstrip("/") + "/"
    return [own, f"{own}{source.name}/"]


@contextmanager
def _locked(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold a lock that only one process of this machine has.

    The file stays: removing it could let two processes in.
    """
    with raise_output_errors(path, ELSEWHERE):
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            waiting()
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise OutputError(f"{path} cannot be locked ({error}): {ELSEWHERE}") from None
        yield


class _DatasetDownload(NamedTuple):
    """One data set on its way from some mirrors to its folder."""

    source: Source
    root: Path
    mirrors: List[str]
    session: requests.Session
    timeout_s: float
    say: Say

    def fetch_files(self) -> None:
        """Fetch files that need no unpacking."""
        folder = self.root / self.source.name
        with raise_output_errors(folder, ELSEWHERE):
            folder.mkdir(exist_ok=True)
        findings = verify(self.source, self.root)
        wanted = [file for file, now in zip(self.source.files, findings) if now.state != OK]
        for position, file in enumerate(wanted):
            files = wanted[position:]
            by_hand = [f"by hand: put into {folder}", *(f"  {each}" for each in files)]
            self._fetch(file, folder, partial(_take_file, file, folder), by_hand)

    def fetch_archive(self) -> None:
        """Fetch and unpack an archive, and drop it; one that was put there by hand is kept."""
        [file] = self.source.files
        take = partial(_take_archive, self.source, self.root / self.source.name)
        here = self.root / file.name
        if here.is_file():
            try:
                take(here)
                return
            except DataError as error:
                self.say(f"{error}; it is kept, and another copy is downloaded")
        by_hand = [f"by hand: put into {self.root}, and run the same command again", f"  {file}"]
        self._fetch(file, self.root, take, by_hand)

    def _fetch(
        self, file: KnownFile, folder: Path, take: Callable[[Path], None], by_hand: List[str]
    ) -> None:
        """Fetch one file from the first mirror that has it.

        ``take`` puts it in its place, or raises DataError.
        """
        sizes = range(file.size, file.size + 1)
        if self.source.contents and self.source.contents.known:
            # another packing of the same files may have another size
            sizes = range(1, self.source.contents.most_bytes + 1)
        part = folder / f"{file.name}.part"
        if size_of(part) >= sizes.stop:
            part.unlink(missing_ok=True)
        reasons: List[str] = []
        for mirror in self.mirrors:
            if reasons:
                self.say(f"{reasons[-1]}; trying the next address")
            try:
                return self._fetch_from(mirror + file.name, file, part, sizes, take)
            except DownloadError as error:
                reasons.append(str(error))
        addresses = ["from one of", *(f"  {shown(mirror)}" for mirror in self.source.mirrors)]
        raise DownloadError(
            f"{self.source.name} cannot be fetched: no address gives {file.name}",
            [*reasons, *by_hand, *addresses],
        )

    def _fetch_from(
        self, url: str, file: KnownFile, part: Path, sizes: range, take: Callable[[Path], None]
    ) -> None:
        """Fetch a file from one address. Raises DownloadError if it does not give the right one."""
        for is_last in (False, True):
            in_one_piece = not part.exists()
            begin = "" if in_one_piece else f", from byte {size_of(part):,} on"
            self.say(f"{shown(url)} -> {part.with_suffix('')}{begin}")
            if in_one_piece or size_of(part) != file.size:
                in_one_piece &= fetch(self.session, url, part, sizes, self.timeout_s)
            try:
                take(part)
            except DataError as error:
                part.unlink(missing_ok=True)
                # one of several pieces may have been of another file: all of it once more
                if in_one_piece or is_last:
                    raise DownloadError(f"{shown(url)} sent a wrong file: {error}") from None
            else:
                part.unlink(missing_ok=True)
                return


def _take_file(file: KnownFile, folder: Path, part: Path) -> None:
    """Give a file its final name if it is the right one. Raises DataError."""
    _check_digest(file, part)
    with raise_output_errors(folder / file.name, ELSEWHERE):
        os.replace(part, folder / file.name)


def _take_archive(source: Source, folder: Path, archive: Path) -> None:
    """Unpack an archive to ``folder``, if it or all that it holds is right. Raises DataError."""
    [file], contents = source.files, source.contents
    assert contents is not None
    if not contents.known:
        _check_digest(file, archive)
    fresh = folder.with_name(f".{folder.name}.unpacking")
    try:
        with raise_output_errors(fresh, ELSEWHERE):
            shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed
            fresh.mkdir()
        digests = unpack(archive, fresh, contents, NO_ROOM)
        with raise_output_errors(folder, NO_ROOM):
            if not contents.known:
                (fresh / MANIFEST).write_text(manifest_text(digests), encoding="utf-8")
            _move(fresh, folder)
    except DataError as error:
        found = digest_of(archive, file.algorithm)
        if found == file.digest:
            raise
        raise DataError(f"{error} ({file.algorithm} {found}, expected {file.digest})") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _check_digest(file: KnownFile, path: Path) -> None:
    found = digest_of(path, file.algorithm)
    if found != file.digest:
        raise DataError(f"{path.name} has {file.algorithm} {found}, expected {file.digest}")


def _move(fresh: Path, folder: Path) -> None:
    """Put a folder in its place: at once, or file by file into one that exists."""
    if not folder.exists():
        os.replace(fresh, folder)
        return
    files = sorted(path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file())
    # the manifest last, which says that all are there
    for name in sorted(files, key=lambda name: name == Path(MANIFEST)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(fresh / name, folder / name)


# --- one address to one file: a download that breaks off is resumed from where it ended


def make_session() -> requests.Session:
    """Connections that retry what may pass: no connection, no answer, the statuses of busy servers.

    Proxies are those of the environment (HTTPS_PROXY, NO_PROXY, ...), as requests reads it.
    """
    retry = Retry(
        connect=2,
        read=1,
        status=3,
        backoff_factor=0.3,
        status_forcelist=(429, 500, 502, 503, 504),
        raise_on_status=False,
        respect_retry_after_header=False,  # it may ask for hours, and there are other mirrors
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    session.headers["Accept-Encoding"] = "identity"  # the digests are those of the compressed files
    return session


def fetch(
    session: requests.Session, url: str, part: Path, sizes: range, timeout_s: float = TIMEOUT_S
) -> bool:
    """Complete the file ``part`` with the content of ``url``, beginning where ``part`` ends.

    A server that cannot begin there sends all of it again. ``sizes``: the allowed sizes in bytes.
    Return whether one connection brought all of it. Raises DownloadError when the address does not
    give such a file; OutputError when it cannot be written. What has been received is kept.
    """
    failures, most, connections = 0, size_of(part), 1
    while True:
        try:
            _request(session, url, part, sizes, timeout_s)
            return connections == 1
        except _BrokenOff as error:
            failures = 0 if size_of(part) - most >= CHUNK_BYTES else failures + 1
            most = max(most, size_of(part))  # to come as far again is no progress
            if failures == ATTEMPTS:
                raise DownloadError(f"{shown(url)} broke off ({error})") from None
        connections += 1
        time.sleep(0.2 * failures)


def size_of(path: Path) -> int:
    """The bytes in a file; 0 when there is none."""
    return path.stat().st_size if path.exists() else 0


def shown(url: str) -> str:
    """An address, or a text with addresses, as it may be printed: without a password."""
    return re.sub("(?<=//)[^/]*@", "", url)


class _BrokenOff(Exception):
    """The connection ended early; another may bring the rest."""


def _request(
    session: requests.Session, url: str, part: Path, sizes: range, timeout_s: float
) -> None:
    """Send one request for what is missing, and write what it brings."""
    have = size_of(part)
    try:
        headers = {"Range": f"bytes={have}-"} if have else {}
        response = session.get(url, headers=headers, stream=True, timeout=timeout_s)
    # tried again already, by the session
    except (requests.RequestException, HTTPError, ValueError) as error:
        raise DownloadError(shown(f"{url} cannot be reached ({_reason(error)})")) from None
    with response:
        begin = _begin(response, have)
        if begin is None:  # what is here does not fit what is there
            part.unlink(missing_ok=True)
            raise _BrokenOff("it cannot resume where the last connection ended")
        if response.status_code not in (200, 206):
            status = f"{response.status_code} {response.reason or ''}".rstrip()
            raise DownloadError(f"{shown(url)} answers with status {status}")
        length = re.fullmatch(r"[0-9]{1,18}", response.headers.get("Content-Length", ""))
        total = begin + int(length[0]) if length else None
        if total is not None:
            _check_size(url, total, sizes)
        why = _receive(response, url, part, begin, sizes, total, timeout_s)
    if why or (total is not None and size_of(part) < total):
        whole = "" if total is None else f" of {total:,}"
        raise _BrokenOff(f"after {size_of(part):,} bytes{whole}: {why or ENDED}")
    try:
        _check_size(url, size_of(part), sizes)
    except DownloadError:
        part.unlink()
        raise


def _receive(
    response: requests.Response,
    url: str,
    part: Path,
    begin: int,
    sizes: range,
    total: Optional[int],
    timeout_s: float,
) -> str:
    """Write what comes, from the byte ``begin`` on; return why it broke off, or nothing.

    Raises DownloadError when ``timeout_s`` bring less than SLOWEST_BYTES_PER_S.
    """
    # disable=None: hidden where no terminal is
    units = dict(unit="B", unit_scale=True, unit_divisor=1024, disable=None)
    bar = tqdm(desc=part.stem, initial=begin, total=total, **units)
    since, received = time.monotonic(), 0
    with raise_output_errors(part, NO_ROOM), part.open("ab" if begin else "wb") as file, bar:
        try:
            while file.tell() < sizes.stop:
                chunk = _read_chunk(response, sizes.stop - file.tell())
                if not chunk:
                    break
                file.write(chunk)
                bar.update(len(chunk))
                received, seconds = received + len(chunk), time.monotonic() - since
                if seconds < timeout_s:
                    continue
                if received < SLOWEST_BYTES_PER_S * seconds:
                    speed = f"{received:,} bytes in {seconds:.3g} s"
                    least = f"at least {SLOWEST_BYTES_PER_S:,} a second are required"
                    raise DownloadError(f"{shown(url)} is too slow ({speed}, {least})")
                since, received = time.monotonic(), 0
        except HTTPError as error:
            return _reason(error)
    return ""


def _read_chunk(response: requests.Response, most: int) -> bytes:
    """What has come, at most so much; waits until something has. Empty at the end."""
    read1 = getattr(response.raw, "read1", None)
    # urllib3 1.26: its read waits until all of it has come, a trickle however long that takes
    if read1 is None:
        return bytes(response.raw.read(min(SMALL_BYTES, most), decode_content=False))
    return bytes(read1(min(CHUNK_BYTES, most), decode_content=False))


def _begin(response: requests.Response, have: int) -> Optional[int]:
    """The byte at which a response begins; None if the ``have`` bytes here do not end there."""
    if response.status_code == 206:
        match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        return have if match and int(match[1]) == have else None
    return None if response.status_code == 416 and have else 0


def _check_size(url: str, size: int, sizes: range) -> None:
    if size not in sizes:
        up_to = f" to {sizes.stop - 1:,}" if len(sizes) > 1 else ""
        raise DownloadError(f"{shown(url)} has {size:,} bytes, expected {sizes.start:,}{up_to}")


def _reason(error: BaseException) -> str:
    """The message of the innermost of the network's errors, without the objects printed with it."""
    inner = error.__cause__ or error.__context__
    while isinstance(inner, (OSError, HTTPException, HTTPError)):
        error, inner = inner, inner.__cause__ or inner.__context__
    if isinstance(error, IncompleteRead):
        return ENDED
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    return " ".join(re.sub(r"<[^>]*>:?", "", text).split())
