"""Job files, ready to submit: each line has a comment that says what it asks for.

``KINDS`` holds a function for each scheduler; all of them take the same `JobRequest`. The processes
that a job starts find their ranks and each other by themselves (`gluonlab.launch.environments`).
"""

from __future__ import annotations

from typing import Callable, Dict

from gluonlab.errors import ConfigError, unknown
from gluonlab.launch.jobs.kubernetes import kubernetes
from gluonlab.launch.jobs.lsf import lsf, lsf_interactive
from gluonlab.launch.jobs.request import JobRequest
from gluonlab.launch.jobs.sagemaker import sagemaker
from gluonlab.launch.jobs.slurm import slurm

__all__ = ["KINDS", "JobRequest", "job_file"]

KINDS: Dict[str, Callable[[JobRequest], str]] = {
    "slurm": slurm, "lsf": lsf, "lsf-interactive": lsf_interactive, "k8s": kubernetes,
    "sagemaker": sagemaker,
}  # fmt: skip


def job_file(kind: str, request: JobRequest) -> str:
    """The job file of a kind in KINDS. Raises ConfigError for another, or what it cannot give."""
    if kind not in KINDS:
        raise ConfigError(unknown("--print", kind, KINDS))
    return KINDS[kind](request)
