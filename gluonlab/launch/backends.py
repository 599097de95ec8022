"""The ways to carry numbers between processes, by the names that --backend takes."""

from __future__ import annotations

from typing import Dict, Type, Union

from gluonlab.launch.horovod import Horovod
from gluonlab.launch.parameter_server import ParameterServer

BACKENDS: Dict[str, Type[Union[ParameterServer, Horovod]]] = {
    kind.name: kind for kind in (ParameterServer, Horovod)
}
