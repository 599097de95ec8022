"""The lab's own comparison: the same training on 1, 2, ... devices, one run after the other, and a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import List, Optional, Sequence

from gluonlab.config import TrainConfig
from gluonlab.devices import gpu_count
from gluonlab.errors import ConfigError
from gluonlab.files import write_text
from gluonlab.training.loop import Result, train
from gluonlab.training.plan import make_plan
from gluonlab.training.record import RunDirectory
from gluonlab.training.reporter import ConsoleReporter, Reporter


@dataclass(frozen=True)
class Row:
    """One run of a comparison. ``speedup``: images/s over those of the first run; ``efficiency``: that per device."""

    devices: int
    global_batch_size: int
    images_per_second: float
    speedup: float
    efficiency: float
    accuracy: float
    run_dir: str


def compare(config: TrainConfig, counts: Sequence[int], reporter: Optional[Reporter] = None) -> List[Row]:
    """Train with each number of GPUs in ``counts`` (CPU devices stand in as in `gpus`), and compare with the first.

    Every CPU device computes with one thread in every run, else the first run would already use all cores.
    Raises ConfigError when ``config`` names devices itself, and the errors of `train` before the first run begins.
    """
    if config.gpus is not None or config.devices is not None:
        raise ConfigError(f"--compare {','.join(map(str, counts))} chooses the devices itself: leave --gpus and --devices out")
    reporter = reporter or ConsoleReporter()
    if not gpu_count() and config.threads is None and max(counts) > 1:
        config = config.replace(threads=1)
    for count in counts:
        make_plan(config.replace(gpus=count))  # all mistakes come before the first run
    folder = RunDirectory.create(config.out, f"compare-{'-'.join(map(str, counts))}")
    folder.config({"config": config.to_dict(), "compare": list(counts)})
    folder.close()
    results = []
    for count in counts:
        reporter.say(f"\n--- {count} device{'s' * (count > 1)}")
        name = f"{count}-device{'s' * (count > 1)}"
        results.append(train(config.replace(gpus=count, out=str(folder.path / name)), reporter=reporter))
    rows = make_rows(results)
    write_text(folder.path / "compare.json", json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return rows


def make_rows(results: Sequence[Result]) -> List[Row]:
    """The table's numbers; speed-up and efficiency are relative to the first result."""
    first = results[0]
    rows = []
    for result in results:
        devices = len(result.plan.ctxs)
        speedup = result.images_per_second / first.images_per_second
        rows.append(
            Row(
                devices=devices,
                global_batch_size=result.plan.global_batch_size,
                images_per_second=result.images_per_second,
                speedup=speedup,
                efficiency=speedup * len(first.plan.ctxs) / devices,
                accuracy=result.accuracy,
                run_dir=str(result.run_dir),
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """The comparison as text, for a terminal of 80 columns."""
    lines = [f"{'devices':>7}  {'batch':>6}  {'images/s':>9}  {'speed-up':>8}  {'efficiency':>10}  {'accuracy':>8}"]
    lines += [
        f"{row.devices:>7}  {row.global_batch_size:>6}  {row.images_per_second:>9,.0f}  {row.speedup:>7.2f}x"
        f"  {row.efficiency:>10.0%}  {row.accuracy:>8.4f}"
        for row in rows
    ]
    return "\n".join(lines)
