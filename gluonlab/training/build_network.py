"""A plan's network on some devices."""

from __future__ import annotations

from typing import List, Optional

import mxnet as mx
from mxnet import gluon

from gluonlab.engine.np_compatibility import compute_in, is_np_users
from gluonlab.gpu.math_modes import use_arithmetic
from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete
from gluonlab.training.config_checks import check_network
from gluonlab.training.plan import Plan
from gluonlab.training.user_components import (
    check_distinct_names,
    check_trainable,
    check_user_network,
    initialize_parameters,
)

NO_DECAY = r".*(bias|gamma|beta)$"


def make_net(
    plan: Plan,
    ctxs: Optional[List[mx.Context]] = None,
    start: Optional[List[mx.Context]] = None,
) -> gluon.HybridBlock:
    """The plan's network with the same parameters on each of ``ctxs``, all shapes known.

    By default ``ctxs`` are the plan's devices. ``start``: where the parameters are instead. They
    depend on the plan's seed alone; a block of the user's own may have some already. GPUs compute
    as the plan says from here on. Raises ModelError if the network does not fit the images, and
    ConfigError when GPUs have computed otherwise in this process.
    """
    ctxs = plan.ctxs if ctxs is None else ctxs
    use_arithmetic(plan.arithmetic, ctxs)
    mx.random.seed(plan.seed)
    classes, own = len(plan.dataset.classes), plan.user_components
    is_own = own.net is not None
    net = own.make_net(classes) if is_own else get_model(plan.model, classes, ctxs)
    if not is_own and is_np_users():
        compute_in(net, numpy_like=False)  # it is the user's after the run
    if is_own:
        check_user_network(net, plan.model, plan.dataset.image_shape, classes)
    check_network(plan, net)
    initialize_parameters(net, start or ctxs)
    if own.loss is not None:
        check_distinct_names(own.loss, net)
        initialize_parameters(own.loss, plan.ctxs)
    complete(net, plan.model, plan.dataset.image_shape, classes)
    if is_own:
        check_trainable(net, plan.model)
    if plan.no_bias_decay:
        disable_bias_and_norm_decay(
            net
        )  # before a trainer puts parameters of equal multipliers side by side
    return net


def disable_bias_and_norm_decay(net: gluon.Block) -> None:
    """No weight decay for biases, nor for the scale and shift of normalisations.

    He et al., "Bag of tricks for image classification with convolutional neural networks", 2019,
    section 3.1.
    """
    net.collect_params(NO_DECAY).setattr("wd_mult", 0.0)
