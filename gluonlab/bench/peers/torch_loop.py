"""PyTorch's training of the same network on the same images.

They are tensors in memory: no DataLoader, nothing is read per batch.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, Tuple

import torch
from torch import nn

from gluonlab.bench.peers.torch_networks import NETWORKS
from gluonlab.bench.peers.work import LEARNING_RATE, TASKS, Task, images_and_labels
from gluonlab.bench.worker import Job

Forward = Callable[[Any, Any], Any]


def batches(
    task: Task, rank: int = 0, world_size: int = 1, memory_format: Any = None
) -> Iterator[Tuple[Any, Any]]:
    """This rank's images (n, C, H, W) and labels (n,) of every batch, without end.

    Every epoch is shuffled anew.
    """
    images, labels = (torch.from_numpy(array) for array in images_and_labels(task))
    labels = labels.long()
    if memory_format is not None:
        images = images.contiguous(memory_format=memory_format)
    generator = torch.Generator().manual_seed(0)  # every rank draws the same order
    while True:
        for batch in torch.randperm(len(images), generator=generator).split(task.global_batch_size):
            mine = batch.chunk(world_size)[rank]
            yield images.index_select(0, mine), labels.index_select(0, mine)


def training(task: Task, net: Any, forward: Forward, source: Iterator[Tuple[Any, Any]]) -> Job:
    """A job that trains ``net``; ``forward(images, labels)`` is the mean loss.

    The losses are added up, and read once per call.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=task.momentum)

    def run(steps: int) -> Dict[str, float]:
        began = time.perf_counter()
        total = torch.zeros(())
        for _ in range(steps):
            x, y = next(source)
            optimizer.zero_grad()
            loss = forward(x, y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = float(total) / steps
        return {"seconds": time.perf_counter() - began, "loss": mean}

    return run


def make(task: str, threads: int, channels_last: bool = False, compiled: bool = False) -> Job:
    """One process with ``threads`` threads, eager or through torch.compile."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    memory_format = torch.channels_last if channels_last else None
    net = NETWORKS[task]()
    if memory_format is not None:
        net = net.to(memory_format=memory_format)

    def forward(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(net(x), y)

    work = TASKS[task]
    return training(
        work,
        net,
        torch.compile(forward) if compiled else forward,
        batches(work, memory_format=memory_format),
    )
