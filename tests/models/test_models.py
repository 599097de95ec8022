"""Networks by name."""

import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts

from gluonlab.errors import ModelError
from gluonlab.models import MODELS, get_model
from gluonlab.models.infer_shapes import complete_initialization


@pytest.mark.parametrize("name", MODELS)
def test_every_network_scores_each_class(name):
    net = get_model(name, 7, contexts(2))
    net.initialize(ctx=contexts(2))
    side = 63 if name == "alexnet-2towers" else 28
    for ctx in contexts(2):
        assert net(nd.zeros((3, 1, side, side), ctx=ctx)).shape == (3, 7)


def test_alexnet_has_the_parameters_of_the_paper():
    """60 million, says the abstract of Krizhevsky et al. (2012)."""
    net = get_model("alexnet-2towers", 1000)
    complete_initialization(net, "alexnet-2towers", (3, 224, 224), 1000)
    sizes = [np.prod(param.shape) for param in net.collect_params().values()]
    assert sum(sizes) == 60_965_224
    groups = [layer._kwargs["num_group"] for layer in net if isinstance(layer, nn.Conv2D)]
    assert groups == [1, 2, 1, 2, 2]


@pytest.mark.parametrize("name", ["resnet18", "cifar_resnet20", "gluoncv:squeezenet1.0"])
def test_parameters_have_the_same_names_whatever_was_made_before(name):
    """States of an optimizer go by them, and their order decides which bucket adds up what."""
    first, second = (list(get_model(name, 10).collect_params()) for _ in range(2))
    assert first == second


def test_an_unknown_network_is_answered_with_the_choices():
    with pytest.raises(
        ModelError,
        match=r"unknown model 'lennet': choose .*, lenet, lenet-avg, mlp, "
        r".*\(did you mean 'lenet'\?\)",
    ):
        get_model("lennet", 10)


@pytest.mark.parametrize("name", ["lenet", "lenet-avg"])
def test_saved_files_number_lenets_layers_as_they_always_did(name):
    """Run folders and checkpoints of earlier versions stay readable."""
    layers = {place.split(".")[0] for place in get_model(name, 10)._collect_params_with_prefix()}
    assert layers == {"0", "3", "8", "9"}
