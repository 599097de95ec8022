"""Commands of gluonlab as processes on simulated machines."""

import subprocess
import sys

from gpus.machines import environment
from support.processes import clean_environment


def run_on_machine(machine, folder, *arguments, timeout=300, **variables):
    """Run ``python -m arguments...`` in ``folder`` to its end; return the finished process."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=clean_environment(**environment(machine, folder), **variables),
        capture_output=True, encoding="utf-8", timeout=timeout,
    )  # fmt: skip
