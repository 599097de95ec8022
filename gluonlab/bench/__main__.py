"""python -m gluonlab.bench NAME: options in, a measurement, its table out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Optional, Sequence

import click

from gluonlab.bench.allreduce.modes import DEVICES, DRAWN, SIZES, answer
from gluonlab.bench.allreduce.sizes import parse_sizes
from gluonlab.bench.harness import compare as _compare
from gluonlab.bench.harness import rates
from gluonlab.bench.harness.command import JSON, ON, Asked, measurement, option
from gluonlab.bench.harness.measured_on import cpu_devices, measured_on
from gluonlab.bench.harness.rounds import measure
from gluonlab.bench.host import table as _host
from gluonlab.bench.images import table as _images
from gluonlab.bench.peers import table as _peers
from gluonlab.bench.threads import table as _threads
from gluonlab.cli.command import command, dispatch
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.topology import TOPOLOGIES
from gluonlab.config.values import real
from gluonlab.errors import ConfigError, RunError

INTERRUPTED = "the unfinished measurement is not kept"


@command("python -m gluonlab.bench peers", INTERRUPTED)
@measurement(_peers.ROUNDS)
@ON
@option("--network", "NAME", f"one of {', '.join(_peers.COMPARISONS)}", "lenet")
def peers(asked: Asked, devices: Optional[str], network: str) -> None:
    """Measure gluonlab on two devices, or those named, the classic Gluon loop and PyTorch.

    A slow result is a result: it does not change the exit status.
    """
    comparison, on = _peers.check_network(network), _peers.on_devices(devices)
    title = ("peers", {"network": network, **on.title()})
    if asked.take_turns(title, _peers.ours(comparison, on), rates.series):
        return
    _, record = asked.record(title, partial(measure, comparison.subjects(on)), rates.series)
    asked.say(record, _peers.text(comparison, record, on), on)


@command("python -m gluonlab.bench host", INTERRUPTED)
@measurement(_host.ROUNDS)
@ON
def host(asked: Asked, devices: Optional[str]) -> None:
    """Measure what the host's Python costs a step, and how much of a core training uses."""
    on = _host.on_devices(devices)
    title = ("host", on.title())
    if asked.take_turns(title, _host.ours(on), _host.series):
        return
    _, record = asked.record(title, partial(measure, _host.subjects(on)), _host.series)
    asked.say(record, _host.text(record), on)


@command("python -m gluonlab.bench images", INTERRUPTED)
@measurement(_images.ROUNDS, beside=False)
def images(asked: Asked) -> None:
    """Measure how many JPEGs per second become batches: gluonlab, MXNet and PyTorch.

    A slow result is a result: it does not change the exit status.
    """
    _, record = asked.record(("images", {}), _images.images, rates.series)
    asked.say(record, _images.table(_images.make_rows(record.series), asked.rounds))


@command("python -m gluonlab.bench threads", INTERRUPTED)
@measurement(_threads.ROUNDS)
@option(
    "--spin-counts", "N,N", "also compare threads that spin N times for work", _threads.SPIN_COUNTS
)
def threads(asked: Asked, spin_counts: str) -> None:
    """Compare ways in which a CPU device's idle threads wait: alone, and beside a busy process.

    Also measures two workers of a parameter server on this host, each with its part of the cores,
    and each with all of them.
    """
    counts = _threads.parse_spin_counts(spin_counts)
    title = ("threads", {"spin-counts": spin_counts})
    if asked.take_turns(title, _threads.ours(), rates.series):
        return
    _, record = asked.record(title, partial(_threads.threads, counts), rates.series)
    asked.say(record, _threads.table(_threads.make_rows(record.series), asked.rounds))


