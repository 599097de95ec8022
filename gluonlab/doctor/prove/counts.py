"""Trial: what a step of training queues on the GPUs, as MXNet's profiler counts it.

The engine waits for a GPU's stream after each thing that it has queued, so a step costs its number
of waits, whatever it computes.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List

from gluonlab.doctor.prove.trial import run
from gluonlab.files.whole import temporary_folder
from gluonlab.gpu.process import Outcome, tell

if TYPE_CHECKING:
    import mxnet as mx

NUMBERS = ("store",)  # with queued and copies
NETWORK = "resnet18"
STORES = ("device", "ring", "sharded-optimizer")
COPIES = ("Copy", "_copyto")  # MXNet's names of them
WARM, STEPS, IMAGES = 3, 4, 2


def count_steps(ctxs: List[mx.Context]) -> None:
    """Answers ``store`` with ``queued`` and ``copies`` per step on all devices together."""
    from mxnet import nd

    from gluonlab.doctor.prove.work import training_step

    # a graph that is bound after the first profile is no longer queued in pieces of several
    # operators, but one by one
    steps = {store: training_step(NETWORK, ctxs, store, IMAGES) for store in STORES}
    for step in steps.values():
        for _ in range(WARM):
            step()
    nd.waitall()
    for store, step in steps.items():
        tell(trying=f"steps with {store}")
        counted = _profiled(step)
        copies = sum(count for name, count in counted.items() if name.startswith(COPIES))
        tell(store=store, queued=sum(counted.values()) / STEPS, copies=copies / STEPS)


def _profiled(step: Callable[[], Any]) -> "Counter[str]":
    """How often each thing was queued in STEPS steps, by its name."""
    import mxnet as mx

    with temporary_folder("prove") as folder:
        file = str(Path(folder) / "profile.json")
        mx.profiler.set_config(
            profile_imperative=True, profile_symbolic=True, aggregate_stats=True, filename=file
        )
        mx.profiler.set_state("run")
        for _ in range(STEPS):
            step()
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        told: Dict[str, Any] = json.loads(mx.profiler.dumps(reset=True, format="json"))
    return Counter(
        {name: int(of_name["Count"]) for name, of_name in told["Time"].get("operator", {}).items()}
    )


def faults(outcome: Outcome) -> List[str]:
    """None: a count is neither right nor wrong."""
    return []


def summary(outcome: Outcome) -> str:
    """The counts of each store."""
    counts = "; ".join(
        f"{told['store']} {told['queued']:.0f}, {told['copies']:.0f} of them copies"
        for told in outcome.all("store")
    )
    return f"a step of {NETWORK} queues: {counts}"


if __name__ == "__main__":
    run(count_steps)
