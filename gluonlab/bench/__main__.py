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
from gluonlab.bench.harness.interleaved_rounds import image_rates, measure_subjects
from gluonlab.bench.harness.machine_info import CHECKOUT
from gluonlab.bench.harness.measurement_command import (
    DEVICES_OPTION,
    INTERRUPTED,
    JSON_OPTION,
    LANGUAGE_OPTION,
    OLD_NAMES,
    MeasurementOptions,
    cpu_devices,
    find_measured_devices,
    measurement_options,
    option,
)
from gluonlab.bench.harness.worker_processes import BACKENDS
from gluonlab.bench.links.__main__ import links_command
from gluonlab.cli.command import command, run_subcommand
from gluonlab.cli.old_names import warn_renamed
from gluonlab.cli.output_streams import print_error
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES


@command(
    "gluonlab bench processes", INTERRUPTED, renamed={"--network": "--model", "--gpus": "--device-counts", **OLD_NAMES}
)
@measurement_options(_scaling.ROUNDS)
@option("--model", "NAME", f"model to measure: {', '.join(_scaling.MODELS)}", "lenet")
@option(
    "--scaling",
    "KIND",
    "kind of scaling: weak (constant batch size per device) or strong (constant global batch size)",
    _scaling.WEAK,
)
@option("--processes", "N,N", "numbers of processes to measure", _scaling.PROCESSES)
@option("--device-counts", "N,N", "numbers of devices per process to measure", _scaling.DEVICE_COUNTS)
@option(
    "--backends", "NAMES", "backends that reduce gradients between processes, separated by commas", ",".join(BACKENDS)
)
def processes_command(
    run_options: MeasurementOptions, model: str, scaling: str, processes: str, device_counts: str, backends: str
) -> None:
    """Measure throughput for several numbers of processes and devices.

    All processes run on this host, on CPU devices with one thread each. The command
    reports missed targets, but missed targets do not change the exit status.
    """
    layouts = _scaling.parse_layouts(model, scaling, processes, device_counts, backends)
    # keys of the record, which earlier versions also read
    title = {"network": model, "scaling": scaling, "processes": processes, "gpus": device_counts, "backends": backends}
    measured = partial(measure_subjects, _scaling.make_subjects(model, layouts))
    _, record = run_options.measure_and_record(("scaling", title), measured, image_rates)
    table = _scaling.format_results(model, scaling, layouts, record.series, run_options.rounds)
    run_options.print_record(record, table)


@command("gluonlab bench strategies", INTERRUPTED, renamed={"--network": "--model", **OLD_NAMES})
@measurement_options(_splits.ROUNDS)
@option("--model", "NAME", f"model to measure: {', '.join(_splits.TASKS)}", "resnet18")
@option("--microbatches", "N", "number of microbatches per batch in pipelines", str(_splits.DEFAULT_MICROBATCHES))
@DEVICES_OPTION
def strategies_command(run_options: MeasurementOptions, model: str, microbatches: str, devices: Optional[str]) -> None:
    """Measure every parallel strategy on one model.

    The columns are step time, traffic, memory and pipeline bubbles. The strategies run on two CPU
    devices with one thread each, or on --devices. One device is the baseline. The command
    reports missed targets, but missed targets do not change the exit status.
    """
    task = _splits.find_task(model)
    parts = _splits.check_microbatches(microbatches, task)
    from gluonlab.bench import measure_splits as _measure  # imported here, because other commands do not need MXNet

    available = cpu_devices(_splits.DEFAULT_DEVICES) if devices is None else find_measured_devices(devices)
    count = _measure.check_devices(available)
    # keys of the record, which earlier versions also read
    title = ("splits", {"network": model, "microbatches": parts, **available.record_options()})
    measure = partial(_measure.measure_splits, task, available, count, parts)
    series, record = run_options.measure_and_record(title, measure, list)
    run_options.print_record(record, _splits.format_results(series, task, parts, run_options.rounds), available)


