"""Checks of the launcher's arguments before any process starts, with one-line errors.

They cover the values of the launcher's own options, the options that are invalid if another
launcher starts the processes, and the options of the run behind ``--``.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import click
from click.core import ParameterSource

from gluonlab.config import TrainConfig
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_hints import nearest_option
from gluonlab.config.option_types import as_number
from gluonlab.errors import ConfigError
from gluonlab.launch.hosts import MAX_PROCESSES, Host
from gluonlab.launch.rank_environment import Membership

# options that a job file passes to each process, because rank 0 of the job launches the others
JOB_OPTIONS = ("servers", "restart", "min_workers", "patience", "port")
REMOTE_OPTIONS = ("env", "ssh", "python")  # options that only other hosts need
REFUSED_IN_JOBS = {
    "hosts": "the scheduler chooses the hosts: say how many processes with -n",
    "hostfile": "the scheduler chooses the hosts: say how many processes with -n",
    "env": "the scheduler passes variables on, as its own options say: leave it out",
    "ssh": "the scheduler starts the processes: leave it out",
    "python": "a job file has it as --job python=PATH",
}
DEFAULT_CHECKPOINT_PERIOD = "1 epoch"  # default interval of checkpoints
ASYNC_BACKEND = "dist_async"
# options of gluonlab.run that several processes do not support
SINGLE_PROCESS_OPTIONS = (
    "--compare", "--evaluate", "--find-batch-size", "--find-lr", "--list", "--save-config",
)  # fmt: skip


def parse_whole_number(name: str, text: str, most: int = MAX_PROCESSES, least: int = 1) -> int:
    """Parse a whole number. Raises ConfigError."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ConfigError(f"{name} {text}: give a whole number, {least} to {most}")
    return int(text)


def parse_number(name: str, text: str, unit: str, least: float, most: float) -> float:
    """Parse a number of seconds, or of another ``unit``. Raises ConfigError."""
    number = as_number(text)
    if not least <= number <= most:
        raise ConfigError(f"{name} {text}: give {unit}, {least:g} to {most:.0f}")
    return number


def split_command(name: str, text: str) -> List[str]:
    """Split a command into words like a shell. Raises ConfigError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name} {text}: {error}") from None
    if not words:
        raise ConfigError(f"{name} names no command: leave it out, or write one, such as ssh -p 22")
    return words


def given_options(context: click.Context, names: Optional[Iterable[str]] = None) -> List[str]:
    """Return the words of options that are given on the command line: of ``names``, or of all."""
    words: List[str] = []
    options = [option for option in context.command.params if isinstance(option, click.Option)]
    for option in options:
        name = option.name or ""
        is_given = context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if is_given and (names is None or name in names):
            value = context.params[name]
            for item in value if option.multiple else [value]:
                words += [option.opts[0], *([] if option.is_flag else [str(item)])]
    return words


def job_file_options(context: click.Context, kind: str) -> List[str]:
    """Return the launcher's options for a job file of this kind. Raises ConfigError."""
    for name, reason in REFUSED_IN_JOBS.items():
        for option in given_options(context, [name])[:1]:
            raise ConfigError(f"--print {kind} with {option}: {reason}")
    words = given_options(context, JOB_OPTIONS)
    if words and kind == "sagemaker":
        raise ConfigError(
            f"--print {kind} with {words[0]}: SageMaker's image starts and ends the processes "
            "itself: leave it out"
        )
    if kind == "k8s" and "--min-workers" in words:
        raise ConfigError(
            "--print k8s with --min-workers: Kubernetes ends all pods of a job when one is lost: "
            "leave it out"
        )
    return words


def check_not_in_group(context: click.Context, place: Optional[Membership]) -> None:
    """Raise ConfigError if each of several started processes would launch its own group."""
    if place is not None and place.size > 1 and place.rank is not None:
        [option, *_] = given_options(context, ["count", "hosts", "hostfile"])
        raise ConfigError(
            f"{option} starts a group, and {place.launcher} has started this process as one of "
            f"{place.size}, which are one: leave it out"
        )


