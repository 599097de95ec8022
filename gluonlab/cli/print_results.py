"""How a command that trains speaks, and prints what a run, or its evaluation, gave.

Imports MXNet: commands import this module when they begin to train.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, TextIO

import click

from gluonlab.cli.output_streams import heard_or_not, why_unread
from gluonlab.plain_text import decimals, json_text
from gluonlab.training.reporter import CLOSED, ConsoleReporter, Reporter

if TYPE_CHECKING:
    from gluonlab.runs.run_result import Result
    from gluonlab.training.evaluate import Confusion
    from gluonlab.training.evaluate_run import Evaluation


class QuietReporter(Reporter):
    """Says nothing, but looks after each epoch whether anybody could read the result.

    ``stream``: standard output; None where it was closed before Python began.
    """

    def __init__(self, stream: Optional[TextIO]) -> None:
        self._stream = stream
        self._look()

    def epoch_ends(self, line: str) -> None:
        self._look()

    def _look(self) -> None:
        if self.output_error is None:
            self.output_error = CLOSED if self._stream is None else why_unread(self._stream)


def make_reporter(silent: bool) -> Reporter:
    """That of a command's training. ``silent``: with --quiet or --json."""
    return QuietReporter(sys.stdout) if silent else ConsoleReporter()


def print_result(result: "Result", as_json: bool, quiet: bool) -> None:
    """The result of a run, as JSON or for people."""
    summary = result.summary()
    speed = f"{summary['images_per_second']:,.0f} images/s, {summary['seconds']:.1f} s in all"
    waiting = f"{summary['waiting']:.1%} waiting for images"
    text = f"{_accuracy(summary)}, {speed}, {waiting}\nwritten to {summary['run_dir']}"
    with heard_or_not(sys.stdout):  # the run's folder has it
        _print(summary, as_json, "\n" * (not quiet) + text, result.confusion, result.plan)


def print_evaluation(found: "Evaluation", as_json: bool) -> None:
    """The result of --evaluate, as JSON or for people."""
    summary = found.summary()
    devices, images = " ".join(summary["devices"]), f"{summary['images']:,} test images"
    text = (
        f"{summary['model']} on {summary['dataset']}, {images}, {devices}, "
        f"{summary['seconds']:.1f} s\n{_accuracy(summary)}, loss {decimals(summary['loss'], 4)}"
        + (f"\n{found.onnx.in_words()}" if found.onnx is not None else "")
        + f"\nwritten to {', '.join(map(str, found.written))}" * bool(found.written)
    )
    _print(summary, as_json, text, found.score.confusion, found.plan)


def _print(
    summary: Dict[str, Any], as_json: bool, text: str, confusion: "Confusion | None", plan: Any
) -> None:
    from gluonlab.training.evaluate import format_confusion  # which needs MXNet

    click.echo(json_text(summary) if as_json else text)
    if confusion is not None and not as_json:
        click.echo("\n" + format_confusion(confusion, plan.dataset.classes))


def _accuracy(summary: Dict[str, Any]) -> str:
    """``accuracy 0.9750 (top-5 0.9990)``; the second where there are more classes than five."""
    top5 = summary["top5_accuracy"]
    return f"accuracy {summary['accuracy']:.4f}" + (
        f" (top-5 {top5:.4f})" if top5 is not None else ""
    )
