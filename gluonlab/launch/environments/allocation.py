"""The hosts of the job in whose allocation this process runs."""

from __future__ import annotations

from typing import List, Optional

from gluonlab.host.launchers import HostSlots, lsf_hosts, merged, slurm_counts, slurm_hosts
from gluonlab.launch.environments.variables import Environ, contradiction, first_of


def allocation(environ: Environ) -> Optional[List[HostSlots]]:
    """The hosts of the Slurm or LSF job in which this process runs, with their slots, else None.

    Each host comes once. Slots are Slurm's tasks and LSF's slots. Raises ConfigError as
    `gluonlab.launch.environments.membership` does.
    """
    variable = first_of(environ, ("SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if environ.get("SLURM_JOB_ID") and variable:
        hosts = slurm_hosts(environ[variable], variable)
        counts = slurm_counts(environ.get("SLURM_TASKS_PER_NODE", "")) or [1] * len(hosts)
        if len(counts) != len(hosts) and "SLURM_STEP_ID" in environ:  # counts are the step's
            counts = [1] * len(hosts)
        if len(counts) != len(hosts):
            raise contradiction(
                f"SLURM_TASKS_PER_NODE={environ['SLURM_TASKS_PER_NODE']} counts {len(counts)} "
                f"nodes, {variable}={environ[variable]} names {len(hosts)}"
            )
        return merged([HostSlots(*pair) for pair in zip(hosts, counts)])
    if environ.get("LSB_JOBID"):
        return merged(lsf_hosts(environ)[1]) or None
    return None
