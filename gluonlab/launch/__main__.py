"""python -m gluonlab.launch --backend NAME: this process's part in training by many."""

from __future__ import annotations

from typing import Any

import click

from gluonlab.cli.command import command, json_option
from gluonlab.cli.results import print_result
from gluonlab.config import TrainConfig
from gluonlab.config.options import config_options, given
from gluonlab.errors import ConfigError, unknown


@command("python -m gluonlab.launch")
@config_options
@click.option(
    "--backend",
    metavar="NAME",
    required=True,
    help="how processes exchange gradients: parameter-server or horovod",
)
@json_option(where="rank 0's standard output")
@click.option("--quiet", is_flag=True, help="print the summary only")
def main(backend: str, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Train with many processes, which a launcher has started with the same options.

    The processes are on one host or on several; MXNet's launch.py, mpirun, horovodrun or
    SageMaker's training images start them. The options are those of python -m gluonlab.run.
    Batches, rates and results are those of one process with all devices: --batch-size is per
    device, --kvstore sums over the devices of each process.
    """
    # MXNet is loaded here, not for --help
    from gluonlab.launch.backends import BACKENDS
    from gluonlab.training.loop import train
    from gluonlab.training.reporter import ConsoleReporter, Reporter

    config = TrainConfig(**given(settings))
    if backend not in BACKENDS:
        raise ConfigError(unknown("--backend", backend, BACKENDS))
    with BACKENDS[backend]() as group:
        speaks = group.rank == 0
        reporter = ConsoleReporter() if speaks and not (quiet or as_json) else Reporter()
        result = train(group.place(config), reporter=reporter, group=group)
    if speaks:
        print_result(result, as_json, quiet)


if __name__ == "__main__":
    main()
