"""The libraries that libmxnet.so needs, directly or not: where each is, and what is wrong with it.

The dynamic linker itself is asked, as ldd -r does: it follows every NEEDED entry along its search
path, compares versions and symbols, and runs nothing. The wheels' folders come after the user's, as
`gluonlab.engine.installation` loads them.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.doctor.findings import Finding, fault, listed, ok, one_line, warning
from gluonlab.engine.installation import AGAIN, search_path, wheel_folders
from gluonlab.engine.linking import cure_of_missing, origin, understand

LINKER = "/lib64/ld-linux-x86-64.so.2"  # the place that the ABI of x86-64 Linux gives it
ONLY_LIST = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_BIND_NOW": "yes"}  # ld.so(8)
TIMEOUT_S = 60
UNVERSIONED = "no version information"
TITLES = {
    "mxnet": "beside libmxnet.so",
    "LD_LIBRARY_PATH": "from LD_LIBRARY_PATH",
    "wheel": "from wheels",
    "system": "from the system",
}
TOGETHER = ("libcublas.so.11", "libcublasLt.so.11")  # call each other's inner functions


class Trace(NamedTuple):
    """Where the linker found each library (None: nowhere), and what else it complained about."""

    found: Dict[str, Optional[Path]]
    complaints: List[str]


def trace(
    library: Path, environ: Mapping[str, str] = os.environ, wheels: Optional[Sequence[Path]] = None
) -> Trace:
    """Ask the linker what ``library`` needs.

    ``wheels``: the folders that stand behind LD_LIBRARY_PATH.
    """
    folders = [*search_path(environ), *(wheel_folders() if wheels is None else wheels)]
    answer = subprocess.run(
        [LINKER, str(library)],
        env={**environ, **ONLY_LIST, "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
    found: Dict[str, Optional[Path]] = {}
    complaints = []
    for line in answer.stdout.decode("utf-8", "replace").split("\n"):
        pair = re.match(r"\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", line)
        undefined = re.match(r"\s*(undefined symbol: .+?)\s*\((.+)\)$", line)
        if pair:
            found[pair[1]] = None if pair[2] == "not found" else Path(os.path.normpath(pair[2]))
        elif undefined:
            complaints.append(f"{undefined[2]}: {undefined[1]}")  # as dlopen says it
        elif "error while loading" in line or "version" in line:
            complaints.append(one_line(line))
    return Trace(found, complaints)


@listed
def libraries(
    mxnet_folder: Optional[Path], environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Where each library comes from, and a fault for each that is missing or does not fit."""
    if mxnet_folder is None:
        return
    library = mxnet_folder / "libmxnet.so"
    if not library.is_file():
        cause = "the installation is not complete"
        yield fault("libraries", f"{library} is missing", cause, AGAIN)
    elif not os.path.exists(LINKER):
        cause = f"this system has no {LINKER}, which lists them"
        yield warning("libraries", "not examined", cause, "see the line import")
    else:
        traced = trace(library, environ)
        missing = [name for name, path in traced.found.items() if path is None]
        # what is missing takes its symbols along
        yield from _missing(missing, environ) if missing else _unfit(traced.complaints, environ)
        yield from _mixed(traced)
        yield from _origins(traced, environ)


def _missing(names: Sequence[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in names:
        complaint = understand(f"{name} => not found", environ)
        cause = (complaint.cause if complaint else "") or "the linker does not find it"
        cure = complaint.cure if complaint else cure_of_missing(name)
        yield fault("libraries", f"{name} is missing", cause, cure)


def _unfit(complaints: List[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """The first complaint about each library: an old one lacks hundreds of symbols."""
    first: Dict[str, Finding] = {}
    # symbols without versions need not hurt where nothing else is wrong
    for text in sorted(complaints, key=lambda text: UNVERSIONED in text):
        complaint = understand(text, environ)
        library, what = text, text
        cause, cure = "the linker reports it", "install MXNet again"
        if complaint is not None:
            library, what = complaint.library, f"{complaint.library} does not fit"
            cause, cure = complaint.cause or text, complaint.cure
        severe = warning if UNVERSIONED in text else fault
        first.setdefault(library, severe("libraries", what, cause, cure))
    yield from first.values()


def _mixed(traced: Trace) -> Iterator[Finding]:
    folders = {path.parent for path in map(traced.found.get, TOGETHER) if path is not None}
    if len(folders) > 1:
        what = f"{' and '.join(TOGETHER)} come from different places"
        cure = "put both into one folder of LD_LIBRARY_PATH, or neither: "
        cure += "pip install 'gluonlab[cu112]' brings both"
        yield warning("libraries", what, " and ".join(sorted(map(str, folders))), cure)


def _origins(traced: Trace, environ: Mapping[str, str]) -> Iterator[Finding]:
    """A line for each kind of place."""
    places: Dict[str, Dict[Path, List[str]]] = {place: {} for place in TITLES}
    for name, path in traced.found.items():
        if path is not None:
            place = origin(path, environ)
            folder = path.parents[2] if place == "wheel" else path.parent
            places[place].setdefault(folder, []).append(name)
    for place, folders in places.items():
        listing = "; ".join(f"{folder}: {', '.join(names)}" for folder, names in folders.items())
        if listing:
            yield ok("libraries", f"{TITLES[place]}: {listing}")
