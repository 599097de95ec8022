"""python -m gluonlab.bench NAME: options in, a measurement, its table out."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Optional, Sequence

import click

from gluonlab.bench.allreduce.__main__ import allreduce
from gluonlab.bench.allreduce.sizes import parse_sizes
from gluonlab.bench.checkpoints import names as _checkpoints
from gluonlab.bench.checkpoints import table as _checkpoints_table
from gluonlab.bench.efficiency import names as _efficiency
from gluonlab.bench.harness import compare as _compare
from gluonlab.bench.harness import rates
from gluonlab.bench.harness.command import INTERRUPTED, JSON, ON, Asked, measurement, option
from gluonlab.bench.harness.measured_on import cpu_devices, measured_on
from gluonlab.bench.harness.rounds import measure
from gluonlab.bench.host import table as _host
from gluonlab.bench.images import table as _images
from gluonlab.bench.links.__main__ import links
from gluonlab.bench.optimize import table as _optimize
from gluonlab.bench.overlap.__main__ import overlap
from gluonlab.bench.peers import table as _peers
from gluonlab.bench.pipeline import modes as _pipeline
from gluonlab.bench.scaling.__main__ import scaling
from gluonlab.bench.splits import names as _splits
from gluonlab.bench.splits import table as _splits_table
from gluonlab.bench.threads import table as _threads
from gluonlab.cli.command import command, dispatch
from gluonlab.collectives.hosts import MOST_HOSTS, NETWORKS
from gluonlab.config.values import real
from gluonlab.errors import ConfigError, RunError
from gluonlab.parallel.pipeline.schedule import SCHEDULES
from gluonlab.plain import json_text


@command("python -m gluonlab.bench peers", INTERRUPTED)
@measurement(_peers.ROUNDS)
@ON
@option("--network", "NAME", f"one of {', '.join(_peers.COMPARISONS)}", "lenet")
def peers(asked: Asked, devices: Optional[str], network: str) -> None:
    """Measure gluonlab beside the classic Gluon loop and PyTorch.

    It runs on two devices, or on those named.
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
    """Measure what the host's Python costs a step, in time and cores."""
    on = _host.on_devices(devices)
    title = ("host", on.title())
    if asked.take_turns(title, _host.ours(on), _host.series):
        return
    _, record = asked.record(title, partial(measure, _host.subjects(on)), _host.series)
    asked.say(record, _host.text(record), on)


@command("python -m gluonlab.bench optimize", INTERRUPTED)
@measurement(_optimize.ROUNDS)
def optimize(asked: Asked) -> None:
    """Measure tutorials' networks before and after gluonlab.optimize.

    They train on one CPU device with one thread. The losses of the first steps are compared, and a
    row whose losses differ shows them instead of a speed.
    A slow result is a result: it does not change the exit status.
    """
    title = "optimize"
    if asked.take_turns((title, {}), _optimize.ours(), rates.series):
        return
    _, record = asked.record((title, {}), partial(measure, _optimize.subjects()), rates.series)
    asked.say(record, _optimize.text(record))


