"""Networks by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, NamedTuple, Sequence

from gluonlab.errors import ModelError, unknown
from gluonlab.models.lanes import lanes
from gluonlab.models.lenet import LeNet
from gluonlab.models.mlp import mlp

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.gluon import HybridBlock


class ModelKind(NamedTuple):
    """How a network is made for a number of classes and lanes, and one line about it."""

    create: "Callable[..., HybridBlock]"
    summary: str


MODELS: Dict[str, ModelKind] = {
    "lenet": ModelKind(
        lambda classes, lanes: LeNet(classes, "max", lanes),
        "two convolutions with max pooling, two dense layers (the Gluon lab's network)",
    ),
    "lenet-avg": ModelKind(
        lambda classes, lanes: LeNet(classes, "avg", lanes), "the same with average pooling (the from-scratch lab's network)"
    ),
    "mlp": ModelKind(lambda classes, lanes: mlp(classes), "two hidden dense layers of 128 and 64 units"),
}


def check_model(name: str) -> None:
    """Raise ModelError, with the choices, when no network has this name."""
    if name not in MODELS:
        raise ModelError(unknown("model", name, MODELS))


def get_model(name: str, classes: int, ctxs: "Sequence[Context]" = ()) -> "HybridBlock":
    """A new network, not initialised, hybridized with static memory.

    Takes float32 images (n, C, H, W) and gives scores (n, classes). For the devices ``ctxs``, when they are given, it is
    laid out to run fast; that changes neither its parameters nor what it computes. Raises ModelError for an unknown name.
    """
    check_model(name)
    net = MODELS[name].create(classes, lanes=lanes(ctxs) if ctxs else 1)
    net.hybridize(static_alloc=True, static_shape=True)
    return net
