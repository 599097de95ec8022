"""Python as a process on a simulated machine."""

import subprocess
import sys
from pathlib import Path

from gpus.machines import environment
from support.processes import clean_environment

HERE = str(Path(__file__).parent)


def run_python(machine, folder, *arguments, cwd=None, input="", timeout=300, **variables):
    """Run Python with these arguments on a machine to its end; return the finished process.

    The modules of tests/gpus can be imported by their own names. ``folder`` gets the description of
    the machine. ``variables``: of the environment.
    """
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd or folder, input=input, capture_output=True, encoding="utf-8",
        env={**clean_environment(path=[HERE]), **environment(machine, folder), **variables}, timeout=timeout,
    )  # fmt: skip
