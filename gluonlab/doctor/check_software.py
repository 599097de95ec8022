"""Python, numpy and the installed MXNet, from what pip has left, and the libraries of libmxnet.so.

Nothing is imported. Of the libraries, where each is and what is wrong with it, the dynamic linker
itself is asked, as ldd -r does: it follows every NEEDED entry along its search path, compares
versions and symbols, and runs nothing. The wheels' folders come after the user's, as
`gluonlab.engine.cuda` loads them.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.doctor.findings import Finding, fault, listed, ok, one_line, warning
from gluonlab.engine.linker_errors import diagnose_linker_error, library_origin, missing_library_fix
from gluonlab.engine.mxnet_installation import (
    MXNET_DISTRIBUTIONS,
    REINSTALL_MXNET,
    ld_library_path_folders,
    pip_install_choices,
    pip_install_command,
    wheel_folders,
)

PYTHONS = ((3, 8), (3, 14))
MXNET_VERSION = "1.9.1"
NEWEST_NUMPY = (2, 6)  # not tried from here on
Version = Tuple[int, ...]


def python(
    version: Version = sys.version_info[:3],
    machine: str = platform.machine(),
    system: str = sys.platform,
    libc: str = platform.libc_ver()[0],
) -> Finding:
    """Whether there is an MXNet for this Python."""
    what = f"{'.'.join(map(str, version))}, {sys.executable}"
    if (system, machine, libc) != ("linux", "x86_64", "glibc"):
        if system == "linux" and libc != "glibc":
            system += f" with {libc or 'another C library than glibc'}"
        cause = f"MXNet 1.9.1 has no wheel for {system} on {machine}"
        return fault("python", what, cause, "use x86-64 Linux with glibc")
    oldest, newest = PYTHONS
    if version[:2] < oldest:
        cause = "gluonlab needs Python 3.8 or newer"
        return fault("python", what, cause, "install Python 3.8 to 3.14")
    if version[:2] > newest:
        cause = "newer than 3.14, the newest that was tested"
        return warning("python", what, cause, "if MXNet fails, use Python 3.8 to 3.14")
    return ok("python", what)


def numpy(installed: Optional[str], version: Version = sys.version_info[:3]) -> Finding:
    """``installed``: numpy's version, or None."""
    wanted = "numpy==1.26.4" if version < (3, 13) else "numpy>=2.1,<2.6"
    cure = f"pip install '{'numpy<1.24' if version < (3, 12) else wanted}'"
    if installed is None:
        return fault("numpy", "not installed", "MXNet needs numpy", cure)
    if numbers_of(installed) >= NEWEST_NUMPY:
        cause = "MXNet was not tested with numpy 2.6 and newer"
        return warning("numpy", installed, cause, cure)
    if numbers_of(installed) < (1, 24):
        return ok("numpy", installed)
    if version < (3, 12):
        cause = "numpy dropped np.bool and others in 1.24; "
        cause += "gluonlab puts them back, but only when it is imported before mxnet"
        cure = f"write import gluonlab before import mxnet, or {cure}"
        return warning("numpy", installed, cause, cure)
    order = "import gluonlab before mxnet: it puts back the names that numpy dropped in 1.24"
    return ok("numpy", f"{installed}; {order}")


