"""Creates the network of a `Plan` on its devices, with initial parameters."""

from __future__ import annotations

from typing import List, Optional

import mxnet as mx
from mxnet import gluon

from gluonlab.engine.nd_and_np_arrays import set_block_semantics, user_has_set_np
from gluonlab.gpu.math_modes import use_arithmetic
from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.training.config_checks import check_network
from gluonlab.training.plan import Plan
from gluonlab.training.user_components import (
    check_distinct_names,
    check_trainable,
    check_user_network,
    initialize_parameters,
)

NO_DECAY = r".*(bias|gamma|beta)$"  # names of parameters without weight decay


def make_net(
    plan: Plan, ctxs: Optional[List[mx.Context]] = None, start: Optional[List[mx.Context]] = None
) -> gluon.HybridBlock:
    """Create the plan's network with initialized parameters.

    The initial parameters are the same on all devices, and depend only on the plan's seed. If the
    user's network already has parameters, they are kept. From this call on, GPUs compute with the
    plan's settings ``deterministic`` and ``tf32``.

    Args:
        plan: The settings.
        ctxs: Devices to create the network on; by default the plan's devices.
        start: Devices on which the parameters are initialized; by default ``ctxs``.

    Raises:
        ModelError: The network cannot process images with the shape of the data set's images.
        ConfigError: GPUs have already computed with different arithmetic settings in this process.
    """
    ctxs = plan.ctxs if ctxs is None else ctxs
    use_arithmetic(plan.arithmetic, ctxs)
    mx.random.seed(plan.seed)
    classes, components = len(plan.dataset.classes), plan.user_components
    is_users = components.net is not None
    net = components.make_net(classes) if is_users else get_model(plan.model, classes, ctxs)
    if not is_users and user_has_set_np():
        set_block_semantics(net, numpy_like=False)  # although the user's default is mx.np
    if is_users:
        check_user_network(net, plan.model, plan.dataset.image_shape, classes)
    check_network(plan, net)
    initialize_parameters(net, start or ctxs)
    if components.loss is not None:
        check_distinct_names(components.loss, net)
        initialize_parameters(components.loss, plan.ctxs)
    complete_initialization(net, plan.model, plan.dataset.image_shape, classes)
    if is_users:
        check_trainable(net, plan.model)
    if plan.no_bias_decay:
        disable_bias_and_norm_decay(net)  # before a trainer builds buckets of equal multipliers
    return net


def disable_bias_and_norm_decay(net: gluon.Block) -> None:
    """Disable weight decay of biases, and of the scale and shift of normalization layers.

    See He et al., "Bag of tricks for image classification with convolutional neural networks",
    2019, section 3.1.
    """
    net.collect_params(NO_DECAY).setattr("wd_mult", 0.0)
