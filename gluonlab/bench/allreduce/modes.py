"""``bench allreduce`` in its three modes: measure, price (--simulate), draw (--draw).

Each takes the given options, and returns the text to print. Only measuring, and writing files,
imports MXNet.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.bench.allreduce.plans import (
    Plan,
    make_plans,
    orders_in_words,
    parse_algorithms,
    parse_groups,
)
from gluonlab.bench.allreduce.processes import started
from gluonlab.bench.allreduce.sizes import parse_sizes
from gluonlab.bench.harness.backends import parse_backends
from gluonlab.bench.harness.drawings import Drawing, drawn, number_of_devices
from gluonlab.bench.harness.machine import describe_machine
from gluonlab.bench.harness.measured_on import in_words
from gluonlab.bench.harness.session import Session
from gluonlab.bench.harness.text import WIDTH
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.for_links import FOR_LINKS, make_for_links
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.topology import Topology, make_topology
from gluonlab.config import option_name
from gluonlab.config.values import whole
from gluonlab.devices import devices
from gluonlab.engine.neighbours import own_cores
from gluonlab.errors import ConfigError, unknown
from gluonlab.files.whole import check_new, new_file

DEVICES, SIZES, DRAWN = "cpu*2", "1KiB:64MiB", 4
PRICED = "1KiB,1MiB,100MB"  # with --draw
MOST_CHUNKS = 4096  # each is some transfers
MOST_SECONDS = 86_400  # a day
SIMULATE, DRAW, MEASURE, SYNTHESISE = "simulate", "draw", "measure", "synthesise"

EVERYWHERE = {"devices", "chunks", "groups"}
TABLES = EVERYWHERE | {"algorithms", "sizes", "plot", "json"}
OPTIONS = {
    MEASURE: TABLES | {"dtype", "arrays", "repeat", "rounds", "topology", "processes"},
    SIMULATE: TABLES | {"simulate"},
    SYNTHESISE: {"synthesise", "devices", "sizes", "seconds", "out", "json"},
    DRAW: EVERYWHERE | {"draw", "out", "language", "topology"},
}

Asked = Mapping[str, Any]


class Answer(NamedTuple):
    """The text to print, and the failure that ends the command, if any."""

    text: str
    failure: Optional[str] = None


def answer(asked: Dict[str, Any]) -> Answer:
    """Measure, price or draw, as the given options say.

    Raises a UsageError for impossible values, and for options that do not belong together.
    """
    mode = next((mode for mode in (DRAW, SIMULATE, SYNTHESISE) if mode in asked), MEASURE)
    for name in asked:
        if name not in OPTIONS[mode]:
            where = "when measuring" if mode == MEASURE else f"with {option_name(mode)}"
            owners = [of for of in (DRAW, SYNTHESISE) if name in OPTIONS[of]]
            hint = f"; it belongs to {option_name(owners[0])}" if owners else ""
            raise ConfigError(f"{option_name(name)} has no effect {where}{hint}: leave it out")
    if "chunks" in asked:
        asked["chunks"] = whole(1, MOST_CHUNKS)("--chunks", asked["chunks"])
    if "groups" in asked:
        asked["groups"] = parse_groups(asked["groups"])
    if "plot" in asked:
        check_new("--plot", Path(asked["plot"]))
    modes = {DRAW: _draw, SIMULATE: _simulate, SYNTHESISE: _synthesise, MEASURE: _measure}
    return modes[mode](asked)


def _draw(asked: Asked) -> Answer:
    from gluonlab.collectives.render import as_page, as_svg, as_text, draw

    if "topology" in asked and "out" in asked and asked["draw"] not in FOR_LINKS:
        raise ConfigError(
            "--topology has no effect on pages and pictures, it prices what --draw prints as text: "
            "leave out --topology or --out"
        )
    name, world_size = asked["draw"], _world_size(asked)
    topology = make_topology(asked["topology"], world_size) if "topology" in asked else None
    world_size = topology.world_size if topology else world_size or DRAWN
    cuts: Dict[str, Any] = {option: asked.get(option) for option in ("chunks", "groups")}

    def made() -> Schedule:
        if name in FOR_LINKS:
            return _for_links(name, topology, world_size, cuts)
        return make_schedule(name, world_size, **cuts)

    def page(language: str) -> str:
        if name in FOR_LINKS:
            return as_page([made()], (name, world_size), language=language)
        return draw(name, world_size, language=language, **cuts)

    def text() -> str:
        schedule = made()
        prices = _prices(Plan(name, schedule), topology) if topology else []
        return "\n\n".join([as_text(schedule), *prices])

    drawing = Drawing(
        text=text,
        picture=lambda: as_svg(made()),
        page=page,
    )
    return Answer(drawn(drawing, asked.get("out"), asked.get("language")))


def _for_links(
    name: str, topology: Optional[Topology], world_size: int, cuts: Mapping[str, Any]
) -> Schedule:
    """For the smallest buffer: its schedule has the fewest steps and chunks, and fits a picture."""
    for option, value in cuts.items():
        if value is not None:
            raise ConfigError(f"{option_name(option)} has no effect on {name}: leave it out")
    return make_for_links(name, topology, world_size).cheapest(0)


def _prices(plan: Plan, topology: Topology) -> List[str]:
    from gluonlab.bench.allreduce import simulate

    return [simulate.table(simulate.simulate(topology, [plan], parse_sizes(PRICED)), topology)]


def _world_size(asked: Asked) -> Optional[int]:
    """The number of devices that --devices names, if given."""
    return number_of_devices(asked["devices"]) if "devices" in asked else None


def _simulate(asked: Asked) -> Answer:
    from gluonlab.bench.allreduce import simulate

    topology = make_topology(asked["simulate"], _world_size(asked))
    names, world_size = (
        parse_algorithms(asked.get("algorithms", "all"), [*FOR_LINKS, *ALGORITHMS]),
        topology.world_size,
    )
    plans = make_plans(names, world_size, asked.get("chunks"), asked.get("groups"), topology)
    rows = simulate.simulate(topology, plans, parse_sizes(asked.get("sizes", SIZES)))
    _plot(asked, rows, world_size, f"allreduce on {topology.name}, {world_size} devices: prices")
    if "json" in asked:
        head = {"topology": topology.name, "world_size": world_size, "note": topology.note}
        return _as_json(head, plans, rows)
    return Answer(simulate.table(rows, topology, orders_in_words(plans, topology)))


def _synthesise(asked: Asked) -> Answer:
    from gluonlab.bench.allreduce import synthesise

    topology = make_topology(asked["synthesise"], _world_size(asked))
    sizes = parse_sizes(asked.get("sizes", PRICED))
    seconds = whole(1, MOST_SECONDS)("--seconds", asked.get("seconds", synthesise.SECONDS))
    if "out" in asked:
        check_new("--out", Path(asked["out"]))
    front = synthesise.seek(topology, seconds, own_cores(), asked.get("out"))
    if "json" in asked:
        from gluonlab.bench.allreduce import simulate

        plans = synthesise.plans_of(front)
        rows = simulate.simulate(topology, plans, sizes)
        head = {"topology": topology.name, "world_size": topology.world_size}
        return _as_json({**head, "front": synthesise.as_json(front)}, plans, rows)
    return Answer(synthesise.text(topology, front, sizes))


def _measure(asked: Asked) -> Answer:
    sizes = parse_sizes(asked.get("sizes", SIZES))
    counts = [name for name in ("arrays", "repeat", "rounds") if name in asked]
    numbers = {name: whole(1)(option_name(name), asked[name]) for name in counts}

    from gluonlab.bench.allreduce import measure
    from gluonlab.bench.allreduce import table as allreduce_table
    from gluonlab.bench.allreduce.variants import CHOICES, make_variants
    from gluonlab.kvstores.placement import ground_of

    names = parse_algorithms(asked.get("algorithms", "all"), CHOICES)
    dtype = asked.get("dtype", measure.DTYPES[0])
    if dtype not in measure.DTYPES:
        raise ConfigError(unknown("dtype", dtype, measure.DTYPES))
    ctxs = devices(asked.get("devices", DEVICES))
    topology = ground_of(ctxs, asked.get("topology")).topology
    known = (*FOR_LINKS, *ALGORITHMS)
    scheduled = None if names is None else [name for name in names if name in known]
    plans = make_plans(scheduled, len(ctxs), asked.get("chunks"), asked.get("groups"), topology)
    variants = make_variants(names, plans, ctxs, numbers.get("arrays", 1))
    backends = _backends(asked, ctxs, dtype)
    session = Session()
    with started(backends, len(ctxs)) as processes:
        report = measure.measure(
            sizes, variants, ctxs, dtype, topology=topology, processes=processes, **numbers
        )
    session.warn_if_busy()
    where = f"{len(ctxs)} devices ({ctxs[0].device_type})"
    title = f"allreduce of {dtype} on {where}, medians of {report.rounds} rounds"
    _plot(asked, report.rows, len(ctxs), title)
    wrong = ", ".join(allreduce_table.wrong(report.rows))
    failure = f"wrong sums by {wrong}: see the column error" if wrong else None
    if "json" in asked:
        head = {
            "machine": describe_machine(),
            "devices": [str(ctx) for ctx in ctxs],
            "on": in_words(ctxs),
            "rounds": report.rounds,
            "speeds": vars(report.speeds) if report.speeds else None,
        }
        return _as_json(head, plans, report.rows, failure)
    table = allreduce_table.table(report, orders_in_words(plans, topology))
    on = textwrap.fill(f"devices: {in_words(ctxs)}", WIDTH)
    return Answer("\n".join([describe_machine(), on, "", table]), failure)


def _backends(asked: Asked, ctxs: Sequence[Any], dtype: str) -> List[str]:
    """What --processes names, if given. Raises ConfigError for what they cannot do."""
    if "processes" not in asked:
        return []
    names = parse_backends(asked["processes"])
    if dtype != "float32" or ctxs[0].device_type != "cpu" or len(ctxs) < 2:
        raise ConfigError(
            f"--processes {asked['processes']}: processes sum float32 on CPU devices, one in each: "
            "give two or more with --devices cpu*N, and leave --dtype out"
        )
    return names


def _plot(asked: Asked, rows: Sequence[Any], world_size: int, title: str) -> None:
    """The picture that --plot names, if given."""
    if "plot" in asked:
        from gluonlab.bench.allreduce.plot import make_figure

        with new_file("--plot", Path(asked["plot"])) as temporary:
            make_figure(rows, world_size, title).savefig(temporary, format="png", dpi=110)


def _as_json(
    head: Mapping[str, Any],
    plans: Sequence[Plan],
    rows: Sequence[Any],
    failure: Optional[str] = None,
) -> Answer:
    orders = {plan.label: list(plan.order) for plan in plans if plan.order}
    content = {**head, "orders": orders, "rows": [row.as_json() for row in rows]}
    return Answer(json.dumps(content), failure)
