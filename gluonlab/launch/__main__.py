"""python -m gluonlab.launch --backend parameter-server: this process's part of a training run by
many.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import click

from gluonlab.cli.command import command
from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import ConfigError, unknown

TAKEN = (
    "gpus",
    "devices",
    "dataset",
    "data_dir",
    "model",
    "epochs",
    "batch_size",
    "global_batch_size",
    "optimizer",
    "lr",
    "momentum",
    "wd",
    "seed",
    "out",
)


def config_options(function: Callable[..., None]) -> Callable[..., None]:
    """An option for every field of TrainConfig that means something here."""
    fields = {field.name: field for field in dataclasses.fields(TrainConfig)}
    for name in reversed(TAKEN):
        about = fields[name].metadata
        function = click.option(
            option_name(name), name, metavar=about["metavar"], default=None, help=about["help"]
        )(function)
    return function


@command("python -m gluonlab.launch")
@click.option(
    "--backend",
    metavar="NAME",
    required=True,
    help="who carries the gradients: parameter-server or horovod",
)
@config_options
def main(backend: str, **settings: Any) -> None:
    """Train with many processes, on one host or on several, that somebody else has started with the
    same options.

    MXNet's launch.py, mpirun, horovodrun and SageMaker's training images do that. What is not given
    takes the value of the data set's recipe quick.
    """
    # MXNet is loaded here, not for --help
    from gluonlab.launch.hosts import BACKENDS, train_on_hosts

    if backend not in BACKENDS:
        raise ConfigError(unknown("--backend", backend, BACKENDS))
    config = TrainConfig(**{name: value for name, value in settings.items() if value is not None})
    train_on_hosts(config, BACKENDS[backend]())


if __name__ == "__main__":
    main()
