"""What a run can ask for in one process alone, whose devices share a memory."""

from __future__ import annotations

from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import ConfigError
from gluonlab.kvstores.groups import Group
from gluonlab.kvstores.summing import SHARDED

FIELDS = ("sync_bn", "memory")


def check_group(config: TrainConfig, group: Group) -> None:
    """Raise ConfigError for a setting that has no meaning for a group of several processes."""
    if group.size == 1:
        return
    asked = [option_name(name) for name in FIELDS if getattr(config, name)]
    asked += [f"--kvstore {SHARDED}"] if config.kvstore == SHARDED else []
    if asked:
        raise ConfigError(
            f"{asked[0]} is for the devices of one process, and {group.size} train here: "
            f"{'choose another' if '--kvstore' in asked[0] else 'leave it out'}"
        )
