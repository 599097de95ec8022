"""Checks of the operating system, and of folders in Windows Subsystem for Linux (WSL)."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from gluonlab.doctor.findings import Finding, ok, returns_list, warning
from gluonlab.errors import GluonlabError
from gluonlab.host.resources import PROC, read_kernel_file

INSTALL_PAGE = "gluonlab's docs/install.md"
INTEROP_FILES = ("WSLInterop", "WSLInterop-late")  # with them, WSL starts Windows programs
# File systems through which WSL reaches Windows drives; WSL 1 has drvfs.
WINDOWS_FILE_SYSTEMS = ("9p", "drvfs", "virtiofs")
RAISE_WSL_MEMORY = (
    "WSL limits Linux to half of the machine's memory: raise the limit with the lines [wsl2] and memory=8GB in "
    r"%UserProfile%\.wslconfig, and run wsl --shutdown in Windows"
)


class Wsl(NamedTuple):
    """The version of WSL, 1 or 2, and the name of its Linux distribution, which may be empty."""

    version: int
    distribution: str


def find_wsl(proc: Path = PROC, environ: Mapping[str, str] = os.environ) -> Optional[Wsl]:
    """Return the WSL in which this process runs; None on other systems.

    A container in WSL has the kernel of WSL, but not the variable with the distribution's name.
    """
    release = read_kernel_file(proc / "sys" / "kernel" / "osrelease").strip().lower()
    interop = proc / "sys" / "fs" / "binfmt_misc"
    if "microsoft" not in release and not any(os.path.exists(interop / name) for name in INTEROP_FILES):
        return None
    # WSL 1 has no Linux kernel. It reports 4.4.0-19041-Microsoft, and WSL 2 a release that ends in
    # microsoft-standard-WSL2.
    return Wsl(1 if release.endswith("-microsoft") else 2, environ.get("WSL_DISTRO_NAME", ""))


@returns_list
def check_platform(
    folders: Optional[Mapping[str, Path]] = None,
    system: str = sys.platform,
    machine: str = platform.machine(),
    proc: Path = PROC,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Finding]:
    """Report the platform. Warn if it was not tested, or if WSL's folders are on a Windows drive.

    ``folders`` maps purposes to folders; by default, `used_folders`.
    """
    if system == "darwin":
        cause, cure = (
            "gluonlab was not tested on macOS",
            f"if a command fails, use a Linux container: see {INSTALL_PAGE}",
        )
        yield warning("platform", f"macOS on {machine}", cause, cure)
        return
    what, wsl = f"{system.capitalize()} on {machine}", find_wsl(proc, environ)
    if wsl is None:
        yield ok("platform", what + "; gluonlab was tested there only in emulation" * (machine == "aarch64"))
        return
    what += f", in WSL {wsl.version}" + f" ({wsl.distribution})" * bool(wsl.distribution)
    if wsl.version == 1:
        cause = "WSL 1 has no Linux kernel, and gluonlab was not tested there"
        yield warning(
            "platform", what, cause, f"run wsl --set-version {wsl.distribution or 'DISTRIBUTION'} 2 in Windows"
        )
    else:
        yield ok("platform", f"{what}; gluonlab was not tested there")
    slow = {
        purpose: folder
        for purpose, folder in (used_folders() if folders is None else folders).items()
        if is_on_windows_drive(folder, proc)
    }
    if slow:
        listing = ", ".join(f"{purpose} ({folder})" for purpose, folder in slow.items())
        # https://github.com/microsoft/WSL/issues/12897
        cause = "WSL accesses Windows drives through a network protocol that is slow for many small files and cannot "
        cause += "rename folders that are in use"
        cure = "move them to the Linux home folder: clone gluonlab with git into ~, and run the commands there"
        yield warning("platform", f"on a Windows drive: {listing}", cause, cure)


def used_folders() -> Dict[str, Path]:
    """Return the folders that gluonlab reads and writes, by purpose. Omit missing folders."""
    from gluonlab.data.fetching.data_folders import data_root

    folders = {"gluonlab": Path(__file__).resolve().parents[2], "the Python environment": Path(sys.prefix)}
    try:
        folders["data sets"] = data_root()
        folders["run directories"] = Path.cwd()
    except (GluonlabError, OSError):  # other checks report the error
        pass
    return folders


def is_on_windows_drive(folder: Path, proc: Path = PROC) -> bool:
    """Check if WSL reaches a folder on a Windows drive. The folder may not exist yet."""
    path = os.path.realpath(folder)
    above = [mount for mount in _read_mounts(proc) if f"{path}/".startswith(f"{mount[0].rstrip('/')}/")]
    # of two mounts at the same folder, the later one hides the earlier one
    _, kind = max(reversed(above), key=lambda mount: len(mount[0]), default=("", ""))
    return kind in WINDOWS_FILE_SYSTEMS


def _read_mounts(proc: Path) -> List[Tuple[str, str]]:
    """Return (folder, file system) of each mount of this process; [] if they are unknown."""
    lines = [line.split(" ") for line in read_kernel_file(proc / "self" / "mounts").splitlines()]
    return [(_unescape_path(words[1]), words[2]) for words in lines if len(words) >= 4]


def _unescape_path(text: str) -> str:
    r"""Return a path of /proc/self/mounts, in which octal codes such as ``\040`` are spaces."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
