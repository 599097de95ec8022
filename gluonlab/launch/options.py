"""The launcher's own options as they were written, and which count where others start processes."""

from __future__ import annotations

from typing import Iterable, List, Optional, Sequence

import click
from click.core import ParameterSource

from gluonlab.errors import ConfigError
from gluonlab.launch.environments import Membership
from gluonlab.launch.hosts import Host

# what each process of a job takes itself, as rank 0 launches the others
CARRIED = ("servers", "restart", "min_workers", "patience", "port")
ELSEWHERE = ("env", "ssh", "python")  # what only other hosts need
NOT_IN_JOBS = {
    "hosts": "the scheduler chooses the hosts: say how many processes with -n",
    "hostfile": "the scheduler chooses the hosts: say how many processes with -n",
    "env": "the scheduler passes variables on, as its own options say: leave it out",
    "ssh": "the scheduler starts the processes: leave it out",
    "python": "a job file has it as --job python=PATH",
}


def written(context: click.Context, names: Optional[Iterable[str]] = None) -> List[str]:
    """The words of the options ``names``, or of all, that stand on the command line."""
    words: List[str] = []
    options = [each for each in context.command.params if isinstance(each, click.Option)]
    for option in options:
        name = option.name or ""
        is_written = context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if is_written and (names is None or name in names):
            value = context.params[name]
            for each in value if option.multiple else [value]:
                words += [option.opts[0], *([] if option.is_flag else [str(each)])]
    return words


def carried(context: click.Context, kind: str) -> List[str]:
    """What a job file of this kind has of the launcher's options. Raises ConfigError."""
    for name, why in NOT_IN_JOBS.items():
        for option in written(context, [name])[:1]:
            raise ConfigError(f"--print {kind} with {option}: {why}")
    words = written(context, CARRIED)
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


def check_alone(context: click.Context, place: Optional[Membership]) -> None:
    """Raise ConfigError where each of several processes would launch a group of its own."""
    if place is not None and place.size > 1 and place.rank is not None:
        [option, *_] = written(context, ["count", "hosts", "hostfile"])
        raise ConfigError(
            f"{option} starts a group, and {place.launcher} has started this process as one of "
            f"{place.size}, which are one: leave it out"
        )


def check_elsewhere(
    context: click.Context, used: Sequence[Host], place: Optional[Membership]
) -> None:
    """Raise ConfigError for an option for other hosts if there are no other hosts."""
    if place is None and not all(host.is_here for host in used):
        return
    for name in ELSEWHERE:
        for option in written(context, [name])[:1]:
            why = (
                NOT_IN_JOBS[name]
                if place is not None
                else (
                    "all processes are on this host: leave it out, or name other hosts with --hosts"
                )
            )
            raise ConfigError(f"{option} is for other hosts, and {why}")


def check_part(context: click.Context, launcher: str) -> None:
    """Raise ConfigError for an option of whoever launches, where ``launcher`` does that."""
    for option in written(context, [*CARRIED, *NOT_IN_JOBS])[:1]:
        raise ConfigError(
            f"{option} says how to start and watch the processes of a group, and {launcher} has "
            "started this one, with its place in it: leave it out"
        )