@command("python -m gluonlab.bench images", INTERRUPTED)
@measurement(_images.ROUNDS, beside=False)
def images(asked: Asked) -> None:
    """Measure JPEGs decoded per second: gluonlab, MXNet and PyTorch.

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
    """Compare ways in which a CPU device's idle threads wait.

    They wait alone, and beside a busy process. Also measured are two workers of a parameter server
    on this host, each with its part of the cores, and each with all of them.
    """
    counts = _threads.parse_spin_counts(spin_counts)
    title = ("threads", {"spin-counts": spin_counts})
    if asked.take_turns(title, _threads.ours(), rates.series):
        return
    _, record = asked.record(title, partial(_threads.threads, counts), rates.series)
    asked.say(record, _threads.table(_threads.make_rows(record.series), asked.rounds))


@command(
    "python -m gluonlab.bench pipeline",
    most_used="--devices --microbatches --stages-per-device --costs --draw --out --json",
)
@option("--devices", "SPEC", f"gpu:0,2 gpu:* cpu*4, or a number  [default: {_pipeline.DEVICES}]")
@option("--microbatches", "N", f"parts of a batch  [default: {_pipeline.MICROBATCHES}]")
@option(
    "--stages-per-device",
    "N",
    f"for interleaved and sequential  [default: {_pipeline.SEVERAL} for interleaved, else 1]",
)
@option(
    "--costs",
    "MS,MS",
    "of a device's share: forward, backward, and if known a transfer and the update, as 10,20,0.5,1"
    "; or of each stage, 10,20/12,24/...  [default: 1,2]",
)
@option("--draw", "SCHEDULE", f"show one, as text: {', '.join(SCHEDULES)}")
@option(
    "--out", "FILE", "with --draw: write a new file, a page that plays it, or with .svg one picture"
)
@option("--language", "NAME", "language of the page, en or ja  [default: en]")
@JSON
def pipeline(as_json: bool, **options: Optional[str]) -> None:
    """Price pipeline schedules, or draw one.

    A drawing shows who computes what when, who waits, and who keeps what.
    Nothing is run. A network is cut into stages, one or several on each device, and a batch into
    microbatches.

    \b
    --devices 4 --microbatches 8
    --draw 1f1b --devices 4 --microbatches 8 --out 1f1b.html
    """
    asked = {name: value for name, value in options.items() if value is not None}
    click.echo(_pipeline.answer({**asked, **({"json": True} if as_json else {})}))


@command(
    "python -m gluonlab.bench efficiency",
    most_used="--machines --hosts --gradients --step --out --json",
)
@option("--machines", "NAMES", f"some of {', '.join(NETWORKS)}", _efficiency.MACHINES)
@option("--hosts", "N", f"up to so many, at most {MOST_HOSTS}  [default: {_efficiency.HOSTS}]")
@option("--gradients", "SIZE", "of another network, such as 46MB  [default: ResNet-50's, 102.3MB]")
@option("--step", "MS", "of one GPU alone  [default: as published, for K80, V100 and A100]")
@option("--out", "FILE", "write the picture, a new file that ends in .svg")
@JSON
def efficiency(as_json: bool, **options: Optional[str]) -> None:
    """Predict the efficiency of training on 1 to 8 known hosts.

    Nothing is run, and nothing was measured: a GPU's published time of a step, beside the price of
    summing its gradients over all GPUs of all hosts, in three ways. The assumptions are printed.

    \b
    --machines p3.16xlarge --hosts 16
    --gradients 46MB --step 90 --out efficiency.svg
    """
    from gluonlab.bench.efficiency.modes import answer  # --help needs no numpy

    asked = {name: value for name, value in options.items() if value is not None}
    click.echo(answer({**asked, **({"json": True} if as_json else {})}))


@command(
    "python -m gluonlab.bench gradients",
    INTERRUPTED,
    most_used="--size --stores --world-sizes --devices --rounds --out --json",
)
@measurement(9)  # rounds
@option("--size", "SIZE", "size of the buffers for allreduce alone", "46MB")
@option("--stores", "NAMES", "kvstores for allreduce with update, such as device,ring", "all")
@option("--world-sizes", "N,N", "numbers of devices  [default: 2,4; with --devices also all]")
@ON
def gradients(
    asked: Asked, size: str, stores: str, world_sizes: Optional[str], devices: Optional[str]
) -> None:
    """Measure allreduce on ResNet-18's gradients, and judge gluonlab's.

    The sums are measured alone, and with update.
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


