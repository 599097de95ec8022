"""python -m gluonlab.bench NAME: options in, a measurement, its table out."""

from __future__ import annotations

import json
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Callable, Optional, Sequence, TypeVar

import click

from gluonlab.bench.allreduce.modes import DEVICES, DRAWN, SIZES, answer
from gluonlab.bench.allreduce.sizes import parse_sizes
from gluonlab.bench.harness import compare as _compare
from gluonlab.bench.harness.beside import check, options, take_turns
from gluonlab.bench.harness.machine import describe_machine
from gluonlab.bench.harness.measured_on import MeasuredOn, cpu_devices, measured_on
from gluonlab.bench.harness.measured_on import option as on_option
from gluonlab.bench.harness.record import Record
from gluonlab.bench.harness.rounds import measure
from gluonlab.bench.harness.session import Session
from gluonlab.bench.host import table as _host
from gluonlab.bench.images import table as _images
from gluonlab.bench.peers import table as _peers
from gluonlab.bench.threads import table as _threads
from gluonlab.cli.command import command, dispatch
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.topology import TOPOLOGIES
from gluonlab.config.values import real, whole
from gluonlab.errors import ConfigError, RunError

INTERRUPTED = "nothing is kept of a measurement"
_T = TypeVar("_T")


def _watched(measured: Callable[[], _T]) -> _T:
    """``measured()``. Warns when the machine had other work meanwhile."""
    session = Session()
    found = measured()
    session.warn_if_busy()
    return found


