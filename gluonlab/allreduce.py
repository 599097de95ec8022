"""Implements the commands ``gluonlab allreduce bench``, ``draw``, ``simulate`` and others."""

from __future__ import annotations

import sys
from typing import Any, Dict, Optional, Sequence

import click

from gluonlab.bench.allreduce.message_sizes import COST_SIZES, DEFAULT_DEVICES, DEFAULT_SIZES, DRAWN_DEVICES
from gluonlab.bench.harness.measurement_command import INTERRUPTED, JSON_OPTION, LANGUAGE_OPTION, Option, option
from gluonlab.cli.command import command, run_subcommand
from gluonlab.cli.old_names import translate_values
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.named_topologies import NAME_HELP
from gluonlab.config.renamed_settings import RENAMED_KVSTORES
from gluonlab.errors import RunError
from gluonlab.kvstores import TOPOLOGY_AWARE

SIZE_HELP = (
    "bytes per device: a size (46MB), a list (1KiB,1MiB), or a range and the factor between sizes (1KiB:64MiB:2)"
)
SCHEDULES = f"{', '.join(ALGORITHMS)}, {', '.join(TOPOLOGY_AWARE)}"
ROUNDS, SEARCH_SECONDS = 7, 60

_topology_argument = click.argument("topology", metavar="TOPOLOGY")
_topology = option(
    "--topology",
    "NAME",
    f"topology for predictions and for the order of rings; NAME is {NAME_HELP}  [default: this machine]",
)
_chunks = option("--chunks", "N", "divide each buffer into N chunks, if the algorithm supports chunks")
_groups = option(
    "--groups",
    "RANKS",
    "groups of ranks for the hierarchical algorithm, such as 0-3/4-7  [default: the topology's groups, or two halves]",
)
_dtype = option("--dtype", "TYPE", "data type of the arrays: float16, float32, float64 or int32  [default: float32]")
_arrays = option("--arrays", "N", "divide each size into N arrays, like the gradients of N parameters  [default: 1]")
_rounds = option("--rounds", "N", f"number of measurements for each table row  [default: {ROUNDS}]")
_iters = option("--iters", "N", "number of allreduces per measurement  [default: enough to take 30 ms]")
_warmup = option(
    "--warmup",
    "N",
    "number of untimed allreduces before the first measurement  [default: 2, or 7 for short allreduces]",
)


def _devices() -> Option:
    return option(
        "--devices",
        "SPEC",
        f"devices to use, such as gpu:*, gpu:0,2 or cpu*4, or a number of GPUs  [default: {DEFAULT_DEVICES}]",
    )


def _bytes(default: str) -> Option:
    return option("--bytes", "SIZES", f"{SIZE_HELP}  [default: {default}]")


def _print_output(name: str, options: Dict[str, Any], as_json: bool = False) -> None:
    """Call the function ``name`` in `command_output`. Print its output, or exit with its error.

    ``options``: the command's options; options that the user omitted are None.
    """
    from gluonlab.bench.allreduce import command_output  # imported here: --help needs no numpy

    given = {name: value for name, value in options.items() if value is not None}
    for key, title in (("algorithms", "--algorithms"), ("algorithm", "")):
        if key in given:
            given[key] = translate_values(title, given[key], RENAMED_KVSTORES)
    text, failure = getattr(command_output, name)({**given, **({"json": True} if as_json else {})})
    click.echo(text)
    if failure:
        raise RunError(failure)


@command(
    "gluonlab allreduce bench", INTERRUPTED, most_used="--devices --bytes --algorithms --rounds --iters --plot --json"
)
@_devices()
@_bytes(DEFAULT_SIZES)
@option(
    "--algorithms",
    "NAMES",
    f"algorithms, separated by commas: all, {SCHEDULES}, sharded-whole, chapter, local, device, nccl  [default: all]",
)
@_dtype
@_arrays
@option(
    "--processes",
    "BACKENDS",
    "also measure one process per device with dist_sync, horovod, or both (dist_sync,horovod)",
)
@_rounds
@_iters
@_warmup
@_topology
@_chunks
@_groups
@option("--plot", "FILE", "plot time and bus bandwidth against size in a new PNG file")
@JSON_OPTION
def bench_command(as_json: bool, **options: Any) -> None:
    """Measure allreduce algorithms and MXNet's kvstores for several sizes.

    The command measures all algorithms in one run, in interleaved rounds. The table contains the
    columns of nccl-tests, the predicted time on this machine, and the achieved fraction of the
    memory limit.

    The command measures the memory limit in the same run. An allreduce of N bytes on k CPU devices
    reads and writes every replica at least once, which is a total of 2kN bytes. An allreduce cannot
    be faster than all devices together can read and write these bytes. The last line for each size
    is the lower bound: no schedule has a smaller predicted time.

    The algorithm chapter is the allreduce from Dive into Deep Learning. The algorithm sharded-whole
    reduces whole arrays, each on one of the devices.

    \b
    gluonlab allreduce bench --devices cpu*4 --bytes 1KiB:64MiB --plot speed.png
    """
    _print_output("measure_algorithms", options, as_json)


