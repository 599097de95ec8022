"""Implements the commands evaluate, resume, compare, find-lr, find-batch-size and list.

The options for the settings of a run come from `gluonlab.config.TrainConfig`. Each command has only
the options that it uses. MXNet is loaded only after the checks that do not need it, so that user
errors appear at once. The command ``gluonlab run`` is in `gluonlab.run`.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Collection, Dict, List, Mapping

import click

from gluonlab.cli.command import Command, add_json_option, command
from gluonlab.cli.config_file import add_config_file_option
from gluonlab.cli.output_streams import ignore_closed_reader
from gluonlab.config import TrainConfig, option_name
from gluonlab.config.command_line import add_config_options, given_settings
from gluonlab.config.option_checks import check_size_in_bytes, whole_number_check
from gluonlab.config.renamed_settings import RENAMED_OPTIONS, opposite_option
from gluonlab.errors import ConfigError
from gluonlab.plain_text import json_text, wrap_entry
from gluonlab.training.check_evaluation import EVAL_FIELDS, EVALUATION_OPTIONS, read_evaluated_run

FIELDS = [field.name for field in dataclasses.fields(TrainConfig)]
RUN_ONLY = dict.fromkeys(("--autoresume", "--save-config"), "works only with gluonlab run")
add_quiet_option = click.option("--quiet", is_flag=True, help="print only the summary")


def _command(
    name: str,
    without: Collection[str],
    reason: str,
    most_used: str,
    helps: Mapping[str, str] = MappingProxyType({}),
    from_run: Collection[str] = (),
) -> Callable[..., Command]:
    """Return a decorator like `command` that also adds options for the settings of a run.

    ``without``: the settings for which the command has no options; ``reason``: why it has none.
    ``helps``: help texts that differ from those of gluonlab run, by name of the setting.
    ``from_run``: the settings whose default is the value in the run.
    """
    options = [form for setting in without for form in (option_name(setting), opposite_option(option_name(setting)))]
    refused = {**dict.fromkeys(options, reason), **RUN_ONLY}
    make_command = command(
        name, interrupted="nothing was written", most_used=most_used, renamed=RENAMED_OPTIONS, refused=refused
    )
    return lambda function: make_command(
        add_config_options(add_config_file_option(function), without, helps, from_run=from_run)
    )


@_command(
    "gluonlab evaluate",
    [name for name in FIELDS if name not in EVALUATION_OPTIONS],
    "has no effect on an evaluation, which uses the run's setting",
    most_used="--gpus --devices --batch-size --data-dir --confusion --export --out --json",
    helps={"out": "directory for the files of --confusion and --export (default: RUN_DIR)"},
    from_run=EVAL_FIELDS,
)
@click.argument("run_dir", metavar="RUN_DIR")
@add_json_option()
def evaluate(run_dir: str, as_json: bool, **settings: Any) -> None:
    """Evaluate a finished run on its validation images.

    RUN_DIR is the directory of the run. The command evaluates the parameters of the last epoch, or
    of the best epoch if the run used --patience.
    """
    TrainConfig(**given_settings(settings))  # checks the settings before the run is read
    read_evaluated_run(Path(run_dir))
    from gluonlab.cli.print_results import print_evaluation
    from gluonlab.training.evaluate_run import evaluate_run

    print_evaluation(evaluate_run(run_dir, **given_settings(settings)), as_json)


@_command(
    "gluonlab resume",
    ["out"],
    "cannot change: a run resumes in its own directory",
    most_used="--gpus --devices --batch-size --strategy --kvstore --workers --checkpoint-every --json --quiet",
    helps={"batch_size": "number of images per device and step (default: the global batch size stays the same)"},
    from_run=FIELDS,
)
@click.argument("run_dir", metavar="RUN_DIR")
@add_json_option()
@add_quiet_option
def resume(run_dir: str, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Resume an interrupted run from its last checkpoint.

    RUN_DIR is the directory of the run. You can choose different devices and more
    --epochs. Other settings that affect the results, such as --lr, must stay the same.
    """
    TrainConfig(**given_settings(settings))  # checks the settings before the run is read
    _check_resumable(run_dir)
    from gluonlab.cli.print_results import make_reporter, print_result
    from gluonlab.training.loop import train
    from gluonlab.training.resume import read_resume_point, resumed_config

    resume_point = read_resume_point(run_dir)
    reporter = make_reporter(quiet or as_json)
    config = resumed_config(resume_point, **given_settings(settings))
    print_result(train(config, reporter=reporter, resume=resume_point), as_json, quiet)


def _check_resumable(folder: str) -> None:
    """Raise DataError if the folder does not contain a run."""
    from gluonlab.runs.run_reader import RUN_HINT, read_description
    from gluonlab.runs.run_schema import CHECKPOINTS

    if not (Path(folder) / CHECKPOINTS).is_dir():  # a checkpoint also contains the settings
        read_description(Path(folder), RUN_HINT)


