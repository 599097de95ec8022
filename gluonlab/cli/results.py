"""How commands print what a run gave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict

import click

if TYPE_CHECKING:
    from gluonlab.runs.result import Result


def print_result(result: "Result", as_json: bool, quiet: bool) -> None:
    """The result of a run, as JSON or for people."""
    from gluonlab.training.confusion import table  # which needs MXNet

    summary = result.summary()
    if as_json:
        click.echo(json.dumps(summary))
        return
    speed = f"{summary['images_per_second']:,.0f} images/s, {summary['seconds']:.1f} s in all"
    waiting = f"{summary['waiting']:.1%} waiting for images"
    click.echo(
        "\n" * (not quiet)
        + f"{accuracy_in_words(summary)}, {speed}, {waiting}\nwritten to {summary['run_dir']}"
    )
    if result.confusion is not None:
        click.echo("\n" + table(result.confusion, result.plan.dataset.classes))


def accuracy_in_words(summary: Dict[str, Any]) -> str:
    """``accuracy 0.9750 (top-5 0.9990)``; the second where there are more classes than five."""
    top5 = summary["top5_accuracy"]
    return f"accuracy {summary['accuracy']:.4f}" + (
        f" (top-5 {top5:.4f})" if top5 is not None else ""
    )
