"""The machine beside its GPUs: where files go, and how much memory there is."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

from gluonlab.doctor.findings import Finding, fault, ok, warning
from gluonlab.host.control_groups import CGROUPS, PROC
from gluonlab.host.memory import room

# bytes: nothing can be finished; a large data set cannot be unpacked
FULL, SCARCE = 64 * 2**20, 2**30
LITTLE_MEMORY = 2 * 2**30
LITTLE_SHM = 512 * 2**20  # containers begin with 64 MiB


class Usage(NamedTuple):
    """Bytes of a file system, as shutil.disk_usage gives them."""

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
    there = nearest(folder)
    what = f"{what_for}: {folder}"
    refused = why_not_writable(there)
    if refused and "space" not in refused:
        return fault(check, f"{what} cannot be written", f"{there}: {refused}", cure)
    free = usage(there).free
    room = f"{what}, {free / 2**30:.1f} GiB free"
    if refused or free < FULL:
        return fault(
            check,
            f"{what}: the disk is full",
            f"{free / 2**20:.0f} MiB are free in {there}",
            f"make room there, or {cure}",
        )
    if free < SCARCE:
        return warning(
            check,
            room,
            "a large data set needs more than it has bytes, while it is unpacked",
            f"make room, or {cure}",
        )
    return ok(check, room)


def nearest(folder: Path) -> Path:
    """The folder itself, or the first one above it that exists."""
    absolute = Path(os.path.realpath(folder))
    # not Path.exists, which raises below a folder that may not be entered
    return next(
        (parent for parent in (absolute, *absolute.parents) if os.path.exists(parent)), Path("/")
    )


def why_not_writable(folder: Path) -> str:
    """The reason why no file can be made there; it is tried, since permissions do not tell all."""
    try:
        with tempfile.TemporaryFile(dir=str(folder)) as file:
            file.write(b"\0")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def temporary() -> Finding:
    """The folder for temporary files."""
    cure = "set TMPDIR to a folder with room that you may write"
    try:
        return place("temporary", "temporary files", Path(tempfile.gettempdir()), cure)
    except FileNotFoundError as error:  # it tries some, and none can be written
        return fault("temporary", "no folder for temporary files", str(error), cure)


def home(environ_home: str) -> Finding:
    """The user's own folder, where caches and settings go."""
    if not environ_home:
        return warning(
            "home",
            "HOME is not set",
            "libraries have no place for their settings",
            "export HOME=DIR",
        )
    refused = why_not_writable(nearest(Path(environ_home)))
    if refused:
        cure = (
            "export HOME=DIR with a folder that you may write; "
            "MPLCONFIGDIR and GLUONLAB_DATA for their files alone"
        )
        return warning("home", f"{environ_home} cannot be written", refused, cure)
    return ok("home", environ_home)


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Finding:
    """What this process may still have: of the machine, or of its container or job if that is
    less.
    """
    found = room(proc, cgroups)
    if found is None:
        return ok("memory", f"this system does not tell ({proc}/meminfo)")
    what = f"{found.free / 2**30:.1f} GiB of {found.total / 2**30:.1f} GiB free in {found.where}"
    if found.free < LITTLE_MEMORY:
        return warning(
            "memory",
            what,
            "MXNet alone takes half a GiB, and data sets are kept in memory",
            "end other processes",
        )
    return ok("memory", what)


def shared_memory(
    folder: Path = Path("/dev/shm"), usage: Callable[[Path], Usage] = disk_usage
) -> Finding:
    """/dev/shm, through which DataLoader's workers and NCCL hand data to each other."""
    if not folder.is_dir():
        return warning(
            "shm", f"no {folder}", "workers of a DataLoader and NCCL need it", "mount a tmpfs there"
        )
    found = usage(folder)
    what = f"{folder}: {found.free / 2**20:,.0f} MiB of {found.total / 2**20:,.0f} MiB free"
    if found.free < LITTLE_SHM:
        cause = (
            "workers of a DataLoader and NCCL put batches and buffers there; "
            "a full one ends them with a bus error"
        )
        return warning(
            "shm", what, cause, "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"
        )
    return ok("shm", what)
