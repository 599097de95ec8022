"""Implements ``gluonlab run``, which trains a network.

The options for the settings of a run come from `gluonlab.config.TrainConfig`, and
`gluonlab.training.loop.train` executes the run. The other commands about runs are in
`gluonlab.cli.run_commands`. Their old forms, such as ``gluonlab run --resume DIR``, still work.
"""

from __future__ import annotations

from typing import Any, Optional

import click

from gluonlab.cli import run_commands
from gluonlab.cli.command import MovedOption, add_json_option, command
from gluonlab.cli.config_file import add_config_file_option, save_settings
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import add_config_options, given_settings
from gluonlab.config.renamed_settings import RENAMED_OPTIONS
from gluonlab.errors import ConfigError
from gluonlab.plain_text import format_columns, json_text

MOVED_OPTIONS = {
    "--evaluate": MovedOption(run_commands.evaluate.main, "gluonlab evaluate RUN_DIR", dropped=["--quiet"]),
    "--resume": MovedOption(run_commands.resume.main, "gluonlab resume RUN_DIR"),
    "--compare": MovedOption(run_commands.compare.main, "gluonlab compare N,N"),
    "--find-lr": MovedOption(
        run_commands.find_lr.main, "gluonlab find-lr --steps N", value_option="--steps", dropped=["--quiet"]
    ),
    "--find-batch-size": MovedOption(run_commands.find_batch_size.main, "gluonlab find-batch-size BYTES"),
    "--list": MovedOption(run_commands.list_names.main, "gluonlab list", has_value=False, dropped=["--quiet"]),
}
MOST_USED = """
    --gpus --devices --dataset --data-dir --model --batch-size --epochs --lr --kvstore --strategy
    --out --autoresume
"""


@command(
    "gluonlab run", interrupted="nothing was written", most_used=MOST_USED, renamed=RENAMED_OPTIONS, moved=MOVED_OPTIONS
)
@add_config_options
@add_config_file_option
@click.option("--save-config", metavar="FILE", help="save the settings to FILE for --config, and exit without training")
@click.option(
    "--autoresume",
    is_flag=True,
    help="resume the run in --out if there is one; otherwise, start a new run. The run saves a checkpoint after each "
    "epoch, or at the interval of --checkpoint-every",
)
@add_json_option()
@run_commands.add_quiet_option
def main(save_config: Optional[str], autoresume: bool, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Train a Gluon CNN on one or more devices.

    Without any options, the command trains LeNet on the built-in handwritten digits, on the first
    GPU or on the CPU. The recipe of the data set and the model provides the settings that you do
    not pass (see gluonlab list).
    """
    if settings["model"] == "gluoncv:?":
        click.echo(_format_gluoncv_names())
        return
    if save_config is not None and autoresume:
        raise ConfigError(f"--save-config {save_config} and --autoresume contradict each other: remove one of them")
    if save_config is not None:
        save_settings(save_config, given_settings(settings))
        if as_json:
            click.echo(json_text({"written_to": save_config}))
        elif not quiet:
            click.echo(f"written to {save_config}; use it with --config {save_config}")
        return
    config = TrainConfig(**given_settings(settings))
    run_commands.check_before_mxnet(config, may_contain_run=autoresume)
    from gluonlab.cli.print_results import make_reporter, print_result  # loads MXNet
    from gluonlab.training.loop import train

    result = train(config, reporter=make_reporter(quiet or as_json), autoresume=autoresume)
    print_result(result, as_json, quiet)


def _format_gluoncv_names() -> str:
    """Return the text that ``--model gluoncv:?`` prints: gluoncv's network names, in columns."""
    from gluonlab.models import gluoncv_zoo

    names = gluoncv_zoo.gluoncv_names()
    usage = f"{len(names)} models: train one with --model {gluoncv_zoo.PREFIX}NAME"
    return "\n".join([*format_columns(names), "", usage])


if __name__ == "__main__":
    main()
