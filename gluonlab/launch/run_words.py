"""The options of the run behind ``--``, checked before any process starts."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import click

from gluonlab.config import TrainConfig
from gluonlab.config.hints import nearest
from gluonlab.config.train_config import given
from gluonlab.errors import ConfigError

PERIOD = "1 epoch"  # between checkpoints, where nothing else is asked for
ASYNCHRONOUS = "dist_async"
# what gluonlab.run can, and several processes cannot
ALONE = (
    "--compare", "--evaluate", "--find-batch-size", "--find-lr", "--list", "--save-config",
)  # fmt: skip


def checked_words(
    backend: str,
    words: Tuple[str, ...],
    restarts: int,
    launcher: click.Command,
    worker: click.Command,
) -> Tuple[str, ...]:
    """The words, and what a run needs beside them to be started again: checkpoints.

    ``launcher``: whose options stand before ``--``; those behind are ``worker``'s.
    Raises what a worker would raise for the words.
    """
    asked = _parsed(backend, words, launcher, worker)
    if not restarts or asked["resume"] is not None:
        return words
    if asked["out"] is None:
        raise ConfigError(
            f"--restart {restarts} goes on with the run in --out, and there is none: add --out "
            "DIR, with --autoresume if a run is there already"
        )
    if backend == ASYNCHRONOUS or asked["update_on_servers"]:
        why = f"--backend {backend}" if backend == ASYNCHRONOUS else "--update-on-servers"
        raise ConfigError(
            f"--restart {restarts} goes on from checkpoints, and {why} has none: the optimizer's "
            "states are on the servers, which do not give them away: leave one of them out"
        )
    if str(asked["compress"]).strip().startswith("2bit"):
        raise ConfigError(
            f"--restart {restarts} goes on from checkpoints, and --compress {asked['compress']} "
            "has none: what 2 bits have left over is in no checkpoint: leave one of them out"
        )
    has = asked["checkpoint_every"] or asked["autoresume"]
    return words if has else (*words, "--checkpoint-every", PERIOD)


def _parsed(
    backend: str,
    words: Sequence[str],
    launcher: click.Command,
    worker: click.Command,
) -> Dict[str, Any]:
    """The options by name."""
    own, theirs = _names(launcher), _names(worker)
    for word in words:
        name = word.partition("=")[0]
        if name == "--backend":
            raise ConfigError(f"--backend stands before --, and is {backend} there: leave it out")
        if name in ALONE:
            raise ConfigError(
                f"{name} is for one process: leave it out, or write it to python -m gluonlab.run"
            )
        _check_known(name, own, theirs)
    context = worker.make_context(worker.name, ["--backend", backend, *words])
    fields = TrainConfig.__dataclass_fields__
    TrainConfig(**given({k: v for k, v in context.params.items() if k in fields}))
    return context.params


def _names(command: click.Command) -> List[str]:
    return [name for param in command.params for name in (*param.opts, *param.secondary_opts)]


def _check_known(name: str, own: Sequence[str], theirs: Sequence[str]) -> None:
    """Raise ConfigError for an option of the launcher's, or one that is written nearly so."""
    if not name.startswith("--") or name in theirs:
        return
    if name in own:
        raise ConfigError(f"{name} is an option of the launcher: write it before --")
    # the nearest one of both: a worker alone would know its own only
    meant = nearest(name, [*own, *theirs])
    if meant in own:
        raise ConfigError(f"unknown option {name!r}: did you mean {meant!r}?")
