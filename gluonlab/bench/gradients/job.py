"""The calls of ``bench gradients`` as a worker's job, to take turns with another checkout's."""

from __future__ import annotations

import time
from typing import Dict, Optional, Sequence

from gluonlab.bench.allreduce.measure import Buffers
from gluonlab.bench.allreduce.plans import make_plans
from gluonlab.bench.allreduce.variants import PEERS, make_variants
from gluonlab.bench.gradients import steps
from gluonlab.bench.gradients.measure import ARRAYS, allreduce_name
from gluonlab.bench.harness.turns import Call, time_block
from gluonlab.bench.worker import Job
from gluonlab.devices import devices as find_devices
from gluonlab.errors import RunError


def make(
    world_size: int, size_bytes: int, stores: Sequence[str], devices: Optional[str] = None
) -> Job:
    """gluonlab's allreduces of ``size_bytes`` in one array and in 16, and steps with ``stores``.

    The job's numbers are seconds of a call. ``devices``: those that compute; by default
    ``world_size`` CPU devices. Raises RunError when sums are not exact.
    """
    ctxs = find_devices(devices or f"cpu*{world_size}")
    calls: Dict[str, Call] = {}
    errors: Dict[str, float] = {}
    for arrays in ARRAYS:
        buffers = Buffers(ctxs, size_bytes // 4, "float32", arrays)
        for variant in make_variants(None, make_plans(None, world_size), ctxs, arrays):
            if variant.label not in PEERS:
                name = allreduce_name(world_size, arrays, variant.label)
                calls[name] = variant.make(buffers.arrays)
                errors[name] = buffers.check(calls[name])
        buffers.clear()
    for update in steps.make_updates(steps.resnet18_shapes(), stores, ctxs):
        name = steps.step_name(world_size, update.trainer_name, update.store)
        calls[name], errors[name] = update.step, update.error
    wrong = [name for name, error in errors.items() if error != 0]
    if wrong:
        raise RunError(f"wrong sums by {', '.join(wrong)}")

    def run(steps: int) -> Dict[str, float]:
        began = time.perf_counter()
        seconds = {name: time_block(call, steps) for name, call in calls.items()}
        return {"seconds": time.perf_counter() - began, **seconds}

    return run
