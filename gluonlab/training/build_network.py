"""A plan's network on some devices."""

from __future__ import annotations

from typing import List, Optional

import mxnet as mx
from mxnet import gluon

from gluonlab.engine.np_compatibility import set_block_semantics, user_has_set_np
from gluonlab.gpu.math_modes import use_arithmetic
from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete
from gluonlab.training.config_checks import check_network
from gluonlab.training.plan import Plan
from gluonlab.training.user_components import check_names, check_params, check_scores, initialise

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
    classes, own = len(plan.dataset.classes), plan.own
    is_own = own.net is not None
    net = own.make_net(classes) if is_own else get_model(plan.model, classes, ctxs)
    if not is_own and user_has_set_np():
        set_block_semantics(net, numpy_like=False)  # it is the user's after the run
    if is_own:
        check_scores(net, plan.model, plan.dataset.image_shape, classes)
    check_network(plan, net)
    initialise(net, start or ctxs)
    if own.loss is not None:
        check_names(own.loss, net)
        initialise(own.loss, plan.ctxs)
    complete(net, plan.model, plan.dataset.image_shape, classes)
    if is_own:
        check_params(net, plan.model)
    if plan.no_bias_decay:
        spare_biases(net)  # before a trainer puts parameters of equal multipliers side by side
    return net


def spare_biases(net: gluon.Block) -> None:
    """No weight decay for biases, nor for the scale and shift of normalisations.

    He et al., "Bag of tricks for image classification with convolutional neural networks", 2019,
    section 3.1.
    """
    net.collect_params(NO_DECAY).setattr("wd_mult", 0.0)
