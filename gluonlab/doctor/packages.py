"""Python, numpy, and which MXNet is installed: read from what pip has left, without importing any
of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from gluonlab.doctor.findings import Finding, fault, ok, warning
from gluonlab.engine.installing import either, pip_install
from gluonlab.engine.setup import FLAVOURS

PYTHONS = ((3, 8), (3, 13))
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
        of = (
            f" with {libc or 'another C library than glibc'}"
            if system == "linux" and libc != "glibc"
            else ""
        )
        return fault(
            "python",
            what,
            f"MXNet 1.9.1 has no wheel for {system}{of} on {machine}",
            "use x86-64 Linux with glibc",
        )
    oldest, newest = PYTHONS
    if version[:2] < oldest:
        return fault(
            "python", what, "gluonlab needs Python 3.8 or newer", "install Python 3.8 to 3.13"
        )
    if version[:2] > newest:
        return warning(
            "python",
            what,
            "newer than the newest that was tried, 3.13",
            "if MXNet fails, use Python 3.8 to 3.13",
        )
    return ok("python", what)


def numpy(installed: Optional[str], version: Version = sys.version_info[:3]) -> Finding:
    """``installed``: numpy's version, or None."""
    wanted = (
        "numpy<1.24"
        if version < (3, 12)
        else "numpy==1.26.4"
        if version < (3, 13)
        else "numpy>=2.1,<2.6"
    )
    if installed is None:
        return fault("numpy", "not installed", "MXNet needs numpy", f"pip install '{wanted}'")
    numbers = numbers_of(installed)
    if numbers >= NEWEST_NUMPY:
        return warning(
            "numpy",
            installed,
            "MXNet was not tried with numpy 2.6 and newer",
            f"pip install '{wanted}'",
        )
    if numbers >= (1, 24):
        cause = (
            "numpy dropped np.bool and others in 1.24; "
            "gluonlab puts them back, but only when it is imported before mxnet"
        )
        return (
            warning(
                "numpy",
                installed,
                cause,
                f"write import gluonlab before import mxnet, or pip install '{wanted}'",
            )
            if version < (3, 12)
            else ok(
                "numpy",
                f"{installed}; import gluonlab before mxnet: "
                "it puts back the names that numpy dropped in 1.24",
            )
        )
    return ok("numpy", installed)


def mxnet(installed: Dict[str, str], folder: Optional[Path]) -> Finding:
    """``installed``: distribution -> version of all that bring the module mxnet.

    ``folder``: where the module lies.
    """
    names = " and ".join(f"{name} {version}" for name, version in installed.items())
    if len(installed) > 1:
        uninstall = f"pip uninstall -y {' '.join(installed)}, then {either()}"
        return fault(
            "mxnet",
            f"{names} are all installed",
            "they overwrite each other's files in the same folder",
            uninstall,
        )
    if folder is None:
        if not installed:
            return fault(
                "mxnet", "not installed", "gluonlab runs on MXNet and comes without one", either()
            )
        again = " ".join(f"{name}=={version}" for name, version in installed.items())
        cure = f"pip install --force-reinstall --no-deps {again}"
        return fault(
            "mxnet", f"{names} is installed, but its files are gone", "something removed them", cure
        )
    if folder.is_file():
        return fault(
            "mxnet",
            f"{folder} is imported as mxnet",
            "a file of that name comes first in Python's path",
            "rename it",
        )
    if not installed:
        cause = f"{folder} belongs to no installed package: built by hand, or left over"
        return warning(
            "mxnet",
            f"unknown build in {folder}",
            cause,
            f"if it fails, remove that folder, then {pip_install('cpu')}",
        )
    [(name, version)] = installed.items()
    if name not in FLAVOURS or version != MXNET_VERSION:
        cause = f"gluonlab was tried with mxnet and mxnet-cu112 {MXNET_VERSION} only"
        return warning(
            "mxnet", f"{names}, {folder}", cause, f"pip uninstall -y {name}, then {either()}"
        )
    return ok("mxnet", f"{names}, {folder}")


def installed_mxnets() -> Dict[str, str]:
    """Distribution -> version of all that bring a module mxnet: mxnet, mxnet-cu112, and others of
    the family.

    Found by the names of the folders that pip leaves: to read what is in all of them takes longer
    than all other checks.
    """
    found: Dict[str, str] = {}
    for folder in [Path(folder or ".") for folder in sys.path]:
        for entry in _entries(folder):
            left = re.fullmatch(
                r"(mxnet([-_](cu|mkl|native|nightly)[a-z0-9]*)?)(-.*)?\.(dist|egg)-info",
                entry.lower(),
            )
            if left:  # the first in the path is the one that is imported
                version = importlib.metadata.Distribution.at(folder / entry).version
                found.setdefault(left[1].replace("_", "-"), version or "of no version")
    return dict(sorted(found.items()))


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
    """Where Python would find a package, without importing it; a file if a module of that name
    comes first.
    """
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
