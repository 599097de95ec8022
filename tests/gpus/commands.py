"""Commands of gluonlab as processes on made-up machines."""

import subprocess
import sys

from gpus.machines import environment
from support.processes import clean_environment


def on(machine, folder, *arguments, timeout=300, **variables):
    """``python -m arguments...`` in ``folder``, to its end."""
    told = clean_environment(**environment(machine, folder), **variables)
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=told, capture_output=True, encoding="utf-8", timeout=timeout
    )
