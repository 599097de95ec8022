"""PyTorch's DistributedDataParallel: processes of one thread each, whose gradients gloo sums over
the loopback.

Rank 0 is the worker that the parent knows. It starts the others, hands every order on to them, and
they end with it: the parent ends its whole process group, and each of them ends by itself when rank
0 is gone.
"""

from __future__ import annotations

import atexit
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gluonlab.bench.peers.torch_loop import batches, training
from gluonlab.bench.peers.torch_networks import NETWORKS
from gluonlab.bench.peers.work import TASKS
from gluonlab.bench.worker import Job

TIMEOUT = datetime.timedelta(seconds=60)  # of joining, and of every allreduce


def make(task: str, world_size: int, rank: int = 0, meeting_point: Optional[str] = None) -> Job:
    """Rank ``rank`` of ``world_size`` processes, which meet through the file ``meeting_point``
    (rank 0 chooses it).
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = meeting_point or str(Path(tempfile.mkdtemp(prefix="ddp-")) / "meeting-point")
    others = (
        [_start(task, world_size, other, place) for other in range(1, world_size)]
        if rank == 0
        else []
    )
    distributed.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=world_size, timeout=TIMEOUT
    )
    net = DistributedDataParallel(NETWORKS[task](), gradient_as_bucket_view=True)

    def forward(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(net(x), y)

    train = training(TASKS[task], net, forward, batches(TASKS[task], rank, world_size))

    def run(steps: int) -> Dict[str, float]:
        for other in others:
            _order(other, steps)
        return train(steps)

    return run


def _start(task: str, world_size: int, rank: int, place: str) -> "subprocess.Popen[bytes]":
    options = json.dumps(
        {"task": task, "world_size": world_size, "rank": rank, "meeting_point": place}
    )
    command: List[str] = [sys.executable, "-m", "gluonlab.bench.worker", "torch-ddp", options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    atexit.register(_end, process)
    return process


def _order(process: "subprocess.Popen[bytes]", steps: int) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"steps": steps}).encode() + b"\n")
    process.stdin.flush()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End another rank, by closing its input or, failing that, by its id."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
