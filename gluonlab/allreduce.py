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

SIZE_HELP = "bytes per device: 46MB  1KiB,1MiB  1KiB:64MiB:2 (a range and its factor)"
SCHEDULES = f"{', '.join(ALGORITHMS)}, {', '.join(TOPOLOGY_AWARE)}"
ROUNDS, SEARCH_SECONDS = 7, 60

_topology_argument = click.argument("topology", metavar="TOPOLOGY")
_topology = option("--topology", "NAME", f"links for predictions and rings: {NAME_HELP}  [default: this machine]")
_chunks = option("--chunks", "N", "divide each buffer into N chunks, if the algorithm supports it")
_groups = option(
    "--groups",
    "RANKS",
    "ranks in each group of the hierarchical algorithm, such as 0-3/4-7  [default: the topology's, or halves]",
)
_dtype = option("--dtype", "TYPE", "float16, float32, float64 or int32  [default: float32]")
_arrays = option("--arrays", "N", "divide each size over N arrays, like gradients  [default: 1]")
_rounds = option("--rounds", "N", f"measurements for each table row  [default: {ROUNDS}]")
_iters = option("--iters", "N", "allreduces per measurement  [default: as many as take 30 ms]")
_warmup = option("--warmup", "N", "untimed allreduces before the first measurement  [default: 2 to 7, by speed]")


def _devices(default: str) -> Option:
    return option("--devices", "SPEC", f"gpu:* gpu:0,2 cpu*4, or a number  [default: {default}]")


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
@_devices(DEFAULT_DEVICES)
@_bytes(DEFAULT_SIZES)
@option(
    "--algorithms", "NAMES", f"all, or some of {SCHEDULES}, sharded-whole, chapter, local, device, nccl  [default: all]"
)
@_dtype
@_arrays
@option("--processes", "BACKENDS", "also measure with one process per device, with dist_sync, horovod or both")
@_rounds
@_iters
@_warmup
@_topology
@_chunks
@_groups
@option("--plot", "FILE", "plot time and busbw against size, in a new PNG file")
@JSON_OPTION
def bench_command(as_json: bool, **options: Any) -> None:
    """Measure allreduce algorithms and MXNet's kvstores, by size.

    All algorithms are measured in one run, in interleaved rounds. The columns are those of
    nccl-tests, followed by the predicted time on this machine and the share of the memory limit.

    The memory limit is measured in the same run. An allreduce of N bytes on k CPU devices reads and
    writes every replica at least once, 2kN bytes in all. It cannot be faster than all devices
    together read and write memory. The last line of each size is the lower bound: no schedule has
    a smaller predicted time.

    chapter: the allreduce of Dive into Deep Learning. sharded-whole: whole arrays are summed on
    different devices.

    \b
    gluonlab allreduce bench --devices cpu*4 --bytes 1KiB:64MiB --plot speed.png
    """
    _print_output("measure_algorithms", options, as_json)


@command("gluonlab allreduce draw")
@click.argument("algorithm", metavar="ALGORITHM")
@_devices(str(DRAWN_DEVICES))
@option("--topology", "NAME", "also print predicted times on p3.16xlarge, another machine or m.json")
@_chunks
@_groups
@option("--out-file", "FILE", "write a new .html page to step through, or an .svg image")
@LANGUAGE_OPTION
def draw_command(**options: Any) -> None:
    """Show an allreduce step by step, as text or on an animated page.

    ALGORITHM is ring, tree or another algorithm of allreduce bench. Nothing is run.

    \b
    gluonlab allreduce draw ring --devices 4 --out-file ring.html
    gluonlab allreduce draw ring --topology p3.16xlarge
    """
    _print_output("draw_schedule", options)


@command("gluonlab allreduce simulate", most_used="--bytes --algorithms --all --hosts --plot --json")
@_topology_argument
@option("--devices", "N", "use only N devices of the topology  [default: all]")
@_bytes(f"{DEFAULT_SIZES}; with --hosts: 100MB")
@option("--algorithms", "NAMES", f"all, or some of {SCHEDULES}  [default: all]")
@click.option("--all", is_flag=True, default=None, help="print every algorithm for each size, not only the fastest")
@option("--hosts", "N,N", "predict one size on several numbers of hosts; 1:128 doubles from 1 to 128")
@_chunks
@_groups
@option("--plot", "FILE", "plot time and busbw against size, or with --hosts against ranks, as PNG")
@JSON_OPTION
def simulate_command(as_json: bool, **options: Any) -> None:
    """Predict allreduce times on a machine that you don't have.

    TOPOLOGY is p3.16xlarge, p3.16xlarge*8 for eight such hosts, another named topology, or a file
    m.json of gluonlab bench links. A cost model predicts the times. Nothing is run.

    \b
    gluonlab allreduce simulate p3.16xlarge --bytes 46MB
    gluonlab allreduce simulate p3.16xlarge --hosts 1:128 --bytes 100MB --plot ranks.png
    """
    _print_output("predict_algorithm_costs", options, as_json)


@command("gluonlab allreduce solve", INTERRUPTED)
@_topology_argument
@option("--devices", "N", "use only N devices of the topology  [default: all]")
@_bytes(COST_SIZES)
@option("--seconds", "N", f"time limit of the search for each number of steps  [default: {SEARCH_SECONDS}]")
@option("--out-file", "FILE", "write the schedules and their links to f.json, for --topology")
@JSON_OPTION
def solve_command(as_json: bool, **options: Any) -> None:
    """Search for the fastest allreduce schedules on a topology.

    The search also finds lower bounds. TOPOLOGY is p3.16xlarge, another machine of one host, or a
    file m.json of gluonlab bench links.

    \b
    gluonlab allreduce solve p3.16xlarge --bytes 1KiB:1GiB:4 --out-file f.json
    """
    _print_output("search_schedules", options, as_json)


@command("gluonlab allreduce choose", INTERRUPTED, most_used="--devices --bytes --simulate --rounds --topology --json")
@option(
    "--simulate", "NAME",
    "predict instead of measuring; NAME is a machine such as p3.16xlarge, or a topology file such as m.json",
)  # fmt: skip
@_devices(DEFAULT_DEVICES)
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

    All algorithms are measured, to show whether auto chose the fastest. With --simulate, times are
    only predicted.
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
