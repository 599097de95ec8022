"""Initialized networks whose parameter shapes are known."""

import mxnet as mx

from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from support.devices import contexts


def make_initialized_net(name, shape=(3, 32, 32), classes=10, ctxs=None):
    net = get_model(name, classes, ctxs or contexts(1))
    net.initialize(mx.init.Xavier(), ctx=ctxs or contexts(1))
    complete_initialization(net, name, shape, classes)
    return net
