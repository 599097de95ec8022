"""The machine in a few lines, without which a rate means nothing, and how busy others kept it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, Optional

import gluonlab
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.engine import mxnet_installation
from gluonlab.errors import ConfigError
from gluonlab.host import resources
from gluonlab.host.resources import (
    ISA_LIMIT_VARIABLE,
    PROC,
    available_memory,
    cpu_flags,
    cpu_numbers,
    cpu_vendor,
    instruction_set,
    read_kernel_file,
)

BUSY_CORES = 0.2  # what other processes may use before a table comes with a warning
PACKAGES = ("numpy", "mxnet", "mxnet-cu112", "gluoncv", "torch")
VECTORS = ("amx", "avx", "f16c", "fma", "gfni", "pni", "sse", "ssse")  # flags begin so
HERE = Path(gluonlab.__file__).resolve().parent.parent  # the folder that holds this gluonlab


def describe_machine() -> str:
    """Processor and cores, then the versions of Python, MXNet and torch on another line."""
    mxnet = " and ".join(mxnet_installation.installed_distributions()) or "mxnet"
    count = resources.available_cores()
    versions = f"{mxnet} {_version(mxnet)}, torch {_version('torch')}"
    numbers, limit = cpu_numbers(), os.environ.get(ISA_LIMIT_VARIABLE)
    parts = [
        cpu_model() + (f" (family {numbers[0]}, model {numbers[1]})" if numbers else ""),
        f"{count} core{'s' * (count > 1)}",
        (instruction_set() or "no instruction set of oneDNN")
        + (f" ({ISA_LIMIT_VARIABLE}={limit})" if limit else ""),
    ]
    machine = textwrap.fill(", ".join(parts), WIDTH)
    return f"{machine}\nPython {platform.python_version()}, {versions}"


def about(checkout: Path = HERE) -> Dict[str, Any]:
    """What a record says of the gluonlab in ``checkout``, the machine and what is installed."""
    versions = {name: _version(name) for name in PACKAGES}
    installed = {name: version for name, version in versions.items() if version != "not installed"}
    return {
        "gluonlab": gluonlab.__version__,
        "commit": commit(checkout),
        "cpu": cpu_model(),
        "processor": processor(),
        "instruction_set": instruction_set(),
        **(
            {ISA_LIMIT_VARIABLE: os.environ[ISA_LIMIT_VARIABLE]}
            if os.environ.get(ISA_LIMIT_VARIABLE)
            else {}
        ),
        "cores": resources.available_cores(),
        "versions": {"python": platform.python_version(), **installed},
    }


def commit(checkout: Path) -> Optional[str]:
    """The commit checked out there, with a + where files differ; None outside a git checkout."""
    try:
        top = _git(checkout, "rev-parse", "--show-toplevel")
        name = _git(checkout, "rev-parse", "--short=12", "HEAD")
        changed = _git(checkout, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return None
    # not of what lies around it
    return name + "+" * bool(changed) if Path(top) == checkout.resolve() else None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()


def cpu_model() -> str:
    """The processor's name as Linux gives it."""
    named = re.search(r"^model name\s*:(.*)$", read_kernel_file(PROC / "cpuinfo"), re.M)
    return named[1].strip() if named else platform.machine()


def processor(proc: Path = PROC) -> Dict[str, Any]:
    """The CPU's vendor, the numbers of its family and model, and its flags.

    The flags are those of vector instructions. What a kernel does not give is left out.
    """
    family, model = cpu_numbers(proc) or (None, None)
    flags = [flag for flag in cpu_flags(proc) if flag.startswith(VECTORS)]
    given = {"vendor": cpu_vendor(proc), "family": family, "model": model, "flags": flags}
    return {name: value for name, value in given.items() if value not in (None, "", [])}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class Others:
    """How busy other processes have kept the machine since this object was made."""

    def __init__(self) -> None:
        self._began, self._at_first = time.monotonic(), self._seconds()

    def cores(self) -> float:
        """The mean number of cores that they used; own children count until they have ended."""
        return max(0.0, self._seconds() - self._at_first) / (time.monotonic() - self._began)

    def _seconds(self) -> float:
        stat, own = read_kernel_file(PROC / "stat"), os.times()
        ours = own.user + own.system + own.children_user + own.children_system
        return busy_seconds(stat) - ours if stat else 0.0


def busy_seconds(stat: str, ticks_per_second: int = os.sysconf("SC_CLK_TCK")) -> float:
    """CPU seconds since the start that were neither idle nor waiting, by /proc/stat (proc(5))."""
    ticks = [int(field) for field in stat.split("\n")[0].split()[1:9]]
    user, nice, system, _, _, *interrupts_and_stolen = ticks
    return (user + nice + system + sum(interrupts_and_stolen)) / ticks_per_second


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Raise ConfigError when ``what`` needs more bytes than there are.

    The system would otherwise end some process.
    """
    here = available_memory()
    if here is not None and needed > here.free:
        raise ConfigError(
            f"{what} needs about {needed / 1e9:.1f} GB of memory, "
            f"and {here.free / 1e9:.1f} GB are free: {remedy}"
        )
