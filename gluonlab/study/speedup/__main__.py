"""python -m gluonlab.study speedup: why several devices are not faster, and what would help."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Optional

import click

from gluonlab.cli.command import command, json_option
from gluonlab.cli.config_file import config_file
from gluonlab.config import TrainConfig
from gluonlab.config.train_config import config_options, given
from gluonlab.config.values import whole
from gluonlab.errors import ConfigError
from gluonlab.plain import json_text

FEWEST_ROUNDS = 5  # of which an interval says anything


@command(
    "python -m gluonlab.study speedup",
    interrupted="nothing was written",
    most_used="--gpus --dataset --model --batch-size --rounds --no-trial --predict --out --json",
)
@partial(config_options, without=("output",))
@config_file
@click.option(
    "--rounds",
    metavar="N",
    default="11",
    show_default=True,
    help=f"measurements of each part, at least {FEWEST_ROUNDS}",
)
@click.option("--no-trial", is_flag=True, help="only measure, and try no advice")
@click.option("--out", metavar="FILE", help="write a page with the picture, a new file")
@click.option("--language", metavar="NAME", help="language of the page, en or ja  [default: en]")
@click.option(
    "--predict",
    "machine",
    metavar="MACHINE",
    help="measure nothing: predict this training on p3.16xlarge or another machine, or on several, "
    'as p3.16xlarge*4, or on a file\'s, m.json, that says which "gpu" it has; table: published '
    "speeds beside their predictions",
)
@click.option(
    "--images",
    metavar="CxHxW",
    help="with --predict: the shape of an image, as 3x224x224  [default: the data set's]",
)
@json_option()
@click.option("--quiet", is_flag=True, help="say nothing before the verdict")
def main(
    rounds: str,
    no_trial: bool,
    out: Optional[str],
    language: Optional[str],
    machine: Optional[str],
    images: Optional[str],
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Say where a training's time goes on several devices, and what would make it faster.

    A step is measured part by part, by leaving parts out, and once more from a trace. What might
    help is tried beside the present settings before it is advised. The options are those of
    gluonlab.run that describe a training; what is learnt is thrown away.

    \b
    --gpus 2 --batch-size 16
    --gpus 2 --model resnet18 --dataset cifar10 --out verdict.html
    --predict p3.16xlarge --model resnet50 --images 3x224x224 --batch-size 64
    --predict table
    """
    count = whole(FEWEST_ROUNDS)("--rounds", rounds)
    if language is not None and out is None:
        raise ConfigError(
            "--language is for the page: give --out FILE.html for one, or leave it out"
        )
    if images is not None and machine is None:
        raise ConfigError("--images is for a prediction: give --predict MACHINE, or leave it out")
    config = TrainConfig(**given(settings))
    # MXNet is loaded here, not for --help
    if machine is not None:
        from gluonlab.study.speedup.predicted import answer

        if out is not None:
            raise ConfigError("--predict draws no page: leave --out out, or take --json")
        click.echo(answer(machine, config, images, as_json))
        return
    from gluonlab.study.speedup.page import write_page
    from gluonlab.study.speedup.text import as_text
    from gluonlab.study.speedup.verdict import judge
    from gluonlab.study.speedup.words import check_page

    check_page(out, language)

    def say(line: str) -> None:
        if not (quiet or as_json):
            click.echo(line, err=True)

    verdict = judge(config, rounds=count, say=say, try_advice=not no_trial)
    if out is not None:
        write_page(verdict, Path(out), language or "en")
    click.echo(json_text(verdict.to_dict()) if as_json else as_text(verdict))
    if out is not None and not as_json:
        click.echo(f"\nwritten to {out}: open it in a browser")


if __name__ == "__main__":
    main()
