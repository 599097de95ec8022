"""``bench allreduce`` in its modes: measure, price, choose, seek (--synthesise), draw.

Each takes the given options, and returns the text to print. Only measuring, and writing files,
imports MXNet.
"""

from __future__ import annotations

from pathlib import Path
from typing import AbstractSet, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.bench.allreduce import predicted_costs as prices
from gluonlab.bench.allreduce.candidate_schedules import (
    NamedSchedule,
    auto_plan,
    make_plans,
    orders_in_words,
    parse_algorithms,
    parse_groups,
)
from gluonlab.bench.allreduce.message_sizes import DRAWN, SIZES, parse_sizes
from gluonlab.bench.harness.measurement_command import Drawing, drawn, number_of_devices
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.named_topologies import Topology, make_topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.topology_aware import AUTO, FOR_LINKS, MOST_DEVICES, make_for_links
from gluonlab.collectives.topology_file import is_file_name
from gluonlab.config import option_name
from gluonlab.config.option_types import whole_number_check
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import ConfigError
from gluonlab.files.atomic_files import check_new, new_file
from gluonlab.plain_text import format_size, json_text

PRICED = "1KiB,1MiB,100MB"  # with --draw
MOST_CHUNKS = 4096  # each is some transfers
MOST_SECONDS = 86_400  # a day
SIMULATE, DRAW, MEASURE, SYNTHESISE = "simulate", "draw", "measure", "synthesise"
CHOOSE = "choose"

EVERYWHERE = {"devices", "chunks", "groups"}
TABLES = EVERYWHERE | {"algorithms", "sizes", "plot", "json"}
RUN = {"dtype", "arrays", "repeat", "rounds", "topology"}
OPTIONS = {
    MEASURE: TABLES | RUN | {"processes"},
    SIMULATE: TABLES | {"simulate", "hosts", "all"},
    CHOOSE: RUN | {"choose", "simulate", "devices", "sizes", "json"},
    SYNTHESISE: {"synthesise", "devices", "sizes", "seconds", "out", "json"},
    DRAW: EVERYWHERE | {"draw", "out", "language", "topology"},
}

Asked = Mapping[str, Any]


class ModeOutput(NamedTuple):
    """The text to print, and the failure that ends the command, if any."""

    text: str
    failure: Optional[str] = None


def answer(asked: Dict[str, Any]) -> ModeOutput:
    """Measure, price or draw, as the given options say.

    Raises a UsageError for impossible values, and for options that do not belong together.
    """
    mode = next((mode for mode in (DRAW, CHOOSE, SIMULATE, SYNTHESISE) if mode in asked), MEASURE)
    _check_belonging(asked, mode, OPTIONS[mode])
    if mode == CHOOSE and SIMULATE in asked:
        _check_belonging(asked, SIMULATE, OPTIONS[CHOOSE] - RUN)
    if "chunks" in asked:
        asked["chunks"] = whole_number_check(1, MOST_CHUNKS)("--chunks", asked["chunks"])
    if "groups" in asked:
        asked["groups"] = parse_groups(asked["groups"])
    if "plot" in asked:
        check_new("--plot", Path(asked["plot"]))
    modes = {
        DRAW: _draw,
        CHOOSE: _choose,
        SIMULATE: _simulate,
        SYNTHESISE: _synthesise,
        MEASURE: _measure,
    }
    return modes[mode](asked)


def _check_belonging(asked: Asked, mode: str, known: AbstractSet[str]) -> None:
    """Raise ConfigError for an option that has no effect in a mode."""
    for name in asked:
        if name not in known:
            where = "when measuring" if mode == MEASURE else f"with {option_name(mode)}"
            owners = [of for of in (DRAW, SYNTHESISE, SIMULATE) if name in OPTIONS[of]]
            hint = f"; it belongs to {option_name(owners[0])}" if owners else ""
            raise ConfigError(f"{option_name(name)} has no effect {where}{hint}: leave it out")


def _draw(asked: Asked) -> ModeOutput:
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
        prices = _prices(NamedSchedule(name, schedule), topology) if topology else []
        return "\n\n".join([as_text(schedule), *prices])

    drawing = Drawing(
        text=text,
        picture=lambda: as_svg(made()),
        page=page,
    )
    return ModeOutput(drawn(drawing, asked.get("out"), asked.get("language")))


def _for_links(
    name: str, topology: Optional[Topology], world_size: int, cuts: Mapping[str, Any]
) -> Schedule:
    """For the smallest buffer: its schedule has the fewest steps and chunks, and fits a picture."""
    for option, value in cuts.items():
        if value is not None:
            raise ConfigError(f"{option_name(option)} has no effect on {name}: leave it out")
    return make_for_links(name, topology, world_size).cheapest(0)


def _prices(plan: NamedSchedule, topology: Topology) -> List[str]:
    return [prices.price_table(prices.simulate(topology, [plan], parse_sizes(PRICED)), topology)]


def _world_size(asked: Asked) -> Optional[int]:
    """The number of devices that --devices names, if given."""
    return number_of_devices(asked["devices"]) if "devices" in asked else None


