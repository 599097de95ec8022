"""The launcher's Horovod options, named as in horovodrun, and the variables that they set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import click

from gluonlab.config.command_line import SettingOption
from gluonlab.engine.parameter_server_role import has_parameter_server
from gluonlab.errors import ConfigError
from gluonlab.launch.check_launcher_arguments import parse_number, parse_whole_number

THRESHOLD_VARIABLE, CYCLE_TIME_VARIABLE = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"
TIMELINE_VARIABLE, MARK_CYCLES_VARIABLE = "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES"
HOROVOD_RANK_VARIABLE = "HOROVOD_RANK"
DYNAMIC_TIMELINE = "DYNAMIC"  # value of TIMELINE_VARIABLE if the program itself starts a timeline
MAX_THRESHOLD_MB, MAX_CYCLE_TIME_MS = 2**16, 60_000
# Fusion is off by default. Horovod fuses sums depending on their timing, and adds fused sums in
# a different order, so results would not be bit-identical from run to run. gluonlab's buckets of
# gradients are large enough without fusion.
DEFAULT_VARIABLES = {THRESHOLD_VARIABLE: "0"}


def explain_missing_horovod(error: ImportError) -> str:
    """Return an error message for the error of an import of Horovod."""
    instead = "choose --backend dist_sync" if has_parameter_server() else "train in one process with gluonlab run"
    return (
        f"--backend horovod: Horovod for MXNet cannot be imported ({error}): compile it as described in "
        f"docs/launch.md, or {instead}"
    )


class _HorovodOption(NamedTuple):
    """An option of the launcher. ``field`` is the name of the command's parameter."""

    name: str
    help: str
    metavar: Optional[str] = None  # None for a flag

    @property
    def field(self) -> str:
        return self.name[2:].replace("-", "_")


OPTIONS = (
    _HorovodOption(
        "--fusion-threshold-mb", "largest size of a fused gradient buffer; "
        "0 disables fusion, which makes runs bit-identical  [default: 0]", "MB",
    ),
    _HorovodOption("--cycle-time-ms", "time for which Horovod waits for more gradients  [default: 1]", "MS"),
    _HorovodOption(
        "--timeline-filename", "write Horovod's timeline to this file on rank 0's host, for "
        "chrome://tracing or Perfetto", "FILE",
    ),
    _HorovodOption("--timeline-mark-cycles", "also mark Horovod's cycles in the timeline"),
)  # fmt: skip


def add_horovod_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add Horovod's options to a command. The help lists these options under a separate heading."""
    for option in reversed(OPTIONS):
        attributes: Dict[str, Any] = {"metavar": option.metavar}
        if option.metavar is None:
            attributes = {"is_flag": True, "default": None}
        function = click.option(
            option.name, cls=SettingOption, heading="With --backend horovod", help=option.help, **attributes
        )(function)
    return function


def horovod_arguments(values: Mapping[str, Any]) -> List[str]:
    """Return the options that are given, as command-line words such as ``--cycle-time-ms 5``.

    ``values``: the values of all options in OPTIONS, by field; None for an option that is not given
    """
    return [
        word
        for option in OPTIONS
        if values[option.field] is not None
        for word in [option.name, str(values[option.field])][: 1 + (option.metavar is not None)]
    ]


def horovod_variables(backend: str, values: Mapping[str, Any]) -> Dict[str, str]:
    """Return the environment variables that the given options set for the workers.

    These variables override the user's environment. Raises ConfigError if an option is given with a
    different backend, or for an invalid size, time or file.

    Args:
        backend: see --backend
        values: the values of all options in OPTIONS, by field
    """
    variables: Dict[str, str] = {}
    words = horovod_arguments(values)
    if words and backend != "horovod":
        raise ConfigError(
            f"{words[0]} only applies to --backend horovod, but the backend is {backend}: omit {words[0]}"
        )
    threshold, cycle_time, file, marks_cycles = (values[option.field] for option in OPTIONS)
    if threshold is not None:
        megabytes = parse_whole_number("--fusion-threshold-mb", threshold, MAX_THRESHOLD_MB, 0)
        variables[THRESHOLD_VARIABLE] = str(megabytes * 2**20)
    if cycle_time is not None:
        milliseconds = parse_number("--cycle-time-ms", cycle_time, "milliseconds", 0, MAX_CYCLE_TIME_MS)
        variables[CYCLE_TIME_VARIABLE] = f"{milliseconds:g}"
    if file is not None:
        if not file.strip():
            raise ConfigError("--timeline-filename is empty: pass a file name, or omit --timeline-filename")
        variables[TIMELINE_VARIABLE] = file
    if marks_cycles:
        if file is None and TIMELINE_VARIABLE not in os.environ:
            raise ConfigError("--timeline-mark-cycles requires a timeline: add --timeline-filename FILE")
        variables[MARK_CYCLES_VARIABLE] = "1"
    return variables


def set_horovod_defaults() -> None:
    """Set gluonlab's defaults for Horovod's variables. Call this before Horovod starts.

    Rank 0 also checks that it can write the timeline (`check_timeline_writable`).
    """
    for name, value in DEFAULT_VARIABLES.items():
        os.environ.setdefault(name, value)
    if os.environ.get(HOROVOD_RANK_VARIABLE) == "0":
        check_timeline_writable(os.environ)


def check_timeline_writable(variables: Mapping[str, str]) -> None:
    """Raise ConfigError if this process cannot write the timeline file set in ``variables``.

    Horovod itself would only log a warning.
    """
    file = variables.get(TIMELINE_VARIABLE, "")
    if file and file != DYNAMIC_TIMELINE:
        try:
            Path(file).open("a").close()
        except OSError as error:
            raise ConfigError(
                f"the timeline {file} cannot be written ({error.strerror}): pass another file in "
                "an existing directory with --timeline-filename"
            ) from None
