"""Parses and checks the launcher's arguments before any process starts.

All errors are one-line ConfigErrors. The module checks:

- the values of the launcher's own options
- options that are invalid because a scheduler or another launcher starts the processes
- the options of the run after ``--``
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import click
from click.core import ParameterSource

from gluonlab.config import TrainConfig
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_checks import as_number
from gluonlab.config.option_hints import nearest_option
from gluonlab.engine.parameter_server_role import explain_missing_parameter_server, has_parameter_server
from gluonlab.errors import ConfigError
from gluonlab.launch.hosts import MAX_PROCESSES, Host
from gluonlab.launch.process_membership import Membership
from gluonlab.runs.run_schema import CONFIG

# Options that a job file passes to each process, because rank 0 of the job launches the others.
JOB_OPTIONS = ("servers", "max_restarts", "min_np", "timeout", "port")
REMOTE_OPTIONS = ("env", "ssh", "python")  # options that are only used for other hosts
# Options that are invalid if a scheduler starts the processes, and the reason.
REFUSED_IN_JOBS = {
    "hosts": "the scheduler chooses the hosts: set the number of processes with -n",
    "hostfile": "the scheduler chooses the hosts: set the number of processes with -n",
    "env": "the scheduler passes all variables to the processes: omit this option",
    "ssh": "the scheduler starts the processes: omit this option",
    "python": "the job file starts Python itself: use --job python=PATH",
}
DEFAULT_CHECKPOINT_PERIOD = "1 epoch"  # default interval of checkpoints
ASYNC_BACKEND = "dist_async"
MAX_GPUS = 16  # GPUs of a host; a device pattern that matches the last one may match all GPUs
# Commands, and their former options of gluonlab run, that are only for a single process.
SINGLE_PROCESS_COMMANDS = ("compare", "evaluate", "find-batch-size", "find-lr", "list")
SINGLE_PROCESS_OPTIONS = ("--compare", "--evaluate", "--find-batch-size", "--find-lr", "--list", "--save-config")


def parse_whole_number(name: str, text: str, most: int = MAX_PROCESSES, least: int = 1) -> int:
    """Parse the value of option ``name``, a whole number from ``least`` to ``most``.

    Raises ConfigError.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ConfigError(f"{name} {text}: must be a whole number from {least} to {most}")
    return int(text)


def check_platform(
    backend: str, hosts: Iterable[Host], system: str = sys.platform, machine: str = os.uname().machine
) -> None:
    """Raise ConfigError if MXNet's wheel for this host lacks the parameter server that is needed.

    ``hosts``: the hosts on which the processes run.
    """
    if not has_parameter_server(system, machine) and backend != "horovod" and any(host.is_local for host in hosts):
        raise ConfigError(explain_missing_parameter_server(f"--backend {backend}"))


def parse_number(name: str, text: str, unit: str, least: float, most: float) -> float:
    """Parse the value of option ``name``, a number from ``least`` to ``most``.

    ``unit`` is the unit in the error message, such as ``seconds``. Raises ConfigError.
    """
    number = as_number(text)
    if not least <= number <= most:
        raise ConfigError(f"{name} {text}: must be a number of {unit} from {least:g} to {most:.0f}")
    return number