@command("gluonlab allreduce draw")
@click.argument("algorithm", metavar="ALGORITHM")
@option("--devices", "SPEC", f"number of devices, or names such as gpu:* or gpu:0,2  [default: {DRAWN_DEVICES}]")
@option(
    "--topology",
    "NAME",
    "also print predicted times for a machine, such as p3.16xlarge, or a topology file, such as m.json",
)
@_chunks
@_groups
@option("--out-file", "FILE", "write the drawing to a new .html page or .svg image")
@LANGUAGE_OPTION
def draw_command(**options: Any) -> None:
    """Show an allreduce step by step, as text or on an animated page.

    ALGORITHM is ring, tree or another algorithm of allreduce bench. The command does not run the
    allreduce.

    \b
    gluonlab allreduce draw ring --devices 4 --out-file ring.html
    gluonlab allreduce draw ring --topology p3.16xlarge
    """
    _print_output("draw_schedule", options)


@command("gluonlab allreduce simulate", most_used="--bytes --algorithms --all --hosts --plot --json")
@_topology_argument
@option("--devices", "N", "use only N devices of the topology  [default: all]")
@_bytes(f"{DEFAULT_SIZES}; with --hosts: 100MB")
@option("--algorithms", "NAMES", f"algorithms, separated by commas: all, {SCHEDULES}  [default: all]")
@click.option("--all", is_flag=True, default=None, help="print every algorithm for each size, not only the fastest")
@option("--hosts", "N,N", "predict the times for one size on several numbers of hosts; 1:128 means 1, 2, 4, ... 128")
@_chunks
@_groups
@option(
    "--plot",
    "FILE",
    "plot time and bus bandwidth against size in a new PNG file; with --hosts, plot them against the number of ranks",
)
@JSON_OPTION
def simulate_command(as_json: bool, **options: Any) -> None:
    """Predict allreduce times on a machine that you don't have.

    TOPOLOGY is a machine such as p3.16xlarge, several hosts such as p3.16xlarge*8, or a topology
    file from gluonlab bench links, such as m.json. A cost model predicts the times. The command
    does not run any allreduce.

    \b
    gluonlab allreduce simulate p3.16xlarge --bytes 46MB
    gluonlab allreduce simulate p3.16xlarge --hosts 1:128 --bytes 100MB --plot ranks.png
    """
    _print_output("predict_algorithm_costs", options, as_json)


@command("gluonlab allreduce solve", INTERRUPTED)
@_topology_argument
@option("--devices", "N", "use only N devices of the topology  [default: all]")
@_bytes(COST_SIZES)
@option("--seconds", "N", f"time limit for each number of steps that the search tries  [default: {SEARCH_SECONDS}]")
@option(
    "--out-file", "FILE", "write the schedules and the topology to a new file, such as f.json, for use with --topology"
)
@JSON_OPTION
def solve_command(as_json: bool, **options: Any) -> None:
    """Search for the fastest allreduce schedules for a topology.

    The search also finds lower bounds. TOPOLOGY is a single host, such as p3.16xlarge, or
    a topology file from gluonlab bench links, such as m.json.

    \b
    gluonlab allreduce solve p3.16xlarge --bytes 1KiB:1GiB:4 --out-file f.json
    """
    _print_output("search_schedules", options, as_json)


@command("gluonlab allreduce choose", INTERRUPTED, most_used="--devices --bytes --simulate --rounds --topology --json")
@option(
    "--simulate", "NAME",
    "predict instead of measuring; NAME is a machine such as p3.16xlarge, or a topology file such as m.json",
)  # fmt: skip
@_devices()
@_bytes(DEFAULT_SIZES)
@_dtype
@_arrays
@_rounds
@_iters
@_warmup
@_topology
@JSON_OPTION
def choose_command(as_json: bool, **options: Any) -> None:
    """Show which algorithm --kvstore auto chooses for each size.

    The command measures all algorithms to show whether auto chose the fastest algorithm. With
    --simulate, the command only predicts the times.
    """
    _print_output("show_choices", options, as_json)


COMMANDS: Dict[str, click.Command] = {
    str(command.name).rpartition(" ")[2]: command
    for command in (bench_command, draw_command, simulate_command, solve_command, choose_command)
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Call the command named by the first argument, with the remaining arguments."""
    commands: Dict[str, Any] = {name: (each.get_short_help_str(100), each) for name, each in COMMANDS.items()}
    run_subcommand("gluonlab allreduce", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
