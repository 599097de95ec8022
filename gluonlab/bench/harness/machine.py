"""The machine in two lines: a rate means nothing without it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Optional

import gluonlab
from gluonlab.engine import setup
from gluonlab.host import cores

PACKAGES = ("numpy", "mxnet", "mxnet-cu112", "gluoncv", "torch")


def describe_machine() -> str:
    """Processor and cores on a line, the versions of Python, MXNet and torch on another."""
    mxnet = " and ".join(setup.flavours()) or "mxnet"
    count = cores.available()
    versions = (
        f"Python {platform.python_version()}, {mxnet} {_version(mxnet)}, torch {_version('torch')}"
    )
    return f"{cpu_model()}, {count} core{'s' * (count > 1)}\n{versions}"


def about(checkout: Optional[Path] = None) -> Dict[str, Any]:
    """What a record says of gluonlab, this one or that of ``checkout``, of the machine, and of what
    else is installed.
    """
    here = Path(gluonlab.__file__).resolve().parent.parent
    versions = {name: _version(name) for name in PACKAGES}
    installed = {name: version for name, version in versions.items() if version != "not installed"}
    return {
        "gluonlab": gluonlab.__version__,
        "commit": commit(checkout or here),
        "cpu": cpu_model(),
        "cores": cores.available(),
        "versions": {"python": platform.python_version(), **installed},
    }


def commit(checkout: Path) -> Optional[str]:
    """The commit that is checked out there, with a + behind it when files differ; None for what is
    no checkout of git.
    """
    try:
        top, name = (
            _git(checkout, "rev-parse", "--show-toplevel"),
            _git(checkout, "rev-parse", "--short=12", "HEAD"),
        )
        changed = _git(checkout, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return None
    # not of what lies around it
    return name + "+" * bool(changed) if Path(top) == checkout.resolve() else None


def _git(folder: Path, *words: str) -> str:
    said = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, encoding="utf-8", check=True
    )
    return said.stdout.strip()


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as Linux gives it."""
    try:
        lines = cpuinfo.read_text().split("\n")
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class Others:
    """How busy the machine was with other processes since this object was made; what they take is
    missing in every rate.
    """

    def __init__(self) -> None:
        self._began, self._at_first = time.monotonic(), self._seconds()

    def cores(self) -> float:
        """The cores that they kept busy, on average; call it when the children to be left out have
        ended.
        """
        return max(0.0, self._seconds() - self._at_first) / (time.monotonic() - self._began)

    def _seconds(self) -> float:
        own = os.times()
        try:
            everybody = busy_seconds(Path("/proc/stat").read_text())
        except OSError:
            return 0.0
        return everybody - own.user - own.system - own.children_user - own.children_system


def busy_seconds(stat: str, ticks_per_second: int = os.sysconf("SC_CLK_TCK")) -> float:
    """CPU seconds since the start that were neither idle nor waiting, from the text of /proc/stat
    (proc(5)).
    """
    user, nice, system, _, _, *interrupts_and_stolen = [
        int(field) for field in stat.split("\n")[0].split()[1:9]
    ]
    return (user + nice + system + sum(interrupts_and_stolen)) / ticks_per_second
