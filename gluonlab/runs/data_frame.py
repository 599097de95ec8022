"""Converts the metrics of runs (metrics.jsonl) to pandas data frames and CSV.

This module does not import MXNet.
"""

from __future__ import annotations

import csv
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, TextIO, Tuple

from gluonlab.errors import ConfigError, unknown
from gluonlab.runs.run_reader import read_lines, read_runs
from gluonlab.runs.run_schema import Epoch, LossScaleEvent, MetricsLine, Step

if TYPE_CHECKING:
    from pandas import DataFrame

EPOCHS, STEPS = "epochs", "steps"
KINDS = {EPOCHS: Epoch, STEPS: Step}
RUN, RATE, SCALE, METRICS = "run", "images_per_second", "loss_scale", "metrics"
Table = Dict[str, List[Any]]  # column -> a value for each row, None for a missing one


def frame(*runs: "str | os.PathLike[str]", of: str = EPOCHS) -> "DataFrame":
    """Return the metrics of runs as a pandas data frame, with one row per epoch or step.

    The columns are the fields of metrics.jsonl (see docs/run-folder.md). The column ``run``
    contains the name of the run. Epochs also have the columns ``images_per_second``, ``loss_scale``
    and ``metrics.NAME`` for each of your own metrics. Missing values are NaN.

    Args:
        runs: Run directories, comparisons, or folders that contain them, such as ``runs``.
        of: ``"epochs"`` or ``"steps"``.

    Returns:
        A pandas.DataFrame.

    Raises:
        DataError: A folder is not a run directory, or is damaged.
        ConfigError: ``of`` is invalid, or pandas is not installed.
    """
    if not runs:
        raise ConfigError(
            "no run directory was given: pass one or more run directories, or a folder that contains run directories"
        )
    for run in runs:
        if not isinstance(run, (str, os.PathLike)):
            raise ConfigError(
                f"frame() needs run directories, not an object of type {type(run).__name__}: pass the path of a run "
                "directory, such as frame(result.run_dir)"
            )
    read = read_runs([Path(run) for run in runs])
    return as_frame(make_table([(run.name, run.lines) for run in read], of))


def run_frame(folder: Path, of: str) -> "DataFrame":
    """Return the data frame of the single run in the folder, without the column ``run``."""
    columns = make_table([("", read_lines(folder))], of)
    return as_frame({name: columns[name] for name in columns if name != RUN})


def make_table(runs: Sequence[Tuple[str, Sequence[MetricsLine]]], of: str) -> Table:
    """Return a table with the rows of all runs. Each run's rows follow those of the previous run.

    Args:
        runs: (name, lines of metrics.jsonl) of each run.
        of: The kind of rows: ``epochs`` or ``steps``. Raises ConfigError for any other value.
    """
    if of not in KINDS:
        raise ConfigError(unknown("kind of rows", of, KINDS))
    rows = [{RUN: name, **row} for name, lines in runs for row in _table_rows(lines, of)]
    field_names = [field.name for field in dataclasses.fields(KINDS[of]) if field.name != METRICS]
    derived_names = [RATE, SCALE] if of == EPOCHS else []
    names = dict.fromkeys([RUN, *field_names, *derived_names, *(name for row in rows for name in row)])
    return {name: [row.get(name) for row in rows] for name in names}


def _table_rows(lines: Sequence[MetricsLine], of: str) -> List[Dict[str, Any]]:
    """Return the epochs or steps of a run as dictionaries. Epochs include derived columns."""
    scales = {line.epoch: line.loss_scale for line in lines if isinstance(line, LossScaleEvent)}
    rows = []
    for line in lines:
        if isinstance(line, KINDS[of]):
            row = dict(vars(line))
            if isinstance(line, Epoch):
                user_metrics = row.pop(METRICS) or {}
                row.update({RATE: line.images_per_second, SCALE: scales.get(line.epoch)})
                row.update({f"{METRICS}.{name}": value for name, value in user_metrics.items()})
            rows.append(row)
    return rows


def as_frame(columns: Table) -> "DataFrame":
    """Convert columns to a data frame, with integers as int64 and other numbers as float64."""
    try:
        import pandas
    except ImportError as error:
        reason = "is not installed" if error.name == "pandas" else f"cannot be imported ({error})"
        raise ConfigError(
            f"frame() needs pandas, which {reason}: pip install pandas, or use gluonlab report --csv"
        ) from None
    return pandas.DataFrame(
        {name: pandas.Series(values, dtype=_column_type(name, values)) for name, values in columns.items()}
    )


def write_csv(columns: Table, file: TextIO) -> None:
    """Write columns as CSV, with empty cells for missing values."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))


def _column_type(name: str, values: Sequence[Any]) -> str:
    """Return the pandas type of a column."""
    if name == RUN:
        return "object"
    fields = [field for kind in KINDS.values() for field in dataclasses.fields(kind)]
    if not any(field.name == name and "int" in str(field.type) for field in fields):
        return "float64"
    return "Int64" if None in values else "int64"  # format 1 has steps without an epoch
