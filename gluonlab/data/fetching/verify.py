"""Whether the files of a data set are there, and are what they should be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, NamedTuple

from gluonlab.data.fetching.extract import digest_of
from gluonlab.data.fetching.location import find, places
from gluonlab.data.fetching.sources import KnownFile, Source

OK, MISSING, DAMAGED = "ok", "missing", "damaged"
# in the folder of an unpacked archive: the digests of its files, as sha256sum -c reads them
MANIFEST = "SHA256SUMS"


class Finding(NamedTuple):
    """What became of one file: ``state`` is ok, missing or damaged; ``found`` is its digest, empty
    if there is none.
    """

    path: Path
    state: str
    algorithm: str
    expected: str
    found: str = ""

    def __str__(self) -> str:
        if self.state == DAMAGED:
            return (
                f"{self.state:<8}{self.path}: {self.algorithm} {self.found}, "
                f"expected {self.expected}"
            )
        return f"{self.state:<8}{self.path}: {self.algorithm} {self.expected}"


def verify(source: Source, root: Path) -> List[Finding]:
    """Read every file of a data set below the folder ``root``, and compare it with what is known of
    it.
    """
    known = known_files(source)
    if known:
        folders = places(root, source)
        return [
            _compare(
                find(file.name, folders) or folders[0] / file.name, file.algorithm, file.digest
            )
            for file in known
        ]
    manifest = root / source.name / MANIFEST
    if not manifest.is_file():
        return [Finding(manifest, MISSING, "sha256", "written by download")]
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
        matches = [re.fullmatch(r"([0-9a-f]{64})  ([^/].*)", line) for line in lines]
    except ValueError:
        matches = []
    if not matches or not all(matches):
        return [
            Finding(manifest, DAMAGED, "sha256", "written by download", "and no list of digests")
        ]
    return [_compare(manifest.parent / match[2], "sha256", match[1]) for match in matches if match]


def is_complete(source: Source, root: Path) -> bool:
    """Whether every file is there, and is what it should be."""
    return all(finding.state == OK for finding in verify(source, root))


def known_files(source: Source) -> "tuple[KnownFile, ...]":
    """The files that a data set is read from, as far as they are known before it is fetched."""
    return source.contents.known if source.contents else source.files


def folder_of(source: Source, root: Path) -> "Path | None":
    """The folder that a data set is read from, if all its files are there; they are not read."""
    known = known_files(source) or (KnownFile(MANIFEST, 0, ""),)
    found = [
        find(file.name, places(root, source) if known_files(source) else [root / source.name])
        for file in known
    ]
    return found[0].parent if found[0] and all(found) else None


def manifest_text(digests: Dict[str, str]) -> str:
    """What `verify` reads again."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def _compare(path: Path, algorithm: str, expected: str) -> Finding:
    if not path.is_file():
        return Finding(path, MISSING, algorithm, expected)
    found = digest_of(path, algorithm)
    return Finding(path, OK if found == expected else DAMAGED, algorithm, expected, found)
