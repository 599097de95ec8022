"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: which GPUs CUDA shows, and in which order."""

from __future__ import annotations

import os
import re
from typing import List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.gpu.nvml import Gpu


class Shown(NamedTuple):
    """The GPUs that CUDA_VISIBLE_DEVICES lets through; ``problem``: why not all that it names."""

    gpus: List[Gpu]
    problem: str = ""


def visible_gpus(gpus: Sequence[Gpu], visible: Optional[str]) -> Shown:
    """``visible``: the value of CUDA_VISIBLE_DEVICES; its numbers count along ``gpus``.

    (CUDA C++ Programming Guide)
    """
    if visible is None:
        return Shown(list(gpus))
    shown: List[Gpu] = []
    for word in [word.strip() for word in visible.split(",")] if visible.strip() else []:
        if word.startswith("-"):
            break  # means: no more
        gpu = _named(gpus, word)
        if gpu is None:
            none = f"which names none of the {len(gpus)} GPUs here, and ignores what follows"
            return Shown(shown, f"CUDA stops at {word!r}, {none}")
        if word.startswith("MIG-"):
            return Shown([gpu])  # a process computes on one part, of one GPU
        if gpu in shown:
            return Shown([], f"it names GPU {gpu.index} twice, so CUDA shows no GPU")
        shown.append(gpu)
    return Shown(shown)


def _named(gpus: Sequence[Gpu], word: str) -> Optional[Gpu]:
    """The one GPU that a word means: a number, or the beginning of a UUID."""
    number = re.match(r"\+?(\d+)", word)
    if number:
        return gpus[int(number[1])] if int(number[1]) < len(gpus) else None
    if word.startswith("MIG-GPU-"):  # what drivers before 470 call parts: MIG-GPU-<uuid>/3/0
        word = word[len("MIG-") :].partition("/")[0]
    if not word.startswith(("GPU-", "MIG-")):
        return None
    found = [
        gpu for gpu in gpus if any(uuid.startswith(word) for uuid in (gpu.uuid, *(gpu.parts or ())))
    ]
    return found[0] if len(found) == 1 else None


def in_cuda_order(gpus: Sequence[Gpu], environ: Mapping[str, str] = os.environ) -> List[Gpu]:
    """As CUDA is likely to count them: by default the fastest first, which the newer ones are."""
    if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return list(gpus)
    return sorted(gpus, key=lambda gpu: gpu.capability, reverse=True)
