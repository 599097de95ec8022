"""Whether all processes of a group were started with the same options, whoever started them."""

from __future__ import annotations

import json
from typing import Any, Dict

from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import ConfigError
from gluonlab.kvstores.groups import Group
from gluonlab.training.file_options import resizer_of

# what each process may have of its own: its devices, how it reads, and where rank 0 alone writes
OWN = (
    "gpus", "devices", "require_gpu", "threads", "data_dir", "decoders", "prefetch",
    "resident_bytes", "overlap", "out",
)  # fmt: skip


def check_same_options(config: TrainConfig, group: Group) -> None:
    """Raise ConfigError in all processes, with the first difference, unless they agree.

    Processes with other options would sum gradients of different trainings, or wait for each other
    for ever. Waits for all of them.
    """
    if group.size == 1:
        return
    told = json.dumps(_common(config), default=str).encode()
    first, *others = [json.loads(each) for each in group.everyones_bytes(told)]
    for rank, other in enumerate(others, start=1):
        for name in first:
            if other.get(name) != first[name]:
                group.end_together()
                raise ConfigError(
                    f"the options of the processes differ: rank 0 has {_said(name, first[name])}, "
                    f"and rank {rank} {_said(name, other.get(name))}: start all with the same ones"
                )


def _common(config: TrainConfig) -> Dict[str, Any]:
    settings = {**config.to_dict(), "resizer": resizer_of(config)}
    return {k: v for k, v in settings.items() if k not in OWN}


def _said(name: str, value: Any) -> str:
    if value is None or value is False:
        return f"no {option_name(name)}"
    return option_name(name) if value is True else f"{option_name(name)} {value}"
