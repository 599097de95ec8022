"""PyTorch's DistributedDataParallel: processes of one thread each, whose gradients gloo sums.

Rank 0 is the worker that the parent knows. It starts the others.
"""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gluonlab.bench.harness.ranks import worker
from gluonlab.bench.peers.torch_loop import batches, training
from gluonlab.bench.peers.torch_networks import NETWORKS
from gluonlab.bench.peers.work import TASKS
from gluonlab.bench.worker import Job

TIMEOUT = datetime.timedelta(seconds=60)  # of joining, and of every allreduce


def make(task: str, world_size: int, rank: int = 0, meeting_point: Optional[str] = None) -> Job:
    """Rank ``rank`` of ``world_size`` processes, which meet through the file ``meeting_point``.

    Rank 0 chooses that.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = meeting_point or str(Path(tempfile.mkdtemp(prefix="ddp-")) / "meeting-point")
    same = {"task": task, "world_size": world_size, "meeting_point": place}
    ranks = range(1, world_size if rank == 0 else 1)
    others = [worker("torch-ddp", {**same, "rank": other}, {}) for other in ranks]
    distributed.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=world_size, timeout=TIMEOUT
    )
    net = DistributedDataParallel(NETWORKS[task](), gradient_as_bucket_view=True)

    def forward(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(net(x), y)

    train = training(TASKS[task], net, forward, batches(TASKS[task], rank, world_size))

    def run(steps: int) -> Dict[str, float]:
        for other in others:
            other.order(steps=steps)
        return train(steps)

    return run
