"""``bench allreduce`` in its three modes: measure, price a machine that is elsewhere (--simulate),
or show a schedule (--draw).

Each takes what was asked for, option by option, and gives the text to print. Only measuring, and
writing files, imports MXNet.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from gluonlab.bench.allreduce.plans import (
    make_plans,
    orders_in_words,
    parse_algorithms,
    parse_groups,
)
from gluonlab.bench.allreduce.sizes import parse_sizes
from gluonlab.bench.harness.machine import describe_machine
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.topology import make_topology
from gluonlab.config import option_name
from gluonlab.config.values import whole
from gluonlab.devices import MOST_CPU_DEVICES, devices
from gluonlab.errors import ConfigError, unknown
from gluonlab.files.whole import check_new, new_file

DEVICES, SIZES, DRAWN = "cpu*2", "1KiB:64MiB", 4
MOST_CHUNKS = 4096  # each is some transfers
SIMULATE, DRAW, MEASURE = "simulate", "draw", "measure"

EVERYWHERE = {"devices", "chunks", "groups"}
TABLES = EVERYWHERE | {"algorithms", "sizes", "plot", "json"}
OPTIONS = {
    MEASURE: TABLES | {"dtype", "arrays", "repeat", "rounds", "topology"},
    SIMULATE: TABLES | {"simulate"},
    DRAW: EVERYWHERE | {"draw", "out", "language"},
}

Asked = Mapping[str, Any]


class Answer(NamedTuple):
    """What to print, and what is wrong with it, if anything."""

    text: str
    failure: Optional[str] = None


def answer(asked: Dict[str, Any], watched: Callable[[Callable[[], Any]], Any]) -> Answer:
    """What the options that were given ask for. ``watched`` is given the call that measures.

    Raises a UsageError for options that cannot be, or that have nothing to do with each other.
    """
    mode = DRAW if "draw" in asked else SIMULATE if "simulate" in asked else MEASURE
    for name in asked:
        if name not in OPTIONS[mode]:
            where = "measuring" if mode == MEASURE else option_name(mode)
            hint = "; it belongs to --draw" if name in OPTIONS[DRAW] else ""
            raise ConfigError(f"{option_name(name)} has no part in {where}{hint}: leave it out")
    if "chunks" in asked:
        asked["chunks"] = whole(1, MOST_CHUNKS)("--chunks", asked["chunks"])
    if "groups" in asked:
        asked["groups"] = parse_groups(asked["groups"])
    if "plot" in asked:
        check_new("--plot", Path(asked["plot"]))
    if mode == DRAW:
        return _draw(asked)
    return _simulate(asked) if mode == SIMULATE else _measure(asked, watched)


def _draw(asked: Asked) -> Answer:
    from gluonlab.collectives.render import as_text, draw

    name, world_size = asked["draw"], _world_size(asked["devices"]) if "devices" in asked else DRAWN
    cuts: Dict[str, Any] = {option: asked.get(option) for option in ("chunks", "groups")}
    if "out" not in asked:
        if "language" in asked:
            raise ConfigError(
                "--language is for a page: give --out FILE for one, or leave it out; "
                "the text is English"
            )
        return Answer(as_text(make_schedule(name, world_size, **cuts)))
    path = Path(asked["out"])
    check_new("--out", path)
    page = draw(name, world_size, language=asked.get("language", "en"), **cuts)
    with new_file("--out", path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Answer(f"written to {path}: open it in a browser")


def _world_size(spec: str) -> int:
    """How many devices are meant; for a number it does not matter whether they exist."""
    number = re.fullmatch(r"\s*(?:cpu\s*\*)?\s*([+-]?[0-9]+)\s*", spec.lower())
    if number:
        return int(whole(1, MOST_CPU_DEVICES)("--devices", number[1]))
    return len(devices(spec))


def _simulate(asked: Asked) -> Answer:
    from gluonlab.bench.allreduce import simulate

    topology = make_topology(
        asked["simulate"], _world_size(asked["devices"]) if "devices" in asked else None
    )
    names = parse_algorithms(asked.get("algorithms", "all"), list(ALGORITHMS))
    plans = make_plans(
        names, topology.world_size, asked.get("chunks"), asked.get("groups"), topology
    )
    rows = simulate.simulate(topology, plans, parse_sizes(asked.get("sizes", SIZES)))
    title = f"allreduce on {topology.name}, {topology.world_size} devices: prices"
    if "plot" in asked:
        from gluonlab.bench.allreduce import plot as allreduce_plot

        with new_file("--plot", Path(asked["plot"])) as temporary:
            allreduce_plot.draw(
                allreduce_plot.priced_curves(rows), [], topology.world_size, title, temporary
            )
    if "json" in asked:
        head = {"topology": topology.name, "world_size": topology.world_size, "note": topology.note}
        return Answer(
            json.dumps({**head, "orders": _orders(plans), "rows": [row.as_json() for row in rows]})
        )
    return Answer(simulate.table(rows, topology, orders_in_words(plans, topology)))


def _measure(asked: Asked, watched: Callable[[Callable[[], Any]], Any]) -> Answer:
    sizes = parse_sizes(asked.get("sizes", SIZES))
    numbers = {
        name: whole(1)(option_name(name), asked[name])
        for name in ("arrays", "repeat", "rounds")
        if name in asked
    }

    from gluonlab.bench.allreduce import measure as allreduce
    from gluonlab.bench.allreduce import plot as allreduce_plot
    from gluonlab.bench.allreduce import table as allreduce_text
    from gluonlab.bench.allreduce.variants import CHOICES, make_variants
    from gluonlab.bench.harness.measured_on import in_words
    from gluonlab.kvstores.placement import ground_of

    names = parse_algorithms(asked.get("algorithms", "all"), CHOICES)
    dtype = asked.get("dtype", allreduce.DTYPES[0])
    if dtype not in allreduce.DTYPES:
        raise ConfigError(unknown("dtype", dtype, allreduce.DTYPES))
    ctxs = devices(asked.get("devices", DEVICES))
    topology = ground_of(ctxs, asked.get("topology")).topology
    scheduled = None if names is None else [name for name in names if name in ALGORITHMS]
    plans = make_plans(scheduled, len(ctxs), asked.get("chunks"), asked.get("groups"), topology)
    variants = make_variants(names, plans, ctxs, numbers.get("arrays", 1))
    report = watched(
        lambda: allreduce.measure(sizes, variants, ctxs, dtype, topology=topology, **numbers)
    )
    if "plot" in asked:
        title = (
            f"allreduce of {dtype} on {len(ctxs)} devices ({ctxs[0].device_type}), "
            f"medians of {report.rounds} rounds"
        )
        curves, limit = (
            allreduce_plot.measured_curves(report.rows),
            allreduce_plot.limit_points(report.rows),
        )
        with new_file("--plot", Path(asked["plot"])) as temporary:
            allreduce_plot.draw(curves, limit, len(ctxs), title, temporary)
    wrong = allreduce_text.wrong(report.rows)
    failure = f"wrong sums by {', '.join(wrong)}: see the column error" if wrong else None
    if "json" in asked:
        head = {
            "machine": describe_machine(),
            "devices": [str(ctx) for ctx in ctxs],
            "on": in_words(ctxs),
            "rounds": report.rounds,
        }
        speeds = vars(report.speeds) if report.speeds else None
        content = {
            **head,
            "speeds": speeds,
            "orders": _orders(plans),
            "rows": [row.as_json() for row in report.rows],
        }
        return Answer(json.dumps(content), failure)
    table = allreduce_text.table(report, orders_in_words(plans, topology))
    return Answer(
        "\n".join([describe_machine(), textwrap.fill(f"devices: {in_words(ctxs)}", 80), "", table]),
        failure,
    )


def _orders(plans: List[Any]) -> Dict[str, List[int]]:
    return {plan.label: list(plan.order) for plan in plans if plan.order}
