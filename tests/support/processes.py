"""Environments for the child processes of tests, without the settings of this process."""

import os
from pathlib import Path

from gluonlab.host.launcher_environment import LAUNCHER_VARIABLE_PREFIXES

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE_VARIABLES = ("OMP_", "GOMP_", "OPENBLAS_", "MXNET_", "DMLC_", *LAUNCHER_VARIABLE_PREFIXES)


def clean_environment(**changes):
    """Return an environment that finds gluonlab and the helpers of the tests.

    It contains no engine variables of this process. ``changes``: more variables; ``path``: folders
    before the others of PYTHONPATH.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENGINE_VARIABLES)}
    path = os.pathsep.join([*changes.pop("path", []), str(REPOSITORY), str(REPOSITORY / "tests")])
    return {**inherited, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **changes}


def read_spin_counts(stderr):
    """Return the spin counts of idle threads, which each libgomp prints."""
    lines = [line for line in stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    return [line.split("=")[1].strip(" '") for line in lines]


def write_package(folder, name, code):
    """Write a package that runs ``code`` when it is imported; return the folder."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return str(folder)
