"""Commands of ``gluonlab study NAME``. Each command answers a question with many training runs."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import click

from gluonlab.bench.harness.measurement_command import Option, option
from gluonlab.bench.scaling import MODELS
from gluonlab.bench.splits import TASKS
from gluonlab.cli.command import add_json_option, command, run_subcommand
from gluonlab.cli.config_file import add_config_file_option
from gluonlab.cli.old_names import translate_values
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import add_config_options, given_settings
from gluonlab.config.option_checks import whole_number_check
from gluonlab.config.renamed_settings import RENAMED_KVSTORES, RENAMED_OPTIONS
from gluonlab.drawing.translations import select_language
from gluonlab.errors import ConfigError, RunError
from gluonlab.plain_text import json_text
from gluonlab.study import batch_size, learning_rate_scaling, parallel_strategies, scaling
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
    click.option("--quick", is_flag=True, help="use a small preset, which takes at most 2 minutes on two cores"),
    option(
        "--out",
        "DIR",
        "new directory for the study, or the directory of a study to resume  [default: a new directory in runs/]",
    ),
    option("--resume", "DIR", "resume the study in DIR with the options of that study"),
    option("--language", "NAME", "language of the figures and the page, en or ja", "en"),
    click.option("--json", "as_json", is_flag=True, help="print only JSON on standard output"),
)


def _study_command(
    study: Study, most_used: str, renamed: Mapping[str, str], help: str, *own_options: Option
) -> click.Command:
    """Return the command of a study, with ``own_options`` and SHARED_OPTIONS.

    If --resume is set, the study uses the options that its folder contains. ``renamed``: old names
    of options.
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
            kvstores = option_values.get("kvstores")
            if kvstores is not None:
                option_values["kvstores"] = translate_values("--kvstores", kvstores, RENAMED_KVSTORES)
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
    return command(name, INTERRUPTED, most_used=most_used, renamed=renamed)(decorated)


def _check_resume_alone(other_options: Mapping[str, Any], resume: str) -> None:
    for name, value in other_options.items():
        if value is not None:
            raise ConfigError(f"--resume {resume} uses the options that are stored in this directory: omit {name}")


def _run_study(study: Study, options: Any, out: Optional[str], language: str, as_json: bool) -> None:
    """Make the study's missing measurements, write all of its files, and print the findings."""
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
    last_line = f"written to {folder.path}: {PAGE} contains all figures"
    print_findings(findings, [*report.sentences, "", last_line])


