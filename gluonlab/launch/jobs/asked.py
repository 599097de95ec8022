"""The request for a job file that options make."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Sequence, Tuple

from gluonlab.errors import ConfigError, unknown
from gluonlab.launch.jobs.request import JobRequest
from gluonlab.launch.numbers import whole


def job_request(
    backend: str,
    processes: Optional[int],
    job: Sequence[str],
    launcher: Sequence[str],
    words: Tuple[str, ...],
) -> JobRequest:
    """What the job file asks for: ``job`` has NAME=VALUE by the fields of a JobRequest.

    Raises ConfigError.
    """
    own = {"words", "backend", "processes", "launcher"}  # said by other options
    fields = {f.name: f.default for f in dataclasses.fields(JobRequest) if f.name not in own}
    asked: Dict[str, Any] = {}
    for pair in job:
        name, equals, value = pair.partition("=")
        if name not in fields:
            raise ConfigError(unknown("--job", name, fields))
        if not equals:
            raise ConfigError(f"--job {pair}: write {name}=VALUE")
        counts = isinstance(fields[name], int)
        asked[name] = whole(f"--job {name}", value, 10**9, 0) if counts else value
    if processes is not None:
        asked["processes"] = processes
    return JobRequest(words=words, backend=backend, launcher=tuple(launcher), **asked)
