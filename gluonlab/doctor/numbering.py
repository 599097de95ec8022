"""Which GPUs CUDA shows to a process, and which of them it calls gpu:0, gpu:1, ...

CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER decide it.
"""

from __future__ import annotations

import os
from typing import Iterator, Mapping, Optional, Sequence

from gluonlab.doctor.findings import Finding, fault, listed, ok, plural, warning
from gluonlab.gpu.nvml import Driver, Gpu
from gluonlab.gpu.visible import visible_gpus


@listed
def numbering(driver: Driver, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Which GPU gpu:0 is, and gpu:1, ...: CUDA counts those it is shown, the fastest first."""
    if not driver.gpus:
        return
    visible, last = environ.get("CUDA_VISIBLE_DEVICES"), len(driver.gpus) - 1
    settings = f"CUDA_VISIBLE_DEVICES{' is not set' if visible is None else f'={visible}'}"
    shown, problem = visible_gpus(driver.gpus, visible)
    alike = len({gpu.name for gpu in driver.gpus}) == 1
    if problem:
        what = f"{settings}: {plural(len(shown), 'GPU')} left"
        numbers = f"numbers from 0 to {last}" if last else "0"
        cure = f"give {numbers}, or UUIDs as nvidia-smi -L shows them, each once"
        yield (warning if shown else fault)("numbering", what, problem, cure)
    elif not shown:
        cure = "unset CUDA_VISIBLE_DEVICES"
        yield warning("numbering", f"{settings} hides all GPUs", "", cure)
    elif environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and not alike:
        what = f"gpu:0 may not be nvidia-smi's GPU 0; {settings}"
        cause = "CUDA puts the fastest GPU first, nvidia-smi counts along the PCI bus, "
        cause += "and these GPUs are not alike"
        yield warning("numbering", what, cause, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
        yield from _parts(shown, visible)
    elif any(gpu.parts is not None for gpu in shown):
        yield from _parts(shown, visible)
    else:
        pairs = ", ".join(f"gpu:{i} is GPU {gpu.index}" for i, gpu in enumerate(shown))
        yield ok("numbering", f"{pairs} of nvidia-smi; {settings}")


def _parts(shown: Sequence[Gpu], visible: Optional[str]) -> Iterator[Finding]:
    """GPUs that are divided (MIG), of which CUDA shows a process one part."""
    for gpu in shown:
        whole = f"nvidia-smi -i {gpu.index} -mig 0 makes it whole again"
        if gpu.parts is None:
            continue
        if not gpu.parts:
            what, cause = f"CUDA does not show GPU {gpu.index}", "it is in MIG mode, without parts"
            cure = f"{whole}; nvidia-smi mig -i {gpu.index} -cgi ... -C divides it"
            yield warning("numbering", what, cause, cure)
        elif visible is not None and visible.strip().startswith("MIG-"):
            what = f"gpu:0 is a part (MIG) of GPU {gpu.index} of nvidia-smi; "
            yield ok("numbering", f"{what}CUDA_VISIBLE_DEVICES={visible}")
        else:
            what = f"one part of GPU {gpu.index} is shown, as gpu:0"
            cause = f"it has {len(gpu.parts)} parts (MIG), and CUDA shows a process only one"
            cure = f"choose one: export CUDA_VISIBLE_DEVICES={gpu.parts[0]}; {whole}"
            yield warning("numbering", what, cause, cure)