@command(
    "gluonlab bench pipeline",
    most_used="--devices --microbatches --stages-per-device --costs --draw --out-file --json",
    renamed=OLD_NAMES,
)
@option(
    "--devices", "SPEC", f"number of devices, or names such as gpu:* or gpu:0,2  [default: {_pipeline.DEFAULT_DEVICES}]"
)
@option("--microbatches", "N", f"number of microbatches per batch  [default: {_pipeline.DEFAULT_MICROBATCHES}]")
@option(
    "--stages-per-device",
    "N",
    f"number of stages per device in the interleaved or sequential schedule  [default: {_pipeline.INTERLEAVED_STAGES} "
    "for interleaved, else 1]",
)
@option(
    "--costs",
    "MS,MS",
    "milliseconds per device for the forward and backward pass (10,20), and optionally for a transfer and the update "
    "(10,20,0.5,1); to set different costs for each stage, use slashes (10,20/12,24)  [default: 1,2]",
)
@option("--draw", "SCHEDULE", f"draw a schedule as text: {', '.join(SCHEDULES)}")
@option("--out-file", "FILE", "with --draw: write the drawing to a new .html page or .svg image")
@LANGUAGE_OPTION
@JSON_OPTION
def pipeline_command(as_json: bool, **options: Optional[str]) -> None:
    """Predict the times of pipeline schedules, or draw one schedule.

    A drawing shows when each device computes, waits, and keeps activations. The command does not
    train a model. Each device has one or more stages of the model, and each batch is divided into
    microbatches.

    \b
    gluonlab bench pipeline --devices 4 --microbatches 8
    gluonlab bench pipeline --draw 1f1b --devices 4 --out-file 1f1b.html
    """
    given = {name: value for name, value in options.items() if value is not None}
    click.echo(_pipeline.pipeline_text({**given, **({"json": True} if as_json else {})}))


COMMANDS: Dict[str, click.Command] = {
    str(command.name).rpartition(" ")[2]: command
    for command in (links_command, processes_command, strategies_command, pipeline_command)
}
RENAMED = {"scaling": "processes", "splits": "strategies"}  # old names of commands
# Measurements for developers: name -> module below tools/ in a checkout
TOOLS = {
    **{
        name: f"benchmarks.{name}"
        for name in (
            "frameworks", "overhead", "optimize", "images", "threads", "gradients", "overlap",
            "checkpoints", "advice", "compare",
        )
    },
    "efficiency": "prediction.efficiency",
}  # fmt: skip
RENAMED_TOOLS = {"peers": "frameworks", "host": "overhead", "verdict": "advice"}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the measurement named by the first argument, with the remaining arguments."""
    arguments = sys.argv[1:] if args is None else list(args)
    if arguments[:1] == ["help"] and arguments[1:2] and arguments[1] in TOOLS:
        arguments = [arguments[1], *arguments[2:], "--help"]
    if arguments[:1] == ["allreduce"]:
        importlib.import_module("gluonlab.bench.allreduce.__main__").main(arguments[1:])
        return
    if arguments and arguments[0] in {**TOOLS, **RENAMED_TOOLS}:
        name = RENAMED_TOOLS.get(arguments[0], arguments[0])
        if name != arguments[0]:
            warn_renamed(f"gluonlab bench {arguments[0]}", f"gluonlab bench {name}")
        _load_tool(name)(arguments[1:])
        return
    commands = {name: (command.get_short_help_str(100), command) for name, command in COMMANDS.items()}
    run_subcommand("gluonlab bench", commands, arguments, RENAMED)


def _load_tool(name: str) -> Callable[[List[str]], Any]:
    """Return the main function of the measurement ``name`` in TOOLS.

    Exit with an error if gluonlab is not running from a checkout.
    """
    tools, folder = CHECKOUT / "tools", TOOLS[name].partition(".")[0]
    if not (tools / folder).is_dir():
        print_error(
            f"error: bench {name} is a benchmark for developers, which is not installed: run "
            f"python tools/{folder} {name} in a checkout of gluonlab"
        )
        sys.exit(2)
    if str(tools) not in sys.path:
        sys.path.insert(0, str(tools))
    tool_main: Callable[[List[str]], Any] = importlib.import_module(TOOLS[name]).main
    return tool_main


if __name__ == "__main__":
    main()
