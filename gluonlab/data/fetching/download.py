"""Fetch a data set: mirrors in order, and nothing under its final name before its digest is what it
should be.

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
from typing import IO, Callable, Iterator, List, Optional

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
from gluonlab.data.fetching.sources import Contents, KnownFile, Source
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
    """Fetch what is missing of a data set, or damaged, into its folder below ``root``; returns the
    folder that holds it.

    ``mirror``: an address of one's own, tried before the others, as mirror/FILE and as
    mirror/NAME/FILE. ``say`` is told what is done. Processes that fetch the same data set wait for
    each other, and the second finds it there.

    Raises DownloadError when no address gives a file, with what to put where by hand; OutputError
    when there is no room for it; ConfigError for a ``mirror`` that is no http:// or https://
    address.
    """
    mirrors = _own_mirrors(source, mirror) + list(source.mirrors)
    folder = root / source.name
    if is_complete(source, root):
        return folder_of(source, root) or folder
    with on_disk(root, ELSEWHERE):
        root.mkdir(parents=True, exist_ok=True)
    with _locked(
        root / f".{source.name}.lock",
        partial(say, f"waiting for another process that fetches {source.name}"),
    ):
        if not is_complete(source, root):
            with make_session() as session:
                job = _Job(source, root, mirrors, session, timeout_s, say)
                if source.contents is None:
                    job.fetch_files(folder)
                else:
                    job.fetch_archive(folder, source.contents)
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
    """Alone among the processes of this machine.

    The file stays: who removed it could let two of them in.
    """
    with on_disk(path, ELSEWHERE):
        file = path.open("a")
    with file:
        try:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.LockException:
            waiting()
            _wait_for_lock(file, path)
        yield


def _wait_for_lock(file: IO[str], path: Path) -> None:
    try:
        portalocker.lock(file, portalocker.LOCK_EX)
    except portalocker.LockException as error:
        raise OutputError(f"{path} cannot be locked ({error}): {ELSEWHERE}") from None


class _Job:
    """One data set on its way from some mirrors to its folder."""

    def __init__(
        self,
        source: Source,
        root: Path,
        mirrors: List[str],
        session: requests.Session,
        timeout_s: float,
        say: Say,
    ) -> None:
        self.source, self.root, self.mirrors = source, root, mirrors
        self.session, self.timeout_s, self.say = session, timeout_s, say

    def fetch_files(self, folder: Path) -> None:
        """Files that are used as they come."""
        with on_disk(folder, ELSEWHERE):
            folder.mkdir(exist_ok=True)
        wanted = [
            file
            for file, found in zip(self.source.files, verify(self.source, self.root))
            if found.state != OK
        ]
        for position, file in enumerate(wanted):
            by_hand = f"put {', '.join(map(str, wanted[position:]))} into {folder}"
            self._fetch(
                file,
                folder,
                range(file.size, file.size + 1),
                partial(_take_file, file, folder),
                by_hand,
            )

    def fetch_archive(self, folder: Path, contents: Contents) -> None:
        """An archive, which is unpacked and not kept; or one that has been put here by hand, which
        is.
        """
        [file] = self.source.files
        take = partial(_take_archive, file, folder, contents)
        # another packing of the same files may have another size
        sizes = (
            range(1, contents.most_bytes + 1) if contents.known else range(file.size, file.size + 1)
        )
        by_hand = self.root / file.name
        if by_hand.is_file():
            try:
                take(by_hand)
                return
            except DataError as error:
                self.say(f"{error}; it is left alone, and another one fetched")
        self._fetch(
            file,
            self.root,
            sizes,
            take,
            f"put {file} into {self.root} and give the same command again",
        )

    def _fetch(
        self,
        file: KnownFile,
        folder: Path,
        sizes: range,
        take: Callable[[Path], None],
        by_hand: str,
    ) -> None:
        """Fetch one file from the first mirror that has it; ``take`` puts it in its place, or
        raises DataError.
        """
        part = folder / f"{file.name}.part"
        if size_of(part) >= sizes.stop:
            discard(part)
        reasons: List[str] = []
        for mirror in self.mirrors:
            if reasons:
                self.say(f"{reasons[-1]}; trying the next address")
            if self._fetch_from(mirror + file.name, file, part, sizes, take, reasons):
                return
        addresses = ", ".join(shown(mirror) for mirror in self.source.mirrors)
        why = "; ".join(reasons)
        raise DownloadError(
            f"{self.source.name} cannot be fetched: {why}. By hand: {by_hand}. Addresses: "
            f"{addresses}"
        )

    def _fetch_from(
        self,
        url: str,
        file: KnownFile,
        part: Path,
        sizes: range,
        take: Callable[[Path], None],
        reasons: List[str],
    ) -> bool:
        """Whether one address gave the right file; the reason why not is added to ``reasons``."""
        while True:
            resumed = part.exists()
            self.say(
                f"{shown(url)} -> {part.with_suffix('')}"
                + f", from byte {size_of(part):,} on" * resumed
            )
            try:
                if not resumed or size_of(part) != file.size:
                    fetch(self.session, url, part, sizes, self.timeout_s)
                take(part)
            except DownloadError as error:
                reasons.append(str(error))
                return False
            except DataError as error:
                discard(part)
                if not resumed:
                    reasons.append(f"{shown(url)} gives a wrong file: {error}")
                    return False
                continue  # what was here may have been of another file: all of it once more
            discard(part)
            return True


def _take_file(file: KnownFile, folder: Path, part: Path) -> None:
    """Give a file its final name if it is the right one. Raises DataError."""
    _check_digest(file, part)
    with on_disk(folder / file.name, ELSEWHERE):
        os.replace(part, folder / file.name)


def _take_archive(file: KnownFile, folder: Path, contents: Contents, archive: Path) -> None:
    """Unpack an archive to ``folder``, if it or all that it holds is right. Raises DataError."""
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
    """Put a folder in its place: at once; or, where there is one, file by file, so that nobody's
    files are lost.
    """
    if not folder.exists():
        os.replace(fresh, folder)
        return
    files = sorted(path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file())
    # which says that all are there
    for name in sorted(files, key=lambda name: name == Path(MANIFEST)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(fresh / name, folder / name)
