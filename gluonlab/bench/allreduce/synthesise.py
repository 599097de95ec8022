"""``bench allreduce --synthesise``: schedules sought for a topology, their status and prices.

Does not import MXNet.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tqdm import tqdm

from gluonlab.bench.allreduce.plans import Plan, synthesised_label
from gluonlab.bench.allreduce.simulate import simulate
from gluonlab.bench.allreduce.simulate import table as as_table
from gluonlab.collectives.synthesis.search import Found, synthesise
from gluonlab.collectives.topology import Topology
from gluonlab.collectives.topology_file import with_schedules
from gluonlab.engine.installation import pip_install
from gluonlab.errors import ConfigError
from gluonlab.files.whole import new_file

SECONDS = 60  # for each number of steps
MEANING = (
    "rounds: of the busiest link, summed over the steps, for chunks of one part in n of the buffer "
    "on n devices; bound: below which no schedule of as many steps can have rounds, if it uses the "
    "fast links alone, each for one message in a step, and sums up every chunk on a tree before it "
    "copies it; proved optimal: the rounds are the bound."
)


def seek(topology: Topology, seconds: int, workers: int, out: Optional[str]) -> List[Found]:
    """The front of ``topology``; written with it to the new file ``out``, if given.

    Says on standard error what is being tried. Raises ConfigError without OR-tools.
    """
    try:
        import ortools  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"--synthesise needs OR-tools, which is not installed: {pip_install('synthesis')}"
        ) from None
    began = time.monotonic()
    with tqdm(bar_format="{desc} [{elapsed}]", file=sys.stderr, disable=None) as bar:
        found = synthesise(topology, seconds, workers, bar.set_description_str)
        bar.set_description_str(f"{len(found)} found in {time.monotonic() - began:.0f} s")
    if out is not None:
        with new_file("--out", Path(out)) as temporary:
            Path(temporary).write_text(with_schedules(topology, found), encoding="utf-8")
    return found


def plans_of(front: Sequence[Found]) -> List[Plan]:
    """A row of the table of prices for each."""
    return [Plan(synthesised_label(found.schedule), found.schedule) for found in front]


def text(
    topology: Topology, front: Sequence[Found], sizes: Sequence[int], out: Optional[str]
) -> str:
    """What was found, what it costs, and how the file that it was written to is used."""
    lines = [f"  {'steps':>5}{'chunks':>8}{'rounds':>9}{'bound':>9}  status"]
    for found in front:
        numbers = f"{found.rounds:>9.4f}{found.bound:>9.4f}"
        steps = f"  {len(found.schedule.steps):>5}{found.schedule.chunks:>8}"
        lines.append(f"{steps}{numbers}  {status(found)}")
    prices = as_table(simulate(topology, plans_of(front), sizes), topology, [MEANING])
    run = f"python -m gluonlab.run --gpus {topology.world_size} --kvstore synthesised"
    written = [] if out is None else ["", f"written to {out}:", f"{run} --topology {out}"]
    return "\n".join([*lines, "", prices, *written])


def status(found: Found) -> str:
    """``proved optimal``, or the bound that is left."""
    if found.optimal:
        return "proved optimal"
    return f"best found, bound {found.bound:.4f}"


def as_json(front: Sequence[Found]) -> List[Dict[str, Any]]:
    """What --json prints of them, beside their prices."""
    return [
        {
            "steps": len(found.schedule.steps),
            "chunks": found.schedule.chunks,
            "rounds": found.rounds,
            "bound": found.bound,
            "optimal": found.optimal,
        }
        for found in front
    ]
