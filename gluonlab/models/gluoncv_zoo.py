"""The classification networks of gluoncv, by name.

gluoncv is imported when one of them is asked for, not before.
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
LISTED = f"{PREFIX}?"  # in place of a network, the question which there are
SUMMARY = (
    f"any classification network of gluoncv, such as gluoncv:mobilenet1.0; --model {LISTED} "
    "lists them"
)

# gluoncv's zoo also detects, segments and tells poses: these of its modules classify images. With
# each, what its functions must be told besides the number of classes, lest they download weights,
# or give a second output, of an auxiliary classifier.
_MODULES: Dict[str, Dict[str, Any]] = {
    "alexnet": {}, "cifarresnet": {}, "cifarresnext": {}, "cifarwideresnet": {}, "densenet": {},
    "dla": {}, "googlenet": {"pretrained_base": False}, "hrnet": {}, "inception": {},
    "mobilenet": {}, "mobilenetv3": {}, "nasnet": {"use_aux": False}, "residual_attentionnet": {},
    "resnest": {}, "resnet": {}, "resnetv1b": {}, "resnext": {"pretrained": False}, "senet": {},
    "shufflenet": {}, "squeezenet": {}, "vgg": {}, "xception": {}, "yolo.darknet": {},
}  # fmt: skip
# how a module calls the number of classes, where it is not "classes"
_CLASSES = {"hrnet": "num_classes"}
# Group normalisation as gluoncv 0.10 writes it cannot be compiled; hrnet's that end in _s segment
# images.
_NOT_OFFERED = ("_gn", "_s")
_SUGGESTIONS = 6
_ALL = f"python -m gluonlab.run --model {LISTED}"
_ABSENT: Any = object()


def check_gluoncv(name: str) -> None:
    """Check that gluoncv has a classification network ``name``, given without the prefix.

    Raises ModelError with the closest names.
    """
    names = gluoncv_names()
    if name in names:
        return
    low = name.lower()
    close = [other for other in names if low and other.startswith(low)][:_SUGGESTIONS]
    close = close or difflib.get_close_matches(low, names, n=_SUGGESTIONS, cutoff=0.5)
    guess = f"did you mean {', '.join(close)}? " if close else ""
    raise ModelError(f"unknown model {PREFIX + name!r}: {guess}{_ALL} lists all {len(names)}")


def gluoncv_names() -> List[str]:
    """The names of gluoncv's classification networks.

    Raises ModelError when gluoncv cannot be imported.
    """
    known = [name for name, make in _makers().items() if _module(make) in _MODULES]
    return sorted(name for name in known if not name.endswith(_NOT_OFFERED))


def gluoncv_network(name: str, classes: int) -> "HybridBlock":
    """A new network for ``classes``, not initialised: (n, C, H, W) -> (n, classes).

    ``name`` as in `gluoncv_names`.
    """
    make = _makers()[name]
    module = _module(make)
    with _silently():
        return make(**{_CLASSES.get(module, "classes"): classes}, **_MODULES[module])


def _module(make: Any) -> str:
    """gluoncv.model_zoo.yolo.darknet -> yolo.darknet"""
    return str(make.__module__).split(".", 2)[-1]


@contextmanager
def _silently() -> Iterator[None]:
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _without_torch() -> Iterator[None]:
    """Hide PyTorch meanwhile: beside version 2 of it gluoncv refuses to be imported.

    What MXNet's networks are made of does not need it.
    """
    former = sys.modules.get("torch", _ABSENT)
    sys.modules["torch"] = None  # type: ignore[assignment]  # import torch is an ImportError then
    try:
        yield
    finally:
        del sys.modules["torch"]
        if former is not _ABSENT:
            sys.modules["torch"] = former


def _makers() -> Dict[str, Any]:
    """gluoncv's own registry: name -> function."""
    try:
        with _silently(), _without_torch():
            zoo = importlib.import_module("gluoncv.model_zoo.model_zoo")
    except ImportError as error:
        raise ModelError(
            f"gluoncv's networks need gluoncv, which cannot be imported ({error}): "
            "pip install gluoncv==0.10.5.post0 opencv-python-headless, "
            "or choose a network of --list"
        ) from None
    return dict(zoo._models)
