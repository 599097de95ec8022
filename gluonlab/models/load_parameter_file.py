"""Loads parameters from a local file into a network, optionally without the last layer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List

from gluonlab.divergence_checks import nonfinite_parameters
from gluonlab.errors import ModelError
from gluonlab.files.array_files import read_arrays
from gluonlab.plain_text import shorten_names

if TYPE_CHECKING:
    from mxnet.gluon import HybridBlock, Parameter
    from mxnet.nd import NDArray

_MAX_NAMED = 3  # parameters in an error message


def check_parameter_file(file: str) -> None:
    """Raise ModelError if the file does not contain parameters."""
    _read_parameters(Path(file), f"--pretrained {file}")


def load_pretrained(net: "HybridBlock", file: str, classes: int) -> str:
    """Load --pretrained FILE into ``net``. Return a sentence about the loaded parameters.

    The file's last layer is not loaded if it has a different number of classes. Raises ModelError
    if the file does not match the network, or contains NaN or infinity.
    """
    head = load_parameters(net, Path(file), f"--pretrained {file}", classes, new_head=True)
    not_finite = nonfinite_parameters(net)
    if not_finite:
        raise ModelError(
            f"--pretrained {file} contains NaN or infinity in {shorten_names(not_finite)}: "
            "choose a file from a run that did not diverge"
        )
    if not head:
        return f"{file}: all parameters"
    return f"{file}: all parameters except {' and '.join(head)}, which are new for {classes} classes"


def load_parameters(
    net: "HybridBlock", path: Path, description: str, classes: int, new_head: bool = False
) -> List[str]:
    """Load a parameter file into ``net``, on all its devices.

    The file must have been written by Gluon's ``save_parameters`` or ``export``. Returns the names
    of parameters that are not loaded. With ``new_head``, these are the parameters whose shape in
    the file belongs to a different number of classes.

    Raises ModelError, and changes nothing, if the parameters do not match. The message starts with
    ``description``.
    """
    loaded = _read_parameters(path, description)
    params: Dict[str, "Parameter"] = net._collect_params_with_prefix()
    # Exported files, and files from before MXNet 1.4, contain the names of blocks instead of their
    # positions, such as conv0_weight instead of 0.weight.
    if not any("." in name for name in loaded):
        loaded = _without_common_prefix(loaded)
        params = _without_common_prefix(dict(net.collect_params().items()))
    shared = [name for name in params if name in loaded]
    shapes = {name: (loaded[name].shape, params[name].shape) for name in shared}
    mismatches = {name: shape_pair for name, shape_pair in shapes.items() if shape_pair[0] != shape_pair[1]}
    # parameters of the last layer: only the first axis differs, whose length is the class count
    head = [name for name, (a, b) in mismatches.items() if new_head and a[1:] == b[1:] and b[0] == classes]
    faults = [f"{name} is missing" for name in params if name not in loaded]
    faults += [f"{name} has shape {a}, not {b}" for name, (a, b) in mismatches.items() if name not in head]
    faults += [f"{name} is not in the model" for name in loaded if name not in params]
    if faults:
        others_note = f" and {len(faults) - _MAX_NAMED} more" if len(faults) > _MAX_NAMED else ""
        raise ModelError(
            f"{description} does not match the model ({'; '.join(faults[:_MAX_NAMED])}{others_note}): "
            "use a parameter file of the same model"
        )
    for name, param in params.items():
        if name not in head:
            param.set_data(loaded[name].astype(param.dtype))
    return head


def _read_parameters(path: Path, description: str) -> "Dict[str, NDArray]":
    """Return the arrays in a parameter file, by name. Raises ModelError."""
    advice = "use a file that Gluon's save_parameters or export wrote"
    if not os.path.isfile(path):
        raise ModelError(f"{description} is not a file: use a local parameter file, because nothing is downloaded")
    try:
        loaded = read_arrays(path)
    except (ValueError, OSError):
        raise ModelError(f"{description} cannot be read as a parameter file: {advice}") from None
    if not loaded:
        raise ModelError(f"{description} contains no parameters: {advice}")
    prefixes = ("arg:", "aux:")
    return {name[4:] if name[:4] in prefixes else name: array for name, array in loaded.items()}


def _without_common_prefix(named: "Dict[str, Parameter]") -> "Dict[str, Parameter]":
    """Remove the common prefix of the names: resnetv10_conv0_weight -> conv0_weight.

    The prefix contains the number of such networks that the process had created before, which is 0
    in this example.
    """
    length = os.path.commonprefix(list(named)).rfind("_") + 1  # noqa: RUF071  # letter by letter is right here
    return {name[length:]: value for name, value in named.items()}
