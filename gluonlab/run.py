"""The command gluonlab run: trains a network, or evaluates, resumes or compares runs.

`main` reads the options and starts one of these actions. The options for the settings of a run come
from `gluonlab.config.TrainConfig`, and `gluonlab.training.loop.train` executes the run. MXNet is
loaded only after the checks that do not need it, so that user errors appear at once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.cli.config_file import add_config_file_option, save_settings
from gluonlab.cli.output_streams import ignore_closed_reader
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import add_config_options, given_settings
from gluonlab.config.option_checks import check_size_in_bytes, whole_number_check
from gluonlab.config.renamed_settings import RENAMED_OPTIONS
from gluonlab.errors import ConfigError, DataError
from gluonlab.plain_text import format_columns, json_text, wrap_entry


def _parse_device_counts(text: str) -> List[int]:
    """Return the numbers of devices of --compare, such as [1, 2] for ``1,2``. Raises ConfigError."""
    if not re.fullmatch(r"\s*[1-9]\d*(\s*,\s*[1-9]\d*)+\s*", text):
        raise ConfigError(f"--compare {text}: give numbers of devices such as 1,2 or 1,2,4")
    counts = [int(count) for count in text.split(",")]
    if len(set(counts)) < len(counts):
        raise ConfigError(f"--compare {text}: give each number of devices once, such as 1,2 or 1,2,4")
    return counts


MOST_USED = """
    --gpus --devices --dataset --data-dir --model --batch-size --epochs --lr --kvstore
    --out --resume --compare --list
