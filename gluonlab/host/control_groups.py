"""The control groups of Linux that this process is in, which limit containers and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Tuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def control_groups(
    controller: str, proc: Path = PROC, cgroups: Path = CGROUPS
) -> Iterator[Tuple[int, Path]]:
    """(version, folder) of every group of ``controller``, such as "cpu", under versions 2 and 1.

    A process is in a group and in all above it; in a container its own group is at the root. Some
    folders may not exist.
    """
    for line in ["0::/", f":{controller}:/", *text_of(proc / "self" / "cgroup").split("\n")]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            version, root = 2, cgroups
        elif controller in controllers.split(","):
            version, root = 1, cgroups / controller
        else:
            continue
        own = root / path.strip("/")
        yield from (
            (version, folder)
            for folder in (own, *own.parents)
            if folder == root or root in folder.parents
        )


def text_of(file: Path) -> str:
    """The text of one of the kernel's files; empty where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
