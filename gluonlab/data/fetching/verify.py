"""Whether the files of a data set are there, with the right content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from gluonlab.data.fetching.extract import digest_of
from gluonlab.data.fetching.location import find, places
from gluonlab.data.fetching.sources import Source
from gluonlab.files.whole import read_bounded
from gluonlab.plain import printable

OK, MISSING, DAMAGED = "ok", "missing", "damaged"
# in the folder of an unpacked archive: the digests of its files, as sha256sum -c reads them
MANIFEST = "SHA256SUMS"
MOST_BYTES = 2**26  # of that: some hundred thousand files
_LINE = re.compile(r"([0-9a-f]{64})  ([^/].*)")


class Finding(NamedTuple):
    """A file's ``state`` (ok, missing or damaged); ``found`` is its digest, empty without one."""

    path: Path
    state: str
    algorithm: str
    expected: str
    found: str = ""

    def __str__(self) -> str:
        digest = f"{self.found}, expected " if self.state == DAMAGED else ""
        return (
            f"{self.state:<8}{printable(str(self.path))}: {self.algorithm} {digest}{self.expected}"
        )


def verify(source: Source, root: Path) -> List[Finding]:
    """Read every file of a data set below the folder ``root``, and compare its digest."""
    if source.known:
        folders = places(root, source)
        return [
            _compare(
                find(file.name, folders) or folders[0] / file.name, file.algorithm, file.digest
            )
            for file in source.known
        ]
    manifest = root / source.name / MANIFEST
    if not manifest.is_file():
        return [Finding(manifest, MISSING, "sha256", "written by download")]
    try:
        lines = read_bounded(manifest, MOST_BYTES).decode().splitlines()
    except (OSError, ValueError):  # too large a file included
        lines = []
    matches = [match for match in map(_LINE.fullmatch, lines) if match and _is_below(match[2])]
    if not matches or len(matches) < len(lines):
        wrong = "and no list of digests"
        return [Finding(manifest, DAMAGED, "sha256", "written by download", wrong)]
    return [_compare(manifest.parent / match[2], "sha256", match[1]) for match in matches]


def _is_below(name: str) -> bool:
    """Whether a name in a manifest is that of a file in its folder, as `unpack` makes them."""
    return name.isprintable() and ".." not in name.split("/")


def is_complete(source: Source, root: Path) -> bool:
    """Whether every file is there, with the right digest."""
    return all(finding.state == OK for finding in verify(source, root))


def folder_of(source: Source, root: Path) -> Optional[Path]:
    """The folder that a data set is read from, if all its files are there; they are not read."""
    folders = places(root, source) if source.known else [root / source.name]
    names = [file.name for file in source.known] or [MANIFEST]
    paths = [find(name, folders) for name in names]
    return paths[0].parent if paths[0] and all(paths) else None


def manifest_text(digests: Dict[str, str]) -> str:
    """The content of MANIFEST, which `verify` reads again."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def _compare(path: Path, algorithm: str, expected: str) -> Finding:
    if not path.is_file():
        return Finding(path, MISSING, algorithm, expected)
    found = digest_of(path, algorithm)
    return Finding(path, OK if found == expected else DAMAGED, algorithm, expected, found)
