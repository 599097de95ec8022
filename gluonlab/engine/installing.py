"""Which MXNet is installed, and the pip commands that install one, for the texts of cures."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Tuple

# setup.py's extras for Python 3.8 to 3.12. From 3.13 on there is no numpy that MXNet's metadata
# allows (numpy<2), so that pip refuses them; MXNet without its metadata works with the numpy that
# gluonlab brings.
WITHOUT_METADATA = {
    "cpu": "pip install --no-deps mxnet==1.9.1",
    "cu112": "pip install 'gluonlab[cuda11]' && pip install --no-deps mxnet-cu112==1.9.1",
}
FLAVOURS = ("mxnet", "mxnet-cu112")
AGAIN = (
    "install MXNet again: pip install --force-reinstall --no-deps mxnet==1.9.1, "
    "or mxnet-cu112==1.9.1"
)


def pip_install(extra: str, version: Tuple[int, ...] = sys.version_info[:2]) -> str:
    """The command that adds an extra such as ``cpu`` to an installed gluonlab under this Python."""
    if version >= (3, 13) and extra in WITHOUT_METADATA:
        return WITHOUT_METADATA[extra]
    return f"pip install 'gluonlab[{extra}]'"


def either(version: Tuple[int, ...] = sys.version_info[:2]) -> str:
    """Both commands in words, and which is for whom."""
    on_gpus = f"on a machine with NVIDIA GPUs {pip_install('cu112', version)}"
    return f"{pip_install('cpu', version)}, or {on_gpus}"


def flavours() -> Tuple[str, ...]:
    """The MXNet distributions that are installed: normally one of FLAVOURS."""
    import importlib.metadata  # not for those who only import gluonlab: it takes as long as that

    found = []
    for name in FLAVOURS:
        with suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.distribution(name)
            found.append(name)
    return tuple(found)
