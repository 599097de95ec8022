"""The cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Set, Tuple

from gluonlab.host.control_groups import CGROUPS, PROC, control_groups


def available() -> int:
    """The physical cores that this process may use, by affinity and container limits."""
    physical, limit = len(_physical(os.sched_getaffinity(0))), core_limit()
    return max(1, physical if limit is None else min(physical, limit))


def _physical(cpus: Set[int]) -> Set[Tuple[str, str]]:
    seen = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            seen.add(
                ((topology / "physical_package_id").read_text(), (topology / "core_id").read_text())
            )
        except OSError:  # no topology in this container: count every CPU as a core
            seen.add(("", str(cpu)))
    return seen


def core_limit(cgroups: Path = CGROUPS, proc: Path = PROC) -> "int | None":
    """The limit of CPU time of this process's container, job or service, in cores; None: no limit.

    The limit is for all its processes together, and counts as at least 1.
    """
    quotas = {2: ("cpu.max",), 1: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
    limits = []
    for version, folder in control_groups("cpu", proc, cgroups):
        try:
            texts = ((folder / file).read_text() for file in quotas[version])
            quota, period = (word for text in texts for word in text.split())
            if quota not in ("max", "-1"):
                limits.append(max(1, int(quota) // int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(limits, default=None)
