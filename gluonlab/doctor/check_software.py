"""Checks of Python, numpy, the installed MXNet, and the libraries of libmxnet.so.

MXNet is not imported. The dynamic linker lists the libraries, as in ``ldd -r``. It looks up every
NEEDED entry in its search path, and compares versions and symbols, but does not run code of the
libraries. In the search path, the folders of wheels follow the folders of LD_LIBRARY_PATH, as in
`gluonlab.engine.mxnet_and_cuda_libraries`.
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

from gluonlab.doctor.check_platform import INSTALL_PAGE
from gluonlab.doctor.findings import Finding, fault, join_lines, ok, returns_list, warning
from gluonlab.engine import arm_libraries
from gluonlab.engine.linker_errors import diagnose_linker_error, library_origin, missing_library_fix
from gluonlab.engine.mxnet_and_cuda_libraries import (
    MXNET_DISTRIBUTIONS,
    REINSTALL_MXNET,
    ld_library_path_folders,
    needs_arm_libraries,
    pip_install_choices,
    pip_install_command,
    wheel_folders,
)
from gluonlab.files.atomic_files import temporary_folder

# The platforms for which MXNet 1.9.1 has wheels: `sys.platform`, and the name of the processor.
MXNET_WHEELS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "x86_64"))
PYTHON_RANGE = ((3, 8), (3, 14))
MXNET_VERSION = "1.9.1"
# The dynamic linkers of Linux with glibc, by platform.machine(). MXNet has wheels for these machines.
LINKERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
LINKER = LINKERS.get(platform.machine(), "dynamic linker of glibc")
UNTESTED_NUMPY = (2, 6)  # this version and newer ones
Version = Tuple[int, ...]


def check_python(
    version: Version = sys.version_info[:3],
    machine: str = platform.machine(),
    system: str = sys.platform,
    libc: str = platform.libc_ver()[0],
) -> Finding:
    """Check that MXNet is available for this version of Python and this system."""
    what = f"{'.'.join(map(str, version))}, {sys.executable}"
    if (system, machine) not in MXNET_WHEELS or (system == "linux" and libc != "glibc"):
        if system == "linux" and libc != "glibc":
            system += f" with {libc or 'another C library than glibc'}"
        cause = f"MXNet 1.9.1 has no wheel for {system} on {machine}"
        return fault("python", what, cause, f"use Linux with glibc, for example in a container: see {INSTALL_PAGE}")
    oldest, newest = PYTHON_RANGE
    if version[:2] < oldest:
        cause = "gluonlab needs Python 3.8 or newer"
        return fault("python", what, cause, "install Python 3.8 to 3.14")
    if version[:2] > newest:
        cause = "newer than 3.14, the newest version that was tested"
        return warning("python", what, cause, "if MXNet fails, use Python 3.8 to 3.14")
    return ok("python", what)


def check_numpy(installed: Optional[str], version: Version = sys.version_info[:3]) -> Finding:
    """Check numpy. ``installed`` is its version, or None if numpy is not installed."""
    requirement = "numpy==1.26.4" if version < (3, 13) else "numpy>=2.1,<2.6"
    cure = f"pip install '{'numpy<1.24' if version < (3, 12) else requirement}'"
    if installed is None:
        return fault("numpy", "not installed", "MXNet needs numpy", cure)
    if parse_version(installed) >= UNTESTED_NUMPY:
        cause = "MXNet was not tested with numpy 2.6 and newer"
        return warning("numpy", installed, cause, cure)
    if parse_version(installed) < (1, 24):
        return ok("numpy", installed)
    if version < (3, 12):
        cause = "numpy removed np.bool and other names in 1.24; "
        cause += "gluonlab restores these names, but only if you import it before mxnet"
        cure = f"write import gluonlab before import mxnet, or {cure}"
        return warning("numpy", installed, cause, cure)
    order = "import gluonlab before mxnet: it restores the names that numpy removed in 1.24"
    return ok("numpy", f"{installed}; {order}")


def check_installed_mxnet(installed: Dict[str, str], folder: Optional[Path]) -> Finding:
    """Check the installed MXNet.

    ``installed`` maps all distributions that contain a module mxnet to their versions. ``folder``
    is the folder of this module.
    """
    names = " and ".join(f"{name} {version}" for name, version in installed.items())
    uninstall = f"run pip uninstall -y {' '.join(installed)}, then {pip_install_choices()}"
    if len(installed) > 1:
        cause = "they overwrite each other's files"
        return fault("mxnet", f"{names} are all installed", cause, uninstall)
    if folder is None and not installed:
        cause = "gluonlab needs MXNet, but does not install it"
        return fault("mxnet", "not installed", cause, pip_install_choices())
    if folder is None:
        again = "".join(f"{name}=={version}" for name, version in installed.items())
        cure = f"pip install --force-reinstall --no-deps {again}"
        what = f"{names} is installed, but its files are missing"
        return fault("mxnet", what, "another program removed them", cure)
    if folder.is_file():
        cause = "a file with the same name comes first in Python's path"
        return fault("mxnet", f"{folder} is imported as mxnet", cause, "rename it")
    if not installed:
        cause = f"{folder} does not belong to an installed package: it was built by hand, or left over"
        cure = f"if it fails, remove that folder, then {pip_install_command('cpu')}"
        return warning("mxnet", f"unknown build in {folder}", cause, cure)
    [(name, version)] = installed.items()
    if name not in MXNET_DISTRIBUTIONS or version != MXNET_VERSION:
        cause = f"gluonlab was tested with mxnet and mxnet-cu112 {MXNET_VERSION} only"
        return warning("mxnet", f"{names}, {folder}", cause, uninstall)
    return ok("mxnet", f"{names}, {folder}")


def installed_mxnets() -> Dict[str, str]:
    """Return the versions of all distributions that contain a module mxnet, such as mxnet-cu112.

    The distributions are recognized by the names of the folders that pip creates. Reading the file
    lists of all distributions would take longer than all other checks.
    """
    family = r"(mxnet([-_](cu|mkl|native|nightly)[a-z0-9]*)?)(-.*)?\.(dist|egg)-info"
    versions: Dict[str, str] = {}
    for folder in [Path(folder or ".") for folder in sys.path]:
        for entry in _folder_entries(folder):
            match = re.fullmatch(family, entry.lower())
            if match:  # Python imports the first one in its path
                version = importlib.metadata.Distribution.at(folder / entry).version
                versions.setdefault(match[1].replace("_", "-"), version or "without a version")
    return dict(sorted(versions.items()))


def _folder_entries(folder: Path) -> List[str]:
    """Return the sorted names in a folder; [] if the folder cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except OSError:  # not a folder, or no permission
        return []


