"""What processes get of the environment and the folder of who starts them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Sequence

import gluonlab
from gluonlab.errors import ConfigError
from gluonlab.plain import printable

# What a process on another host gets of this one's environment, as it has none of its own.
PASSED = ("GLUONLAB_", "MXNET_", "DMLC_", "PS_", "OMP_", "HOROVOD_", "NCCL_", "PYTHON")
# MXNet's servers and workers would listen at this port, in place of one that is free; many a cloud
# sets it for something else, or to 0.
NODE_PORT = "PORT"


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for what is no variable of this process's environment."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--env {printable(name)}: there is no such variable here: set it, and give its "
                "name alone, as in --env MY_VARIABLE"
            )


def passed(names: Sequence[str]) -> Dict[str, str]:
    """What processes on other hosts get of this environment: PASSED, and ``names``."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    chosen.update({name: os.environ[name] for name in names})
    return with_this_gluonlab(chosen)


def own_environment() -> Dict[str, str]:
    """What an agent's processes get of its own environment."""
    return {name: value for name, value in os.environ.items() if name != NODE_PORT}


def with_this_gluonlab(environment: Any) -> Dict[str, str]:
    """The environment in which Python finds the gluonlab that runs here, at the same path."""
    root = str(Path(gluonlab.__file__).resolve().parent.parent)
    before = os.environ.get("PYTHONPATH", "")
    paths = [root, *(each for each in before.split(os.pathsep) if each and each != root)]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def working_folder() -> str:
    """Where this process is. Raises ConfigError where that has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        raise ConfigError(
            "the folder in which this shell is has been removed: change to another one"
        ) from None
