"""The ways to carry numbers between processes, by the names that --backend takes."""

from __future__ import annotations

from typing import Dict, Type, Union

from gluonlab.launch.horovod import Horovod
from gluonlab.launch.parameter_server import ParameterServer

Backend = Type[Union[ParameterServer, Horovod]]
BACKENDS: Dict[str, Backend] = {kind.name: kind for kind in (ParameterServer, Horovod)}
