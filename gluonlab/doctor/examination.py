"""All checks, those that wait at the same time, in the order in which a person wants to read
them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

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
    """Everything that is found here.

    ``train``: also train one step; ``network``: also ask the data sets' ``addresses``.
    """
    checks = [*_software(), *_gpus(), *_places()]
    checks += [("train", training.try_training)] * train
    checks += [("network", lambda: data_sets.mirrors(addresses()))] * network
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        found = [pool.submit(guarded, name, look) for name, look in checks]
        try:
            return [finding for each in found for finding in each.result()]
        except BaseException:  # Ctrl-C: the pool would wait for them
            end_all()
            raise


def _software() -> List[Check]:
    folder = packages.module_folder("mxnet")
    return [
        ("python", lambda: [packages.python()]),
        ("numpy", lambda: [packages.numpy(packages.installed_version("numpy"))]),
        ("mxnet", lambda: [packages.mxnet(packages.installed_mxnets(), folder)]),
        ("libraries", lambda: libraries.libraries(folder)),
        ("import", partial(_mxnet, folder is not None)),
    ]


def _mxnet(is_there: bool) -> List[Finding]:
    horovod = packages.installed_version("horovod")
    return mxnet_loads.findings(mxnet_loads.try_mxnet(), is_there, horovod)


def _gpus() -> List[Check]:
    def look() -> List[Finding]:
        found, flavour = nvml.look(), _flavour()
        instance = links.instance_type(os.environ)
        return [
            *guarded("gpus", lambda: gpus.driver(found, flavour)),
            *guarded("capability", lambda: gpus.capabilities(found, flavour)),
            *guarded("products", lambda: gpus.products(found)),
            *guarded("gpu-memory", lambda: gpus.memory(found)),
            *guarded("numbering", lambda: numbering.numbering(found)),
            *guarded("links", lambda: links.links(found, instance)),
        ]

    return [("gpus", look)]


def _flavour() -> str:
    """The one that is installed; an empty string for none, several, or another."""
    installed: List[Optional[str]] = list(packages.installed_mxnets())
    return str(installed[0]) if len(installed) == 1 else ""


def _places() -> List[Check]:
    return [
        ("cpu", cpu.cpu),
        ("memory", lambda: [host.memory()]),
        ("shm", lambda: [host.shared_memory()]),
        ("home", lambda: [host.home(os.environ.get("HOME", ""))]),
        ("data", data_sets.folder),
        ("runs", lambda: [data_sets.current_folder()]),
        ("temporary", lambda: [host.temporary()]),
        ("sagemaker", sagemaker.sagemaker),
    ]
