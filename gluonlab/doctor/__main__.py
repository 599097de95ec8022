"""Implements ``gluonlab doctor``, which checks this machine and reports faults and their fixes."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.doctor import check_gpus, check_host, check_mxnet, check_platform, check_software, check_training
from gluonlab.doctor.check_host import mirror_addresses
from gluonlab.doctor.findings import FAULT, Finding, findings_to_dict, format_findings, run_check, worst_status
from gluonlab.errors import ConfigError
from gluonlab.gpu import nvml
from gluonlab.gpu.isolated_process import kill_all
from gluonlab.plain_text import json_text

Check = Tuple[str, Callable[[], Sequence[Finding]]]
Addresses = Callable[[], Mapping[str, Tuple[str, ...]]]


def run_checks(
    train: bool = False, network: bool = False, addresses: Addresses = check_host.mirror_addresses
) -> List[Finding]:
    """Run all checks of this machine, and return their findings.

    ``train``: whether to also train one step. ``network``: whether to also try the ``addresses``
    from which data sets are downloaded.
    """
    checks = [*_software_checks(), *_gpu_checks(), *_host_checks()]
    checks += [("train", check_training.probe_training)] * train
    checks += [("network", lambda: check_host.check_mirrors(addresses()))] * network
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        results = [pool.submit(run_check, name, check) for name, check in checks]
        try:
            return [finding for result in results for finding in result.result()]
        except BaseException:  # such as Ctrl-C: the pool would wait for the child processes
            kill_all()
            raise


def _software_checks() -> List[Check]:
    """Return the checks of the platform, Python, numpy, MXNet and its libraries, as (name, function)."""
    folder = check_software.module_folder("mxnet")

    def check_import() -> List[Finding]:
        horovod = check_software.installed_version("horovod")
        return check_mxnet.mxnet_findings(check_mxnet.probe_mxnet(), folder is not None, horovod)

    return [
        ("platform", check_platform.check_platform),
        ("python", lambda: [check_software.check_python()]),
        ("numpy", lambda: [check_software.check_numpy(check_software.installed_version("numpy"))]),
        ("mxnet", lambda: [check_software.check_installed_mxnet(check_software.installed_mxnets(), folder)]),
        ("libraries", lambda: check_software.check_libraries(folder)),
        ("import", check_import),
    ]


def _gpu_checks() -> List[Check]:
    """Return a single check, which runs all GPU checks on the same driver report."""

    def check_gpus_in_order() -> List[Finding]:
        """Read the driver's report, and return the findings from all GPU checks."""
        driver, installed = nvml.read_driver(), list(check_software.installed_mxnets())
        flavor = installed[0] if len(installed) == 1 else ""
        instance = check_gpus.instance_type(os.environ)
        checks: List[Check] = [
            ("gpus", lambda: check_gpus.check_driver(driver, flavor)),
            ("capability", lambda: check_gpus.check_capabilities(driver, flavor)),
            ("products", lambda: check_gpus.check_tf32(driver)),
            ("gpu-memory", lambda: check_gpus.check_gpu_memory(driver)),
            ("numbering", lambda: check_gpus.check_gpu_order(driver)),
            ("links", lambda: check_gpus.check_links(driver, instance)),
        ]
        return [finding for check in checks for finding in run_check(*check)]

    return [("gpus", check_gpus_in_order)]


def _host_checks() -> List[Check]:
    """Return the checks of the machine, except the GPU checks, as (name, function)."""
    return [
        ("cpu", check_host.check_cpu),
        ("memory", lambda: [check_host.check_memory()]),
        ("shm", lambda: [check_host.check_shared_memory()]),
        ("home", lambda: [check_host.check_home(os.environ.get("HOME", ""))]),
        ("data", check_host.check_data_folder),
        ("runs", lambda: [check_host.check_current_folder()]),
        ("temporary", lambda: [check_host.check_temporary_folder()]),
        ("sagemaker", check_host.check_sagemaker),
    ]


DEFAULT_NAME = "gpu-report"


@command(
    "gluonlab doctor",
    renamed={
        "--train": "--smoke-test",
        "--network": "--check-downloads",
        "--prove": "--gpu-self-test",
        "--out": "--out-file",
    },
)
@click.option(
    "--smoke-test", is_flag=True, help="also compare a training step on all devices with the same step on one device"
)
@click.option(
    "--check-downloads", is_flag=True, help="also check the connections to the servers that provide the data sets"
)
@click.option(
    "--gpu-self-test", is_flag=True, help="also test the GPUs and the kvstores on them, which takes a few minutes"
)
@click.option(
    "--out-file",
    metavar="NAME",
    help=f"with --gpu-self-test: write the report to NAME.json and NAME.html  [default: {DEFAULT_NAME}]",
)
@add_json_option("the findings")
@click.pass_context
def main(
    context: click.Context,
    smoke_test: bool,
    check_downloads: bool,
    gpu_self_test: bool,
    out_file: Optional[str],
    as_json: bool,
) -> None:
    """Check this machine's software, GPUs, memory and disks for known issues.

    Each line of the output starts with ok, warning or fault. The command also prints the cause and
    the fix of each warning and fault. The exit status is 1 if there is a fault, and otherwise 0. Without
    options, the checks usually take less than five seconds.
    """
    if out_file is not None and not gpu_self_test:
        raise ConfigError(
            "--out-file is only for the report of --gpu-self-test: add --gpu-self-test, or remove --out-file"
        )
    proof = None
    if gpu_self_test:
        from gluonlab.doctor.prove import Proof

        proof = Proof.create(out_file or DEFAULT_NAME)
    start = time.monotonic()
    findings = run_checks(smoke_test, check_downloads, context.obj or mirror_addresses)
    seconds = time.monotonic() - start
    report = findings_to_dict(findings, seconds)
    if not as_json:
        click.echo(format_findings(findings, seconds))
    if proof is not None:
        report["proof"] = proof.run_and_write(say=(lambda text: None) if as_json else click.echo)
    if as_json:
        click.echo(json_text(report))
    context.exit(1 if worst_status(findings) == FAULT or report.get("proof", {}).get("faults") else 0)


if __name__ == "__main__":
    main()
