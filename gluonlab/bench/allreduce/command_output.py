"""Functions that turn a ``gluonlab allreduce`` command's options into its output.

MXNet is imported only to measure and to write files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.bench.allreduce import predicted_costs
from gluonlab.bench.allreduce.candidate_schedules import (
    NamedSchedule,
    describe_orders,
    make_auto_plan,
    make_plans,
    parse_algorithms,
    parse_groups,
)
from gluonlab.bench.allreduce.message_sizes import COST_SIZES, DEFAULT_SIZES, DRAWN_DEVICES, parse_sizes
from gluonlab.bench.harness.measurement_command import ScheduleDrawing, count_devices, output_drawing
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.named_topologies import Topology, make_topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.topology_aware import AUTO, MAX_AUTO_DEVICES, TOPOLOGY_AWARE, make_for_links
from gluonlab.collectives.topology_file import is_file_name
from gluonlab.config import option_name
from gluonlab.config.option_checks import whole_number_check
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import ConfigError
from gluonlab.files.atomic_files import check_new_path, new_file
from gluonlab.plain_text import format_size, json_text

MAX_CHUNKS = 4096  # the number of transfers, and so the time, grows with the chunks
MAX_SECONDS = 86_400  # a day
# options of ``allreduce choose`` that belong to a measurement
MEASURING_OPTIONS = ("dtype", "arrays", "iters", "warmup", "rounds", "topology")

CommandOptions = Mapping[str, Any]  # options that are given, by name


class CommandOutput(NamedTuple):
    """The text to print, and the error message with which the command exits afterward, or None."""

    text: str
    failure: Optional[str] = None


def _check_options(options: CommandOptions) -> Dict[str, Any]:
    """Parse the values of --chunks and --groups, and return all options.

    Raises a UsageError for invalid values.
    """
    checked = dict(options)
    if "chunks" in options:
        checked["chunks"] = whole_number_check(1, MAX_CHUNKS)("--chunks", options["chunks"])
    if "groups" in options:
        checked["groups"] = parse_groups(options["groups"])
    if "plot" in options:
        check_new_path("--plot", Path(options["plot"]))
    return checked


def draw_schedule(options: CommandOptions) -> CommandOutput:
    """Return the drawing of a schedule as text, or write it to the file that --out-file names."""
    from gluonlab.collectives.render import as_page, as_svg, as_text, draw

    options = _check_options(options)
    if "topology" in options and "out_file" in options and options["algorithm"] not in TOPOLOGY_AWARE:
        raise ConfigError(
            "--topology only adds predicted times to drawings in text form, not to pages or "
            "images: omit --topology or --out-file"
        )
    name, world_size = options["algorithm"], _parse_world_size(options)
    topology = make_topology(options["topology"], world_size) if "topology" in options else None
    world_size = topology.world_size if topology else world_size or DRAWN_DEVICES
    cuts: Dict[str, Any] = {option: options.get(option) for option in ("chunks", "groups")}

    def make_drawn_schedule() -> Schedule:
        if name in TOPOLOGY_AWARE:
            return _make_link_aware_schedule(name, topology, world_size, cuts)
        return make_schedule(name, world_size, **cuts)

    def make_page(language: str) -> str:
        if name in TOPOLOGY_AWARE:
            return as_page([make_drawn_schedule()], (name, world_size), language=language)
        return draw(name, world_size, language=language, **cuts)

    def make_text() -> str:
        schedule = make_drawn_schedule()
        tables = _cost_tables(NamedSchedule(name, schedule), topology) if topology else []
        return "\n\n".join([as_text(schedule), *tables])

    drawing = ScheduleDrawing(text=make_text, picture=lambda: as_svg(make_drawn_schedule()), page=make_page)
    return CommandOutput(output_drawing(drawing, options.get("out_file"), options.get("language")))


def _make_link_aware_schedule(
    name: str, topology: Optional[Topology], world_size: int, cuts: Mapping[str, Any]
) -> Schedule:
    """Return the schedule to draw, which is the algorithm's schedule for the smallest buffer.

    This schedule has the fewest steps, so it fits in a picture. ``cuts``: the values of --chunks
    and --groups, which must be None.
    """
    for option, value in cuts.items():
        if value is not None:
            raise ConfigError(f"{option_name(option)} has no effect on {name}: omit {option_name(option)}")
    return make_for_links(name, topology, world_size).cheapest(0)


def _cost_tables(plan: NamedSchedule, topology: Topology) -> List[str]:
    return [
        predicted_costs.cost_table(predicted_costs.predict_costs(topology, [plan], parse_sizes(COST_SIZES)), topology)
    ]


def _parse_world_size(options: CommandOptions) -> Optional[int]:
    """Return the number of devices that --devices names, or None if the option is not used."""
    return count_devices(options["devices"]) if "devices" in options else None


def predict_algorithm_costs(options: CommandOptions) -> CommandOutput:
    """Return the predicted times of algorithms on a topology."""
    options = _check_options(options)
    if "hosts" in options:
        return _predict_costs_by_hosts(options)
    topology = make_topology(options["topology"], _parse_world_size(options))
    sizes, world_size = parse_sizes(options.get("bytes", DEFAULT_SIZES)), topology.world_size
    names = parse_algorithms(options.get("algorithms", "all"), [*TOPOLOGY_AWARE, *ALGORITHMS])
    plans = make_plans(names, world_size, options.get("chunks"), options.get("groups"), topology)
    if AUTO in (names or ([AUTO] if world_size <= MAX_AUTO_DEVICES else [])):
        plans.append(make_auto_plan(make_for_links(AUTO, topology, world_size)))
    rows = predicted_costs.predict_costs(topology, plans, sizes)
    _save_plot(options, rows, world_size, f"allreduce on {topology.name}, {world_size} devices: predicted times")
    if "json" in options:
        head = {"topology": topology.name, "world_size": world_size, "note": topology.note}
        return CommandOutput(json_text({**head, **_rows_to_json(plans, rows)}))
    if len(sizes) > 1 and "all" not in options:
        return CommandOutput(predicted_costs.cheapest_table(rows, topology))
    return CommandOutput(predicted_costs.cost_table(rows, topology, describe_orders(plans, topology)))


def _predict_costs_by_hosts(options: CommandOptions) -> CommandOutput:
    """Return the predicted times for one buffer size and for each number of hosts in --hosts."""
    for name in sorted({"all", "devices", "chunks", "groups"} & set(options)):
        raise ConfigError(f"{option_name(name)} has no effect with --hosts: omit {option_name(name)}")
    machine, hosts = options["topology"], predicted_costs.parse_host_counts(options["hosts"])
    sizes = parse_sizes(options.get("bytes", "100MB"))
    if len(sizes) > 1:
        raise ConfigError(f"--bytes {options['bytes']}: --hosts predicts times for only one size: pass a single size")
    names = parse_algorithms(options.get("algorithms", "all"), [*TOPOLOGY_AWARE, *ALGORITHMS])
    if AUTO in (names or []):
        raise ConfigError(
            "--hosts does not support algorithm auto, which always uses one of the other algorithms: remove auto"
        )
    rows, topology = predicted_costs.predict_costs_by_hosts(machine, hosts, names, sizes[0])
    if "plot" in options:
        from gluonlab.bench.allreduce.plot_bandwidth import make_ranks_figure

        title = f"allreduce of {format_size(sizes[0])} on hosts like {machine}: predicted times"
        with new_file("--plot", Path(options["plot"])) as temporary:
            make_ranks_figure(rows, title).savefig(temporary, format="png", dpi=110)
    if "json" in options:
        as_rows = [{"world_size": row.cost.world_size, **row.as_json()} for row in rows]
        return CommandOutput(json_text({"topology": machine, "hosts": hosts, "rows": as_rows}))
    return CommandOutput(predicted_costs.ranks_table(rows, topology))


def search_schedules(options: CommandOptions) -> CommandOutput:
    """Search for schedules for a topology, and return them with their predicted times."""
    topology = make_topology(options["topology"], _parse_world_size(options))
    sizes = parse_sizes(options.get("bytes", COST_SIZES))
    seconds = whole_number_check(1, MAX_SECONDS)("--seconds", options.get("seconds", predicted_costs.DEFAULT_SECONDS))
    if "out_file" in options:
        if not is_file_name(options["out_file"]):
            raise ConfigError(f"--out-file {options['out_file']}: must end in .json")
        check_new_path("--out-file", Path(options["out_file"]))
    front = predicted_costs.search_schedules(topology, seconds, cores_per_process(), options.get("out_file"))
    if "json" in options:
        plans = predicted_costs.make_synthesized_plans(front)
        rows = predicted_costs.predict_costs(topology, plans, sizes)
        head = {"topology": topology.name, "world_size": topology.world_size}
        content = {**head, "front": predicted_costs.synthesis_to_json(front), **_rows_to_json(plans, rows)}
        return CommandOutput(json_text(content))
    return CommandOutput(predicted_costs.synthesis_text(topology, front, sizes, options.get("out_file")))


def show_choices(options: CommandOptions) -> CommandOutput:
    """Return the schedule that auto chooses for each size.

    Without --simulate, auto's choices are measured and compared with the other algorithms.
    """
    if "simulate" in options:
        for name in [name for name in MEASURING_OPTIONS if name in options]:
            raise ConfigError(f"{option_name(name)} has no effect with --simulate: omit {option_name(name)}")
        topology = make_topology(options["simulate"], _parse_world_size(options))
        schedules = make_for_links(AUTO, topology, topology.world_size)
        choices = predicted_costs.choose_algorithms(schedules, parse_sizes(options.get("bytes", DEFAULT_SIZES)))
        as_json = json_text(predicted_costs.choices_to_json(schedules, choices))
        return CommandOutput(as_json if "json" in options else predicted_costs.choices_text(schedules, choices))

    from gluonlab.bench.allreduce.measure_allreduce import measure_by_options

    measurement = measure_by_options(options, schedules_alone=True)
    assert measurement.auto is not None  # schedules_alone requests auto
    sizes = sorted({row.size_bytes for row in measurement.report.rows})
    choices = predicted_costs.choose_algorithms(measurement.auto, sizes, measurement.report.rows)
    if "json" in options:
        return CommandOutput(
            measurement.as_json(predicted_costs.choices_to_json(measurement.auto, choices)), measurement.failure
        )
    return CommandOutput(
        measurement.as_text(predicted_costs.choices_text(measurement.auto, choices)), measurement.failure
    )


def measure_algorithms(options: CommandOptions) -> CommandOutput:
    """Measure the algorithms, and return a table of the results."""
    from gluonlab.bench.allreduce import result_table as allreduce_table
    from gluonlab.bench.allreduce.measure_allreduce import measure_by_options

    options = _check_options(options)
    measurement = measure_by_options(options)
    rows, count = measurement.report.rows, len(measurement.ctxs)
    devices_text = f"{count} devices ({measurement.ctxs[0].device_type})"
    medians = f"medians of {measurement.report.rounds} rounds"
    title = f"allreduce of {rows[0].dtype} on {devices_text}, {medians}"
    _save_plot(options, rows, count, title)
    if "json" in options:
        return CommandOutput(measurement.as_json(_rows_to_json(measurement.plans, rows)), measurement.failure)
    table = allreduce_table.format_report(measurement.report, describe_orders(measurement.plans, measurement.topology))
    return CommandOutput(measurement.as_text(table), measurement.failure)


def _save_plot(options: CommandOptions, rows: Sequence[Any], world_size: int, title: str) -> None:
    """Plot the rows, and write the plot to the file that --plot names, if any."""
    if "plot" in options:
        from gluonlab.bench.allreduce.plot_bandwidth import make_figure

        with new_file("--plot", Path(options["plot"])) as temporary:
            make_figure(rows, world_size, title).savefig(temporary, format="png", dpi=110)


def _rows_to_json(plans: Sequence[NamedSchedule], rows: Sequence[Any]) -> Dict[str, Any]:
    orders = {plan.label: list(plan.order) for plan in plans if plan.order}
    return {"orders": orders, "rows": [row.as_json() for row in rows]}
