"""python -m gluonlab.doctor: what keeps MXNet from running here, why, and what to do about it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.doctor import check_gpus, check_host, check_mxnet, check_software, check_training
from gluonlab.doctor.check_host import addresses
from gluonlab.doctor.findings import FAULT, Finding, as_lines, as_object, guarded, worst
from gluonlab.errors import ConfigError
from gluonlab.gpu import nvml
from gluonlab.gpu.isolated_process import end_all
from gluonlab.plain_text import json_text

Check = Tuple[str, Callable[[], Sequence[Finding]]]
Addresses = Callable[[], Mapping[str, Tuple[str, ...]]]


def examine(
    train: bool = False, network: bool = False, addresses: Addresses = check_host.addresses
) -> List[Finding]:
    """Every finding of this machine.

    ``train``: also train one step; ``network``: also try the data sets' ``addresses``.
    """
    checks = [*_software(), *_gpus(), *_places()]
    checks += [("train", check_training.try_training)] * train
    checks += [("network", lambda: check_host.mirrors(addresses()))] * network
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        results = [pool.submit(guarded, name, look) for name, look in checks]
        try:
            return [finding for result in results for finding in result.result()]
        except BaseException:  # Ctrl-C: the pool would wait for them
            end_all()
            raise


def _software() -> List[Check]:
    folder = check_software.module_folder("mxnet")

    def load() -> List[Finding]:
        horovod = check_software.installed_version("horovod")
        return check_mxnet.findings(check_mxnet.try_mxnet(), folder is not None, horovod)

    return [
        ("python", lambda: [check_software.python()]),
        ("numpy", lambda: [check_software.numpy(check_software.installed_version("numpy"))]),
        ("mxnet", lambda: [check_software.mxnet(check_software.installed_mxnets(), folder)]),
        ("libraries", lambda: check_software.libraries(folder)),
        ("import", load),
    ]


def _gpus() -> List[Check]:
    def look() -> List[Finding]:
        driver, installed = nvml.look(), list(check_software.installed_mxnets())
        flavour = installed[0] if len(installed) == 1 else ""
        instance = check_gpus.instance_type(os.environ)
        checks: List[Check] = [
            ("gpus", lambda: check_gpus.driver(driver, flavour)),
            ("capability", lambda: check_gpus.capabilities(driver, flavour)),
            ("products", lambda: check_gpus.products(driver)),
            ("gpu-memory", lambda: check_gpus.memory(driver)),
            ("numbering", lambda: check_gpus.numbering(driver)),
            ("links", lambda: check_gpus.links(driver, instance)),
        ]
        return [finding for check in checks for finding in guarded(*check)]

    return [("gpus", look)]


def _places() -> List[Check]:
    return [
        ("cpu", check_host.cpu),
        ("memory", lambda: [check_host.memory()]),
        ("shm", lambda: [check_host.shared_memory()]),
        ("home", lambda: [check_host.home(os.environ.get("HOME", ""))]),
        ("data", check_host.folder),
        ("runs", lambda: [check_host.current_folder()]),
        ("temporary", lambda: [check_host.temporary()]),
        ("sagemaker", check_host.sagemaker),
    ]


OUT = "gpu-proof"
TRAIN = "also train one step on every device, and compare it with one device"
NETWORK = "also try the servers that data sets are downloaded from"
PROVE = "also test the GPUs and all kvstores on them, for minutes: writes two files to send in"
NAMES = f"with --prove: write NAME.json and NAME.html  [default: {OUT}]"


@command("python -m gluonlab.doctor")
@click.option("--train", is_flag=True, help=TRAIN)
@click.option("--network", is_flag=True, help=NETWORK)
@click.option("--prove", is_flag=True, help=PROVE)
@click.option("--out", metavar="NAME", help=NAMES)
@add_json_option("the findings")
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
    proof = None
    if prove:
        from gluonlab.doctor.prove import Proof

        proof = Proof.named(out or OUT)
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
