"""Python, numpy, and which MXNet is installed: read from what pip has left, without importing any of them."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from gluonlab.doctor.findings import Finding, fault, ok, warning
from gluonlab.engine import FLAVOURS

PYTHONS = ((3, 8), (3, 13))
MXNET_VERSION = "1.9.1"
NEWEST_NUMPY = (2, 6)  # not tried from here on
Version = Tuple[int, ...]


def python(version: Version = sys.version_info[:3], machine: str = platform.machine(), system: str = sys.platform) -> Finding:
    """Whether there is an MXNet for this Python."""
    what = f"{'.'.join(map(str, version))}, {sys.executable}"
    if (system, machine) != ("linux", "x86_64"):
        return fault("python", what, f"MXNet 1.9.1 has no wheel for {system} on {machine}", "use x86-64 Linux with glibc")
    oldest, newest = PYTHONS
    if version[:2] < oldest:
        return fault("python", what, "gluonlab needs Python 3.8 or newer", "install Python 3.8 to 3.13")
    if version[:2] > newest:
        return warning("python", what, "newer than the newest that was tried, 3.13", "if MXNet fails, use Python 3.8 to 3.13")
    return ok("python", what)


def numpy(installed: Optional[str], version: Version = sys.version_info[:3]) -> Finding:
    """``installed``: numpy's version, or None."""
    wanted = "numpy<1.24" if version < (3, 12) else "numpy==1.26.4" if version < (3, 13) else "numpy>=2.1,<2.6"
    if installed is None:
        return fault("numpy", "not installed", "MXNet needs numpy", f"pip install '{wanted}'")
    numbers = numbers_of(installed)
    if numbers >= NEWEST_NUMPY:
        return warning("numpy", installed, "MXNet was not tried with numpy 2.6 and newer", f"pip install '{wanted}'")
    if numbers >= (1, 24):
        cause = "numpy dropped np.bool and others in 1.24; gluonlab puts them back, but only when it is imported before mxnet"
        return (
            warning("numpy", installed, cause, f"write import gluonlab before import mxnet, or pip install '{wanted}'")
            if version < (3, 12)
            else ok("numpy", f"{installed}; import gluonlab before mxnet: it puts back the names that numpy dropped in 1.24")
        )
    return ok("numpy", installed)


def mxnet(installed: Dict[str, str], folder: Optional[Path]) -> Finding:
    """``installed``: distribution -> version of all that bring the module mxnet. ``folder``: where the module lies."""
    names = " and ".join(f"{name} {version}" for name, version in installed.items())
    if len(installed) > 1:
        uninstall = (
            f"pip uninstall -y {' '.join(installed)}, then pip install 'gluonlab[cpu]', or 'gluonlab[cu112]' for NVIDIA GPUs"
        )
        return fault("mxnet", f"{names} are all installed", "they overwrite each other's files in the same folder", uninstall)
    if folder is None:
        cure = "pip install 'gluonlab[cpu]', or 'gluonlab[cu112]' on a machine with NVIDIA GPUs"
        if not installed:
            return fault("mxnet", "not installed", "gluonlab runs on MXNet and comes without one", cure)
        return fault(
            "mxnet", f"{names} is installed, but its files are gone", "something removed them", f"{cure} --force-reinstall"
        )
    if not installed:
        cause = f"{folder} belongs to no installed package: built by hand, or left over"
        return warning(
            "mxnet", f"unknown build in {folder}", cause, "if it fails, remove that folder and pip install 'gluonlab[cpu]'"
        )
    [(name, version)] = installed.items()
    if name not in FLAVOURS or version != MXNET_VERSION:
        cause = f"gluonlab was tried with mxnet and mxnet-cu112 {MXNET_VERSION} only"
        return warning(
            "mxnet", f"{names}, {folder}", cause, f"pip uninstall -y {name}, then pip install 'gluonlab[cpu]' or [cu112]"
        )
    return ok("mxnet", f"{names}, {folder}")


def installed_mxnets() -> Dict[str, str]:
    """Distribution -> version of all that bring a module mxnet: mxnet, mxnet-cu112, and others of the family."""
    found = {_name(distribution): distribution.version for distribution in importlib.metadata.distributions()}
    return {name: found[name] for name in sorted(found) if re.fullmatch(r"mxnet(-(cu|mkl|native|nightly)\w*)?", name)}


def installed_version(distribution: str) -> Optional[str]:
    """The version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_folder(name: str, path: Optional[List[str]] = None) -> Optional[Path]:
    """Where Python would find a package, without importing it."""
    folders: Iterator[Path] = (Path(folder or ".") / name for folder in (sys.path if path is None else path))
    return next((folder for folder in folders if (folder / "__init__.py").is_file()), None)


def numbers_of(version: str) -> Version:
    """(1, 26, 4) of "1.26.4"; what comes after the numbers is left out."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in leading[0].split(".")) if leading else ()


def _name(distribution: importlib.metadata.Distribution) -> str:
    return str(distribution.metadata["Name"] or "").lower().replace("_", "-")
