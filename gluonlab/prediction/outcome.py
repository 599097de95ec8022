"""What a prediction says: steps on so many GPUs, as numbers, text and JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

WIDTH = 80


@dataclass(frozen=True)
class Row:
    """A step on so many GPUs, in seconds, and what it comes to.

    ``batch_size``: images of a GPU, the most if they differ.
    ``host_s``: what queueing takes, beside the GPUs' work; where it is longer than all the rest, it
    is the step. ``exposed_s``: what of ``sum_s`` lies behind backward. ``speedup``: over one GPU of
    the machine.
    """

    gpus: int
    hosts: int
    batch_size: int
    input_s: float
    compute_s: float
    sum_s: float
    exposed_s: float
    update_s: float
    host_s: float
    images_per_s: float
    speedup: float

    @property
    def step_s(self) -> float:
        """The whole step."""
        return max(self.device_s, self.host_s)

    @property
    def device_s(self) -> float:
        """What the GPUs do, one after the other."""
        return self.input_s + self.compute_s + self.exposed_s + self.update_s

    @property
    def efficiency(self) -> float:
        """The speed-up by GPU."""
        return self.speedup / self.gpus

    @property
    def bound_by(self) -> str:
        """What takes most of the step: host, compute, sum, update or input."""
        if self.host_s > self.device_s:
            return "host"
        parts = {
            "compute": self.compute_s, "sum": self.exposed_s, "update": self.update_s,
            "input": self.input_s,
        }  # fmt: skip
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Prediction:
    """Training predicted, not measured: a `Row` for each number of GPUs, the whole machine last.

    ``batch_size``: images of a GPU in the last row. ``global_batch_size``: where all rows share as
    many images a step; None where each GPU has as many. ``passes``: of a GPU's images, one after
    the other, in microbatches. ``store``: as it is priced.
    ``with_ring``: the speed-up of all GPUs of one host with the store ring.
    ``not_trusted``: reasons for which it is not to be trusted here; empty where figures published
    for the like were met. ``cautions``: what else was never compared.
    """

    machine: str
    gpu: str
    arithmetic: str
    network: str
    batch_size: int
    global_batch_size: Optional[int]
    passes: int
    optimizer: str
    store: str
    rows: Tuple[Row, ...]
    with_ring: Optional[float]
    not_trusted: Tuple[str, ...]
    cautions: Tuple[str, ...]
    assumptions: Tuple[str, ...]

    @property
    def whole(self) -> Row:
        """With all GPUs."""
        return self.rows[-1]

    def to_dict(self) -> Dict[str, Any]:
        """For JSON: all fields, and of each row also step_s, efficiency and bound_by."""
        rows = [
            {
                **asdict(row),
                "step_s": row.step_s,
                "efficiency": row.efficiency,
                "bound_by": row.bound_by,
            }
            for row in self.rows
        ]
        return {"kind": "prediction", "measured": False, **asdict(self), "rows": rows}

    @property
    def text(self) -> str:
        """A table of 80 columns, then doubts and assumptions."""
        return _as_text(self)


def _as_text(prediction: Prediction) -> str:
    shared = prediction.global_batch_size
    images = (
        f"{prediction.batch_size:,} images a GPU"
        if shared is None
        else f"{shared:,} images a step, whatever the GPUs"
    )
    what = (
        f"{prediction.network} on {prediction.machine}: {prediction.whole.gpus} x "
        f"{prediction.gpu}, {prediction.arithmetic}, {images}, {prediction.optimizer}"
    )
    if prediction.passes > 1:
        what += f", in {prediction.passes} microbatches"
    lines = [
        *wrapped(f"Predicted, not measured: {what}", ""),
        "",
        f"{'GPUs':>5}{'images/s':>11}{'speed-up':>9}{'efficiency':>11}{'step':>11}{'sum':>11}"
        f"{'exposed':>11}{'bound by':>11}",
        *map(_line, prediction.rows),
        "",
    ]
    better = prediction.with_ring or 0.0
    if better > 1.05 * prediction.whole.speedup:
        lines += [f"With --kvstore ring the speed-up of all of them would be {better:.2f}.", ""]
    for reason in prediction.not_trusted:
        lines += wrapped(f"Not to be trusted here: {reason}.", "")
    for caution in prediction.cautions:
        lines += wrapped(f"Take care: {caution}.", "")
    lines += ["" for _ in range(bool(prediction.not_trusted or prediction.cautions))]
    lines.append("Assumed:")
    for assumption in prediction.assumptions:
        lines += wrapped(assumption, "- ")
    return "\n".join(lines)


def _line(row: Row) -> str:
    return (
        f"{row.gpus:>5}{row.images_per_s:>11,.0f}{row.speedup:>9.2f}{row.efficiency:>11.2f}"
        f"{row.step_s * 1e3:>8,.1f} ms{row.sum_s * 1e3:>8,.1f} ms{row.exposed_s * 1e3:>8,.1f} ms"
        f"{row.bound_by:>11}"
    )


def wrapped(sentence: str, bullet: str) -> List[str]:
    """Lines of WIDTH columns; ``bullet`` stands in front of the first."""
    after = " " * len(bullet)
    return textwrap.wrap(sentence, WIDTH, initial_indent=bullet, subsequent_indent=after)