@_command(
    "gluonlab compare",
    ["gpus", "devices", "require_gpu", "device_weights"],
    "has no effect: gluonlab compare chooses the devices",
    most_used="--dataset --data-dir --model --batch-size --epochs --lr --kvstore --strategy --out --json --quiet",
    helps={"out": "new directory for the table and the runs (default: a new directory in runs/)"},
)
@click.argument("counts", metavar="N,N")
@add_json_option()
@add_quiet_option
def compare(counts: str, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Train once for each number of GPUs, such as 1,2,4, and print a table.

    If the machine has no GPUs, the command uses CPU devices. All runs have the same
    --batch-size per device, or the same --global-batch-size.
    """
    device_counts = _parse_device_counts(counts)
    config = TrainConfig(**given_settings(settings))
    check_before_mxnet(config)
    from gluonlab.bench.harness.machine_info import OtherProcessLoad
    from gluonlab.cli.print_results import make_reporter
    from gluonlab.study.compare_device_counts import compare as compare_counts
    from gluonlab.study.compare_device_counts import comparison_table

    others = OtherProcessLoad()
    rows = compare_counts(config, device_counts, make_reporter(quiet or as_json))
    with ignore_closed_reader(sys.stdout):  # the results are also in the comparison's folder
        text = "\n" * (not quiet) + comparison_table(rows)
        click.echo(json_text([vars(row) for row in rows]) if as_json else text)
    others.warn_if_busy()


def _parse_device_counts(text: str) -> List[int]:
    """Convert numbers of devices such as ``1,2`` to a list such as [1, 2]. Raises ConfigError."""
    if not re.fullmatch(r"\s*[1-9]\d*(\s*,\s*[1-9]\d*)+\s*", text):
        raise ConfigError(f"{text} is not a list of device counts: use a list such as 1,2 or 1,2,4")
    counts = [int(count) for count in text.split(",")]
    if len(set(counts)) < len(counts):
        raise ConfigError(f"{text} contains a device count twice: use different counts, such as 1,2 or 1,2,4")
    return counts


# Settings that a learning-rate range test sets itself, or that describe output that it does not have.
RANGE_TEST_SETTINGS = [
    "lr", "epochs", "patience", "lr_schedule", "warmup_epochs", "lr_decay", "lr_decay_epochs", "final_lr",
    "profile", "export", "confusion", "tensorboard", "checkpoint_every", "keep_checkpoints", "estimate_memory",
]  # fmt: skip


@_command(
    "gluonlab find-lr",
    RANGE_TEST_SETTINGS,
    "has no effect on a learning-rate range test",
    most_used="--steps --gpus --devices --dataset --data-dir --model --batch-size --optimizer --momentum --out --json",
    helps={"out": "new directory for the plot and the measurements (default: a new directory in runs/)"},
)
@click.option("--steps", metavar="N", default="100", help="number of training steps, at least 20  [default: 100]")
@add_json_option()
def find_lr(steps: str, as_json: bool, **settings: Any) -> None:
    """Find a learning rate with a range test.

    The learning rate increases with every step until the loss diverges. The command writes a plot
    of the test to the directory --out.
    """
    config = TrainConfig(**given_settings(settings))
    count = whole_number_check(1)("--steps", steps)
    check_before_mxnet(config)
    from gluonlab.study import learning_rate_finder
    from gluonlab.study.study_report import wrap_for_terminal

    result = learning_rate_finder.find_learning_rate(config, count)
    path = learning_rate_finder.write_finder_result(result, config.out)
    lines = [*result.summary_lines(), f"written to {path}; see the plot {learning_rate_finder.PICTURE}"]
    click.echo(json_text(result.to_dict()) if as_json else wrap_for_terminal(lines))


@_command(
    "gluonlab find-batch-size",
    ["batch_size", "global_batch_size", "out"],
    "has no effect on the search for a batch size",
    most_used="--gpus --devices --dataset --data-dir --model --optimizer --microbatches --dtype --json --quiet",
)
@click.argument("memory_limit", metavar="BYTES")
@add_json_option()
@add_quiet_option
def find_batch_size(memory_limit: str, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Find the largest --batch-size for which training fits into BYTES of memory, such as 4G.

    For CPU devices, BYTES limits the memory of the process. For GPUs, BYTES limits the memory on
    each GPU, not counting CUDA's context.
    """
    budget = check_size_in_bytes("BYTES", memory_limit)
    config = TrainConfig(**given_settings(settings))
    check_before_mxnet(config)
    from gluonlab.study import largest_batch

    is_silent = quiet or as_json
    result = largest_batch.find_batch_size(
        config, budget, lambda line: None if is_silent else click.echo(line, err=True)
    )
    click.echo(json_text(result.to_dict()) if as_json else "\n".join(result.summary_lines()))


def check_before_mxnet(config: TrainConfig, may_contain_run: bool = False) -> None:
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


@command("gluonlab list")
@add_json_option("the names")
def list_names(as_json: bool) -> None:
    """List the models, data sets, kvstores, optimizers and recipes."""
    choices = _choices_by_kind()
    click.echo(json_text(choices) if as_json else _format_choices(choices))


def _choices_by_kind() -> Dict[str, Dict[str, str]]:
    """Return the names that options accept, as {kind: {name: summary}}."""
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
    """Return the text of ``gluonlab list``: the choices, and the recipes."""
    from gluonlab.training.recipes import format_recipes

    sections = {
        title: [line for name, summary in summaries.items() for line in wrap_entry(name, summary)]
        for title, summaries in choices.items()
    }
    sections["recipes"] = format_recipes()
    return "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items())


COMMANDS = {
    "evaluate": evaluate, "resume": resume, "compare": compare, "find-lr": find_lr,
    "find-batch-size": find_batch_size, "list": list_names,
}  # fmt: skip
