"""Prints the results of runs and evaluations, and creates the reporters of commands that train.

This module imports MXNet, so commands import it only when they start training.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, TextIO

import click

from gluonlab.cli.output_streams import ignore_closed_reader, reader_error
from gluonlab.plain_text import format_decimals, json_text
from gluonlab.training.reporter import CLOSED, ConsoleReporter, Reporter

if TYPE_CHECKING:
    from gluonlab.runs.run_result import Result
    from gluonlab.training.evaluate import Confusion
    from gluonlab.training.evaluate_run import Evaluation


class QuietReporter(Reporter):
    """Reporter that prints nothing, but checks after each epoch that standard output has a reader.

    ``stream`` is standard output; None if it was closed before Python started.
    """

    def __init__(self, stream: Optional[TextIO]) -> None:
        self._stream = stream
        self._check_reader()

    def epoch_ends(self, line: str) -> None:
        self._check_reader()

    def _check_reader(self) -> None:
        if self.output_error is None:
            self.output_error = CLOSED if self._stream is None else reader_error(self._stream)


def make_reporter(silent: bool) -> Reporter:
    """Return the reporter for a command. If ``silent``, the reporter prints nothing."""
    return QuietReporter(sys.stdout) if silent else ConsoleReporter()


def print_result(result: "Result", as_json: bool, quiet: bool) -> None:
    """Print the result of a run, as JSON or as text."""
    summary = result.summary()
    speed = f"{summary['images_per_second']:,.0f} images/s, {summary['seconds']:.1f} s in all"
    waiting = f"{summary['waiting']:.1%} waiting for images"
    accuracy = _format_accuracy(summary["val_accuracy"], summary["val_top5_accuracy"])
    text = f"val {accuracy}, {speed}, {waiting}\nwritten to {summary['run_dir']}"
    with ignore_closed_reader(sys.stdout):  # the run's folder contains the result
        _print_summary(summary, as_json, "\n" * (not quiet) + text, result.confusion, result.plan)


def print_evaluation(evaluation: "Evaluation", as_json: bool) -> None:
    """Print the result of gluonlab evaluate, as JSON or as text."""
    summary = evaluation.summary()
    devices, images = " ".join(summary["devices"]), f"{summary['images']:,} images"
    text = (
        f"{summary['model']} on {summary['dataset']}, {images}, {devices}, "
        f"{summary['seconds']:.1f} s\n{_format_accuracy(summary['accuracy'], summary['top5_accuracy'])}, "
        f"loss {format_decimals(summary['loss'], 4)}"
        + (f"\n{evaluation.onnx.in_words()}" if evaluation.onnx is not None else "")
        + f"\nwritten to {', '.join(map(str, evaluation.written))}" * bool(evaluation.written)
    )
    _print_summary(summary, as_json, text, evaluation.score.confusion, evaluation.plan)


def _print_summary(summary: Dict[str, Any], as_json: bool, text: str, confusion: "Confusion | None", plan: Any) -> None:
    """Print the summary as JSON, or print the text and any confusion matrix."""
    from gluonlab.training.evaluate import format_confusion  # imports MXNet

    click.echo(json_text(summary) if as_json else text)
    if confusion is not None and not as_json:
        click.echo("\n" + format_confusion(confusion, plan.dataset.classes))


def _format_accuracy(accuracy: float, top5: Optional[float]) -> str:
    """Return text such as ``accuracy 0.9750 (top-5 0.9990)``, without top-5 if it is None."""
    return f"accuracy {accuracy:.4f}" + (f" (top-5 {top5:.4f})" if top5 is not None else "")