@command(
    "gluonlab study speedup",
    interrupted="nothing was written",
    most_used="--gpus --dataset --model --batch-size --rounds --no-tune --predict --out-file --json",
    renamed={"--no-trial": "--no-tune", "--out": "--out-file", **RENAMED_OPTIONS},
)
@partial(add_config_options, without_group="output")
@add_config_file_option
@click.option(
    "--rounds",
    metavar="N",
    default="11",
    show_default=True,
    help=f"number of measurements of each part of a step, at least {MIN_ROUNDS}",
)
@click.option("--no-tune", is_flag=True, help="only measure, and do not try other settings")
@click.option("--out-file", metavar="FILE", help="write an HTML page with figures to a new file")
@click.option("--language", metavar="NAME", help="language of the page, en or ja  [default: en]")
@click.option(
    "--predict",
    "machine",
    metavar="MACHINE",
    help=(
        "predict the throughput on MACHINE instead of measuring it; MACHINE is a name such as p3.16xlarge or "
        'p3.16xlarge*4, a topology file with the key "gpu", or table, which prints published results and predictions'
    ),
)
@click.option(
    "--images",
    metavar="CxHxW",
    help="with --predict: shape of an image, such as 3x224x224  [default: the shape in the data set]",
)
@add_json_option()
@click.option("--quiet", is_flag=True, help="do not print progress")
def speedup_command(
    rounds: str,
    no_tune: bool,
    out_file: Optional[str],
    language: Optional[str],
    machine: Optional[str],
    images: Optional[str],
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Measure where multi-GPU training spends its time, and try faster settings.

    The command measures each part of a training step twice: by omitting this part, and from a
    trace. It recommends a setting only if the setting was faster in a trial. The options that
    describe the training are the same as in gluonlab run. The trained model is not saved.

    \b
    gluonlab study speedup --gpus 2 --batch-size 16
    gluonlab study speedup --gpus 2 --model resnet18 --dataset cifar10 --out-file speedup.html
    gluonlab study speedup --predict p3.16xlarge --model resnet50 --images 3x224x224
    gluonlab study speedup --predict table
    """
    count = whole_number_check(MIN_ROUNDS)("--rounds", rounds)
    if language is not None and out_file is None:
        raise ConfigError("--language applies only to HTML pages: add --out-file FILE.html, or omit --language")
    if images is not None and machine is None:
        raise ConfigError("--images only applies to predictions: add --predict MACHINE, or omit --images")
    config = TrainConfig(**given_settings(settings))
    # MXNet is loaded here, not for --help
    if machine is not None:
        from gluonlab.study.speedup.predict_step import prediction_text

        if out_file is not None:
            raise ConfigError("--predict does not write a page: omit --out-file, or use --json")
        click.echo(prediction_text(machine, config, images, as_json))
        return
    from gluonlab.study.speedup.diagnosis import diagnose
    from gluonlab.study.speedup.diagnosis_report import as_text, check_page_options, write_page

    check_page_options(out_file, language)

    def print_progress(line: str) -> None:
        if not (quiet or as_json):
            click.echo(line, err=True)

    diagnosis = diagnose(config, rounds=count, say=print_progress, try_advice=not no_tune)
    if out_file is not None:
        write_page(diagnosis, Path(out_file), language or "en")
    click.echo(json_text(diagnosis.to_dict()) if as_json else as_text(diagnosis))
    if out_file is not None and not as_json:
        click.echo(f"\nwritten to {out_file}: open it in a browser")


COMMANDS: Dict[str, click.Command] = {
    "speedup": speedup_command,
    "batch-size": _study_command(
        batch_size.STUDY,
        "--panels --batch-sizes --target --quick --out --resume --json",
        {"--sizes": "--batch-sizes"},
        """Measure how many steps, epochs and seconds each batch size needs to reach a target accuracy.

        The study tunes the learning rate for each batch size. It finds the batch
        sizes with perfect scaling, diminishing returns and stagnation, and compares errors after
        equal numbers of steps and of epochs. The study writes figures, a page and all measurements to its
        directory.
        """,
        option("--panels", "NAMES",
               f"data sets, separated by commas: {', '.join(batch_size.PANELS)}  [default: the downloaded "
               "data sets, or digits if there are none; with --quick: digits]"),
        option("--batch-sizes", "N,N",
               "global batch sizes to measure (images on all devices together)  [default: 1 to 1,024 for digits]"),
        option("--target", "FRACTION",
               "target accuracy on the validation images  [default: 0.93 for digits]"),
        option("--seeds", "N", "number of training runs per batch size  [default: 7; with --quick: 4]"),
        option("--gpus", "N", "use N GPUs, or N CPU devices if there are no GPUs"),
    ),
    "learning-rate": _study_command(
        learning_rate_scaling.STUDY,
        "--device-counts --batch-size --epochs --quick --out --resume --json",
        {"--devices": "--device-counts"},
        """Measure how the accuracy depends on the learning rate, for several numbers of devices.

        The batch size per device is constant, so the batch of k devices is k times as large. The
        learning rate is constant or follows the linear scaling rule, with and without warm-up and
        momentum correction. The study writes figures, a page and all measurements to its
        directory.
        """,
        option("--device-counts", "N,N",
               "numbers of GPUs to compare; if the machine has no GPUs, numbers of CPU devices  [default: 1,2,4]"),
        option("--batch-size", "N", "number of images per device and step  [default: 32]"),
        option("--epochs", "N", "number of epochs in each training run  [default: 3]"),
        option("--seeds", "N", "number of training runs per learning rate  [default: 5; with --quick: 2]"),
    ),
    "scaling": _study_command(
        scaling.STUDY,
        "--model --device-counts --kvstores --strategies --quick --out --resume --json",
        {"--network": "--model", "--devices": "--device-counts", "--stores": "--kvstores",
         "--splits": "--strategies"},
        """Measure strong scaling, weak scaling and start times of kvstores and parallel strategies.

        Each round starts new processes. The study saves each round immediately, and writes figures and a
        page to its directory.
        """,
        option("--model", "NAME", f"model to measure: {', '.join(MODELS)}  [default: lenet]"),
        option("--device-counts", "N,N",
               "numbers of CPU devices to compare with one CPU device  [default: 2,4; with --quick: 2]"),
        option("--kvstores", "NAMES", "kvstores, separated by commas (see gluonlab list)  "
               "[default: device,local,ring; with --quick: device]"),
        option("--strategies", "NAMES", "parallel strategies, separated by commas: "
               f"{', '.join(scaling.STRATEGIES)}, or none  [default: {scaling.DEFAULT_SPLITS}; "
               f"with --quick: {scaling.QUICK_SPLITS}]"),
        option("--rounds", "N", "number of measurements for each table row  [default: 7; with --quick: 5]"),
    ),
    "strategies": _study_command(
        parallel_strategies.STUDY,
        "--model --num-devices --microbatches --rounds --quick --out --resume --json",
        {"--network": "--model", "--devices": "--num-devices"},
        """Measure the step time, traffic and memory of every parallel strategy on one model.

        The measurement is the same as in gluonlab bench strategies. The study saves each round
        immediately, and writes figures and a page.
        """,
        option("--model", "NAME",
               f"model to measure: {', '.join(TASKS)}  [default: resnet18; with --quick: lenet]"),
        option("--num-devices", "N",
               f"number of CPU devices, from 2 to {parallel_strategies.MAX_DEVICES}  [default: 2]"),
        option("--microbatches", "N", "number of microbatches per batch in pipelines  [default: 8]"),
        option("--rounds", "N", "number of measurements for each table row  [default: 9; with --quick: 5]"),
    ),
}  # fmt: skip
RENAMED = {"splits": "strategies"}  # old names of commands
SUMMARIES = {
    "speedup": "find out why several devices are not faster, and what helps",
    "batch-size": "measure steps, epochs and seconds to a target accuracy",
    "learning-rate": "measure accuracy against learning rate, on 1, 2 and 4 devices",
    "scaling": "measure strong and weak scaling of kvstores and strategies",
    "strategies": "measure every parallel strategy on one model",
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the study named by the first argument, with the remaining arguments."""
    commands = {name: (SUMMARIES[name], command) for name, command in COMMANDS.items()}
    run_subcommand("gluonlab study", commands, sys.argv[1:] if args is None else args, RENAMED)


if __name__ == "__main__":
    main()
