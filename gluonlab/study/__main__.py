"""Commands of ``gluonlab study NAME``. Each answers a question by many trainings."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import click

from gluonlab.bench.harness.measurement_command import Option, option
from gluonlab.bench.scaling import NETWORKS
from gluonlab.bench.splits import TASKS
from gluonlab.cli.command import add_json_option, command, run_subcommand
from gluonlab.cli.config_file import add_config_file_option
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import add_config_options, given_settings
from gluonlab.config.option_checks import whole_number_check
from gluonlab.drawing.translations import select_language
from gluonlab.errors import ConfigError, RunError
from gluonlab.plain_text import json_text
from gluonlab.study import batch_size, learning_rate_scaling, scaling, splits
from gluonlab.study.study_report import (
    LANGUAGES,
    PAGE,
    Findings,
    Study,
    to_plain_values,
    wrap_for_terminal,
    write_report,
)
from gluonlab.study.sweep import load_study_options, open_study

INTERRUPTED = "nothing was measured"  # message if interrupted before the first measurement
MIN_ROUNDS = 5  # rounds of ``study speedup``; intervals from fewer rounds are not reliable
SHARED_OPTIONS: Tuple[Option, ...] = (
    click.option("--quick", is_flag=True, help="less of everything: at most 2 minutes on two cores"),
    option("--out", "DIR", "folder of the study, a new one or one that goes on (default: a new one below runs/)"),
    option("--resume", "DIR", "go on with the study there, with its own options"),
    option("--language", "NAME", "of figures and page, en or ja", "en"),
    click.option(
        "--json", "as_json", is_flag=True, help="print the result as JSON, and nothing else, on standard output"
    ),
)


def _study_command(study: Study, most_used: str, help: str, *own_options: Option) -> click.Command:
    """Return the command of a study, with ``own_options`` and SHARED_OPTIONS.

    With --resume, the study uses the options in its folder.
    """

    def run(
        out: Optional[str],
        resume: Optional[str],
        language: str,
        quick: bool,
        as_json: bool,
        **option_values: Optional[str],
    ) -> None:
        select_language(dict.fromkeys(LANGUAGES), language)
        if resume is None:
            options = study.parse_options(quick, **option_values)
        else:
            named = {f"--{name.replace('_', '-')}": value for name, value in option_values.items()}
            _check_resume_alone({"--out": out, "--quick": quick or None, **named}, resume)
            options, out = load_study_options(Path(resume), study.name, study.load_options), resume
        _run_study(study, options, out, language, as_json)

    decorated: Callable[..., None] = run
    for add_option in reversed([*SHARED_OPTIONS, *own_options]):
        decorated = add_option(decorated)
    decorated.__doc__ = help
    name = f"gluonlab study {study.name}"
    return command(name, INTERRUPTED, most_used=most_used)(decorated)


def _check_resume_alone(other_options: Mapping[str, Any], resume: str) -> None:
    for name, value in other_options.items():
        if value is not None:
            raise ConfigError(f"--resume {resume} goes on with the options there: leave {name} out")


def _run_study(study: Study, options: Any, out: Optional[str], language: str, as_json: bool) -> None:
    """Make the study's missing measurements, write all its files, and print the findings."""
    plain_options = to_plain_values(options)
    with open_study(study.name, plain_options, out) as folder:
        findings = study.measure(options, folder.store)
        folder.write_result({"study": study.name, "options": plain_options, **findings.values})
        report = findings.report(language)
        write_report(folder, report)

        def print_findings(findings: Findings, sentences: Sequence[str]) -> None:
            head = {"study": study.name, "path": str(folder.path)}
            text = json_text({**head, **findings.values, "said": sentences})
            click.echo(text if as_json else wrap_for_terminal(sentences))

        if findings.failure:
            if findings.partial is not None:  # print the answers of the panels that have one
                print_findings(findings.partial, [*findings.partial.report(language).sentences, ""])
            raise RunError(findings.failure)
    last_line = f"written to {folder.path}: {PAGE} holds all figures"
    print_findings(findings, [*report.sentences, "", last_line])


