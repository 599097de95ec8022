"""Which GPUs CUDA shows to a process, and which of them it calls gpu:0, gpu:1, ...:
CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
"""

from __future__ import annotations

import os
from typing import List, Mapping, Optional, Sequence, Tuple

from gluonlab.doctor.findings import Finding, fault, ok, warning
from gluonlab.gpu.nvml import Driver, Gpu
from gluonlab.gpu.visible import visible_gpus


def numbering(found: Driver, environ: Mapping[str, str] = os.environ) -> List[Finding]:
    """Which GPU gpu:0, gpu:1, ...

    are: CUDA counts those that it is shown, and by default the fastest first.
    """
    if not found.gpus:
        return []
    visible, alike = environ.get("CUDA_VISIBLE_DEVICES"), len({gpu.name for gpu in found.gpus}) == 1
    settings = (
        f"CUDA_VISIBLE_DEVICES={visible}"
        if visible is not None
        else "CUDA_VISIBLE_DEVICES is not set"
    )
    shown, problem = visible_gpus(found.gpus, visible)
    if problem:
        what = f"{settings}: {len(shown) or 'no'} GPU{'' if len(shown) == 1 else 's'} left"
        numbers = f"numbers from 0 to {len(found.gpus) - 1}" if len(found.gpus) > 1 else "0"
        cure = f"give {numbers}, or UUIDs as nvidia-smi -L shows them, each once"
        return [(warning if shown else fault)("numbering", what, problem, cure)]
    if not shown:
        return [
            warning("numbering", f"{settings} hides all GPUs", "", "unset CUDA_VISIBLE_DEVICES")
        ]
    if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and not alike:
        cause = (
            "CUDA puts the fastest GPU first, nvidia-smi counts along the PCI bus, "
            "and these GPUs are not alike"
        )
        what = f"gpu:0 may not be nvidia-smi's GPU 0; {settings}"
        return [
            warning("numbering", what, cause, "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),
            *_parts(shown, visible),
        ]
    pairs = ", ".join(f"gpu:{i} is GPU {gpu.index}" for i, gpu in enumerate(shown))
    return _parts(shown, visible) or [ok("numbering", f"{pairs} of nvidia-smi; {settings}")]


def _parts(shown: Sequence[Gpu], visible: Optional[str]) -> List[Finding]:
    """GPUs that are divided (MIG), of which CUDA shows a process one part; none of the others is
    needed to say so.
    """
    divided: List[Tuple[Gpu, Tuple[str, ...]]] = [
        (gpu, gpu.parts) for gpu in shown if gpu.parts is not None
    ]
    lines = []
    for gpu, parts in divided:
        whole = f"nvidia-smi -i {gpu.index} -mig 0 makes it whole again"
        if not parts:
            cure = f"{whole}; nvidia-smi mig -i {gpu.index} -cgi ... -C makes parts"
            lines.append(
                warning(
                    "numbering",
                    f"CUDA does not show GPU {gpu.index}",
                    "it is in MIG mode and has no parts",
                    cure,
                )
            )
        elif visible is not None and visible.strip().startswith("MIG-"):
            lines.append(
                ok(
                    "numbering",
                    f"gpu:0 is a part (MIG) of GPU {gpu.index} of nvidia-smi; "
                    f"CUDA_VISIBLE_DEVICES={visible}",
                )
            )
        else:
            what = f"of GPU {gpu.index} one part is shown, gpu:0 alone"
            cause = f"it is divided into {len(parts)} (MIG), and CUDA shows a process one part"
            lines.append(
                warning(
                    "numbering",
                    what,
                    cause,
                    f"choose one: export CUDA_VISIBLE_DEVICES={parts[0]}; {whole}",
                )
            )
    return lines
