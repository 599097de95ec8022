"""The ways to carry numbers between processes, by the names that --backend takes."""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict

from gluonlab.kvstores.groups import SummingGroup
from gluonlab.launch.horovod import Horovod
from gluonlab.launch.parameter_server import NAMES, ParameterServer

BACKENDS: Dict[str, Callable[[], SummingGroup]] = {
    **{name: partial(ParameterServer, name) for name in NAMES},
    Horovod.name: Horovod,
}