def mxnet(installed: Dict[str, str], folder: Optional[Path]) -> Finding:
    """``installed``: distribution -> version of all that bring the module mxnet.

    ``folder``: where the module lies.
    """
    names = " and ".join(f"{name} {version}" for name, version in installed.items())
    uninstall = f"pip uninstall -y {' '.join(installed)}, then {pip_install_choices()}"
    if len(installed) > 1:
        cause = "they overwrite each other's files in the same folder"
        return fault("mxnet", f"{names} are all installed", cause, uninstall)
    if folder is None and not installed:
        cause = "gluonlab needs MXNet and does not install it"
        return fault("mxnet", "not installed", cause, pip_install_choices())
    if folder is None:
        again = "".join(f"{name}=={version}" for name, version in installed.items())
        cure = f"pip install --force-reinstall --no-deps {again}"
        what = f"{names} is installed, but its files are gone"
        return fault("mxnet", what, "something removed them", cure)
    if folder.is_file():
        cause = "a file of that name comes first in Python's path"
        return fault("mxnet", f"{folder} is imported as mxnet", cause, "rename it")
    if not installed:
        cause = f"{folder} belongs to no installed package: built by hand, or left over"
        cure = f"if it fails, remove that folder, then {pip_install_command('cpu')}"
        return warning("mxnet", f"unknown build in {folder}", cause, cure)
    [(name, version)] = installed.items()
    if name not in MXNET_DISTRIBUTIONS or version != MXNET_VERSION:
        cause = f"gluonlab was tested with mxnet and mxnet-cu112 {MXNET_VERSION} only"
        return warning("mxnet", f"{names}, {folder}", cause, uninstall)
    return ok("mxnet", f"{names}, {folder}")


def installed_mxnets() -> Dict[str, str]:
    """Distribution -> version of all that bring a module mxnet: mxnet, mxnet-cu112, and the like.

    Recognised by the names of the folders that pip leaves: to read what is in all of them takes
    longer than all other checks.
    """
    family = r"(mxnet([-_](cu|mkl|native|nightly)[a-z0-9]*)?)(-.*)?\.(dist|egg)-info"
    versions: Dict[str, str] = {}
    for folder in [Path(folder or ".") for folder in sys.path]:
        for entry in _entries(folder):
            left = re.fullmatch(family, entry.lower())
            if left:  # the first in the path is the one that is imported
                version = importlib.metadata.Distribution.at(folder / entry).version
                versions.setdefault(left[1].replace("_", "-"), version or "without a version")
    return dict(sorted(versions.items()))


def _entries(folder: Path) -> List[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except OSError:  # no folder, or one that may not be read
        return []


def installed_version(distribution: str) -> Optional[str]:
    """The version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_folder(name: str, path: Optional[List[str]] = None) -> Optional[Path]:
    """Where Python would find a package; a file if a module of that name comes first."""
    for folder in [Path(folder or ".") for folder in (sys.path if path is None else path)]:
        # not Path.is_file, which raises below a folder that may not be entered
        if os.path.isfile(folder / name / "__init__.py"):
            return folder / name
        if os.path.isfile(folder / f"{name}.py"):
            return folder / f"{name}.py"
    return None


def numbers_of(version: str) -> Version:
    """(1, 26, 4) of "1.26.4"; what comes after the numbers is left out."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in leading[0].split(".")) if leading else ()


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
    folders = [*ld_library_path_folders(environ), *(wheel_folders() if wheels is None else wheels)]
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
        yield fault("libraries", f"{library} is missing", cause, REINSTALL_MXNET)
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
        complaint = diagnose_linker_error(f"{name} => not found", environ)
        cause = (complaint.cause if complaint else "") or "the linker does not find it"
        cure = complaint.cure if complaint else missing_library_fix(name)
        yield fault("libraries", f"{name} is missing", cause, cure)


def _unfit(complaints: List[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """The first complaint about each library: an old one lacks hundreds of symbols."""
    first: Dict[str, Finding] = {}
    # symbols without versions need not hurt where nothing else is wrong
    for text in sorted(complaints, key=lambda text: UNVERSIONED in text):
        complaint = diagnose_linker_error(text, environ)
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
            place = library_origin(path, environ)
            folder = path.parents[2] if place == "wheel" else path.parent
            places[place].setdefault(folder, []).append(name)
    for place, folders in places.items():
        listing = "; ".join(f"{folder}: {', '.join(names)}" for folder, names in folders.items())
        if listing:
            yield ok("libraries", f"{TITLES[place]}: {listing}")
