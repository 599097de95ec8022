"""How many images per second come out of files: gluonlab's ways, MXNet's own, and PyTorch's
DataLoader, on the same JPEGs.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import tempfile
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

import numpy as np
from PIL import Image

from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement, Subject, measure
from gluonlab.bench.peers import table as peers
from gluonlab.bench.worker import Job

ROUNDS = 5
BATCH_SIZE = 64
CLASSES = 4
PEER = "torch"


@dataclass(frozen=True)
class Photographs:
    """Made-up JPEGs of one size, and the size that networks get."""

    width: int
    height: int
    size: int
    count: int

    def label(self) -> str:
        """``320x240 -> 224x224``."""
        return f"{self.width}x{self.height} -> {self.size}x{self.size}"


SETS = (Photographs(64, 64, 64, 1280), Photographs(320, 240, 224, 384))


@dataclass(frozen=True)
class Row(peers.Row):
    """A line for one set of ``images``.

    ``ratio``: this row's images/s over PyTorch's, the median of the rounds' ratios.
    """

    images: str = ""


def subjects(folder: Path, size: int) -> List[Subject]:
    """The ways to read the JPEGs below ``folder``, each with two processes or threads where it has
    any.
    """
    common = {"folder": str(folder), "size": size}
    missing = None if importlib.util.find_spec("torch") else peers.NO_TORCH
    return [
        Subject("decoders", "gluonlab, 2 decoders", "images", {"reader": "decoders", **common}),
        Subject("packed", "gluonlab, packed", "images", {"reader": "packed", **common}),
        Subject("record", "ImageRecordIter, .rec", "images", {"reader": "record", **common}),
        Subject("gluon", "gluon DataLoader, 2 workers", "images", {"reader": "gluon", **common}),
        Subject(PEER, "PyTorch DataLoader, 2 workers", "torch-images", common, missing=missing),
    ]


def images(rounds: int = ROUNDS) -> List[Measurement]:
    """Measure every way on every set, interleaved; the JPEGs are made for it, and removed.

    Names tell the set.
    """
    found: List[Measurement] = []
    for photographs in SETS:
        with tempfile.TemporaryDirectory(prefix="gluonlab-images-") as folder:
            make_jpegs(Path(folder), photographs)
            for one in measure(subjects(Path(folder), photographs.size), rounds):
                one.subject = replace(
                    one.subject, name=f"{photographs.label()}: {one.subject.name}"
                )
                found.append(one)
    return found


def make_jpegs(folder: Path, photographs: Photographs) -> None:
    """folder/train/CLASS/*.jpg and a few in folder/val: smooth colours with some noise, which
    compress like photographs.
    """
    random = np.random.RandomState(0)
    width, height = photographs.width, photographs.height
    for number in range(photographs.count + CLASSES):
        part = "train" if number < photographs.count else "val"
        place = folder / part / f"class{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(
            random.randint(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
        )
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(
            np.int32
        )
        noisy = smooth + random.randint(-12, 13, smooth.shape)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(
            place / f"{number:05}.jpg", quality=90
        )


def whole_epochs(epoch: Iterable[Any], images: int) -> Job:
    """A job that iterates over ``epoch``, which gives ``images`` images each time, as often as it
    takes for the steps asked for.

    Whole epochs: what a reader has made ready beforehand, while another one was measured, would
    count otherwise.
    """

    def run(steps: int) -> Dict[str, float]:
        began, epochs = time.perf_counter(), math.ceil(steps * BATCH_SIZE / images)
        for _ in range(epochs):
            for batch in epoch:
                del batch
        return {"seconds": time.perf_counter() - began, "images": epochs * images}

    return run


def series(measurements: Sequence[Measurement]) -> List[Series]:
    """Images/s, by round."""
    return [
        Series(one.subject.name, one.subject.label, "images/s", tuple(_rates(one)), one.reason)
        for one in measurements
    ]


def _rates(measurement: Measurement) -> List[float]:
    return [
        images / seconds
        for images, seconds in zip(measurement.column("images"), measurement.column("seconds"))
    ]


def make_rows(found: Sequence[Series]) -> List[Row]:
    """The table's numbers; of each set PyTorch's row is the reference."""
    rates = {one.name: one.values for one in found}
    return [_row(one, rates.get(f"{one.name.partition(': ')[0]}: {PEER}", ())) for one in found]


def _row(one: Series, peer: Sequence[float]) -> Row:
    label, _, name = one.name.partition(": ")
    own = one.values
    if not own:
        return Row(name, one.label, reason=one.reason, images=label)
    ratio = statistics.median(mine / its for mine, its in zip(own, peer)) if peer else None
    return Row(name, one.label, statistics.median(own), min(own), max(own), ratio, images=label)


def table(rows: Sequence[Row], rounds: int, width: int = 80) -> str:
    """The rows as text, at most ``width`` columns wide."""
    lines = []
    for label in dict.fromkeys(row.images for row in rows):
        lines.append(f"{label:<30}{'images/s':>10}  {'lowest..highest':>19}  {'row / PyTorch':>15}")
        lines += [*(_line(row, width) for row in rows if row.images == label), ""]
    note = (
        f"JPEGs read, decoded and made batches of {BATCH_SIZE} in {rounds} interleaved "
        f"round{'s' * (rounds > 1)}, nothing trained. images/s: the median. "
        "gluonlab's batches are shards of bytes on 2 devices, in a seed's order; "
        "packed is read as pixels."
    )
    return "\n".join([*lines, textwrap.fill(note, width)])


def _line(row: Row, width: int) -> str:
    if row.images_per_second is None:
        label = f"  {row.label:<30}"
        return label + textwrap.shorten(
            row.reason or "not measured", width - len(label), placeholder="..."
        )
    extent = f"{row.lowest:,.0f}..{row.highest:,.0f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    return f"  {row.label:<30}{row.images_per_second:>8,.0f}  {extent:>19}  {ratio:>15}"
