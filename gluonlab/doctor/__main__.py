"""python -m gluonlab.doctor: what keeps MXNet from running here, why, and what to do about it."""

from __future__ import annotations

import json
import time
from typing import Optional

import click

from gluonlab.cli.command import command
from gluonlab.doctor.data_sets import addresses
from gluonlab.doctor.examination import Addresses, examine
from gluonlab.doctor.findings import FAULT, as_lines, as_object, worst
from gluonlab.doctor.prove.asked import OUT, Asked
from gluonlab.errors import ConfigError


@command("python -m gluonlab.doctor")
@click.option(
    "--train",
    is_flag=True,
    help="also train one step on every device, and compare it with one device",
)
@click.option(
    "--network", is_flag=True, help="also ask the servers that data sets are downloaded from"
)
@click.option(
    "--prove",
    is_flag=True,
    help="also try the GPUs and all kvstores on them, some minutes: two files to send in",
)
@click.option(
    "--out", metavar="NAME", help=f"with --prove: write NAME.json and NAME.html  [default: {OUT}]"
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print one JSON object, and nothing else, on standard output",
)
@click.pass_context
def main(
    context: click.Context,
    train: bool,
    network: bool,
    prove: bool,
    out: Optional[str],
    as_json: bool,
) -> None:
    """Look at Python, numpy, MXNet, its libraries, driver and GPUs, kvstores, disks and memory,
    data and SageMaker.

    Each line is ok, a warning or a fault, with cause and cure. Exit status: 0, or 1 if there is a
    fault. Takes less than five seconds without options, unless the machine is busy.
    """
    if out is not None and not prove:
        raise ConfigError("--out says where --prove writes: add --prove, or leave --out out")
    asked = Asked.of(out or OUT) if prove else None
    began = time.monotonic()
    where: Addresses = context.obj or addresses
    findings = examine(train, network, where)
    seconds = time.monotonic() - began
    found = as_object(findings, seconds)
    if not as_json:
        click.echo(as_lines(findings, seconds))
    if asked is not None:
        found["proof"] = asked.prove(say=None if as_json else click.echo)
    if as_json:
        click.echo(json.dumps(found))
    context.exit(1 if worst(findings) == FAULT or found.get("proof", {}).get("faults") else 0)


if __name__ == "__main__":
    main()
