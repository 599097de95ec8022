"""The environment of the workers.

Only here does the bench name variables that tune an engine, and only for its children.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Mapping, Optional

from gluonlab.bench.harness.machine import HERE
from gluonlab.host.resources import INSTRUCTION_SETS, LIMIT, instruction_set

# What changes threads or engine is taken out of every worker's environment; a row that needs some
# gets them back.
TUNING = ("MXNET_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "DMLC_", "GLOO_")

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
# else a pool of processes stays beside the measured one
COMPILE_IN_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

# libgomp's own number; said, so that gluonlab leaves it
AS_OPENMP_COMES = {"GOMP_SPINCOUNT": "300000"}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}


def spinning(count: int) -> Dict[str, str]:
    """Lets an idle thread of OpenMP look for work ``count`` times before it sleeps."""
    return {"GOMP_SPINCOUNT": str(count)}


def parameter_server(role: str, port: int, workers: int) -> Dict[str, str]:
    """For a process of MXNet's parameter server here; ``role``: scheduler, server or worker."""
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(workers),
    }


def torch_limit() -> Dict[str, str]:
    """Limit PyTorch's own operators as oneDNN is limited, here by DNNL_MAX_CPU_ISA; else nothing.

    PyTorch's oneDNN obeys that variable, as MXNet's does, and PyTorch's operators one of their own.
    """
    used = instruction_set()
    if LIMIT not in os.environ or used == next(iter(INSTRUCTION_SETS)):
        return {}
    return {"ATEN_CPU_CAPABILITY": "avx2" if used == "AVX2" else "default"}


def child_environment(
    variables: Mapping[str, str], folder: Path, checkout: Optional[Path] = None
) -> Dict[str, str]:
    """This process's environment without TUNING, and with ``variables``.

    Temporary files go into ``folder``. The child measures this gluonlab, or that of ``checkout``,
    and not another one that is installed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(TUNING)}
    path = filter(None, [str(checkout or HERE), environment.get("PYTHONPATH")])
    own = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(folder)}
    return {**environment, **own, **variables}
