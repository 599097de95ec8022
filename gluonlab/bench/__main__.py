"""python -m gluonlab.bench NAME: options in, a measurement, its table out."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from typing import Callable, Optional, Sequence, TypeVar

import click

from gluonlab import engine
from gluonlab.bench import host as _host
from gluonlab.bench import images as _images
from gluonlab.bench import peers as _peers
from gluonlab.bench.allreduce_modes import DEVICES, DRAWN, SIZES, answer
from gluonlab.bench.machine import Others, describe_machine
from gluonlab.bench.sizes import parse_sizes
from gluonlab.cli import command, dispatch
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.topology import TOPOLOGIES
from gluonlab.config import whole
from gluonlab.errors import ConfigError, GluonlabWarning, RunError

INTERRUPTED = "nothing is kept of a measurement"
BUSY_CORES = 0.2  # what other processes may take before a table comes with a warning
_T = TypeVar("_T")


def _measured(measure: Callable[[int], _T], rounds: str) -> _T:
    """``measure(rounds)``, watched."""
    count = whole(1)("--rounds", rounds)
    return _watched(lambda: measure(count))


def _watched(measure: Callable[[], _T]) -> _T:
    """``measure()``. Warns when the machine had other work meanwhile."""
    others = Others()
    measured = measure()
    if others.cores() > BUSY_CORES:
        message = (
            f"other processes kept {others.cores():.1f} of {engine.cores()} cores busy meanwhile: measure again when they do not"
        )
        warnings.warn(message, GluonlabWarning, stacklevel=2)
    return measured


def _options(rounds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        times = "how often each row is measured"
        alone = "print the numbers as JSON, and nothing else, on standard output"
        function = click.option("--json", "as_json", is_flag=True, help=alone)(function)
        return click.option("--rounds", metavar="N", default=str(rounds), show_default=True, help=times)(function)

    return add


@command("python -m gluonlab.bench peers", INTERRUPTED)
@_options(_peers.ROUNDS)
@click.option("--network", metavar="NAME", default="lenet", show_default=True, help=f"one of {', '.join(_peers.COMPARISONS)}")
def peers(rounds: str, as_json: bool, network: str) -> None:
    """Measure gluonlab on two devices, the classic Gluon loop and PyTorch side by side.

    A slow result is a result: it does not change the exit status.
    """
    comparison = _peers.check_network(network)
    rows = _measured(lambda count: _peers.peers(comparison, count), rounds)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    found = _peers.table(comparison.task, rows, int(rounds))
    click.echo("\n".join([describe_machine(), "", found, "", *_peers.verdicts(comparison.targets, rows)]))


@command("python -m gluonlab.bench host", INTERRUPTED)
@_options(_host.ROUNDS)
def host(rounds: str, as_json: bool) -> None:
    """Measure what the host's Python costs a step, and how much of a core's arithmetic training reaches."""
    report = _measured(_host.host, rounds)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
        return
    conclusion = [*_host.efficiency_lines(report.efficiency), "", _host.verdict(report.rows)]
    click.echo("\n".join([describe_machine(), "", _host.table(report.rows), "", *conclusion]))


@command("python -m gluonlab.bench images", INTERRUPTED)
@_options(_images.ROUNDS)
def images(rounds: str, as_json: bool) -> None:
    """Measure how many JPEGs per second become batches: gluonlab, MXNet's own iterators and PyTorch's DataLoader.

    A slow result is a result: it does not change the exit status.
    """
    rows = _measured(_images.images, rounds)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    click.echo("\n".join([describe_machine(), "", _images.table(rows, int(rounds))]))


@command("python -m gluonlab.bench allreduce", INTERRUPTED)
@click.option("--devices", metavar="SPEC", help=f"gpu:0,2 gpu:* cpu*4, or a number  [default: {DEVICES}; {DRAWN} to draw]")
@click.option(
    "--algorithms",
    metavar="NAMES",
    help=f"all, or some of {', '.join(ALGORITHMS)}, sharded-whole, chapter, local, device, nccl  [default: all]",
)
@click.option("--sizes", metavar="SIZES", help=f"on each device: 46MB  1KiB,1MiB  1KiB:64MiB:2 (a factor)  [default: {SIZES}]")
@click.option("--dtype", metavar="TYPE", help="float16, float32, float64 or int32  [default: float32]")
@click.option("--arrays", metavar="N", help="share each size out over N arrays, as gradients come  [default: 1]")
@click.option("--repeat", metavar="N", help="allreduces per measurement  [default: as many as take 30 ms]")
@click.option("--rounds", metavar="N", help="how often each is measured  [default: 7]")
@click.option(
    "--topology", metavar="NAME", help=f"price schedules and place rings on {', '.join(TOPOLOGIES)}  [default: this machine]"
)
@click.option("--chunks", metavar="N", help="cut buffers into N chunks, where the algorithm leaves the choice")
@click.option("--groups", metavar="RANKS", help="those of hierarchical, 0-3/4-7  [default: the topology's, or two halves]")
@click.option("--plot", metavar="FILE", help="draw time and busbw against size into a new PNG file")
@click.option("--simulate", metavar="NAME", help="run nothing: price the algorithms on p3.16xlarge or another topology")
@click.option("--draw", metavar="ALGORITHM", help="run nothing: show the schedule step by step, as text")
@click.option("--out", metavar="FILE", help="draw it as a page to step through, in a new HTML file")
@click.option("--language", metavar="NAME", help="of the page, en or ja  [default: en]")
@click.option("--json", "as_json", is_flag=True, help="print the numbers as JSON, and nothing else, on standard output")
def allreduce(as_json: bool, **options: Optional[str]) -> None:
    """Measure allreduce algorithms beside MXNet's own stores, by size, in one run and in turns.

    The columns are those of nccl-tests, then what the algorithm should cost on this machine, and how much it reaches of the limit
    that memory sets. An allreduce of N bytes on k CPU devices reads and writes every replica at least once, 2kN bytes in all; so it
    takes at least 2kN / (bytes per second that all devices together read and write), which is measured in the same run.

    chapter: the allreduce of Dive into Deep Learning. sharded-whole: whole arrays are summed on different devices.

    \b
    --devices cpu*4 --sizes 1KiB:64MiB --plot speed.png
    --simulate p3.16xlarge --sizes 46MB
    --draw ring --devices 4 --out ring.html
    """
    asked = {name: value for name, value in options.items() if value is not None}
    text, failure = answer({**asked, **({"json": True} if as_json else {})}, _watched)
    click.echo(text)
    if failure:
        raise RunError(failure)


@command("python -m gluonlab.bench gradients", INTERRUPTED)
@_options(9)
@click.option("--size", metavar="SIZE", default="46MB", show_default=True, help="of the buffers for allreduce alone")
@click.option(
    "--stores", metavar="NAMES", default="all", show_default=True, help="kvstores for allreduce with update, such as device,ring"
)
@click.option("--world-sizes", metavar="N,N", default="2,4", show_default=True, help="numbers of CPU devices")
def gradients(rounds: str, as_json: bool, size: str, stores: str, world_sizes: str) -> None:
    """Measure allreduce, and allreduce with update, on gradients of ResNet-18's size, and judge our best.

    A slow result is a result: it does not change the exit status.
    """
    from gluonlab.bench import gradients as _gradients  # MXNet is loaded here, not for the other commands

    sizes = parse_sizes(size, "--size")
    if len(sizes) != 1:
        raise ConfigError(f"--size {size}: give one size, such as 46MB")
    names, counts = _gradients.parse_stores(stores), _gradients.parse_world_sizes(world_sizes)
    findings = _measured(lambda count: _gradients.gradients(names, counts, sizes[0], count), rounds)
    click.echo(json.dumps(findings.as_json()) if as_json else f"{describe_machine()}\n\n{_gradients.report(findings)}")
    if findings.wrong():
        raise RunError(f"wrong sums by {', '.join(findings.wrong())}: see the column error")


COMMANDS = {
    name: (made.get_short_help_str(100), made)
    for name, made in (("peers", peers), ("host", host), ("images", images), ("allreduce", allreduce), ("gradients", gradients))
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the measurement that is named first."""
    dispatch("python -m gluonlab.bench", COMMANDS, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
