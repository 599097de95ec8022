"""PyTorch's DataLoader on a folder of JPEGs, decoded by Pillow as in torchvision.

Nothing is trained with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Tuple

import numpy as np
import torch
from PIL import Image

from gluonlab.bench.images.table import BATCH_SIZE, whole_epochs
from gluonlab.bench.worker import Job

WORKERS = 2


class Files(torch.utils.data.Dataset):
    """Each image as bytes (3, size, size): decoded, its central square resized. And its label."""

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
                    (self.size, self.size),
                    Image.Resampling.BILINEAR,
                    box=(left, top, left + side, top + side),
                )
            return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()), label


def make(folder: str, size: int) -> Job:
    """Batches of a DataLoader with two worker processes that stay from epoch to epoch."""
    loader = torch.utils.data.DataLoader(
        Files(folder, size), BATCH_SIZE, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return whole_epochs(loader, len(loader.dataset))
