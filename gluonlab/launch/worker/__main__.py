"""The command ``python -m gluonlab.launch.worker``, which trains as one process in a group."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Optional

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.cli.config_file import add_config_file_option
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import add_config_options, given_settings
from gluonlab.config.renamed_settings import RENAMED_OPTIONS
from gluonlab.errors import ConfigError, RunError, unknown
from gluonlab.host.signals import exit_on_signals
from gluonlab.launch.group_processes import (
    ARRIVED,
    BEGUN,
    COMMAND_VARIABLE,
    JOINED,
    LEFT,
    PREVIOUS_HOST_VARIABLE,
    report_status,
)


@command("python -m gluonlab.launch.worker", renamed=RENAMED_OPTIONS)
@add_config_options
@add_config_file_option
@click.option(
    "--backend",
    metavar="NAME",
    required=True,
    help="how processes reduce gradients: dist_sync or dist_device_sync (parameter servers sum the gradients of all "
    "workers), dist_async (parameter servers apply each gradient immediately) or horovod (allreduce)",
)
@click.option(
    "--resume",
    metavar="RUN_DIR",
    help="resume an interrupted run from its last checkpoint, which rank 0 reads; the numbers of "
    "processes and devices can be different",
)
@click.option(
    "--autoresume",
    is_flag=True,
    help="resume the run in --out if there is one; otherwise, start a new run. The run saves a checkpoint after each "
    "epoch, or at the interval of --checkpoint-every",
)
@add_json_option(where="rank 0's standard output")
@click.option("--quiet", is_flag=True, help="print only the summary")
def main(backend: str, resume: Optional[str], autoresume: bool, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Train as one process of a group, which a launcher has started with the same options.

    The launcher is gluonlab launch, MXNet's launch.py, mpirun, horovodrun or SageMaker's training
    image. The options are those of gluonlab run. Results are those of one process with all devices:
    --batch-size is per device, and --kvstore sums over the devices of each process.
    """
    # These imports load MXNet. They are here, so that --help is fast.
    from gluonlab.cli.print_results import make_reporter, print_result
    from gluonlab.launch.backends import BACKENDS
    from gluonlab.training.loop import train
    from gluonlab.training.reporter import Reporter
    from gluonlab.training.resume import read_resume_point, resumed_config

    config = TrainConfig(**given_settings(settings))
    if backend not in BACKENDS:
        raise ConfigError(unknown("--backend", backend, BACKENDS))
    report_status(ARRIVED)
    with exit_on_signals():  # joining may wait forever for other processes
        group = BACKENDS[backend]()
    with group:
        report_status(JOINED)
        group.on_training_start = partial(report_status, BEGUN)
        group.command = os.environ.get(COMMAND_VARIABLE, group.command)
        is_rank_0 = group.rank == 0
        reporter = make_reporter(quiet or as_json) if is_rank_0 else Reporter()
        try:
            if is_rank_0 and PREVIOUS_HOST_VARIABLE in os.environ:
                check_run_is_here(config.out, os.environ[PREVIOUS_HOST_VARIABLE])
            resume_point = None if resume is None else read_resume_point(resume, group)
            if resume_point is not None:
                config = resumed_config(resume_point, group, **given_settings(settings))
            result = train(config, reporter=reporter, group=group, resume=resume_point, autoresume=autoresume)
        finally:
            report_status(LEFT)
    if is_rank_0:
        print_result(result, as_json, quiet)


def check_run_is_here(out: Optional[str], ran_on: str) -> None:
    """Raise RunError if rank 0 has moved to this host, but the run's folder is not here.

    Args:
        out: the folder of the run (--out); None if the run has no folder
        ran_on: the host on which rank 0 ran before
    """
    from gluonlab.runs.run_writer import has_run

    if out is not None and not has_run(out):
        raise RunError(
            f"the files of the run in {out} are on another host, {ran_on}: start again when "
            f"{ran_on} is available, or set --out to a directory that all hosts share"
        )


if __name__ == "__main__":
    main()
