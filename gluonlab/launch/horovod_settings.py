"""Horovod's settings: launcher options with horovodrun's names, and Horovod's variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import click

from gluonlab.config.command_line import SettingOption
from gluonlab.errors import ConfigError
from gluonlab.launch.launcher_arguments import parse_number, parse_whole_number

THRESHOLD_VARIABLE, CYCLE_TIME_VARIABLE = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"
TIMELINE_VARIABLE, MARK_CYCLES_VARIABLE = "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES"
HOROVOD_RANK_VARIABLE = "HOROVOD_RANK"
DYNAMIC_TIMELINE = "DYNAMIC"  # a timeline that the program starts
MAX_THRESHOLD_MB, MAX_CYCLE_TIME_MS = 2**16, 60_000
# No fusion by default. Which sums are fused depends on their timing, and fused sums are added in
# another order, so their bits vary. Buckets of gradients are large enough to be sent unfused.
DEFAULT_VARIABLES = {THRESHOLD_VARIABLE: "0"}


class _HorovodOption(NamedTuple):
    name: str
    help: str
    metavar: Optional[str] = None  # None for a flag

    @property
    def field(self) -> str:
        return self.name[2:].replace("-", "_")


OPTIONS = (
    _HorovodOption(
        "--fusion-threshold-mb", "sum what is ready at the same time as one array, up to this "
        "size; 0: not at all, so that the bits of a sum do not depend on the moment  [default: 0]",
        "MB",
    ),
    _HorovodOption("--cycle-time-ms", "how long Horovod waits for more to sum  [default: 1]", "MS"),
    _HorovodOption(
        "--timeline-filename", "write what Horovod did when, for chrome://tracing or Perfetto; "
        "rank 0 writes it on its host", "FILE",
    ),
    _HorovodOption("--timeline-mark-cycles", "show Horovod's cycles in the timeline, too"),
)  # fmt: skip


def add_horovod_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add Horovod's options to a command, below their own heading."""
    for option in reversed(OPTIONS):
        attributes: Dict[str, Any] = {"metavar": option.metavar}
        if option.metavar is None:
            attributes = {"is_flag": True, "default": None}
        function = click.option(
            option.name,
            cls=SettingOption,
            heading="With --backend horovod",
            help=option.help,
            **attributes,
        )(function)
    return function


def horovod_arguments(values: Mapping[str, Any]) -> List[str]:
    """Return the given options as words of a command line."""
    return [
        word
        for option in OPTIONS
        if values[option.field] is not None
        for word in [option.name, str(values[option.field])][: 1 + (option.metavar is not None)]
    ]


def horovod_variables(backend: str, values: Mapping[str, Any]) -> Dict[str, str]:
    """Return the workers' variables for the given options, which override the user's environment.

    Raises ConfigError for another backend, and for an invalid size, time or file.
    """
    variables: Dict[str, str] = {}
    words = horovod_arguments(values)
    if words and backend != "horovod":
        raise ConfigError(
            f"{words[0]} belongs to --backend horovod, and this is {backend}: leave it out"
        )
    megabytes, cycle, file, marks = (values[option.field] for option in OPTIONS)
    if megabytes is not None:
        variables[THRESHOLD_VARIABLE] = str(
            parse_whole_number("--fusion-threshold-mb", megabytes, MAX_THRESHOLD_MB, 0) * 2**20
        )
    if cycle is not None:
        variables[CYCLE_TIME_VARIABLE] = (
            f"{parse_number('--cycle-time-ms', cycle, 'milliseconds', 0, MAX_CYCLE_TIME_MS):g}"
        )
    if file is not None:
        if not file.strip():
            raise ConfigError("--timeline-filename is empty: give a file, or leave it out")
        variables[TIMELINE_VARIABLE] = file
    if marks:
        if file is None and TIMELINE_VARIABLE not in os.environ:
            raise ConfigError("--timeline-mark-cycles: there is none: add --timeline-filename FILE")
        variables[MARK_CYCLES_VARIABLE] = "1"
    return variables


def set_horovod_defaults() -> None:
    """Set gluonlab's defaults of Horovod's variables before Horovod starts; check rank 0's
    timeline.

    Raises ConfigError as `check_timeline_writable` does.
    """
    for name, value in DEFAULT_VARIABLES.items():
        os.environ.setdefault(name, value)
    if os.environ.get(HOROVOD_RANK_VARIABLE) == "0":
        check_timeline_writable(os.environ)


def check_timeline_writable(variables: Mapping[str, str]) -> None:
    """Raise ConfigError if the timeline cannot be written here. Horovod itself only logs a line."""
    file = variables.get(TIMELINE_VARIABLE, "")
    if file and file != DYNAMIC_TIMELINE:
        try:
            Path(file).open("a").close()
        except OSError as error:
            raise ConfigError(
                f"the timeline {file} cannot be written ({error.strerror}): name another file with "
                "--timeline-filename, in a folder that is there"
            ) from None