@command("python -m gluonlab.bench splits", INTERRUPTED)
@measurement(_splits.ROUNDS, beside=False)
@option("--network", "NAME", f"one of {', '.join(_splits.TASKS)}", "resnet18")
@option(
    "--microbatches",
    "N",
    "parts of a batch that goes through a pipeline",
    str(_splits.MICROBATCHES),
)
@ON
def splits(asked: Asked, network: str, microbatches: str, devices: Optional[str]) -> None:
    """Measure a network under each split: time, bytes and bubbles.

    That is steps, the bytes moved and kept, and pipelines' bubbles.
    On two CPU devices or those named, one thread each, beside one of them. A slow result is a
    result: it does not change the exit status.
    """
    task = _splits.check_network(network)
    parts = _splits.check_microbatches(microbatches, task)
    # MXNet is loaded here, not for the other commands
    from gluonlab.bench.splits import measure as _measure

    on = cpu_devices(_splits.DEVICES) if devices is None else measured_on(devices)
    count = _measure.check_devices(on)
    title = ("splits", {"network": network, "microbatches": parts, **on.title()})
    found, record = asked.record(title, partial(_measure.splits, task, on, count, parts), list)
    asked.say(record, _splits_table.text(found, task, parts, asked.rounds), on)


@command("python -m gluonlab.bench checkpoints", INTERRUPTED)
@measurement(_checkpoints.ROUNDS, beside=False)
@option("--network", "NAME", f"one of {', '.join(_checkpoints.TASKS)}", _checkpoints.JUDGED)
@ON
def checkpoints(asked: Asked, network: str, devices: Optional[str]) -> None:
    """Measure what checkpoints cost a run, and --check-replicas.

    Beside them stand files that are saved in the loop.
    On two CPU devices or those named, one thread each. Files are written into the folder for
    temporary ones (TMPDIR). A slow result is a result: it does not change the exit status.
    """
    task = _splits.check_network(network, _checkpoints.TASKS)
    # MXNet is loaded here, not for the other commands
    from gluonlab.bench.checkpoints import measure as _measure

    on = cpu_devices(_checkpoints.DEVICES) if devices is None else measured_on(devices)
    count = _measure.check_devices(on)
    title = ("checkpoints", {"network": network, **on.title()})
    found, record = asked.record(title, partial(_measure.checkpoints, task, on, count), list)
    asked.say(record, _checkpoints_table.text(found, task, count, asked.rounds), on)


@command("python -m gluonlab.bench verdict", INTERRUPTED)
@measurement(9, beside=False)  # rounds
def verdict(asked: Asked) -> None:
    """Take the advice of study speedup, and measure what it brings.

    Does it bring what it promises, in ten trainings? And what does --profile cost the steps that it
    records? Two CPU devices, one thread each; some minutes. A slow result is a result: it does not
    change the exit status.
    """
    # MXNet is loaded here, not for the other commands
    from gluonlab.study.speedup import kept

    _, record = asked.record(("verdict", {}), kept.kept, list)
    asked.say(record, kept.text(record.series))


@command("python -m gluonlab.bench compare")
@click.argument("first", metavar="FIRST")
@click.argument("second", metavar="SECOND")
@option(
    "--at-least", "RATIO", "exit with 1 if a row's whole interval lies below this, such as 0.97"
)
@JSON
def compare(first: str, second: str, at_least: Optional[str], as_json: bool) -> None:
    """Compare two records of one measurement, or folders of them.

    It prints ratios with 95 % intervals.
    --out writes records. Rounds that were measured in turns (--beside) are compared pair by pair.
    """
    limit = None if at_least is None else real(0, above_minimum=True)("--at-least", at_least)
    pairs = _compare.pairs_of_records(Path(first), Path(second))
    found = [_compare.compare(*pair) for pair in pairs]
    if as_json:
        click.echo(json_text([asdict(one) for one in found]))
    else:
        click.echo("\n\n".join([*map(_compare.table, found), _compare.notes(found)]))
    slower = [] if limit is None else _compare.slower(found, limit)
    if slower:
        raise RunError(f"slower, below {at_least} with 95 % confidence: {'; '.join(slower)}")


COMMANDS = {
    str(made.name).rpartition(" ")[2]: made
    for made in (
        peers, optimize, host, overlap, images, threads, links, allreduce, gradients, scaling,
        pipeline, efficiency, splits, checkpoints, verdict, compare,
    )
}  # fmt: skip


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the measurement that is named first."""
    commands = {name: (made.get_short_help_str(100), made) for name, made in COMMANDS.items()}
    dispatch("python -m gluonlab.bench", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
