"""Any network trains on k devices as on one: with any store, both trainers, both kinds of arrays,
hybridized or not, however unequally the devices share a batch.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gluon
from support.devices import contexts
from support.examples import examples
from support.networks import HYBRIDIZE_OPTIONS, network_cases, train_network
from support.reference import cpu_contexts, relative_distance
from support.stores import STORES

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.kvstores import make_kvstore


@st.composite
def network_runs(draw, trainer_class):
    """Draw a network and its devices.

    For BucketedTrainer, batches may leave devices without images or parameters unused.
    gluon.Trainer accepts neither.
    """
    devices, bucketed = draw(st.integers(1, 4)), trainer_class is BucketedTrainer
    network = draw(network_cases(1 if bucketed else devices, some_heads=bucketed))
    weights = st.lists(st.integers(1, 9), min_size=devices, max_size=devices)
    hybridize, numpy = draw(st.sampled_from(sorted(HYBRIDIZE_OPTIONS))), draw(st.booleans())
    return devices, network, hybridize, numpy, draw(st.none() | weights)


def check(name, trainer_class, case):
    devices, network, hybridize, numpy, weights = case
    expected, _ = train_network(network, gluon.Trainer, None, cpu_contexts(1))
    store, ctxs = make_kvstore(name), contexts(devices)
    result, replicas_equal = train_network(network, trainer_class, store, ctxs, hybridize, numpy, weights)
    assert all(np.isfinite(array).all() for array in expected)
    assert replicas_equal
    several, one = ([np.concatenate([array.ravel() for array in arrays])] for arrays in (result, expected))
    assert relative_distance(several, one) < 1e-5


@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
@examples(6, 10)
@given(data=st.data(), name=st.sampled_from(STORES))
def test_any_network_trains_as_on_one_device(trainer_class, data, name):
    check(name, trainer_class, data.draw(network_runs(trainer_class)))


@pytest.mark.long
@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
@pytest.mark.parametrize("name", STORES)
@settings(max_examples=100)
@given(data=st.data())
def test_many_networks_train_as_on_one_device(name, trainer_class, data):
    check(name, trainer_class, data.draw(network_runs(trainer_class)))
