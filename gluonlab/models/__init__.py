"""Models by name: `MODELS` is the registry, and `get_model` creates a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, NamedTuple, Sequence

import mxnet as mx
from mxnet.gluon.model_zoo import vision

from gluonlab.config.option_checks import is_positive_integer
from gluonlab.devices import check_device_list
from gluonlab.errors import ModelError, unknown
from gluonlab.models import gluoncv_zoo
from gluonlab.models.builtin_networks import LeNet, alexnet_2towers, mlp, resnet8
from gluonlab.models.optimize_network import optimize

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.gluon import HybridBlock


class ModelKind(NamedTuple):
    """A function that creates a model for a given number of classes, and a one-line summary."""

    create: "Callable[..., HybridBlock]"
    summary: str


# resnet18 and resnet50 are from Gluon's model zoo. gluoncv has similar networks, but they would
# require a second library.
MODELS: Dict[str, ModelKind] = {
    "lenet": ModelKind(
        lambda classes: LeNet(classes, "max"),
        "two convolutions with max pooling, two dense layers (the model of the Gluon lab)",
    ),
    "lenet-avg": ModelKind(
        lambda classes: LeNet(classes, "avg"), "lenet with average pooling (the model of the from-scratch lab)"
    ),
    "mlp": ModelKind(lambda classes: mlp(classes), "two hidden dense layers of 128 and 64 units"),
    "resnet8": ModelKind(
        lambda classes: resnet8(classes),
        "a residual network for images like CIFAR-10's: three basic blocks, 16 to 64 channels",
    ),
    "resnet18": ModelKind(lambda classes: vision.resnet18_v1(classes=classes), "ResNet-18 (v1) of Gluon's model zoo"),
    "resnet50": ModelKind(lambda classes: vision.resnet50_v1(classes=classes), "ResNet-50 (v1) of Gluon's model zoo"),
    "alexnet-2towers": ModelKind(
        lambda classes: alexnet_2towers(classes),
        "AlexNet as of 2012: two towers of channels that are connected in some layers only",
    ),
    "cifar_resnet20": ModelKind(
        lambda classes: gluoncv_zoo.create_gluoncv_network("cifar_resnet20_v1", classes),
        "gluoncv's cifar_resnet20_v1: nine basic blocks, 16 to 64 channels",
    ),
}
GLUONCV_MODELS = ("cifar_resnet20",)


def check_model(name: str) -> None:
    """Raise ModelError if no model has this name. The message lists the choices."""
    if name.startswith(gluoncv_zoo.PREFIX):
        gluoncv_zoo.check_gluoncv(name[len(gluoncv_zoo.PREFIX) :])
    elif name not in MODELS:
        raise ModelError(unknown("model", name, [*MODELS, f"{gluoncv_zoo.PREFIX}NAME"]))


def get_model(name: str, classes: int, ctxs: "Sequence[Context]" = ()) -> "HybridBlock":
    """Create a model by name. The model is hybridized, but not initialized.

    Args:
        name: A name in ``MODELS``, such as ``"resnet8"``, or ``"gluoncv:NAME"``.
        classes: The number of classes.
        ctxs: The devices that will run the model. If given, the model is optimized as with
            `gluonlab.optimize`. The model is not initialized on these devices.

    Returns:
        A HybridBlock that maps float32 images (n, C, H, W) to scores (n, classes).

    Raises:
        ModelError: The name is unknown, or ``classes`` is not a positive integer.
        DeviceError: ``ctxs`` is not a list of devices.
    """
    check_model(name)
    if not is_positive_integer(classes):
        raise ModelError(f"classes={classes!r}: must be a positive whole number, such as len(dataset.classes)")
    if mx.util.is_np_array() and (name.startswith(gluoncv_zoo.PREFIX) or name in GLUONCV_MODELS):
        raise ModelError(
            f"gluoncv model {name!r} needs mx.nd, so it cannot be created while mx.np is active: create it before "
            "npx.set_np() or within mx.util.np_array(False), or pass its name to gluonlab.train"
        )
    # Parameters are saved by name, so the numbers in names must start at 0 for each network.
    with mx.name.NameManager():
        if name.startswith(gluoncv_zoo.PREFIX):
            net = gluoncv_zoo.create_gluoncv_network(name[len(gluoncv_zoo.PREFIX) :], classes)
        else:
            net = MODELS[name].create(classes)
    # With static_shape, a plain Gluon loop sometimes loses updates of running statistics.
    # gluonlab.training compiles its graphs itself.
    stateless = all(param.grad_req != "null" for param in net.collect_params().values())
    net.hybridize(static_alloc=True, static_shape=stateless)
    if ctxs and check_device_list(ctxs):
        optimize(net)
    return net
