"""Horovod's own settings: the launcher's options, with horovodrun's names, and the variables that
Horovod reads in each worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import click

from gluonlab.config.command_line import Setting
from gluonlab.errors import ConfigError
from gluonlab.launch.launcher_arguments import real, whole

THRESHOLD, CYCLE_TIME = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"
TIMELINE, MARK_CYCLES = "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES"
RANK = "HOROVOD_RANK"
BY_CALL = "DYNAMIC"  # a timeline that begins when a program says so
MOST_MB, MOST_MS = 2**16, 60_000
# Which sums come in one cycle is a matter of moments. Fused, they are cut into other parts, whose
# owners add in another order: three processes had two different sums of the same numbers. Buckets
# of gradients are large enough to travel alone.
USUAL = {THRESHOLD: "0"}


class _Option(NamedTuple):
    name: str
    help: str
    metavar: Optional[str] = None  # None: a flag

    @property
    def field(self) -> str:
        return self.name[2:].replace("-", "_")


OPTIONS = (
    _Option(
        "--fusion-threshold-mb", "sum what is ready at the same time as one array, up to this "
        "size; 0: not at all, so that the bits of a sum do not depend on the moment  [default: 0]",
        "MB",
    ),
    _Option("--cycle-time-ms", "how long Horovod waits for more to sum  [default: 1]", "MS"),
    _Option(
        "--timeline-filename", "write what Horovod did when, for chrome://tracing or Perfetto; "
        "rank 0 writes it on its host", "FILE",
    ),
    _Option("--timeline-mark-cycles", "show Horovod's cycles in the timeline, too"),
)  # fmt: skip


def horovod_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options, below a heading of their own."""
    for option in reversed(OPTIONS):
        kind: Dict[str, Any] = {"metavar": option.metavar}
        if option.metavar is None:
            kind = {"is_flag": True, "default": None}
        function = click.option(
            option.name, cls=Setting, heading="With --backend horovod", help=option.help, **kind
        )(function)
    return function


def horovod_words(given: Mapping[str, Any]) -> List[str]:
    """The options that are ``given``, by their fields, as a command line has them."""
    return [
        word
        for option in OPTIONS
        if given[option.field] is not None
        for word in [option.name, str(given[option.field])][: 1 + (option.metavar is not None)]
    ]


def horovod_variables(backend: str, given: Mapping[str, Any]) -> Dict[str, str]:
    """What workers find in their environment for the options that are ``given``.

    It counts before what the user has set there. Raises ConfigError for another backend, and for
    what is no such size, time or file.
    """
    found: Dict[str, str] = {}
    words = horovod_words(given)
    if words and backend != "horovod":
        raise ConfigError(
            f"{words[0]} belongs to --backend horovod, and this is {backend}: leave it out"
        )
    megabytes, cycle, file, marks = (given[option.field] for option in OPTIONS)
    if megabytes is not None:
        found[THRESHOLD] = str(whole("--fusion-threshold-mb", megabytes, MOST_MB, 0) * 2**20)
    if cycle is not None:
        found[CYCLE_TIME] = f"{real('--cycle-time-ms', cycle, 'milliseconds', 0, MOST_MS):g}"
    if file is not None:
        if not file.strip():
            raise ConfigError("--timeline-filename is empty: give a file, or leave it out")
        found[TIMELINE] = file
    if marks:
        if file is None and TIMELINE not in os.environ:
            raise ConfigError("--timeline-mark-cycles: there is none: add --timeline-filename FILE")
        found[MARK_CYCLES] = "1"
    return found


def settle_environment() -> None:
    """Set what is usual here where nothing else is; rank 0 sees that it can write the timeline.

    To be called before Horovod begins. Raises what `check_timeline` raises.
    """
    for name, value in USUAL.items():
        os.environ.setdefault(name, value)
    if os.environ.get(RANK) == "0":
        check_timeline(os.environ)


def check_timeline(variables: Mapping[str, str]) -> None:
    """Raise ConfigError if the timeline cannot be written here: Horovod only logs a line of it."""
    file = variables.get(TIMELINE, "")
    if file and file != BY_CALL:
        try:
            Path(file).open("a").close()
        except OSError as error:
            raise ConfigError(
                f"the timeline {file} cannot be written ({error.strerror}): name another file with "
                "--timeline-filename, in a folder that is there"
            ) from None
