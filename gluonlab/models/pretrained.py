"""Loads parameters from a local file, perhaps all but those of the last layer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List

from gluonlab.errors import ModelError
from gluonlab.files.array_files import read_arrays
from gluonlab.finite_numbers import nonfinite_parameters
from gluonlab.plain_text import shorten_names

if TYPE_CHECKING:
    from mxnet.gluon import HybridBlock, Parameter
    from mxnet.nd import NDArray

_SHOWN = 3  # parameters that an error names


def check_pretrained(file: str) -> None:
    """Raise ModelError if this file holds no parameters, of whatever network."""
    _read(Path(file), f"--pretrained {file}")


def load_pretrained(net: "HybridBlock", file: str, classes: int) -> str:
    """Load --pretrained FILE into ``net``, and say in words what was loaded.

    A last layer for another number of classes is left out. Raises ModelError for a file that does
    not fit, or holds what is no number.
    """
    head = load_parameters(net, Path(file), f"--pretrained {file}", classes, new_head=True)
    broken = nonfinite_parameters(net)
    if broken:
        raise ModelError(
            f"--pretrained {file} holds NaN or infinity in {shorten_names(broken)}: "
            "give one whose training went well"
        )
    if not head:
        return f"{file}: all parameters"
    return f"{file}: all but {' and '.join(head)}, which begin anew for {classes} classes"


def load_parameters(
    net: "HybridBlock", path: Path, what: str, classes: int, new_head: bool = False
) -> List[str]:
    """Put a file's parameters into ``net``, on all its devices; all shapes must fit.

    The file is what Gluon's ``save_parameters`` or ``export`` wrote. Parameters that differ only in
    the number of classes are left as they are when ``new_head``, and their names are returned.
    Raises ModelError, which begins with ``what`` and names the first parameters that do not fit,
    before any has changed.
    """
    loaded = _read(path, what)
    wanted: Dict[str, "Parameter"] = net._collect_params_with_prefix()
    # named by blocks, not by their places: as exported, or from before MXNet 1.4
    if not any("." in name for name in loaded):
        loaded = _without_common_prefix(loaded)
        wanted = _without_common_prefix(dict(net.collect_params().items()))
    shared = [name for name in wanted if name in loaded]
    shapes = {name: (loaded[name].shape, wanted[name].shape) for name in shared}
    odd = {name: both for name, both in shapes.items() if both[0] != both[1]}
    # those whose shapes (classes, ...) differ in the number of classes alone
    head = [name for name, (a, b) in odd.items() if new_head and a[1:] == b[1:] and b[0] == classes]
    wrong = [f"it lacks {name}" for name in wanted if name not in loaded]
    wrong += [f"{name} is {a}, not {b}" for name, (a, b) in odd.items() if name not in head]
    wrong += [f"{name} is too much" for name in loaded if name not in wanted]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ModelError(
            f"{what} does not fit the network: {'; '.join(wrong[:_SHOWN])}{more}; "
            "it must be a file of the same network"
        )
    for name, param in wanted.items():
        if name not in head:
            param.set_data(loaded[name].astype(param.dtype))
    return head


def _read(path: Path, what: str) -> "Dict[str, NDArray]":
    written = "give a file that Gluon's save_parameters or export wrote"
    if not os.path.isfile(path):
        raise ModelError(
            f"{what} is no file: give a local file of parameters; nothing is downloaded"
        )
    try:
        loaded = read_arrays(path)
    except (ValueError, OSError):
        raise ModelError(f"{what} cannot be read as parameters: {written}") from None
    if not loaded:
        raise ModelError(f"{what} holds no parameters: {written}")
    kinds = ("arg:", "aux:")
    return {name[4:] if name[:4] in kinds else name: array for name, array in loaded.items()}


def _without_common_prefix(named: "Dict[str, Parameter]") -> "Dict[str, Parameter]":
    """resnetv10_conv0_weight, resnetv10_...

    -> conv0_weight, ...: the number depends on what else the process has made.
    """
    length = os.path.commonprefix(list(named)).rfind("_") + 1  # noqa: RUF071  # letter by letter is right here
    return {name[length:]: value for name, value in named.items()}
