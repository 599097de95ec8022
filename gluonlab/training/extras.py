"""What is made of a trained network on request: the picture of its confusion matrix, its export."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from mxnet import gluon

from gluonlab.training.confusion import write_picture
from gluonlab.training.evaluate import Confusion
from gluonlab.training.export import export
from gluonlab.training.plan import Plan

CONFUSION, EXPORT = "confusion.png", "export"


def write_extras(
    folder: Path, plan: Plan, net: gluon.HybridBlock, confusion: Optional[Confusion]
) -> None:
    """Write into ``folder`` what the plan asks for. Raises OutputError."""
    if plan.config.export:
        export(net, plan.model, plan.dataset, folder / EXPORT)
    if confusion is not None:  # last: nothing is lost if it cannot be drawn
        write_picture(confusion, plan.dataset.classes, folder / CONFUSION)
