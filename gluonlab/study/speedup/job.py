"""A job of `gluonlab.bench.worker`: steps of a training, as a run makes them."""

from __future__ import annotations

import time
from typing import Any, Dict

from mxnet import nd

from gluonlab.bench.worker import Job
from gluonlab.config import TrainConfig
from gluonlab.study.speedup.trained import Trained


def make(settings: Dict[str, Any]) -> Job:
    """A job that trains as `TrainConfig` has it with these settings; it counts ``images``."""
    trained = Trained(TrainConfig(**settings))

    def run(steps: int) -> Dict[str, float]:
        nd.waitall()
        began = time.perf_counter()
        for _ in range(steps):
            trained.step()
        nd.waitall()
        return {"seconds": time.perf_counter() - began, "images": steps * trained.images}

    return run
