"""All checks at the same time, reported in the order in which a person wants to read them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Mapping, Sequence, Tuple

from gluonlab.doctor import (
    cpu,
    data_sets,
    gpus,
    host,
    libraries,
    links,
    mxnet_loads,
    numbering,
    packages,
    sagemaker,
    training,
)
from gluonlab.doctor.findings import Finding, guarded
from gluonlab.gpu import nvml
from gluonlab.gpu.process import end_all

Check = Tuple[str, Callable[[], Sequence[Finding]]]
Addresses = Callable[[], Mapping[str, Tuple[str, ...]]]


def examine(
    train: bool = False, network: bool = False, addresses: Addresses = data_sets.addresses
) -> List[Finding]:
    """Every finding of this machine.

    ``train``: also train one step; ``network``: also try the data sets' ``addresses``.
    """
    checks = [*_software(), *_gpus(), *_places()]
    checks += [("train", training.try_training)] * train
    checks += [("network", lambda: data_sets.mirrors(addresses()))] * network
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        results = [pool.submit(guarded, name, look) for name, look in checks]
        try:
            return [finding for result in results for finding in result.result()]
        except BaseException:  # Ctrl-C: the pool would wait for them
            end_all()
            raise


def _software() -> List[Check]:
    folder = packages.module_folder("mxnet")

    def load() -> List[Finding]:
        horovod = packages.installed_version("horovod")
        return mxnet_loads.findings(mxnet_loads.try_mxnet(), folder is not None, horovod)

    return [
        ("python", lambda: [packages.python()]),
        ("numpy", lambda: [packages.numpy(packages.installed_version("numpy"))]),
        ("mxnet", lambda: [packages.mxnet(packages.installed_mxnets(), folder)]),
        ("libraries", lambda: libraries.libraries(folder)),
        ("import", load),
    ]


def _gpus() -> List[Check]:
    def look() -> List[Finding]:
        driver, installed = nvml.look(), list(packages.installed_mxnets())
        flavour = installed[0] if len(installed) == 1 else ""
        instance = links.instance_type(os.environ)
        checks: List[Check] = [
            ("gpus", lambda: gpus.driver(driver, flavour)),
            ("capability", lambda: gpus.capabilities(driver, flavour)),
            ("products", lambda: gpus.products(driver)),
            ("gpu-memory", lambda: gpus.memory(driver)),
            ("numbering", lambda: numbering.numbering(driver)),
            ("links", lambda: links.links(driver, instance)),
        ]
        return [finding for check in checks for finding in guarded(*check)]

    return [("gpus", look)]


def _places() -> List[Check]:
    return [
        ("cpu", cpu.cpu),
        ("memory", lambda: [host.memory()]),
        ("shm", lambda: [host.shared_memory()]),
        ("home", lambda: [host.home(os.environ.get("HOME", ""))]),
        ("data", data_sets.folder),
        ("runs", lambda: [host.current_folder()]),
        ("temporary", lambda: [host.temporary()]),
        ("sagemaker", sagemaker.sagemaker),
    ]