def split_command(name: str, text: str) -> List[str]:
    """Split the command in the value of option ``name`` into words as a shell does.

    Raises ConfigError.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name} {text} cannot be split into words ({error}): check the quotes") from None
    if not words:
        raise ConfigError(f"{name} contains no command: omit {name}, or pass a command such as 'ssh -p 22'")
    return words


def parse_run_command(words: Tuple[str, ...]) -> Tuple[str, ...]:
    """Convert the words after ``--`` to options of a run, if they start with ``run`` or ``resume``.

    Otherwise, return the words unchanged. Raises ConfigError for a gluonlab command that cannot run
    in several processes.
    """
    if words[:1] == ("run",):
        return words[1:]
    if words[:1] == ("resume",):
        if len(words) < 2 or words[1].startswith("-"):
            raise ConfigError("resume requires a run directory: add it, as in -- resume RUN_DIR")
        return ("--resume", *words[1:])
    if words and words[0] in SINGLE_PROCESS_COMMANDS:
        raise ConfigError(f"{words[0]} runs in a single process: use gluonlab {words[0]} without gluonlab launch")
    return words


def given_options(context: click.Context, names: Optional[Iterable[str]] = None) -> List[str]:
    """Return the options given on the command line, as command-line words such as ``--port 9091``.

    ``names``: the parameter names of the options to return, such as ``min_np``; None for all.
    """
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
    """Return the launcher options to include in a job file, as a list of command-line words.

    Raises ConfigError for an option that this ``kind`` of job file does not support.
    """
    for name, reason in REFUSED_IN_JOBS.items():
        for option in given_options(context, [name])[:1]:
            raise ConfigError(f"--print {kind} cannot be combined with {option}, because {reason}")
    words = given_options(context, JOB_OPTIONS)
    if words and kind == "sagemaker":
        raise ConfigError(
            f"--print {kind} does not support {words[0]}, because SageMaker's image starts and stops the processes "
            f"itself: omit {words[0]}"
        )
    if kind == "k8s" and "--min-np" in words:
        raise ConfigError(
            "--print k8s does not support --min-np, because Kubernetes stops all pods of a job if one pod is lost: "
            "omit --min-np"
        )
    return words


def check_not_in_group(context: click.Context, member: Optional[Membership]) -> None:
    """Raise ConfigError for an option that launches a group, if this process belongs to a group.

    ``member``: this process's membership; None if no launcher has started the process.
    """
    if member is not None and member.size > 1 and member.rank is not None:
        [option, *_] = given_options(context, ["count", "hosts", "hostfile"])
        raise ConfigError(
            f"{option} starts a new job, but {member.launcher} has already started this process "
            f"in a job of {member.size} processes: omit {option}"
        )


def check_remote_options(context: click.Context, hosts: Sequence[Host], member: Optional[Membership]) -> None:
    """Raise ConfigError for an option in REMOTE_OPTIONS if the launcher needs no other host.

    Args:
        context: the parsed command line
        hosts: the hosts of the group
        member: this process's membership if a scheduler has started all processes; else None
    """
    if member is None and not all(host.is_local for host in hosts):
        return
    for name in REMOTE_OPTIONS:
        for option in given_options(context, [name])[:1]:
            local = f"all processes run on this host: omit {option}, or add other hosts with --hosts"
            raise ConfigError(
                f"{option} only applies to other hosts, but {local if member is None else REFUSED_IN_JOBS[name]}"
            )


def check_member_options(context: click.Context, launcher: str) -> None:
    """Raise ConfigError for an option that is valid only in the process that launches a group.

    ``launcher``: the name of the launcher that started this process as a member of a group
    """
    for option in given_options(context, [*JOB_OPTIONS, *REFUSED_IN_JOBS])[:1]:
        raise ConfigError(
            f"{option} only applies to the process that starts a job, but {launcher} has already "
            f"started this process: omit {option}"
        )


def validate_run_arguments(
    backend: str, words: Tuple[str, ...], restarts: int, launcher: click.Command, worker: click.Command
) -> Tuple[str, ...]:
    """Check the options of a run, and return the options with which to start the workers.

    If the run may be restarted and saves no checkpoints, --checkpoint-every is added.

    Args:
        backend: see --backend
        words: the options of the run, after ``--``
        restarts: maximum number of restarts
        launcher: the launcher's command, for the options before ``--``
        worker: the worker's command, for the options after ``--``

    Raises:
        ConfigError: for options that a worker would reject, or that make a restart impossible
    """
    options = _parse_run_options(backend, words, launcher, worker)
    if not restarts or options["resume"] is not None:
        return words
    if options["out"] is None:
        raise ConfigError(
            f"--max-restarts {restarts} needs a directory from which to resume the run: add --out "
            "DIR, and also --autoresume if this directory already contains a run"
        )
    if backend == ASYNC_BACKEND or options["update_on_servers"]:
        reason = f"--backend {backend}" if backend == ASYNC_BACKEND else "--update-on-servers"
        raise ConfigError(
            f"--max-restarts {restarts} requires checkpoints, which {reason} does not support "
            "because the optimizer states are on the servers: omit one of the two options"
        )
    if str(options["compress"]).strip().startswith("2bit"):
        raise ConfigError(
            f"--max-restarts {restarts} requires checkpoints, which --compress "
            f"{options['compress']} does not support because its residuals are not saved: omit "
            "one of the two options"
        )
    has_checkpoints = options["checkpoint_every"] or options["autoresume"]
    return words if has_checkpoints else (*words, "--checkpoint-every", DEFAULT_CHECKPOINT_PERIOD)


def gpus_per_process(
    backend: str, words: Sequence[str], launcher: click.Command, worker: click.Command, requested: Optional[int]
) -> Optional[int]:
    """Return the number of GPUs that each process of a run needs; None if no option sets it.

    The options come from the command line, the --config file and the run to resume. If --devices
    names GPUs, the highest GPU number determines the result. If ``requested`` is not None, return
    ``requested``.

    Args:
        backend: see --backend
        words: the options of the run, after ``--``
        launcher: the launcher's command
        worker: the worker's command
        requested: number of GPUs per process in --job; None if --job does not set it

    Raises:
        ConfigError: if ``requested`` is less than the number of GPUs that the options need
    """
    options = _parse_run_options(backend, words, launcher, worker)
    if options["resume"] is not None:
        config_file = str(Path(options["resume"]) / CONFIG)
        with suppress(ConfigError):  # the run may be on another machine
            options = _parse_run_options(backend, ["--config", config_file, *words], launcher, worker)
    gpus, devices = options["gpus"], options["devices"]
    spec = devices if devices is None or isinstance(devices, str) else ",".join(devices)
    needed = int(gpus) if gpus is not None else None if spec is None else _count_named_gpus(spec)
    if requested is None:
        return needed
    option = f"--gpus {gpus}" if spec is None else f"--devices {spec}"
    if gpus is spec is None:
        needed, option = int(bool(options["require_gpu"])), "--require-gpu"
    # Without GPUs, a number of GPUs means a number of CPU devices.
    may_use_cpus = not options["require_gpu"] and "gpu" not in (spec or "").lower()
    if requested < (needed or 0) and (requested or not may_use_cpus):
        raise ConfigError(
            f"{option} needs {needed} GPU{'s' * (needed != 1)} per process, which --job gpus={requested} does not "
            f"provide: set --job gpus={needed}, or remove --job gpus"
        )
    return requested


def _count_named_gpus(spec: str) -> Optional[int]:
    """Return how many GPUs --devices requires on a host; None if the number depends on the host.

    ``gpu:2,3`` needs four GPUs, because GPUs are numbered from 0.
    """
    if re.fullmatch(r"\s*\d+\s*", spec):
        return int(spec)
    if "gpu" not in spec.lower():
        return 0
    items = [re.fullmatch(r"\s*(?:gpu\s*[:(]?)?\s*(\d*)\)?\s*", item, re.IGNORECASE) for item in re.split("[,|]", spec)]
    numbers = [int(item[1] or 0) for item in items if item]
    if len(numbers) < len(items):
        try:
            pattern = re.compile(spec.partition(":")[2].strip())
        except (re.error, OverflowError, RecursionError):  # also the pattern *, which means all GPUs
            return None
        numbers = [number for number in range(MAX_GPUS) if pattern.fullmatch(str(number))]
        if not numbers or numbers[-1] == MAX_GPUS - 1:
            return None
    return max(numbers) + 1


def _parse_run_options(
    backend: str, words: Sequence[str], launcher: click.Command, worker: click.Command
) -> Dict[str, Any]:
    """Parse the options of a run.

    Return a dictionary from parameter names, such as ``resume``, to values.

    Raises ConfigError.
    """
    launcher_options, run_options = _option_names(launcher), _option_names(worker)
    for word in words:
        name = word.partition("=")[0]
        if name == "--backend":
            raise ConfigError(f"--backend is an option of gluonlab launch (now {backend}): move it before --")
        if name in SINGLE_PROCESS_OPTIONS:
            raise ConfigError(
                f"{name} only works in a single process: omit it, or use gluonlab run instead of gluonlab launch"
            )
        _check_not_launcher_option(name, launcher_options, run_options)
    context = worker.make_context(worker.name, ["--backend", backend, *words])
    fields = TrainConfig.__dataclass_fields__
    TrainConfig(**given_settings({k: v for k, v in context.params.items() if k in fields}))
    return context.params


def _option_names(command: click.Command) -> List[str]:
    params = command.get_params(click.Context(command, **command.context_settings))  # unlike .params, with --help
    return [name for param in params for name in (*param.opts, *param.secondary_opts)]


def _check_not_launcher_option(name: str, launcher_options: Sequence[str], run_options: Sequence[str]) -> None:
    """Raise ConfigError for a launcher option, even a misspelled one, after ``--``.

    Args:
        name: a word after ``--``, without its value
        launcher_options: all options of the launcher, such as ``--hosts``
        run_options: all options of a run
    """
    if not name.startswith("--") or name in run_options:
        return
    if name in launcher_options:
        raise ConfigError(f"{name} is an option of gluonlab launch: move it before --")
    # Search the options of both: the worker itself knows only its own options.
    suggestion = nearest_option(name, [*launcher_options, *run_options])
    if suggestion in launcher_options:
        raise ConfigError(f"unknown option {name!r}: did you mean {suggestion!r}?")
