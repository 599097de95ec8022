"""What a run can ask for where servers update the weights, in place of its processes."""

from __future__ import annotations

from typing import Iterator, Tuple

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.kvstores.groups import Group
from gluonlab.kvstores.summing import SHARDED

STATES = "the optimizer's states are on the servers, which do not give them away"
COMPRESSED = (
    "MXNet sends its servers everything in 2 bits or nothing, and parameters and losses are exact"
)
WHOLE = "each server has a part of the gradient, and that needs all of it first"


def on_servers(config: TrainConfig, group: Group) -> bool:
    """Whether the group's servers update: where it is asked for, or processes do not wait."""
    return config.update_on_servers or not group.waits


def check_on_servers(config: TrainConfig, group: Group) -> None:
    """Raise ConfigError for a setting that cannot be carried out where servers update.

    ``config``: with the recipe's values.
    """
    if not on_servers(config, group):
        return
    if not group.servers:
        who = group.name or "a process alone"
        raise ConfigError(
            f"--update-on-servers: {who} has no servers: start the run by gluonlab.launch "
            "--backend dist_sync, or leave it out"
        )
    for option, reason in _refused(config, group):
        raise ConfigError(
            f"{option} and {_named(group)} contradict each other: {reason}: leave one of them out"
        )


def check_going_on(option: str, config: TrainConfig, group: Group) -> None:
    """Raise ConfigError for ``option``, by which a run goes on, where servers update."""
    if on_servers(config, group):
        raise ConfigError(
            f"{option} and {_named(group)} contradict each other: {STATES}, so no checkpoint is "
            "whole: leave one of them out"
        )


def _named(group: Group) -> str:
    return "--update-on-servers" if group.waits else f"--backend {group.name}"


def _refused(config: TrainConfig, group: Group) -> Iterator[Tuple[str, str]]:
    if config.checkpoint_every is not None:
        yield f"--checkpoint-every {config.checkpoint_every}", STATES
    if config.clip_norm is not None:
        yield f"--clip-norm {config.clip_norm:g}", WHOLE
    if config.dtype != "float32":
        yield f"--dtype {config.dtype}", f"{WHOLE}, to scale the loss by"
    if config.on_nan != "stop":
        yield f"--on-nan {config.on_nan}", WHOLE
    if config.compress is not None:
        yield f"--compress {config.compress}", COMPRESSED
    if config.kvstore == SHARDED:
        yield f"--kvstore {SHARDED}", "it updates on the devices"
    if config.split is not None and config.split != "data":
        yield f"--split {config.split}", "servers have the weights of whole networks only"
    if config.check_replicas is not None and not group.waits:
        reason = "processes do not wait for each other, so their weights differ between two epochs"
        yield f"--check-replicas {config.check_replicas}", reason
