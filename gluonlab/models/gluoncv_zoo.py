"""Creates classification networks from gluoncv by name.

gluoncv is imported on first use.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, Dict, Iterator, List

from gluonlab.errors import ModelError

if TYPE_CHECKING:
    from mxnet.gluon import HybridBlock

PREFIX = "gluoncv:"
LIST_NAME = f"{PREFIX}?"  # instead of a name: list all names
SUMMARY = f"any classification model of gluoncv, such as gluoncv:mobilenet1.0; --model {LIST_NAME} lists them"

# The modules of gluoncv's zoo with networks that classify images, and the options with which to
# create these networks. The options prevent a download of weights, or the second output of an
# auxiliary classifier.
_MODULES: Dict[str, Dict[str, Any]] = {
    "alexnet": {}, "cifarresnet": {}, "cifarresnext": {}, "cifarwideresnet": {}, "densenet": {},
    "dla": {}, "googlenet": {"pretrained_base": False}, "hrnet": {}, "inception": {},
    "mobilenet": {}, "mobilenetv3": {}, "nasnet": {"use_aux": False}, "residual_attentionnet": {},
    "resnest": {}, "resnet": {}, "resnetv1b": {}, "resnext": {"pretrained": False}, "senet": {},
    "shufflenet": {}, "squeezenet": {}, "vgg": {}, "xception": {}, "yolo.darknet": {},
}  # fmt: skip
# By module: the name of the argument for the number of classes, if it is not "classes".
_CLASSES_ARGUMENT = {"hrnet": "num_classes"}
# _gn: networks with group normalization, which MXNet cannot compile in gluoncv 0.10.
# _s: networks for segmentation.
_UNSUPPORTED_SUFFIXES = ("_gn", "_s")
_MAX_SUGGESTIONS = 6
_LIST_COMMAND = f"gluonlab run --model {LIST_NAME}"
_ABSENT: Any = object()


def check_gluoncv(name: str) -> None:
    """Raise ModelError, listing similar names, if gluoncv has no such classification network.

    ``name``: the name without the prefix ``gluoncv:``.
    """
    names = gluoncv_names()
    if name in names:
        return
    lower_name = name.lower()
    similar = [other for other in names if lower_name and other.startswith(lower_name)][:_MAX_SUGGESTIONS]
    similar = similar or difflib.get_close_matches(lower_name, names, n=_MAX_SUGGESTIONS, cutoff=0.5)
    suggestion = f"did you mean {', '.join(similar)}? " if similar else ""
    raise ModelError(f"unknown model {PREFIX + name!r}: {suggestion}{_LIST_COMMAND} lists all {len(names)} names")


def gluoncv_names() -> List[str]:
    """Return the names of gluoncv's classification networks.

    Raise ModelError if gluoncv is not installed.
    """
    names = [name for name, create in _import_gluoncv_registry().items() if _module_name(create) in _MODULES]
    return sorted(name for name in names if not name.endswith(_UNSUPPORTED_SUFFIXES))


def create_gluoncv_network(name: str, classes: int) -> "HybridBlock":
    """Create a gluoncv network, (n, C, H, W) -> (n, classes), without initializing it.

    ``name``: one of `gluoncv_names`.
    """
    create = _import_gluoncv_registry()[name]
    module = _module_name(create)
    with _suppress_output():
        return create(**{_CLASSES_ARGUMENT.get(module, "classes"): classes}, **_MODULES[module])


def _module_name(create: Any) -> str:
    """Return the name of a function's module: gluoncv.model_zoo.yolo.darknet -> yolo.darknet."""
    return str(create.__module__).split(".", 2)[-1]


@contextmanager
def _suppress_output() -> Iterator[None]:
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _block_torch_import() -> Iterator[None]:
    """Make ``import torch`` fail within the with block.

    gluoncv cannot be imported with PyTorch 2, and MXNet's networks do not need PyTorch.
    """
    previous = sys.modules.get("torch", _ABSENT)
    sys.modules["torch"] = None  # type: ignore[assignment]  # import torch is an ImportError then
    try:
        yield
    finally:
        del sys.modules["torch"]
        if previous is not _ABSENT:
            sys.modules["torch"] = previous


def _import_gluoncv_registry() -> Dict[str, Any]:
    """Import gluoncv, and return its registry: name -> function that creates the network."""
    try:
        with _suppress_output(), _block_torch_import():
            zoo = importlib.import_module("gluoncv.model_zoo.model_zoo")
    except ImportError as error:
        raise ModelError(
            f"this model needs the package gluoncv, which cannot be imported ({error}): pip install "
            "gluoncv==0.10.5.post0 opencv-python-headless, or choose another model (see gluonlab list)"
        ) from None
    return dict(zoo._models)
