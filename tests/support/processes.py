"""Processes that tests start find gluonlab and the tests' helpers, and no setting of this one."""

import os
from pathlib import Path

from gluonlab.host.launcher_environment import LAUNCHER_VARIABLE_PREFIXES

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE_VARIABLES = ("OMP_", "GOMP_", "OPENBLAS_", "MXNET_", "DMLC_", *LAUNCHER_VARIABLE_PREFIXES)


def clean_environment(**changes):
    """The environment of a process that knows of gluonlab, of the tests' helpers, and of nothing
    set by this process.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(ENGINE_VARIABLES)
    }
    path = os.pathsep.join([*changes.pop("path", []), str(REPOSITORY), str(REPOSITORY / "tests")])
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **changes}


def read_spin_counts(stderr):
    """Return how long idle threads spin, as each libgomp prints it (OMP_DISPLAY_ENV=verbose)."""
    lines = [line for line in stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    return [line.split("=")[1].strip(" '") for line in lines]


def write_package(folder, name, code):
    """A package ``name`` in ``folder`` that does ``code`` when it is imported."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return str(folder)