def _simulate(asked: Asked) -> ModeOutput:
    if "hosts" in asked:
        return _against_ranks(asked)
    topology = make_topology(asked["simulate"], _world_size(asked))
    sizes, world_size = parse_sizes(asked.get("sizes", SIZES)), topology.world_size
    names = parse_algorithms(asked.get("algorithms", "all"), [*FOR_LINKS, *ALGORITHMS])
    plans = make_plans(names, world_size, asked.get("chunks"), asked.get("groups"), topology)
    if AUTO in (names or ([AUTO] if world_size <= MOST_DEVICES else [])):
        plans.append(auto_plan(make_for_links(AUTO, topology, world_size)))
    rows = prices.simulate(topology, plans, sizes)
    _plot(asked, rows, world_size, f"allreduce on {topology.name}, {world_size} devices: prices")
    if "json" in asked:
        head = {"topology": topology.name, "world_size": world_size, "note": topology.note}
        return ModeOutput(json_text({**head, **_rows_as_json(plans, rows)}))
    if len(sizes) > 1 and "all" not in asked:
        return ModeOutput(prices.cheapest(rows, topology))
    return ModeOutput(prices.price_table(rows, topology, orders_in_words(plans, topology)))


def _against_ranks(asked: Asked) -> ModeOutput:
    for name in sorted({"all", "devices", "chunks", "groups"} & set(asked)):
        raise ConfigError(f"{option_name(name)} has no effect with --hosts: leave it out")
    machine, hosts = asked[SIMULATE], prices.parse_hosts(asked["hosts"])
    sizes = parse_sizes(asked.get("sizes", "100MB"))
    if len(sizes) > 1:
        raise ConfigError(f"--sizes {asked['sizes']}: with --hosts one size is priced: give one")
    names = parse_algorithms(asked.get("algorithms", "all"), [*FOR_LINKS, *ALGORITHMS])
    if AUTO in (names or []):
        raise ConfigError(
            "--algorithms auto is always one of the others: leave it out with --hosts"
        )
    rows, topology = prices.price_hosts(machine, hosts, names, sizes[0])
    if "plot" in asked:
        from gluonlab.bench.allreduce.plot_bandwidth import make_ranks_figure

        title = f"allreduce of {format_size(sizes[0])} on hosts like {machine}: prices"
        with new_file("--plot", Path(asked["plot"])) as temporary:
            make_ranks_figure(rows, title).savefig(temporary, format="png", dpi=110)
    if "json" in asked:
        as_rows = [{"world_size": row.price.world_size, **row.as_json()} for row in rows]
        return ModeOutput(json_text({"topology": machine, "hosts": hosts, "rows": as_rows}))
    return ModeOutput(prices.ranks_table(rows, topology))


def _synthesise(asked: Asked) -> ModeOutput:
    topology = make_topology(asked["synthesise"], _world_size(asked))
    sizes = parse_sizes(asked.get("sizes", PRICED))
    seconds = whole_number_check(1, MOST_SECONDS)("--seconds", asked.get("seconds", prices.SECONDS))
    if "out" in asked:
        if not is_file_name(asked["out"]):
            raise ConfigError(
                f"--out {asked['out']}: give a name that ends in .json, by which it is known"
            )
        check_new("--out", Path(asked["out"]))
    front = prices.seek(topology, seconds, cores_per_process(), asked.get("out"))
    if "json" in asked:
        plans = prices.plans_of(front)
        rows = prices.simulate(topology, plans, sizes)
        head = {"topology": topology.name, "world_size": topology.world_size}
        content = {**head, "front": prices.synthesis_as_json(front), **_rows_as_json(plans, rows)}
        return ModeOutput(json_text(content))
    return ModeOutput(prices.synthesis_text(topology, front, sizes, asked.get("out")))


def _choose(asked: Asked) -> ModeOutput:
    if SIMULATE in asked:
        topology = make_topology(asked[SIMULATE], _world_size(asked))
        made = make_for_links(AUTO, topology, topology.world_size)
        found = prices.choices(made, parse_sizes(asked.get("sizes", SIZES)))
        as_json = json_text(prices.choices_as_json(made, found))
        return ModeOutput(as_json if "json" in asked else prices.choices_text(made, found))

    from gluonlab.bench.allreduce.measure_allreduce import measured

    run = measured(asked, schedules_alone=True)
    assert run.auto is not None  # it was asked for
    sizes = sorted({row.size_bytes for row in run.report.rows})
    found = prices.choices(run.auto, sizes, run.report.rows)
    if "json" in asked:
        return ModeOutput(run.as_json(prices.choices_as_json(run.auto, found)), run.failure)
    return ModeOutput(run.as_text(prices.choices_text(run.auto, found)), run.failure)


def _measure(asked: Asked) -> ModeOutput:
    from gluonlab.bench.allreduce import result_table as allreduce_table
    from gluonlab.bench.allreduce.measure_allreduce import measured

    run = measured(asked)
    rows, count = run.report.rows, len(run.ctxs)
    where = f"{count} devices ({run.ctxs[0].device_type})"
    title = f"allreduce of {rows[0].dtype} on {where}, medians of {run.report.rounds} rounds"
    _plot(asked, rows, count, title)
    if "json" in asked:
        return ModeOutput(run.as_json(_rows_as_json(run.plans, rows)), run.failure)
    table = allreduce_table.table(run.report, orders_in_words(run.plans, run.topology))
    return ModeOutput(run.as_text(table), run.failure)


def _plot(asked: Asked, rows: Sequence[Any], world_size: int, title: str) -> None:
    """The picture that --plot names, if given."""
    if "plot" in asked:
        from gluonlab.bench.allreduce.plot_bandwidth import make_figure

        with new_file("--plot", Path(asked["plot"])) as temporary:
            make_figure(rows, world_size, title).savefig(temporary, format="png", dpi=110)


def _rows_as_json(plans: Sequence[NamedSchedule], rows: Sequence[Any]) -> Dict[str, Any]:
    orders = {plan.label: list(plan.order) for plan in plans if plan.order}
    return {"orders": orders, "rows": [row.as_json() for row in rows]}
