"""Networks by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple

from gluonlab.errors import ModelError, unknown
from gluonlab.models.lenet import LeNet
from gluonlab.models.mlp import mlp

if TYPE_CHECKING:
    from mxnet.gluon import HybridBlock


class ModelKind(NamedTuple):
    """How a network is made for a number of classes, and one line about it."""

    create: "Callable[..., HybridBlock]"
    summary: str


MODELS: Dict[str, ModelKind] = {
    "lenet": ModelKind(LeNet, "two convolutions with max pooling, two dense layers (the Gluon lab's network)"),
    "lenet-avg": ModelKind(lambda classes, **kw: LeNet(classes, pool="avg", **kw), "the same with average pooling (the from-scratch lab's network)"),
    "mlp": ModelKind(mlp, "two hidden dense layers of 128 and 64 units"),
}


def check_model(name: str) -> None:
    """Raise ModelError, with the choices, when no network has this name."""
    if name not in MODELS:
        raise ModelError(unknown("model", name, MODELS))


def get_model(name: str, classes: int, **options: Any) -> "HybridBlock":
    """A new network, not initialised, hybridized with static memory.

    Takes float32 images (n, C, H, W) and gives scores (n, classes). Raises ModelError for an unknown name.
    """
    check_model(name)
    net = MODELS[name].create(classes, **options)
    net.hybridize(static_alloc=True, static_shape=True)
    return net