def _options(rounds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        for option in (
            click.option(
                "--out", metavar="FILE", help="write the record, as --json prints it, into a file"
            ),
            click.option(
                "--json",
                "as_json",
                is_flag=True,
                help="print the record as JSON, and nothing else, on standard output",
            ),
            click.option(
                "--rounds",
                metavar="N",
                default=str(rounds),
                show_default=True,
                help="how often each row is measured",
            ),
        ):
            function = option(function)
        return function

    return add


def _say(
    record: Record,
    text: Callable[[], str],
    as_json: bool,
    out: Optional[str],
    on: Optional[MeasuredOn] = None,
) -> None:
    """The end of every measurement: its record into the file, and text or record to standard
    output.
    """
    if out is not None:
        record.write(Path(out))
    devices = f"\n{textwrap.fill(f'devices: {on.words}', 80)}" if on is not None else ""
    click.echo(
        record.as_json() if as_json else f"{describe_machine()}{devices}\n\n{text()}",
        nl=not as_json,
    )


@command("python -m gluonlab.bench peers", INTERRUPTED)
@_options(_peers.ROUNDS)
@options
@on_option
@click.option(
    "--network",
    metavar="NAME",
    default="lenet",
    show_default=True,
    help=f"one of {', '.join(_peers.COMPARISONS)}",
)
def peers(
    rounds: str,
    as_json: bool,
    out: Optional[str],
    beside: Optional[str],
    restart_every: Optional[str],
    devices: Optional[str],
    network: str,
) -> None:
    """Measure gluonlab on two devices or those that are named, the classic Gluon loop and PyTorch
    side by side.

    A slow result is a result: it does not change the exit status.
    """
    comparison, count = _peers.check_network(network), whole(1)("--rounds", rounds)
    on = _peers.on_devices(devices)
    title = ("peers", {"network": network, **on.title()})
    to_series = partial(_peers.series, comparison.task)
    turns = check(beside, restart_every, as_json)
    if turns is not None:
        click.echo(take_turns(_peers.ours(comparison, on), to_series, title, count, turns, out))
        return
    session = Session()
    record = session.record(*title, count, to_series(measure(comparison.subjects(on), count)))
    session.warn_if_busy()

    def text() -> str:
        rows = _peers.make_rows(record.series)
        table = _peers.table(comparison.task, rows, count, devices=len(on.numbers))
        # what is wanted was set for two CPU devices
        return (
            table
            if on.asked
            else "\n".join([table, "", *_peers.verdicts(comparison.targets, rows)])
        )

    _say(record, text, as_json, out, on)


@command("python -m gluonlab.bench host", INTERRUPTED)
@_options(_host.ROUNDS)
@options
@on_option
def host(
    rounds: str,
    as_json: bool,
    out: Optional[str],
    beside: Optional[str],
    restart_every: Optional[str],
    devices: Optional[str],
) -> None:
    """Measure what the host's Python costs a step, and how much of a core's arithmetic training
    reaches.
    """
    count, on = whole(1)("--rounds", rounds), _host.on_devices(devices)
    turns = check(beside, restart_every, as_json)
    if turns is not None:
        click.echo(
            take_turns(_host.ours(on), _host.series, ("host", on.title()), count, turns, out)
        )
        return
    session = Session()
    record = session.record(
        "host", on.title(), count, _host.series(measure(_host.subjects(on), count))
    )
    session.warn_if_busy()

    def text() -> str:
        report = _host.make_report(record.series)
        conclusion = [*_host.efficiency_lines(report.efficiency), "", _host.verdict(report.rows)]
        return "\n".join([_host.table(report.rows), "", *conclusion])

    _say(record, text, as_json, out, on)


@command("python -m gluonlab.bench images", INTERRUPTED)
@_options(_images.ROUNDS)
def images(rounds: str, as_json: bool, out: Optional[str]) -> None:
    """Measure how many JPEGs per second become batches: gluonlab, MXNet's own iterators and
    PyTorch's DataLoader.

    A slow result is a result: it does not change the exit status.
    """
    count, session = whole(1)("--rounds", rounds), Session()
    record = session.record("images", {}, count, _images.series(_images.images(count)))
    session.warn_if_busy()
    _say(record, lambda: _images.table(_images.make_rows(record.series), count), as_json, out)


@command("python -m gluonlab.bench threads", INTERRUPTED)
@_options(_threads.ROUNDS)
@options
@click.option(
    "--spin-counts",
    metavar="N,N",
    default=_threads.SPIN_COUNTS,
    show_default=True,
    help="looks for work, to be compared, too",
)
def threads(
    rounds: str,
    as_json: bool,
    out: Optional[str],
    beside: Optional[str],
    restart_every: Optional[str],
    spin_counts: str,
) -> None:
    """Measure one CPU device with all cores, by how its idle threads wait, alone and beside a
    process that computes.

    Also two workers of a parameter server on this host, each with its part of the cores, and with
    all of them.
    """
    count, counts = whole(1)("--rounds", rounds), _threads.parse_spin_counts(spin_counts)
    title = ("threads", {"spin-counts": spin_counts})
    turns = check(beside, restart_every, as_json)
    if turns is not None:
        subjects = [one for network in _threads.NETWORKS for one in _threads.ours(network)]
        click.echo(take_turns(subjects, _threads.series, title, count, turns, out))
        return
    session = Session()
    found = [
        one
        # one after the other: all processes of a network are in memory together
        for network in _threads.NETWORKS
        for one in measure(_threads.subjects(counts, network), count, _threads.RESTART_EVERY)
    ]
    record = session.record(*title, count, _threads.series(found))
    session.warn_if_busy()
    _say(record, lambda: _threads.table(_threads.make_rows(record.series), count), as_json, out)


@command("python -m gluonlab.bench allreduce", INTERRUPTED)
@click.option(
    "--devices",
    metavar="SPEC",
    help=f"gpu:0,2 gpu:* cpu*4, or a number  [default: {DEVICES}; {DRAWN} to draw]",
)
@click.option(
    "--algorithms",
    metavar="NAMES",
    help=f"all, or some of {', '.join(ALGORITHMS)}, sharded-whole, chapter, local, device, "
    "nccl  [default: all]",
)
@click.option(
    "--sizes",
    metavar="SIZES",
    help=f"on each device: 46MB  1KiB,1MiB  1KiB:64MiB:2 (a factor)  [default: {SIZES}]",
)
@click.option(
    "--dtype", metavar="TYPE", help="float16, float32, float64 or int32  [default: float32]"
)
@click.option(
    "--arrays",
    metavar="N",
    help="share each size out over N arrays, as gradients come  [default: 1]",
)
@click.option(
    "--repeat", metavar="N", help="allreduces per measurement  [default: as many as take 30 ms]"
)
@click.option("--rounds", metavar="N", help="how often each is measured  [default: 7]")
@click.option(
    "--topology",
    metavar="NAME",
    help=f"price schedules and place rings on {', '.join(TOPOLOGIES)}  [default: this machine]",
)
@click.option(
    "--chunks", metavar="N", help="cut buffers into N chunks, where the algorithm leaves the choice"
)
@click.option(
    "--groups",
    metavar="RANKS",
    help="those of hierarchical, 0-3/4-7  [default: the topology's, or two halves]",
)
@click.option("--plot", metavar="FILE", help="draw time and busbw against size into a new PNG file")
@click.option(
    "--simulate",
    metavar="NAME",
    help="run nothing: price the algorithms on p3.16xlarge or another topology",
)
@click.option(
    "--draw", metavar="ALGORITHM", help="run nothing: show the schedule step by step, as text"
)
@click.option("--out", metavar="FILE", help="draw it as a page to step through, in a new HTML file")
@click.option("--language", metavar="NAME", help="of the page, en or ja  [default: en]")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the numbers as JSON, and nothing else, on standard output",
)
def allreduce(as_json: bool, **options: Optional[str]) -> None:
    """Measure allreduce algorithms beside MXNet's own stores, by size, in one run and in turns.

    The columns are those of nccl-tests, then what the algorithm should cost on this machine, and
    how much it reaches of the limit that memory sets. An allreduce of N bytes on k CPU devices
    reads and writes every replica at least once, 2kN bytes in all; so it takes at least 2kN /
    (bytes per second that all devices together read and write), which is measured in the same run.

    chapter: the allreduce of Dive into Deep Learning. sharded-whole: whole arrays are summed on
    different devices.

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
@options
@click.option(
    "--size",
    metavar="SIZE",
    default="46MB",
    show_default=True,
    help="of the buffers for allreduce alone",
)
@click.option(
    "--stores",
    metavar="NAMES",
    default="all",
    show_default=True,
    help="kvstores for allreduce with update, such as device,ring",
)
@click.option(
    "--world-sizes",
    metavar="N,N",
    help="numbers of devices  [default: 2,4; with --devices also all]",
)
@on_option
def gradients(
    rounds: str,
    as_json: bool,
    out: Optional[str],
    beside: Optional[str],
    restart_every: Optional[str],
    size: str,
    stores: str,
    world_sizes: Optional[str],
    devices: Optional[str],
) -> None:
    """Measure allreduce, and allreduce with update, on gradients of ResNet-18's size, and judge our
    best.

    A slow result is a result: it does not change the exit status.
    """
    # MXNet is loaded here, not for the other commands
    from gluonlab.bench.gradients import measure as _gradients

    count, sizes = whole(1)("--rounds", rounds), parse_sizes(size, "--size")
    if len(sizes) != 1:
        raise ConfigError(f"--size {size}: give one size, such as 46MB")
    on = cpu_devices(max(_gradients.WORLD_SIZES)) if devices is None else measured_on(devices)
    names, counts = (
        _gradients.parse_stores(stores, on.on_gpus),
        _gradients.parse_world_sizes(world_sizes, on),
    )
    told = world_sizes or ",".join(map(str, counts))
    title = ("gradients", {"size": size, "stores": stores, "world-sizes": told, **on.title()})
    turns = check(beside, restart_every, as_json)
    if turns is not None:
        subjects = _gradients.ours(on, names, counts, sizes[0])
        click.echo(take_turns(subjects, _gradients.job_series, title, count, turns, out))
        return
    session = Session()
    findings = _gradients.gradients(names, counts, sizes[0], count, on=on)
    session.warn_if_busy()
    wrong = (
        f"wrong sums by {', '.join(findings.wrong())}: see the column error"
        if findings.wrong()
        else None
    )
    record = session.record(*title, count, findings.series())
    _say(record, lambda: _gradients.report(findings), as_json, None if wrong else out, on)
    if wrong:
        raise RunError(wrong)


@command("python -m gluonlab.bench compare")
@click.argument("first", metavar="FIRST")
@click.argument("second", metavar="SECOND")
@click.option(
    "--at-least",
    metavar="RATIO",
    help="exit with 1 if a row's whole interval lies below this, such as 0.97",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the comparison as JSON, and nothing else, on standard output",
)
def compare(first: str, second: str, at_least: Optional[str], as_json: bool) -> None:
    """Compare two records of one measurement, files that --out wrote or folders of them: ratios
    with 95 % intervals.

    Rounds that were measured in turns (--beside) are compared pair by pair.
    """
    limit = None if at_least is None else real(0, above_minimum=True)("--at-least", at_least)
    found = [
        _compare.compare(*pair) for pair in _compare.pairs_of_records(Path(first), Path(second))
    ]
    if as_json:
        click.echo(
            json.dumps(
                [{**vars(one), "rows": [row.as_json() for row in one.rows]} for one in found]
            )
        )
    else:
        click.echo("\n\n".join([*map(_compare.table, found), _compare.notes(found)]))
    slower = [] if limit is None else _compare.slower(found, limit)
    if slower:
        raise RunError(f"slower, below {at_least} with 95 % confidence: {'; '.join(slower)}")


COMMANDS = {
    name: (made.get_short_help_str(100), made)
    for name, made in (
        ("peers", peers),
        ("host", host),
        ("images", images),
        ("threads", threads),
        ("allreduce", allreduce),
        ("gradients", gradients),
        ("compare", compare),
    )
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the measurement that is named first."""
    dispatch("python -m gluonlab.bench", COMMANDS, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
