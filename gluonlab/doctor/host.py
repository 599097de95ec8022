"""The machine beside its GPUs: where files go, and how much memory there is."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

from gluonlab.doctor.findings import Finding, fault, ok, warning
from gluonlab.host.resources import CGROUPS, PROC, room

# bytes: nothing can be finished; a large data set cannot be unpacked
FULL, SCARCE = 64 * 2**20, 2**30
LITTLE_MEMORY = 2 * 2**30
LITTLE_SHM = 512 * 2**20  # containers begin with 64 MiB


class Usage(NamedTuple):
    """The bytes of a file system: total, used and free, as shutil.disk_usage gives them."""

    total: int
    used: int
    free: int


def disk_usage(folder: Path) -> Usage:
    """The file system that a folder lies in."""
    return Usage(*shutil.disk_usage(folder))


def place(
    check: str, what_for: str, folder: Path, cure: str, usage: Callable[[Path], Usage] = disk_usage
) -> Finding:
    """Whether ``folder``, or the nearest one above it that exists, can be written, and has room."""
    there, what = nearest(folder), f"{what_for}: {folder}"
    refused = why_not_writable(there)
    if refused and "space" not in refused:
        return fault(check, f"{what} is not writable", f"{there}: {refused}", cure)
    free = usage(there).free
    if refused or free < FULL:
        cause = f"{free / 2**20:.0f} MiB are free in {there}"
        return fault(check, f"{what}: the disk is full", cause, f"make room there, or {cure}")
    what += f", {free / 2**30:.1f} GiB free"
    if free < SCARCE:
        cause = "unpacking a large data set needs more than its own size"
        return warning(check, what, cause, f"make room, or {cure}")
    return ok(check, what)


def nearest(folder: Path) -> Path:
    """The folder itself, or the first one above it that exists."""
    absolute = Path(os.path.realpath(folder))
    # not Path.exists, which raises below a folder that may not be entered
    return next(parent for parent in (absolute, *absolute.parents) if os.path.exists(parent))


def why_not_writable(folder: Path) -> str:
    """Why no file can be made there; it is tried, as permissions alone do not decide it."""
    try:
        with tempfile.TemporaryFile(dir=str(folder)) as file:
            file.write(b"\0")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def temporary() -> Finding:
    """The folder for temporary files."""
    cure = "set TMPDIR to a writable folder with room"
    try:
        return place("temporary", "temporary files", Path(tempfile.gettempdir()), cure)
    except FileNotFoundError as error:  # it tries some, and none can be written
        return fault("temporary", "no folder for temporary files", str(error), cure)


def current_folder() -> Finding:
    """Where runs are written unless --out says otherwise."""
    try:
        here = Path.cwd()
    except OSError as error:
        cause, cure = error.strerror or str(error), "cd to a folder that exists"
        return fault("runs", "the current folder is gone", cause, cure)
    return place("runs", "runs are written below", here, "name another folder with --out DIR")


def home(environ_home: str) -> Finding:
    """The user's own folder, where caches and settings go."""
    cure = "export HOME=DIR"
    if not environ_home:
        return warning("home", "HOME is not set", "libraries cannot keep their settings", cure)
    refused = why_not_writable(nearest(Path(environ_home)))
    if not refused:
        return ok("home", environ_home)
    cure += " with a writable folder; or MPLCONFIGDIR and GLUONLAB_DATA for their files only"
    return warning("home", f"{environ_home} is not writable", refused, cure)


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Finding:
    """The memory that this process may still take, of the machine or of its container or job."""
    left = room(proc, cgroups)
    if left is None:
        return ok("memory", f"unknown: {proc}/meminfo does not say")
    what = f"{left.free / 2**30:.1f} GiB of {left.total / 2**30:.1f} GiB free in {left.where}"
    if left.free >= LITTLE_MEMORY:
        return ok("memory", what)
    cause = "MXNet alone takes half a GiB, and data sets are kept in memory"
    return warning("memory", what, cause, "end other processes")


def shared_memory(
    folder: Path = Path("/dev/shm"), usage: Callable[[Path], Usage] = disk_usage
) -> Finding:
    """/dev/shm, through which DataLoader's workers and NCCL hand data to each other."""
    if not folder.is_dir():
        cause = "DataLoader's workers and NCCL need it"
        return warning("shm", f"no {folder}", cause, "mount a tmpfs there")
    space = usage(folder)
    what = f"{folder}: {space.free / 2**20:,.0f} MiB of {space.total / 2**20:,.0f} MiB free"
    if space.free >= LITTLE_SHM:
        return ok("shm", what)
    cause = "DataLoader's workers and NCCL put batches and buffers there; "
    cause += "when it is full, they die of a bus error"
    cure = "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"
    return warning("shm", what, cause, cure)