@command(
    "gluonlab study speedup",
    interrupted="nothing was written",
    most_used="--gpus --dataset --model --batch-size --rounds --no-trial --predict --out --json",
)
@partial(add_config_options, without=("output",))
@add_config_file_option
@click.option(
    "--rounds", metavar="N", default="11", show_default=True, help=f"measurements of each part, at least {MIN_ROUNDS}"
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
    "--images", metavar="CxHxW", help="with --predict: the shape of an image, as 3x224x224  [default: the data set's]"
)
@add_json_option()
@click.option("--quiet", is_flag=True, help="say nothing before the verdict")
def speedup_command(
    rounds: str,
    no_trial: bool,
    out: Optional[str],
    language: Optional[str],
    machine: Optional[str],
    images: Optional[str],
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
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
    count = whole_number_check(MIN_ROUNDS)("--rounds", rounds)
    if language is not None and out is None:
        raise ConfigError("--language is for the page: give --out FILE.html for one, or leave it out")
    if images is not None and machine is None:
        raise ConfigError("--images is for a prediction: give --predict MACHINE, or leave it out")
    config = TrainConfig(**given_settings(settings))
    # MXNet is loaded here, not for --help
    if machine is not None:
        from gluonlab.study.speedup.predict_step import prediction_text

        if out is not None:
            raise ConfigError("--predict draws no page: leave --out out, or take --json")
        click.echo(prediction_text(machine, config, images, as_json))
        return
    from gluonlab.study.speedup.diagnosis import diagnose
    from gluonlab.study.speedup.diagnosis_report import as_text, check_page_options, write_page

    check_page_options(out, language)

    def print_progress(line: str) -> None:
        if not (quiet or as_json):
            click.echo(line, err=True)

    diagnosis = diagnose(config, rounds=count, say=print_progress, try_advice=not no_trial)
    if out is not None:
        write_page(diagnosis, Path(out), language or "en")
    click.echo(json_text(diagnosis.to_dict()) if as_json else as_text(diagnosis))
    if out is not None and not as_json:
        click.echo(f"\nwritten to {out}: open it in a browser")


COMMANDS: Dict[str, click.Command] = {
    "speedup": speedup_command,
    "batch-size": _study_command(
        batch_size.STUDY,
        "--panels --sizes --target --quick --out --resume --json",
        """Measure how many steps, epochs and seconds a target takes with each batch size.

        The learning rate is tuned at each. Marks the three regimes, and compares errors at
        equal steps and at equal epochs. Figures, a page and all measurements are in the study's
        folder.
        """,
        option("--panels", "NAMES", f"some of {', '.join(batch_size.PANELS)}  "
               "[default: those whose data are here; with --quick: digits]"),
        option("--sizes", "N,N",
               "batch sizes, over all devices  [default: 1 to 1,024 for the digits]"),
        option("--target", "SHARE",
               "of the test images that is to be right  [default: 0.93 for digits]"),
        option("--seeds", "N", "trainings of each batch size  [default: 7; with --quick: 4]"),
        option("--gpus", "N", "use N GPUs; without any, N CPU devices stand in"),
    ),
    "learning-rate": _study_command(
        learning_rate_scaling.STUDY,
        "--devices --batch-size --epochs --quick --out --resume --json",
        """Measure accuracy against the learning rate for several numbers of devices.

        Each device has as many images, so that k devices make batches k times as large. The
        rate stays, or follows the linear rule, with and without warm-up and momentum
        correction. Figures, a page and all measurements are in the study's folder.
        """,
        option("--devices", "N,N",
               "numbers of GPUs, or of CPU devices that stand in  [default: 1,2,4]"),
        option("--batch-size", "N", "images per device and step  [default: 32]"),
        option("--epochs", "N", "of each training  [default: 3]"),
        option("--seeds", "N", "trainings with each rate  [default: 5; with --quick: 2]"),
    ),
    "scaling": _study_command(
        scaling.STUDY,
        "--network --devices --stores --splits --quick --out --resume --json",
        """Measure strong and weak scaling over devices, stores and splits, and the time to
        start.

        It is the measurement of bench scaling, each round with processes of its own and kept at
        once, and figures and a page.
        """,
        option("--network", "NAME", f"one of {', '.join(NETWORKS)}  [default: lenet]"),
        option("--devices", "N,N",
               "numbers of CPU devices, beside 1  [default: 2,4; with --quick: 2]"),
        option("--stores", "NAMES", "kvstores (see gluonlab.run --list)  "
               "[default: device,local,ring; with --quick: device]"),
        option("--splits", "NAMES", "ways to split the network: some of "
               f"{', '.join(scaling.SPLITS)}, or none  [default: {scaling.DEFAULT_SPLITS}; "
               f"with --quick: {scaling.QUICK_SPLITS}]"),
        option("--rounds", "N", "measurements of each  [default: 7; with --quick: 5]"),
    ),
    "splits": _study_command(
        splits.STUDY,
        "",
        """Measure one network under every split: time, bytes and memory.

        It is the measurement of bench splits, with each round kept, and figures and a page.
        """,
        option("--network", "NAME",
               f"one of {', '.join(TASKS)}  [default: resnet18; with --quick: lenet]"),
        option("--devices", "N",
               f"CPU devices that share it, 2 to {splits.MAX_DEVICES}  [default: 2]"),
        option("--microbatches", "N", "parts of a pipeline's batch  [default: 8]"),
        option("--rounds", "N", "measurements of each split  [default: 9; with --quick: 5]"),
    ),
}  # fmt: skip
SUMMARIES = {
    "speedup": "why several devices are not faster, and what would help",
    "batch-size": "steps, epochs and seconds to a target",
    "learning-rate": "accuracy against the rate, on 1, 2 and 4 devices",
    "scaling": "strong and weak, by devices and stores",
    "splits": "one network under every split",
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the study that the first argument names with the remaining arguments."""
    commands = {name: (SUMMARIES[name], command) for name, command in COMMANDS.items()}
    run_subcommand("gluonlab study", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
