"""Command ``gluonlab bench allreduce``, and its options.

The command measures allreduce algorithms, predicts their times, or draws their schedules.
"""

from __future__ import annotations

from typing import Any

import click

from gluonlab.bench.allreduce.message_sizes import DEFAULT_DEVICES, DEFAULT_SIZES, DRAWN_DEVICES
from gluonlab.bench.harness.measurement_command import INTERRUPTED, JSON_OPTION, option
from gluonlab.cli.command import command
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.named_topologies import NAME_HELP
from gluonlab.errors import RunError
from gluonlab.kvstores import TOPOLOGY_AWARE


@command(
    "gluonlab bench allreduce",
    INTERRUPTED,
    most_used="--devices --sizes --plot --simulate --topology --choose --draw --out --json",
)
@option("--devices", "SPEC", f"gpu:0,2 gpu:* cpu*4, or a number  [default: {DEFAULT_DEVICES}; {DRAWN_DEVICES} to draw]")
@option(
    "--algorithms",
    "NAMES",
    f"all, or some of {', '.join(ALGORITHMS)}, {', '.join(TOPOLOGY_AWARE)}, "
    "sharded-whole, chapter, local, device, nccl  [default: all]",
)
@option("--sizes", "SIZES", f"on each device: 46MB  1KiB,1MiB  1KiB:64MiB:2 (a factor)  [default: {DEFAULT_SIZES}]")
@option("--dtype", "TYPE", "float16, float32, float64 or int32  [default: float32]")
@option("--arrays", "N", "split each size over N arrays, as gradients are  [default: 1]")
@option("--processes", "BACKENDS", "also by as many processes, over dist_sync, horovod or both")
@option("--repeat", "N", "allreduces per measurement  [default: as many as take 30 ms]")
@option("--rounds", "N", "measurements of each row  [default: 7]")
@option(
    "--topology", "NAME", f"price schedules, also a drawn one, and place rings on {NAME_HELP}  [default: this machine]"
)
@option("--chunks", "N", "cut buffers into N chunks, where the algorithm leaves the choice")
@option("--groups", "RANKS", "ranks of hierarchical's groups, 0-3/4-7  [default: topology's, or halves]")
@option("--plot", "FILE", "draw time and busbw against size into a new PNG file")
@option(
    "--simulate",
    "NAME",
    "run nothing: price the algorithms on p3.16xlarge, p3.16xlarge*8 or another topology, or on a file's, m.json",
)
@click.option(
    "--all",
    is_flag=True,
    default=None,
    help="with --simulate: every algorithm at each of several sizes, not the cheapest alone",
)
@option(
    "--hosts",
    "N,N",
    "with --simulate of one of Amazon's machines: price one size on so many hosts, 1:128 by "
    "factors of 2; --plot draws time against ranks",
)
@option(
    "--synthesise", "NAME", "run nothing: seek schedules for the links of p3.16xlarge or another topology, with a bound"
)
@click.option(
    "--choose",
    is_flag=True,
    default=None,
    help="show what auto sums by from how many bytes on, and measure what it misses; with --simulate its prices alone",
)
@option("--seconds", "N", "with --synthesise: to seek, for each number of steps  [default: 60]")
@option("--draw", "ALGORITHM", "run nothing: show the schedule step by step, as text")
@option(
    "--out",
    "FILE",
    "with --draw: write a new file, a page to step through, or with .svg one picture; "
    "with --synthesise: the schedules and their links, f.json, which --topology takes",
)
@option("--language", "NAME", "language of the page, en or ja  [default: en]")
@JSON_OPTION
def allreduce_command(as_json: bool, **options: Any) -> None:
    """Measure allreduce algorithms beside MXNet's own stores, by size.

    All of them are measured in one run, and in turns.

    The columns are those of nccl-tests, then the algorithm's price on this machine, and its share
    of the memory limit's speed. Below are the memory limit and the floor, the least that any
    schedule can be priced at. An allreduce of N bytes on k CPU devices reads and writes every
    replica at least once, 2kN bytes in all. So it cannot be faster than all devices together read
    and write memory, which is measured in the same run.

    chapter: the allreduce of Dive into Deep Learning. sharded-whole: whole arrays are summed on
    different devices.

    \b
    --devices cpu*4 --sizes 1KiB:64MiB --plot speed.png
    --simulate p3.16xlarge --sizes 46MB
    --simulate p3.16xlarge --hosts 1:128 --sizes 100MB --plot ranks.png
    --choose --devices cpu*4
    --synthesise p3.16xlarge --sizes 1KiB:1GiB:4 --out f.json
    --draw ring --devices 4 --out ring.html
    --draw ring --topology p3.16xlarge
    """
    from gluonlab.bench.allreduce.modes import run_mode  # --help needs no numpy

    given = {name: value for name, value in options.items() if value is not None}
    text, failure = run_mode({**given, **({"json": True} if as_json else {})})
    click.echo(text)
    if failure:
        raise RunError(failure)


if __name__ == "__main__":
    allreduce_command()
