"""How commands print what a run, or its evaluation, gave."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict

import click

from gluonlab.cli.streams import heard_or_not
from gluonlab.documents import json_text
from gluonlab.plain import decimals

if TYPE_CHECKING:
    from gluonlab.runs.result import Result
    from gluonlab.training.evaluate import Confusion
    from gluonlab.training.finished import Evaluation


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
    from gluonlab.training.evaluate import table  # which needs MXNet

    click.echo(json_text(summary) if as_json else text)
    if confusion is not None and not as_json:
        click.echo("\n" + table(confusion, plan.dataset.classes))


def _accuracy(summary: Dict[str, Any]) -> str:
    """``accuracy 0.9750 (top-5 0.9990)``; the second where there are more classes than five."""
    top5 = summary["top5_accuracy"]
    return f"accuracy {summary['accuracy']:.4f}" + (
        f" (top-5 {top5:.4f})" if top5 is not None else ""
    )
