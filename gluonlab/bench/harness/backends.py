"""What carries sums between the processes of a measurement.

Imports neither MXNet nor Horovod.
"""

from __future__ import annotations

import importlib.util
from typing import List, Optional

from gluonlab.errors import ConfigError, unknown

HOROVOD = "horovod"
BACKENDS = ("dist_sync", HOROVOD)
# seconds: a group that pauses (`Worker`) would have lost its peers after 30
PATIENCE = {HOROVOD: {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}}
NO_HOROVOD = "Horovod is not installed: make .venv-horovod/.ready compiles it"


def parse_backends(text: str) -> List[str]:
    """Names, separated by commas. Raises ConfigError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in BACKENDS:
            raise ConfigError(unknown("backend", name, BACKENDS))
    return list(dict.fromkeys(names))


def missing(backend: str) -> Optional[str]:
    """Why it cannot be measured here; None if it can."""
    absent = backend == HOROVOD and importlib.util.find_spec("horovod") is None
    return NO_HOROVOD if absent else None
