"""``bench allreduce --simulate NAME --hosts 1:128``: the price of an allreduce against its ranks.

Does not import MXNet.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import groupby
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tqdm import tqdm

from gluonlab.bench.allreduce.plans import HIERARCHICAL, Plan, make_plans
from gluonlab.bench.allreduce.simulate import COLUMNS, HEADING, PricedRow, priced_lines, simulate
from gluonlab.bench.harness.text import table as as_table
from gluonlab.collectives.hierarchy import ACROSS
from gluonlab.collectives.hosts import MOST_HOSTS
from gluonlab.collectives.synthesis.stored import NAME as SYNTHESISED
from gluonlab.collectives.topology import Topology, make_topology
from gluonlab.config.values import whole
from gluonlab.drawing.live import new_figure
from gluonlab.errors import ConfigError, ScheduleError
from gluonlab.plain import in_words

FACTOR = 2
DASHES = ("-", "--", "-.")  # of what works across hosts


def parse_hosts(text: str) -> List[int]:
    """``1:128``, by factors of two, or ``1,3,8``. Raises ConfigError."""
    option, found = "--hosts", set()
    count = whole(1, MOST_HOSTS)
    for part in text.split(","):
        first, colon, last = part.partition(":")
        hosts, end = count(option, first), count(option, last if colon else first)
        if end < hosts:
            raise ConfigError(f"{option} {text}: write the smaller number first, {last}:{first}")
        while hosts <= end:
            found.add(hosts)
            hosts *= FACTOR
    return sorted(found)


def priced(
    machine: str, hosts: Sequence[int], names: Optional[Sequence[str]], size: int
) -> Tuple[List[PricedRow], Topology]:
    """The rows of each number of hosts, and the topology of the last. Says how far it is."""
    rows: List[PricedRow] = []
    with tqdm(hosts, unit="topology", file=sys.stderr, disable=None, leave=False) as each:
        for count in each:
            topology = make_topology(machine if count == 1 else f"{machine}*{count}")
            rows += simulate(topology, _plans(names, topology), [size])
    if not rows:
        raise ConfigError(
            f"--algorithms {','.join(names or [])}: there are none for so many hosts of {machine}: "
            "give others, or fewer --hosts"
        )
    return rows, topology


def _plans(names: Optional[Sequence[str]], topology: Topology) -> List[Plan]:
    """Those of the names that there are for so many hosts."""
    plans: List[Plan] = []
    for each in [None] if names is None else [[name] for name in names]:
        with suppress(ScheduleError):
            plans += make_plans(each, topology.world_size, topology=topology)
    return plans


def table(rows: Sequence[PricedRow], topology: Topology) -> str:
    """The rows below a line for each number of ranks."""
    size = in_words(rows[0].size_bytes)
    lines = [f"{size} on each device, hosts like those of {topology.name}", "", HEADING]
    for ranks, of_ranks in groupby(rows, key=lambda row: row.price.world_size):
        lines += ["", f"{ranks:>6} ranks", *priced_lines(list(of_ranks))]
    note = [f"{topology.name}: {topology.note}."] if topology.note else []
    return as_table(lines, COLUMNS, *note)


def make_figure(rows: Sequence[PricedRow], title: str) -> Any:
    """Time against the number of ranks, with the floor beneath: a matplotlib Figure."""
    from gluonlab.bench.allreduce.plot import LIMIT, style

    figure = new_figure(9.5, 6.2)
    axes: Any = figure.subplots()
    figure.subplots_adjust(left=0.12, right=0.69, bottom=0.1, top=0.9)
    for label, points in _curves(rows).items():
        colour, marker, face = style(label)
        times = [seconds * 1e6 for seconds in points.values()]
        across = ACROSS.index(label.split(", ")[-1]) if label.startswith(f"{HIERARCHICAL}, ") else 0
        look = {"color": colour, "marker": marker, "markerfacecolor": face, "ls": DASHES[across]}
        axes.plot(list(points), times, label=label, markersize=6, linewidth=1.4, **look)
    floor = sorted({(row.price.world_size, row.floor_s * 1e6) for row in rows})
    axes.plot(*zip(*floor), color=LIMIT, ls=":", lw=3.0, label="floor: no schedule is below")
    ranks = [count for count, _ in floor]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ranks, [str(count) for count in ranks], fontsize=8)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(True, which="major", lw=0.4, color="#dddddd")
    axes.set_xlabel("ranks", fontsize=8)
    axes.set_ylabel("priced time, microseconds", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
    return figure


def _curves(rows: Sequence[PricedRow]) -> Dict[str, Dict[int, float]]:
    """Seconds by ranks of each algorithm; of synthesised ones, which differ by ranks, the least."""
    curves: Dict[str, Dict[int, float]] = {}
    for row in rows:
        label = SYNTHESISED if row.algorithm.startswith(SYNTHESISED) else row.algorithm
        points, ranks = curves.setdefault(label, {}), row.price.world_size
        points[ranks] = min(points.get(ranks, row.predicted_s), row.predicted_s)
    return curves