@command("python -m gluonlab.bench allreduce", INTERRUPTED)
@option(
    "--devices", "SPEC", f"gpu:0,2 gpu:* cpu*4, or a number  [default: {DEVICES}; {DRAWN} to draw]"
)
@option(
    "--algorithms",
    "NAMES",
    f"all, or some of {', '.join(ALGORITHMS)}, "
    "sharded-whole, chapter, local, device, nccl  [default: all]",
)
@option(
    "--sizes",
    "SIZES",
    f"on each device: 46MB  1KiB,1MiB  1KiB:64MiB:2 (a factor)  [default: {SIZES}]",
)
@option("--dtype", "TYPE", "float16, float32, float64 or int32  [default: float32]")
@option("--arrays", "N", "split each size over N arrays, as gradients are  [default: 1]")
@option("--repeat", "N", "allreduces per measurement  [default: as many as take 30 ms]")
@option("--rounds", "N", "measurements of each row  [default: 7]")
@option(
    "--topology",
    "NAME",
    f"price schedules and place rings on {', '.join(TOPOLOGIES)}  [default: this machine]",
)
@option("--chunks", "N", "cut buffers into N chunks, where the algorithm leaves the choice")
@option(
    "--groups", "RANKS", "ranks of hierarchical's groups, 0-3/4-7  [default: topology's, or halves]"
)
@option("--plot", "FILE", "draw time and busbw against size into a new PNG file")
@option(
    "--simulate", "NAME", "run nothing: price the algorithms on p3.16xlarge or another topology"
)
@option("--draw", "ALGORITHM", "run nothing: show the schedule step by step, as text")
@option(
    "--out",
    "FILE",
    "with --draw: write a new file, a page to step through, or with .svg one picture",
)
@option("--language", "NAME", "language of the page, en or ja  [default: en]")
@JSON
def allreduce(as_json: bool, **options: Optional[str]) -> None:
    """Measure allreduce algorithms beside MXNet's own stores, by size, in one run and in turns.

    The columns are those of nccl-tests, then the algorithm's price on this machine, and its share
    of the memory limit's speed. An allreduce of N bytes on k CPU devices reads and writes every
    replica at least once, 2kN bytes in all. So it cannot be faster than all devices together read
    and write memory, which is measured in the same run.

    chapter: the allreduce of Dive into Deep Learning. sharded-whole: whole arrays are summed on
    different devices.

    \b
    --devices cpu*4 --sizes 1KiB:64MiB --plot speed.png
    --simulate p3.16xlarge --sizes 46MB
    --draw ring --devices 4 --out ring.html
    """
    asked = {name: value for name, value in options.items() if value is not None}
    text, failure = answer({**asked, **({"json": True} if as_json else {})})
    click.echo(text)
    if failure:
        raise RunError(failure)


@command("python -m gluonlab.bench gradients", INTERRUPTED)
@measurement(9)  # rounds
@option("--size", "SIZE", "size of the buffers for allreduce alone", "46MB")
@option("--stores", "NAMES", "kvstores for allreduce with update, such as device,ring", "all")
@option("--world-sizes", "N,N", "numbers of devices  [default: 2,4; with --devices also all]")
@ON
def gradients(
    asked: Asked, size: str, stores: str, world_sizes: Optional[str], devices: Optional[str]
) -> None:
    """Measure allreduce, alone and with update, on ResNet-18's gradients, and judge gluonlab's.

    A slow result is a result: it does not change the exit status.
    """
    # MXNet is loaded here, not for the other commands
    from gluonlab.bench.gradients import measure as _gradients

    size_bytes, *more = parse_sizes(size, "--size")
    if more:
        raise ConfigError(f"--size {size}: give one size, such as 46MB")
    on = cpu_devices(max(_gradients.WORLD_SIZES)) if devices is None else measured_on(devices)
    names = _gradients.parse_stores(stores, on.on_gpus)
    counts = _gradients.parse_world_sizes(world_sizes, on)
    told = world_sizes or ",".join(map(str, counts))
    title = ("gradients", {"size": size, "stores": stores, "world-sizes": told, **on.title()})
    if asked.take_turns(
        title, _gradients.ours(on, names, counts, size_bytes), _gradients.job_series
    ):
        return
    measured = partial(_gradients.gradients, names, counts, size_bytes, on=on)
    found, record = asked.record(title, measured, _gradients.Findings.series)
    wrong = ", ".join(found.wrong())
    # a record of wrong sums is not kept
    (asked._replace(out=None) if wrong else asked).say(record, _gradients.report(found), on)
    if wrong:
        raise RunError(f"wrong sums by {wrong}: see the column error")


@command("python -m gluonlab.bench compare")
@click.argument("first", metavar="FIRST")
@click.argument("second", metavar="SECOND")
@option(
    "--at-least", "RATIO", "exit with 1 if a row's whole interval lies below this, such as 0.97"
)
@JSON
def compare(first: str, second: str, at_least: Optional[str], as_json: bool) -> None:
    """Compare two records of one measurement, or folders of them: ratios with 95 % intervals.

    --out writes records. Rounds that were measured in turns (--beside) are compared pair by pair.
    """
    limit = None if at_least is None else real(0, above_minimum=True)("--at-least", at_least)
    pairs = _compare.pairs_of_records(Path(first), Path(second))
    found = [_compare.compare(*pair) for pair in pairs]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
    else:
        click.echo("\n\n".join([*map(_compare.table, found), _compare.notes(found)]))
    slower = [] if limit is None else _compare.slower(found, limit)
    if slower:
        raise RunError(f"slower, below {at_least} with 95 % confidence: {'; '.join(slower)}")


COMMANDS = {
    str(made.name).rpartition(" ")[2]: made
    for made in (peers, host, images, threads, allreduce, gradients, compare)
}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the measurement that is named first."""
    commands = {name: (made.get_short_help_str(100), made) for name, made in COMMANDS.items()}
    dispatch("python -m gluonlab.bench", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