def installed_version(distribution: str) -> Optional[str]:
    """Return the version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_folder(name: str, path: Optional[List[str]] = None) -> Optional[Path]:
    """Return the folder of a package, or a module file of that name if Python finds it first."""
    for folder in [Path(folder or ".") for folder in (sys.path if path is None else path)]:
        # not Path.is_file, which raises below a folder without permission
        if os.path.isfile(folder / name / "__init__.py"):
            return folder / name
        if os.path.isfile(folder / f"{name}.py"):
            return folder / f"{name}.py"
    return None


def parse_version(version: str) -> Version:
    """Return (1, 26, 4) for "1.26.4". Suffixes, such as "rc1", are ignored."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in leading[0].split(".")) if leading else ()


LINKER_ENVIRON = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_BIND_NOW": "yes"}  # ld.so(8)
TIMEOUT_S = 60
UNVERSIONED = "no version information"
TITLES = {
    "mxnet": "beside libmxnet.so",
    "LD_LIBRARY_PATH": "from LD_LIBRARY_PATH",
    "wheel": "from wheels",
    "system": "from the system",
}
CUBLAS_PAIR = ("libcublas.so.11", "libcublasLt.so.11")  # call each other\'s private functions


class LinkerTrace(NamedTuple):
    """The dynamic linker's report about a library.

    ``paths``: needed library -> its path, or None if the linker does not find it. ``complaints``:
    errors and warnings.
    """

    paths: Dict[str, Optional[Path]]
    complaints: List[str]