"""


@command("gluonlab run", interrupted="nothing was written", most_used=MOST_USED, renamed=RENAMED_OPTIONS)
@add_config_options
@add_config_file_option
@click.option("--save-config", metavar="FILE", help="write these settings to a new file that --config reads, and end")
@click.option("--compare", metavar="N,N", help="train with each number of GPUs, and print a table")
@click.option("--evaluate", metavar="RUN_DIR", help="evaluate a finished run on its test images, instead of training")
@click.option(
    "--resume",
    metavar="RUN_DIR",
    help="go on with an interrupted run from its last checkpoint, on these devices or others",
)
@click.option(
    "--autoresume",
    is_flag=True,
    help="begin a run in --out, or go on with the one there; without --checkpoint-every, a checkpoint after each epoch",
)
@click.option(
    "--find-batch-size",
    metavar="BYTES",
    help="instead of training, find the largest --batch-size that takes at most this memory: "
    "the process's, or each GPU's without CUDA's context",
)
@click.option(
    "--find-lr",
    metavar="STEPS",
    help="instead of training, find a learning rate, in so many steps, such as 100; --out gets the picture",
)
@add_json_option()
@click.option("--quiet", is_flag=True, help="print the summary only")
@click.option("--list", "list_names", is_flag=True, help="list networks, data sets, kvstores, recipes, ...")
def main(
    save_config: Optional[str],
    compare: Optional[str],
    evaluate: Optional[str],
    resume: Optional[str],
    autoresume: bool,
    find_batch_size: Optional[str],
    find_lr: Optional[str],
    as_json: bool,
    quiet: bool,
    list_names: bool,
    **settings: Any,
) -> None:
    """Train a Gluon CNN on several devices.

    Without options: LeNet on the built-in handwritten digits, on the first GPU or on the CPU.
    What is not given takes the value of the recipe, which goes by data set and network: see --list.
    """
    if list_names and save_config is not None:
        raise ConfigError(f"--list and --save-config {save_config} contradict each other: give one")
    if list_names:
        choices = _choices_by_kind()
        click.echo(json_text(choices) if as_json else _format_choices(choices))
        return
    if settings["model"] == "gluoncv:?":
        click.echo(_format_gluoncv_names())
        return
    exclusive = {
        "--evaluate": evaluate, "--resume": resume, "--find-batch-size": find_batch_size,
        "--compare": compare, "--find-lr": find_lr, "--save-config": save_config,
    }  # fmt: skip
    given_options = [f"{option} {value}" for option, value in exclusive.items() if value is not None]
    given_options += ["--autoresume"] * autoresume
    if len(given_options) > 1:
        raise ConfigError(f"{given_options[0]} and {given_options[1]} contradict each other: give one of them")
    if save_config is not None:
        save_settings(save_config, given_settings(settings))
        if as_json:
            click.echo(json_text({"written_to": save_config}))
        elif not quiet:
            click.echo(f"written to {save_config}: --config {save_config} reads it")
    elif evaluate is not None:
        from gluonlab.training.check_evaluation import check_evaluation_options, read_evaluated_run

        check_evaluation_options(given_settings(settings))
        read_evaluated_run(Path(evaluate))
        from gluonlab.cli.print_results import print_evaluation
        from gluonlab.training.evaluate_run import evaluate_run

        print_evaluation(evaluate_run(evaluate, **given_settings(settings)), as_json)
    elif resume is not None:
        _resume(resume, given_settings(settings), as_json, quiet)
    elif find_batch_size is not None:
        size = check_size_in_bytes("--find-batch-size", find_batch_size)
        _find_batch_size(TrainConfig(**given_settings(settings)), size, as_json, quiet)
    elif find_lr is not None:
        _find_lr(TrainConfig(**given_settings(settings)), find_lr, as_json)
    else:
        counts = _parse_device_counts(compare) if compare is not None else None
        _train(TrainConfig(**given_settings(settings)), counts, as_json, quiet, autoresume)


def _check_before_mxnet(config: TrainConfig, may_contain_run: bool = False) -> None:
    """Check the run's folder and the names in the config. Raises a UsageError.

    These checks do not load MXNet, so errors appear at once. The run repeats the checks.
    ``may_contain_run``: True if the folder may already contain a run.
    """
    from gluonlab.data.sets.dataset_registry import check_dataset
    from gluonlab.kvstores import check_kvstore, check_topology
    from gluonlab.runs.run_writer import RunDirectory

    RunDirectory.check(config.out, empty=not may_contain_run)
    check_dataset(config.dataset)
    check_kvstore(config.kvstore)
    check_topology(config.topology, config.kvstore)


def _check_resumable(folder: str) -> None:
    """Raise DataError if the folder does not contain a run."""
    from gluonlab.runs.run_reader import RUN_HINT, read_description
    from gluonlab.runs.run_schema import CHECKPOINTS

    if (Path(folder) / CHECKPOINTS).is_dir():
        return  # a checkpoint also contains the settings
    try:
        read_description(Path(folder), RUN_HINT)
    except DataError as error:
        raise DataError(f"--resume {error}") from None


def _train(config: TrainConfig, counts: Optional[List[int]], as_json: bool, quiet: bool, autoresume: bool) -> None:
    """Train and print the result; with ``counts``, train with each number of devices."""
    _check_before_mxnet(config, may_contain_run=autoresume)
    from gluonlab.cli.print_results import make_reporter, print_result  # loads MXNet
    from gluonlab.training.loop import train

    reporter = make_reporter(quiet or as_json)
    if counts is None:
        print_result(train(config, reporter=reporter, autoresume=autoresume), as_json, quiet)
        return
    from gluonlab.study.compare_device_counts import compare, comparison_table

    rows = compare(config, counts, reporter)
    with ignore_closed_reader(sys.stdout):  # the results are also in the comparison's folder
        text = "\n" * (not quiet) + comparison_table(rows)
        click.echo(json_text([vars(row) for row in rows]) if as_json else text)


def _resume(folder: str, settings: Dict[str, Any], as_json: bool, quiet: bool) -> None:
    """Resume the run in the folder with ``settings`` that replace the recorded ones, and print its result."""
    _check_resumable(folder)
    from gluonlab.cli.print_results import make_reporter, print_result
    from gluonlab.training.loop import train
    from gluonlab.training.resume import read_resume_point, resumed_config

    resume_point = read_resume_point(folder)
    reporter = make_reporter(quiet or as_json)
    result = train(resumed_config(resume_point, **settings), reporter=reporter, resume=resume_point)
    print_result(result, as_json, quiet)


def _find_batch_size(config: TrainConfig, budget_bytes: int, as_json: bool, quiet: bool) -> None:
    """Find and print the largest batch size that needs at most this memory."""
    _check_before_mxnet(config.replace(out=None))  # finding a batch size writes no run folder
    from gluonlab.study.largest_batch import find_batch_size

    is_silent = quiet or as_json
    result = find_batch_size(config, budget_bytes, lambda line: None if is_silent else click.echo(line, err=True))
    click.echo(json_text(result.to_dict()) if as_json else "\n".join(result.summary_lines()))


def _find_lr(config: TrainConfig, steps: str, as_json: bool) -> None:
    """Find and print a learning rate in ``steps`` steps, and write a picture of the search."""
    count = whole_number_check(1)("--find-lr", steps)
    _check_before_mxnet(config)
    from gluonlab.study import learning_rate_finder
    from gluonlab.study.study_report import wrap_for_terminal

    result = learning_rate_finder.find_learning_rate(config, count)
    path = learning_rate_finder.write_finder_result(result, config.out)
    lines = [*result.summary_lines(), f"written to {path}: {learning_rate_finder.PICTURE} shows it"]
    click.echo(json_text(result.to_dict()) if as_json else wrap_for_terminal(lines))


def _choices_by_kind() -> Dict[str, Dict[str, str]]:
    """Return the summaries of the names that options accept, by kind: ``networks`` and others."""
    from gluonlab.data.sets.dataset_registry import DATASETS
    from gluonlab.kvstores import KVSTORES
    from gluonlab.models import MODELS, gluoncv_zoo
    from gluonlab.optimizers import OPTIMIZERS

    registries: Dict[str, Mapping[str, Any]] = {
        "networks": MODELS, "data sets": DATASETS, "kvstores": KVSTORES, "optimizers": OPTIMIZERS
    }  # fmt: skip
    choices = {title: {name: kind.summary for name, kind in kinds.items()} for title, kinds in registries.items()}
    choices["networks"][f"{gluoncv_zoo.PREFIX}NAME"] = gluoncv_zoo.SUMMARY
    return choices


def _format_choices(choices: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of --list: the choices, and the recipes."""
    from gluonlab.training.recipes import format_recipes

    sections = {
        title: [line for name, summary in summaries.items() for line in wrap_entry(name, summary)]
        for title, summaries in choices.items()
    }
    sections["recipes"] = format_recipes()
    return "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items())


def _format_gluoncv_names() -> str:
    """Return the text of --model gluoncv:?, the names of gluoncv's networks in columns."""
    from gluonlab.models import gluoncv_zoo

    names = gluoncv_zoo.gluoncv_names()
    usage = f"{len(names)} networks: --model {gluoncv_zoo.PREFIX}NAME trains one of them"
    return "\n".join([*format_columns(names), "", usage])


if __name__ == "__main__":
    main()
