"""Fetch one address to one file: a download that breaks off is resumed from where it ended."""

from __future__ import annotations

import json
import re
import time
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Dict, Optional

import requests
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from gluonlab.errors import DownloadError
from gluonlab.files.whole import on_disk

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
) -> None:
    """Complete the file ``part`` with the content of ``url``, beginning where ``part`` ends.

    A server that cannot begin there sends all of it again. ``sizes``: the allowed sizes in bytes.
    Raises DownloadError when the address does not give such a file; OutputError when it cannot be
    written. What has been received is kept.
    """
    failures, most = 0, size_of(part)
    while True:
        try:
            return _go_on(session, url, part, sizes, timeout_s)
        except _BrokenOff as error:
            failures = 0 if size_of(part) - most >= CHUNK_BYTES else failures + 1
            most = max(most, size_of(part))  # to come as far again is no progress
            if failures == ATTEMPTS:
                raise DownloadError(f"{shown(url)} broke off ({error})") from None
        time.sleep(0.2 * failures)


def size_of(path: Path) -> int:
    """The bytes in a file; 0 when there is none."""
    return path.stat().st_size if path.exists() else 0


def discard(part: Path) -> None:
    """Remove an unfinished file, and the note of its origin."""
    for path in (part, _origin(part)):
        path.unlink(missing_ok=True)


def shown(url: str) -> str:
    """An address, or a text with addresses, as it may be printed: without a password."""
    return re.sub("(?<=//)[^/]*@", "", url)


class _BrokenOff(Exception):
    """The connection ended early; another may bring the rest."""


def _go_on(session: requests.Session, url: str, part: Path, sizes: range, timeout_s: float) -> None:
    """One request, and what it brings."""
    try:
        headers = _resume_headers(url, part)
        response = session.get(url, headers=headers, stream=True, timeout=timeout_s)
    # tried again already, by the session
    except (requests.RequestException, HTTPError, ValueError) as error:
        raise DownloadError(shown(f"{url} cannot be reached ({_reason(error)})")) from None
    with response:
        begin = _begin(response, size_of(part))
        if begin is None:  # what is here does not fit what is there
            discard(part)
            raise _BrokenOff("it cannot resume where the last connection ended")
        if response.status_code not in (200, 206):
            status = f"{response.status_code} {response.reason or ''}".rstrip()
            raise DownloadError(f"{shown(url)} answers with status {status}")
        length = re.fullmatch(r"[0-9]{1,18}", response.headers.get("Content-Length", ""))
        total = begin + int(length[0]) if length else None
        if total is not None:
            _check_size(url, total, sizes)
        _note_origin(response, url, part)
        why = _receive(response, part, begin, sizes, total, _Pace(url, timeout_s))
    if why or (total is not None and size_of(part) < total):
        whole = "" if total is None else f" of {total:,}"
        raise _BrokenOff(f"after {size_of(part):,} bytes{whole}: {why or ENDED}")
    try:
        _check_size(url, size_of(part), sizes)
    except DownloadError:
        discard(part)
        raise


class _Pace:
    """Raises DownloadError when ``window_s`` bring less than SLOWEST_BYTES_PER_S."""

    def __init__(self, url: str, window_s: float) -> None:
        self.url, self.window_s = url, window_s
        self._begin, self._bytes = time.monotonic(), 0

    def received(self, count: int) -> None:
        """Note ``count`` received bytes. Raises DownloadError when they come too slowly."""
        self._bytes += count
        seconds = time.monotonic() - self._begin
        if seconds < self.window_s:
            return
        if self._bytes < SLOWEST_BYTES_PER_S * seconds:
            speed = f"{self._bytes:,} bytes in {seconds:.3g} s"
            least = f"at least {SLOWEST_BYTES_PER_S:,} a second are required"
            raise DownloadError(f"{shown(self.url)} is too slow ({speed}, {least})")
        self._begin, self._bytes = time.monotonic(), 0


def _receive(
    response: requests.Response,
    part: Path,
    begin: int,
    sizes: range,
    total: Optional[int],
    pace: _Pace,
) -> str:
    """Write what comes, from the byte ``begin`` on; return why it broke off, or nothing."""
    # disable=None: hidden where no terminal is
    units = dict(unit="B", unit_scale=True, unit_divisor=1024, disable=None)
    bar = tqdm(desc=part.stem, initial=begin, total=total, **units)
    with on_disk(part, NO_ROOM), part.open("ab" if begin else "wb") as file, bar:
        try:
            while file.tell() < sizes.stop:
                chunk = _read(response, sizes.stop - file.tell())
                if not chunk:
                    break
                file.write(chunk)
                bar.update(len(chunk))
                pace.received(len(chunk))
        except HTTPError as error:
            return _reason(error)
    return ""


def _read(response: requests.Response, most: int) -> bytes:
    """What has come, at most so much; waits until something has. Empty at the end."""
    read1 = getattr(response.raw, "read1", None)
    # urllib3 1.26: its read waits until all of it has come, a trickle however long that takes
    if read1 is None:
        return bytes(response.raw.read(min(SMALL_BYTES, most), decode_content=False))
    return bytes(read1(min(CHUNK_BYTES, most), decode_content=False))


def _resume_headers(url: str, part: Path) -> Dict[str, str]:
    """Request what is missing; from the same address only if the file has not changed since."""
    if not size_of(part):
        return {}
    headers = {"Range": f"bytes={size_of(part)}-"}
    try:
        origin = json.loads(_origin(part).read_text(encoding="utf-8"))
        if origin["url"] == shown(url) and origin["validator"]:
            headers["If-Range"] = str(origin["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # then the digest has to tell
    return headers


def _begin(response: requests.Response, have: int) -> Optional[int]:
    """The byte at which a response begins; None if the ``have`` bytes here do not end there."""
    if response.status_code == 206:
        match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        return have if match and int(match[1]) == have else None
    return None if response.status_code == 416 and have else 0


def _origin(part: Path) -> Path:
    return part.with_name(part.name + ".from")


def _note_origin(response: requests.Response, url: str, part: Path) -> None:
    """Keep the validator by which the rest is fetched only if the file has not changed.

    RFC 9110, 13.1.5: no weak validators.
    """
    tag = response.headers.get("ETag", "W/")
    validator = response.headers.get("Last-Modified", "") if tag.startswith("W/") else tag
    origin = json.dumps({"url": shown(url), "validator": validator})
    with on_disk(part, NO_ROOM):
        _origin(part).write_text(origin, encoding="utf-8")


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
