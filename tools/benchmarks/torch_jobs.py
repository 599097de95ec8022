"""PyTorch's jobs: make_training_job in one process or several, and reading of images.

A process that runs one of them does not load MXNet.
"""

from __future__ import annotations

import datetime
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import numpy as np
import torch
from PIL import Image
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.frameworks import images_and_labels
from benchmarks.images import BATCH_SIZE, whole_epochs
from gluonlab.bench.harness.worker_processes import start_rank
from gluonlab.bench.worker_main import Job
from gluonlab.bench.workloads import CLASSES, LEARNING_RATE, TASKS, Task


def lenet() -> Any:
    """Return the lab's network: (n, 1, 28, 28) -> (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


class _Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions with a shortcut.

    ``stride``: of the first convolution, and of the shortcut's projection if shapes change.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _make_conv(channels_in, channels, 3, stride), nn.BatchNorm2d(channels), nn.ReLU(),
            _make_conv(channels, channels, 3, 1), nn.BatchNorm2d(channels),
        )  # fmt: skip
        changes = stride > 1 or channels != channels_in
        self.way = (
            nn.Sequential(_make_conv(channels_in, channels, 1, stride), nn.BatchNorm2d(channels))
            if changes
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.way(x))


def _make_conv(channels_in: int, channels: int, kernel: int, stride: int) -> Any:
    return nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False)


def resnet18() -> Any:
    """Return ResNet-18: (n, 3, H, W) -> (n, 10).

    He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016, table 1.
    """
    blocks = [
        _Residual(channels_in, channels, stride)
        for channels_in, channels, stride in [
            (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1),
            (256, 512, 2), (512, 512, 1),
        ]
    ]  # fmt: skip
    return nn.Sequential(
        _make_conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


NETWORKS = {"lenet": lenet, "resnet18": resnet18}
Forward = Callable[[Any, Any], Any]


def shuffled_batches(
    task: Task, rank: int = 0, world_size: int = 1, memory_format: Any = None
) -> Iterator[Tuple[Any, Any]]:
    """Yield this rank's images (n, C, H, W) and labels (n,) of every batch, shuffled in each epoch."""
    images, labels = (torch.from_numpy(array) for array in images_and_labels(task))
    labels = labels.long()
    if memory_format is not None:
        images = images.contiguous(memory_format=memory_format)
    generator = torch.Generator().manual_seed(0)  # every rank draws the same order
    while True:
        for batch in torch.randperm(len(images), generator=generator).split(task.global_batch_size):
            mine = batch.chunk(world_size)[rank]
            yield images.index_select(0, mine), labels.index_select(0, mine)


def make_training_job(task: Task, net: Any, forward: Forward, source: Iterator[Tuple[Any, Any]]) -> Job:
    """Return a job that trains ``net``; ``forward(images, labels)`` returns the mean loss.

    The losses are added up, and read once per call.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=task.momentum)

    def run(steps: int) -> Dict[str, float]:
        started = time.perf_counter()
        total = torch.zeros(())
        for _ in range(steps):
            x, y = next(source)
            optimizer.zero_grad()
            loss = forward(x, y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = float(total) / steps
        return {"seconds": time.perf_counter() - started, "loss": mean}

    return run


def make(task: str, threads: int, channels_last: bool = False, compiled: bool = False) -> Job:
    """Return a job of one process with ``threads`` threads, eager or through torch.compile."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    memory_format = torch.channels_last if channels_last else None
    net = NETWORKS[task]()
    if memory_format is not None:
        net = net.to(memory_format=memory_format)

    def forward(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(net(x), y)

    workload = TASKS[task]
    return make_training_job(
        workload,
        net,
        torch.compile(forward) if compiled else forward,
        shuffled_batches(workload, memory_format=memory_format),
    )


TIMEOUT = datetime.timedelta(seconds=60)  # of joining, and of every allreduce


def make_ddp(task: str, world_size: int, rank: int = 0, meeting_point: Optional[str] = None) -> Job:
    """Return the job of rank ``rank`` of ``world_size`` processes.

    They rendezvous through the file ``meeting_point``, which rank 0 chooses.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rendezvous_file = meeting_point or str(Path(tempfile.mkdtemp(prefix="ddp-")) / "meeting-point")
    common = {"task": task, "world_size": world_size, "meeting_point": rendezvous_file}
    ranks = range(1, world_size if rank == 0 else 1)
    others = [start_rank("torch-ddp", {**common, "rank": other_rank}, {}) for other_rank in ranks]
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous_file}", rank=rank, world_size=world_size, timeout=TIMEOUT
    )
    net = DistributedDataParallel(NETWORKS[task](), gradient_as_bucket_view=True)

    def forward(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(net(x), y)

    train = make_training_job(TASKS[task], net, forward, shuffled_batches(TASKS[task], rank, world_size))

    def run(steps: int) -> Dict[str, float]:
        for other_rank in others:
            other_rank.send(steps=steps)
        return train(steps)

    return run


WORKERS = 2


class Files(torch.utils.data.Dataset):
    """A data set of images as bytes (3, size, size), central squares that are resized, and labels."""

    def __init__(self, folder: str, size: int) -> None:
        self.size = size
        classes = sorted(Path(folder, "train").iterdir())
        folders = enumerate(classes)
        self.files = [(str(path), n) for n, folder in folders for path in sorted(folder.iterdir())]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tuple[Any, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            image: Image.Image = file.convert("RGB")
            if image.size != (self.size, self.size):
                side = min(image.size)
                left, top = (image.width - side) / 2, (image.height - side) / 2
                image = image.resize(
                    (self.size, self.size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
                )
            return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()), label


def make_reader(folder: str, size: int) -> Job:
    """Return a job that reads batches by a DataLoader with two persistent worker processes."""
    loader = torch.utils.data.DataLoader(
        Files(folder, size), BATCH_SIZE, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return whole_epochs(loader, len(loader.dataset))
