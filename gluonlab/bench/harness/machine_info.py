"""Describes the machine for records and tables, and measures the load from other processes."""

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
from gluonlab.engine import mxnet_and_cuda_libraries
from gluonlab.errors import ConfigError, warn
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

BUSY_CORES = 0.2  # a warning appears if other processes use more cores than this
PACKAGES = ("numpy", "mxnet", "mxnet-cu112", "gluoncv", "torch")
VECTOR_FLAGS = ("amx", "avx", "f16c", "fma", "gfni", "pni", "sse", "ssse")  # prefixes of flags
CHECKOUT = Path(gluonlab.__file__).resolve().parent.parent  # the folder that holds this gluonlab


def describe_machine() -> str:
    """Return lines about the processor, its cores, and the versions of Python, MXNet and torch."""
    mxnet = " and ".join(mxnet_and_cuda_libraries.installed_distributions()) or "mxnet"
    count = resources.available_cores()
    versions = f"{mxnet} {_installed_version(mxnet)}, torch {_installed_version('torch')}"
    numbers, limit = cpu_numbers(), os.environ.get(ISA_LIMIT_VARIABLE)
    details = [
        cpu_model() + (f" (family {numbers[0]}, model {numbers[1]})" if numbers else ""),
        f"{count} core{'s' * (count > 1)}",
        (instruction_set() or "unknown instruction set of oneDNN")
        + (f" ({ISA_LIMIT_VARIABLE}={limit})" if limit else ""),
    ]
    machine = textwrap.fill(", ".join(details), WIDTH)
    return f"{machine}\nPython {platform.python_version()}, {versions}"


def describe_environment(checkout: Path = CHECKOUT) -> Dict[str, Any]:
    """Return facts about the checkout, the machine and the packages for a record."""
    versions = {name: _installed_version(name) for name in PACKAGES}
    installed = {name: version for name, version in versions.items() if version != "not installed"}
    return {
        "gluonlab": gluonlab.__version__, "commit": find_commit(checkout), "cpu": cpu_model(),
        "processor": describe_processor(), "instruction_set": instruction_set(),
        **{name: os.environ[name] for name in [ISA_LIMIT_VARIABLE] if os.environ.get(name)},
        "cores": resources.available_cores(),
        "versions": {"python": platform.python_version(), **installed},
    }  # fmt: skip


def find_commit(checkout: Path) -> Optional[str]:
    """Return the commit of a checkout, or None if the folder is not a git checkout.

    A ``+`` follows the commit if files have uncommitted changes.
    """
    try:
        repository = _run_git(checkout, "rev-parse", "--show-toplevel")
        name = _run_git(checkout, "rev-parse", "--short=12", "HEAD")
        changes = _run_git(checkout, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return None
    # not the commit of a repository that contains the folder
    return name + "+" * bool(changes) if Path(repository) == checkout.resolve() else None


def _run_git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()


def cpu_model() -> str:
    """Return the processor's name from /proc/cpuinfo."""
    match = re.search(r"^model name\s*:(.*)$", read_kernel_file(PROC / "cpuinfo"), re.M)
    return match[1].strip() if match else platform.machine()


def describe_processor(proc: Path = PROC) -> Dict[str, Any]:
    """Return the CPU's vendor, family, model and vector instruction flags, as far as known."""
    family, model = cpu_numbers(proc) or (None, None)
    flags = [flag for flag in cpu_flags(proc) if flag.startswith(VECTOR_FLAGS)]
    facts = {"vendor": cpu_vendor(proc), "family": family, "model": model, "flags": flags}
    return {name: value for name, value in facts.items() if value not in (None, "", [])}


def _installed_version(distribution: str) -> str:
    """Return the version of a Python package, or ``not installed``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class OtherProcessLoad:
    """A meter of the CPU time that other processes use after the meter is created."""

    def __init__(self) -> None:
        self._start_time, self._initial_s = time.monotonic(), self._seconds()

    def busy_cores(self) -> float:
        """Return the mean number of cores that other processes used.

        Child processes of this process count as other processes until they have exited.
        """
        return max(0.0, self._seconds() - self._initial_s) / (time.monotonic() - self._start_time)

    def warn_if_busy(self) -> None:
        """Warn if other processes kept the machine busy, because they lower all measured rates."""
        others = self.busy_cores()
        if others > BUSY_CORES:
            warn(
                f"other processes kept {others:.1f} of {resources.available_cores()} cores busy: "
                "measure again when they are idle"
            )

    def _seconds(self) -> float:
        stat, times = read_kernel_file(PROC / "stat"), os.times()
        ours = times.user + times.system + times.children_user + times.children_system
        return busy_seconds(stat) - ours if stat else 0.0


def busy_seconds(stat: str, ticks_per_second: int = os.sysconf("SC_CLK_TCK")) -> float:
    """Return how many seconds the CPUs have been busy since boot, summed over all CPUs.

    Time in which a CPU waits for I/O does not count as busy.

    ``stat``: the text of /proc/stat (proc(5)).
    """
    ticks = [int(field) for field in stat.split("\n")[0].split()[1:9]]
    user, nice, system, _, _, *interrupts_and_stolen = ticks
    return (user + nice + system + sum(interrupts_and_stolen)) / ticks_per_second


def require_memory(needed_bytes: int, purpose: str, remedy: str) -> None:
    """Raise ConfigError if ``needed_bytes`` exceed the free memory.

    If there is not enough memory, the kernel might kill a process. ``purpose``: the start of the
    error message, which describes what needs the memory.
    """
    memory = available_memory()
    if memory is not None and needed_bytes > memory.free:
        raise ConfigError(
            f"{purpose} requires about {needed_bytes / 1e9:.1f} GB of memory, but only "
            f"{memory.free / 1e9:.1f} GB is free: {remedy}"
        )
