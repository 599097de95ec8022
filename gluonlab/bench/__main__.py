"""Commands of ``gluonlab bench NAME``."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence

import click

from gluonlab.bench import predict_pipeline as _pipeline
from gluonlab.bench import scaling as _scaling
from gluonlab.bench import splits as _splits
from gluonlab.bench.allreduce.__main__ import allreduce_command
from gluonlab.bench.harness.interleaved_rounds import image_rates, measure_subjects
from gluonlab.bench.harness.machine_info import CHECKOUT
from gluonlab.bench.harness.measurement_command import (
    DEVICES_OPTION,
    INTERRUPTED,
    JSON_OPTION,
    MeasurementOptions,
    cpu_devices,
    find_measured_devices,
    measurement_options,
    option,
)
from gluonlab.bench.harness.worker_processes import BACKENDS
from gluonlab.bench.links.__main__ import links_command
from gluonlab.cli.command import command, run_subcommand
from gluonlab.cli.output_streams import print_error
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES


@command("gluonlab bench scaling", INTERRUPTED)
@measurement_options(_scaling.ROUNDS)
@option("--network", "NAME", f"one of {', '.join(_scaling.NETWORKS)}", "lenet")
@option("--scaling", "KIND", "weak: a batch for each device; strong: one for all", _scaling.WEAK)
@option("--processes", "N,N", "numbers of processes", _scaling.PROCESSES)
@option("--gpus", "N,N", "numbers of devices of each process", _scaling.DEVICES)
@option("--backends", "NAMES", "what carries the sums between them", ",".join(BACKENDS))
def scaling_command(
    run_options: MeasurementOptions, network: str, scaling: str, processes: str, gpus: str, backends: str
) -> None:
    """Measure the same training by more devices and more processes.

    The devices are CPU devices of this host.
    Each device has one thread. A slow result is a result: it does not change the exit status.
    """
    options = {"network": network, "scaling": scaling, "processes": processes, "gpus": gpus, "backends": backends}
    layouts = _scaling.parse_layouts(options)
    measured = partial(measure_subjects, _scaling.make_subjects(network, layouts))
    _, record = run_options.measure_and_record(("scaling", options), measured, image_rates)
    table = _scaling.format_results(network, scaling, layouts, record.series, run_options.rounds)
    run_options.print_record(record, table)


@command("gluonlab bench splits", INTERRUPTED)
@measurement_options(_splits.ROUNDS)
@option("--network", "NAME", f"one of {', '.join(_splits.TASKS)}", "resnet18")
@option("--microbatches", "N", "parts of a batch that goes through a pipeline", str(_splits.DEFAULT_MICROBATCHES))
@DEVICES_OPTION
def splits_command(run_options: MeasurementOptions, network: str, microbatches: str, devices: Optional[str]) -> None:
    """Measure a network under each split: time, bytes and bubbles.

    That is steps, the bytes moved and kept, and pipelines' bubbles.
    On two CPU devices or those named, one thread each, beside one of them. A slow result is a
    result: it does not change the exit status.
    """
    task = _splits.find_task(network)
    parts = _splits.check_microbatches(microbatches, task)
    from gluonlab.bench import measure_splits as _measure  # imported here, because other commands do not need MXNet

    available = cpu_devices(_splits.DEFAULT_DEVICES) if devices is None else find_measured_devices(devices)
    count = _measure.check_devices(available)
    title = ("splits", {"network": network, "microbatches": parts, **available.record_options()})
    measure = partial(_measure.measure_splits, task, available, count, parts)
    series, record = run_options.measure_and_record(title, measure, list)
    run_options.print_record(record, _splits.format_results(series, task, parts, run_options.rounds), available)


@command(
    "gluonlab bench pipeline", most_used="--devices --microbatches --stages-per-device --costs --draw --out --json"
)
@option("--devices", "SPEC", f"gpu:0,2 gpu:* cpu*4, or a number  [default: {_pipeline.DEFAULT_DEVICES}]")
@option("--microbatches", "N", f"parts of a batch  [default: {_pipeline.DEFAULT_MICROBATCHES}]")
@option(
    "--stages-per-device",
    "N",
    f"for interleaved and sequential  [default: {_pipeline.INTERLEAVED_STAGES} for interleaved, else 1]",
)
@option(
    "--costs",
    "MS,MS",
    "of a device's share: forward, backward, and if known a transfer and the update, as 10,20,0.5,1"
    "; or of each stage, 10,20/12,24/...  [default: 1,2]",
)
@option("--draw", "SCHEDULE", f"show one, as text: {', '.join(SCHEDULES)}")
@option("--out", "FILE", "with --draw: write a new file, a page that plays it, or with .svg one picture")
@option("--language", "NAME", "language of the page, en or ja  [default: en]")
@JSON_OPTION
def pipeline_command(as_json: bool, **options: Optional[str]) -> None:
    """Price pipeline schedules, or draw one.

    A drawing shows who computes what when, who waits, and who keeps what.
    Nothing is run. A network is cut into stages, one or several on each device, and a batch into
    microbatches.

    \b
    --devices 4 --microbatches 8
    --draw 1f1b --devices 4 --microbatches 8 --out 1f1b.html
    """
    given = {name: value for name, value in options.items() if value is not None}
    click.echo(_pipeline.pipeline_text({**given, **({"json": True} if as_json else {})}))


COMMANDS: Dict[str, click.Command] = {
    str(command.name).rpartition(" ")[2]: command
    for command in (allreduce_command, links_command, scaling_command, splits_command, pipeline_command)
}
# Measurements for developers: name -> module below tools/ in a checkout
TOOLS = {
    **{
        name: f"benchmarks.{name}"
        for name in (
            "peers", "host", "optimize", "images", "threads", "gradients", "overlap",
            "checkpoints", "verdict", "compare",
        )
    },
    "efficiency": "prediction.efficiency",
}  # fmt: skip


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the measurement that the first argument names with the remaining arguments."""
    arguments = sys.argv[1:] if args is None else list(args)
    if arguments[:1] == ["help"] and arguments[1:2] and arguments[1] in TOOLS:
        arguments = [arguments[1], *arguments[2:], "--help"]
    if arguments and arguments[0] in TOOLS:
        _load_tool(arguments[0])(arguments[1:])
        return
    commands = {name: (command.get_short_help_str(100), command) for name, command in COMMANDS.items()}
    run_subcommand("gluonlab bench", commands, arguments)


def _load_tool(name: str) -> Callable[[List[str]], Any]:
    """Return the main function of the measurement ``name`` of TOOLS.

    Exit with an error if gluonlab does not run from a checkout.
    """
    tools, folder = CHECKOUT / "tools", TOOLS[name].partition(".")[0]
    if not (tools / folder).is_dir():
        print_error(
            f"error: bench {name} is a measurement for developers of gluonlab, and is not "
            f"installed: run python tools/{folder} {name} in a checkout of gluonlab"
        )
        sys.exit(2)
    if str(tools) not in sys.path:
        sys.path.insert(0, str(tools))
    tool_main: Callable[[List[str]], Any] = importlib.import_module(TOOLS[name]).main
    return tool_main


if __name__ == "__main__":
    main()
