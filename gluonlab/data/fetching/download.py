"""Fetch a data set: mirrors in order, and nothing under its final name before its digest is right.

A file that is being fetched ends in .part; it stays when the command is interrupted, and the next
one goes on from there. An archive is unpacked beside its place and moved there whole; it is not
kept, unless somebody had put it there by hand.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple, Optional

import portalocker
import requests

from gluonlab.data.fetching.extract import digest_of, unpack
from gluonlab.data.fetching.fetch import (
    NO_ROOM,
    TIMEOUT_S,
    discard,
    fetch,
    make_session,
    shown,
    size_of,
)
from gluonlab.data.fetching.sources import KnownFile, Source
from gluonlab.data.fetching.verify import (
    MANIFEST,
    OK,
    folder_of,
    is_complete,
    manifest_text,
    verify,
)
from gluonlab.errors import ConfigError, DataError, DownloadError, OutputError
from gluonlab.files.whole import on_disk

ELSEWHERE = "choose another place with --data-dir"
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
    with on_disk(root, ELSEWHERE):
        root.mkdir(parents=True, exist_ok=True)
    waiting = f"waiting for another process that fetches {source.name}"
    with _locked(root / f".{source.name}.lock", partial(say, waiting)):
        if not is_complete(source, root):
            with make_session() as session:
                job = _Job(source, root, mirrors, session, timeout_s, say)
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
    with on_disk(path, ELSEWHERE):
        file = path.open("a")
    with file:
        try:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.LockException:
            waiting()
            try:
                portalocker.lock(file, portalocker.LOCK_EX)
            except portalocker.LockException as error:
                raise OutputError(f"{path} cannot be locked ({error}): {ELSEWHERE}") from None
        yield


class _Job(NamedTuple):
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
        with on_disk(folder, ELSEWHERE):
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
            discard(part)
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
        resumed = part.exists()
        begin = f", from byte {size_of(part):,} on" if resumed else ""
        self.say(f"{shown(url)} -> {part.with_suffix('')}{begin}")
        if not resumed or size_of(part) != file.size:
            fetch(self.session, url, part, sizes, self.timeout_s)
        try:
            take(part)
        except DataError as error:
            discard(part)
            if not resumed:
                raise DownloadError(f"{shown(url)} sent a wrong file: {error}") from None
            # what was here may have been of another file: all of it once more
            self._fetch_from(url, file, part, sizes, take)
        else:
            discard(part)


def _take_file(file: KnownFile, folder: Path, part: Path) -> None:
    """Give a file its final name if it is the right one. Raises DataError."""
    _check_digest(file, part)
    with on_disk(folder / file.name, ELSEWHERE):
        os.replace(part, folder / file.name)


def _take_archive(source: Source, folder: Path, archive: Path) -> None:
    """Unpack an archive to ``folder``, if it or all that it holds is right. Raises DataError."""
    [file], contents = source.files, source.contents
    assert contents is not None
    if not contents.known:
        _check_digest(file, archive)
    fresh = folder.with_name(f".{folder.name}.unpacking")
    try:
        with on_disk(fresh, ELSEWHERE):
            shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed
            fresh.mkdir()
        digests = unpack(archive, fresh, contents, NO_ROOM)
        with on_disk(folder, NO_ROOM):
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