def trace_libraries(
    library: Path, environ: Mapping[str, str] = os.environ, wheels: Optional[Sequence[Path]] = None
) -> LinkerTrace:
    """Run the dynamic linker to list the libraries that ``library`` needs.

    ``wheels`` are folders to search after LD_LIBRARY_PATH.
    """
    folders = [*ld_library_path_folders(environ), *(wheel_folders() if wheels is None else wheels)]
    answer = subprocess.run(
        [LINKER, str(library)],
        env={**environ, **LINKER_ENVIRON, "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
    paths: Dict[str, Optional[Path]] = {}
    complaints = []
    for line in answer.stdout.decode("utf-8", "replace").split("\n"):
        pair = re.match(r"\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", line)
        undefined = re.match(r"\s*(undefined symbol: .+?)\s*\((.+)\)$", line)
        if pair:
            paths[pair[1]] = None if pair[2] == "not found" else Path(os.path.normpath(pair[2]))
        elif undefined:
            complaints.append(f"{undefined[2]}: {undefined[1]}")  # the format of dlopen
        elif "error while loading" in line or "version" in line:
            complaints.append(join_lines(line))
    return LinkerTrace(paths, complaints)


@returns_list
def check_libraries(
    mxnet_folder: Optional[Path], environ: Mapping[str, str] = os.environ, system: str = sys.platform
) -> Iterator[Finding]:
    """Report the origin of MXNet's libraries, and each missing or unsuitable library as a fault."""
    if mxnet_folder is None:
        return
    if system != "linux":
        yield ok("libraries", 'listed only on Linux: see the line "import"')
        return
    library = mxnet_folder / "libmxnet.so"
    if not library.is_file():
        cause = "the installation is incomplete"
        yield fault("libraries", f"{library} is missing", cause, REINSTALL_MXNET)
    elif not os.path.exists(LINKER):
        cause = f"this system has no {LINKER}, which gluonlab needs to list them"
        yield warning("libraries", "not examined", cause, 'see the line "import"')
    else:
        with temporary_folder("libraries") as folder:
            for soname in arm_libraries.ARM_LIBRARIES if needs_arm_libraries() else ():
                # The linker checks that the symbols exist, but does not use their addresses.
                arm_libraries.write_stand_in_library(str(folder), soname, dict.fromkeys(arm_libraries.FUNCTIONS, 1))
            traced = trace_libraries(library, environ, [*wheel_folders(), folder])
        replaced = [name for name, path in traced.paths.items() if path == folder / name]
        for name in replaced:
            del traced.paths[name]
        missing = [name for name, path in traced.paths.items() if path is None]
        # symbols of missing libraries are missing too, so report only the libraries
        yield from (_missing_findings(missing, environ) if missing else _mismatch_findings(traced.complaints, environ))
        yield from _mixed_findings(traced)
        yield from _origin_findings(traced, environ)
        if replaced:
            yield ok("libraries", f"replaced by OpenBLAS: {', '.join(replaced)}")


def _missing_findings(names: Sequence[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each missing shared library, with the cause and the fix."""
    for name in names:
        complaint = diagnose_linker_error(f"{name} => not found", environ)
        cause = (complaint.cause if complaint else "") or "the dynamic linker cannot find it"
        cure = complaint.cure if complaint else missing_library_fix(name)
        yield fault("libraries", f"{name} is missing", cause, cure)


def _mismatch_findings(complaints: List[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the linker's first complaint about each library.

    Further complaints are omitted, because an old library may lack hundreds of symbols.
    """
    first: Dict[str, Finding] = {}
    # complaints about symbols without versions come last, because they may be harmless
    for text in sorted(complaints, key=lambda text: UNVERSIONED in text):
        complaint = diagnose_linker_error(text, environ)
        library, what = text, text
        cause, cure = "the dynamic linker reports it", "install MXNet again"
        if complaint is not None:
            library, what = complaint.library, f"{complaint.library} does not fit"
            cause, cure = complaint.cause or text, complaint.cure
        severe = warning if UNVERSIONED in text else fault
        first.setdefault(library, severe("libraries", what, cause, cure))
    yield from first.values()


def _mixed_findings(traced: LinkerTrace) -> Iterator[Finding]:
    """Warn if the two libraries of cuBLAS (CUBLAS_PAIR) come from different folders."""
    folders = {path.parent for path in map(traced.paths.get, CUBLAS_PAIR) if path is not None}
    if len(folders) > 1:
        what = f"{' and '.join(CUBLAS_PAIR)} come from different places"
        cure = "put both into the same folder of LD_LIBRARY_PATH, or remove both from it: "
        cure += "pip install 'gluonlab[cu112]' installs both"
        yield warning("libraries", what, " and ".join(sorted(map(str, folders))), cure)


def _origin_findings(traced: LinkerTrace, environ: Mapping[str, str]) -> Iterator[Finding]:
    """List the libraries by origin (TITLES) and folder, with one finding for each origin."""
    folders_by_origin: Dict[str, Dict[Path, List[str]]] = {kind: {} for kind in TITLES}
    for name, path in traced.paths.items():
        if path is not None:
            kind = library_origin(path, environ)
            folder = path.parents[2] if kind == "wheel" else path.parent
            folders_by_origin[kind].setdefault(folder, []).append(name)
    for kind, folders in folders_by_origin.items():
        listing = "; ".join(f"{folder}: {', '.join(names)}" for folder, names in folders.items())
        if listing:
            yield ok("libraries", f"{TITLES[kind]}: {listing}")
