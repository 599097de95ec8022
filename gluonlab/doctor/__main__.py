"""python -m gluonlab.doctor: what keeps MXNet from running here, why, and what to do about it."""

from __future__ import annotations

import time
from typing import Optional

import click

from gluonlab.cli.command import command, json_option
from gluonlab.doctor.data_sets import addresses
from gluonlab.doctor.examination import examine
from gluonlab.doctor.findings import FAULT, as_lines, as_object, worst
from gluonlab.doctor.prove.proof import OUT, Proof
from gluonlab.documents import json_text
from gluonlab.errors import ConfigError

TRAIN = "also train one step on every device, and compare it with one device"
NETWORK = "also try the servers that data sets are downloaded from"
PROVE = "also test the GPUs and all kvstores on them, for minutes: writes two files to send in"
NAMES = f"with --prove: write NAME.json and NAME.html  [default: {OUT}]"


@command("python -m gluonlab.doctor")
@click.option("--train", is_flag=True, help=TRAIN)
@click.option("--network", is_flag=True, help=NETWORK)
@click.option("--prove", is_flag=True, help=PROVE)
@click.option("--out", metavar="NAME", help=NAMES)
@json_option("the findings")
@click.pass_context
def main(
    context: click.Context,
    train: bool,
    network: bool,
    prove: bool,
    out: Optional[str],
    as_json: bool,
) -> None:
    """Check Python, numpy, MXNet, GPUs, kvstores, cores, memory, disks, data and SageMaker.

    Each line is ok, a warning or a fault, with cause and cure. Exit status: 0, or 1 if there is a
    fault. Takes less than five seconds without options, unless the machine is busy.
    """
    if out is not None and not prove:
        raise ConfigError("--out names what --prove writes: add --prove, or leave --out out")
    proof = Proof.named(out or OUT) if prove else None
    began = time.monotonic()
    findings = examine(train, network, context.obj or addresses)
    seconds = time.monotonic() - began
    report = as_object(findings, seconds)
    if not as_json:
        click.echo(as_lines(findings, seconds))
    if proof is not None:
        report["proof"] = proof.prove(say=(lambda text: None) if as_json else click.echo)
    if as_json:
        click.echo(json_text(report))
    context.exit(1 if worst(findings) == FAULT or report.get("proof", {}).get("faults") else 0)


if __name__ == "__main__":
    main()
