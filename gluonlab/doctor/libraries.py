"""The libraries that libmxnet.so needs, its own and those that these need: where each is found, and what is wrong with it.

The dynamic linker is asked itself (ld.so --list, as ldd does): it follows every NEEDED entry along its search path, and runs
nothing of them.
The wheels' folders come after the user's, as `gluonlab.cuda` loads them.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.cuda import search_path, wheel_folders
from gluonlab.doctor.findings import Finding, fault, ok, one_line, warning
from gluonlab.linking import cure_of_missing, origin, understand

LINKER = "/lib64/ld-linux-x86-64.so.2"  # the place that the ABI of x86-64 Linux gives it
TIMEOUT_S = 60
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


def trace(library: Path, environ: Mapping[str, str] = os.environ, wheels: Optional[Sequence[Path]] = None) -> Trace:
    """Ask the linker what ``library`` needs. ``wheels``: the folders that stand behind LD_LIBRARY_PATH."""
    folders = [*search_path(environ), *(wheel_folders() if wheels is None else wheels)]
    searched = {**environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))}
    answer = subprocess.run(
        [LINKER, "--list", str(library)],
        env=searched,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = answer.stdout.decode("utf-8", "replace").split("\n")
    pairs = [re.match(r"\s*(\S+) => (not found|.+?)(?: \(0x[0-9a-f]+\))?$", line) for line in lines]
    found = {pair[1]: None if pair[2] == "not found" else Path(os.path.normpath(pair[2])) for pair in pairs if pair}
    others = [line for line, pair in zip(lines, pairs) if not pair] + answer.stderr.decode("utf-8", "replace").split("\n")
    return Trace(
        found, [one_line(line) for line in others if re.search(r"error while loading|version [`']|undefined symbol", line)]
    )


def libraries(mxnet_folder: Optional[Path], environ: Mapping[str, str] = os.environ) -> List[Finding]:
    """Where each library comes from, and a fault for each that is missing or does not fit."""
    if mxnet_folder is None:
        return []
    library = mxnet_folder / "libmxnet.so"
    if not library.is_file():
        cure = "install MXNet again: pip install --force-reinstall --no-deps mxnet==1.9.1, or mxnet-cu112==1.9.1"
        return [fault("libraries", f"{library} is missing", "the installation is not complete", cure)]
    traced = trace(library, environ)
    return [*_wrong(traced, environ), *_mixed(traced, environ), *_where(traced, environ)]


def _wrong(traced: Trace, environ: Mapping[str, str]) -> List[Finding]:
    found = []
    for name in [name for name, path in traced.found.items() if path is None]:
        complaint = understand(f"{name} => not found", environ)
        cause, cure = (complaint.cause, complaint.cure) if complaint else ("", cure_of_missing(name))
        found.append(fault("libraries", f"{name} is missing", cause or "the linker finds it nowhere", cure))
    for text in traced.complaints:
        complaint = understand(text, environ)
        if complaint is None:
            found.append(fault("libraries", text, "the linker says so", "install MXNet again"))
        else:
            found.append(fault("libraries", f"{complaint.library} does not fit", complaint.cause or text, complaint.cure))
    return list(dict.fromkeys(found))


def _mixed(traced: Trace, environ: Mapping[str, str]) -> List[Finding]:
    folders = {path.parent for path in map(traced.found.get, TOGETHER) if path is not None}
    if len(folders) < 2:
        return []
    what = f"{' and '.join(TOGETHER)} come from different places"
    cure = "put both into one folder of LD_LIBRARY_PATH, or neither: pip install 'gluonlab[cu112]' brings both"
    return [warning("libraries", what, " and ".join(sorted(map(str, folders))), cure)]


def _where(traced: Trace, environ: Mapping[str, str]) -> List[Finding]:
    """A line for each kind of place."""
    places: Dict[str, Dict[Path, List[str]]] = {}
    for name, path in traced.found.items():
        if path is not None:
            places.setdefault(origin(path, environ), {}).setdefault(path.parent, []).append(name)
    lines = []
    for place in [place for place in TITLES if place in places]:
        listed = "; ".join(f"{folder}: {', '.join(names)}" for folder, names in places[place].items())
        lines.append(ok("libraries", f"{TITLES[place]}: {listed}"))
    return lines
