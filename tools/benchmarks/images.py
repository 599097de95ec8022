"""Benchmark of images read per second: gluonlab, MXNet, and PyTorch's DataLoader."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

from benchmarks import rates
from benchmarks.frameworks import missing_torch_reason
from benchmarks.rates import ThroughputRow
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject, image_rates, measure_subjects
from gluonlab.bench.harness.measurement_command import INTERRUPTED, OLD_NAMES, MeasurementOptions, measurement_options
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.bench.harness.table_format import rounds_text
from gluonlab.bench.worker_main import Job
from gluonlab.cli.command import command
from gluonlab.files.atomic_files import temporary_folder

ROUNDS = 5
BATCH_SIZE = 64
CLASSES = 4
PEER = "torch"
LABEL_WIDTH = 30  # columns
WAYS = {
    "decoders": "gluonlab, 2 workers",
    "packed": "gluonlab, preprocessed",
    "record": "ImageRecordIter, .rec",
    "gluon": "gluon DataLoader, 2 workers",
    PEER: "PyTorch DataLoader, 2 workers",
}


@dataclass(frozen=True)
class Photographs:
    """Synthetic JPEGs of one size, and the size that networks receive."""

    width: int
    height: int
    size: int
    count: int

    def size_label(self) -> str:
        """Return ``320x240 -> 224x224``."""
        return f"{self.width}x{self.height} -> {self.size}x{self.size}"


SETS = (Photographs(64, 64, 64, 1280), Photographs(320, 240, 224, 384))


def make_subjects(folder: Path, size: int) -> List[Subject]:
    """Return the readers of the JPEGs below ``folder``, with two processes or threads where
    possible.
    """
    common = {"folder": str(folder), "size": size}
    *readers, peer = WAYS
    return [
        *(Subject(name, WAYS[name], "images", {"reader": name, **common}) for name in readers),
        Subject(peer, WAYS[peer], "torch-images", common, missing=missing_torch_reason()),
    ]


def measure_images(rounds: int = ROUNDS) -> List[Measurement]:
    """Measure every reader on every set, interleaved; subjects' names start with the set's.

    The JPEGs are created for it, and removed.
    """
    measurements: List[Measurement] = []
    for photographs in SETS:
        with temporary_folder("images") as folder:
            make_jpegs(folder, photographs)
            measurements += measure_subjects(make_subjects(folder, photographs.size), rounds)
        for measurement in measurements[-len(WAYS) :]:
            measurement.subject = replace(
                measurement.subject, name=f"{photographs.size_label()}: {measurement.subject.name}"
            )
    return measurements


def make_jpegs(folder: Path, photographs: Photographs) -> None:
    """Write folder/train/CLASS/*.jpg and a few in folder/val, which compress like photographs.

    They are smooth colors with some noise.
    """
    import numpy as np  # a bench's --help does without
    from PIL import Image

    random = np.random.RandomState(0)
    width, height = photographs.width, photographs.height
    for number in range(photographs.count + CLASSES):
        split = "train" if number < photographs.count else "val"
        class_folder = folder / split / f"class{number % CLASSES}"
        class_folder.mkdir(parents=True, exist_ok=True)
        coarse = random.randint(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
        smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth) + random.randint(-12, 13, (height, width, 3))
        image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        image.save(class_folder / f"{number:05}.jpg", quality=90)


def whole_epochs(epoch: Iterable[Any], images: int) -> Job:
    """Return a job that iterates over ``epoch``, which has ``images`` images.

    It reads whole epochs for at least the requested steps. Otherwise batches that a reader has
    prefetched while another one was measured would count.
    """

    def run(steps: int) -> Dict[str, float]:
        started, epochs = time.perf_counter(), math.ceil(steps * BATCH_SIZE / images)
        for _ in range(epochs):
            for batch in epoch:
                del batch
        return {"seconds": time.perf_counter() - started, "images": epochs * images}

    return run


def make_rows(series: Sequence[Series]) -> List[ThroughputRow]:
    """The table's numbers; ratios are the row's images/s over those of PyTorch on the same set."""
    peers = {set_of(item): item.values for item in series if item.name.endswith(f": {PEER}")}
    return [rates.make_row(item, item.values, peers.get(set_of(item), ())) for item in series]


def set_of(named: "Series | ThroughputRow") -> str:
    """``320x240 -> 224x224``: the set that a row is about."""
    return named.name.partition(": ")[0]


def format_results(rows: Sequence[ThroughputRow], rounds: int) -> str:
    """The rows as text, set by set."""
    lines: List[str] = []
    for label in dict.fromkeys(map(set_of, rows)):
        rows_of_set = [rates.format_row(row, LABEL_WIDTH) for row in rows if set_of(row) == label]
        lines += [*[""] * bool(lines), rates.format_heading(label, LABEL_WIDTH, "row / PyTorch"), *rows_of_set]
    note = (
        f"JPEGs are read, decoded and put into batches of {BATCH_SIZE}, without training. "
        f"images/s: the median of {rounds_text(rounds)}. gluonlab returns uint8 shards "
        "on 2 devices, in an order that depends on the seed; preprocessed files contain pixels."
    )
    return as_table(lines, note)


@command("python tools/benchmarks images", INTERRUPTED, renamed=OLD_NAMES)
@measurement_options(ROUNDS)
def main(run_options: MeasurementOptions) -> None:
    """Compare how fast gluonlab, MXNet and PyTorch decode JPEG images.

    Missed targets are reported, and do not change the exit status.
    """
    _, record = run_options.measure_and_record(("images", {}), measure_images, image_rates)
    run_options.print_record(record, format_results(make_rows(record.series), run_options.rounds))
