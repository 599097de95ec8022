"""The classes that let processes communicate, one for each value of --backend."""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict

from gluonlab.kvstores.process_groups import SummingGroup
from gluonlab.launch.horovod_group import Horovod
from gluonlab.launch.parameter_server_group import NAMES, ParameterServer

BACKENDS: Dict[str, Callable[[], SummingGroup]] = {
    **{name: partial(ParameterServer, name) for name in NAMES},
    Horovod.name: Horovod,
}