def check_remote_options(
    context: click.Context, used: Sequence[Host], place: Optional[Membership]
) -> None:
    """Raise ConfigError for an option for other hosts if there are no other hosts."""
    if place is None and not all(host.is_local for host in used):
        return
    for name in REMOTE_OPTIONS:
        for option in given_options(context, [name])[:1]:
            reason = (
                REFUSED_IN_JOBS[name]
                if place is not None
                else "all processes are on this host: leave it out, or name others with --hosts"
            )
            raise ConfigError(f"{option} is for other hosts, and {reason}")


def check_member_options(context: click.Context, launcher: str) -> None:
    """Raise ConfigError for an option of the launching process, if ``launcher`` has started this
    one.
    """
    for option in given_options(context, [*JOB_OPTIONS, *REFUSED_IN_JOBS])[:1]:
        raise ConfigError(
            f"{option} says how to start and watch the processes of a group, and {launcher} has "
            "started this one, with its place in it: leave it out"
        )


def validate_run_arguments(
    backend: str,
    words: Tuple[str, ...],
    restarts: int,
    launcher: click.Command,
    worker: click.Command,
) -> Tuple[str, ...]:
    """Check a run's words, and add checkpoints if the run may be restarted.

    Args:
        backend: see --backend
        words: the words after ``--``
        restarts: largest number of restarts
        launcher: the command whose options stand before ``--``
        worker: the command whose options stand after ``--``

    Raises:
        ConfigError: as a worker would raise it for the words
    """
    options = _parse_run_options(backend, words, launcher, worker)
    if not restarts or options["resume"] is not None:
        return words
    if options["out"] is None:
        raise ConfigError(
            f"--restart {restarts} goes on with the run in --out, and there is none: add --out "
            "DIR, with --autoresume if a run is there already"
        )
    if backend == ASYNC_BACKEND or options["update_on_servers"]:
        reason = f"--backend {backend}" if backend == ASYNC_BACKEND else "--update-on-servers"
        raise ConfigError(
            f"--restart {restarts} goes on from checkpoints, and {reason} has none: the "
            "optimizer's states are on the servers, which do not give them away: leave one of "
            "them out"
        )
    if str(options["compress"]).strip().startswith("2bit"):
        raise ConfigError(
            f"--restart {restarts} goes on from checkpoints, and --compress {options['compress']} "
            "has none: what 2 bits have left over is in no checkpoint: leave one of them out"
        )
    has_checkpoints = options["checkpoint_every"] or options["autoresume"]
    return words if has_checkpoints else (*words, "--checkpoint-every", DEFAULT_CHECKPOINT_PERIOD)


def _parse_run_options(
    backend: str,
    words: Sequence[str],
    launcher: click.Command,
    worker: click.Command,
) -> Dict[str, Any]:
    """Return the options of the run by name."""
    launcher_options, run_options = _option_names(launcher), _option_names(worker)
    for word in words:
        name = word.partition("=")[0]
        if name == "--backend":
            raise ConfigError(f"--backend stands before --, and is {backend} there: leave it out")
        if name in SINGLE_PROCESS_OPTIONS:
            raise ConfigError(
                f"{name} is for one process: leave it out, or write it to python -m gluonlab.run"
            )
        _check_not_launcher_option(name, launcher_options, run_options)
    context = worker.make_context(worker.name, ["--backend", backend, *words])
    fields = TrainConfig.__dataclass_fields__
    TrainConfig(**given_settings({k: v for k, v in context.params.items() if k in fields}))
    return context.params


def _option_names(command: click.Command) -> List[str]:
    return [name for param in command.params for name in (*param.opts, *param.secondary_opts)]


def _check_not_launcher_option(
    name: str, launcher_options: Sequence[str], run_options: Sequence[str]
) -> None:
    """Raise ConfigError for an option of the launcher, or a misspelled one."""
    if not name.startswith("--") or name in run_options:
        return
    if name in launcher_options:
        raise ConfigError(f"{name} is an option of the launcher: write it before --")
    # Search the options of both: the worker itself knows only its own options.
    suggestion = nearest_option(name, [*launcher_options, *run_options])
    if suggestion in launcher_options:
        raise ConfigError(f"unknown option {name!r}: did you mean {suggestion!r}?")
