"""Parameters without a shape or type, as of an imported network, train as under gluon.Trainer."""

import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import contexts
from support.reference import parameter_arrays, random_batches, relative_distance, train_on_devices

from gluonlab.bucketed_trainer.trainer import BucketedTrainer

BATCHES = random_batches([6, 8, 4], shape=(1, 6, 6), classes=4)
MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Flatten(), nn.Dense(4))
    net.initialize()
    net.hybridize()
    net(nd.zeros((1, 1, 6, 6)))
    path = str(tmp_path_factory.mktemp("exported") / "net")
    net.export(path)
    return path


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("store", ["device", "ring", "sharded-optimizer"])
def test_an_imported_network_trains_as_under_gluons_trainer(exported, store, tmp_path):
    ctxs, files = contexts(2), (f"{exported}-symbol.json", ["data"], f"{exported}-0000.params")
    nets = [gluon.SymbolBlock.imports(*files, ctx=ctxs) for _ in range(2)]
    assert any(param.shape is None for param in nets[0].collect_params().values())
    expected = gluon.Trainer(nets[0].collect_params(), "sgd", dict(MOMENTUM), kvstore="device")
    train_on_devices(nets[0], expected, ctxs, BATCHES)
    first = BucketedTrainer(nets[1].collect_params(), "sgd", dict(MOMENTUM), kvstore=store)
    train_on_devices(nets[1], first, ctxs, BATCHES[:1])
    first.save_states(str(tmp_path / "states"))
    second = BucketedTrainer(nets[1].collect_params(), "sgd", dict(MOMENTUM), kvstore=store)
    second.load_states(str(tmp_path / "states"))
    train_on_devices(nets[1], second, ctxs, BATCHES[1:])
    assert relative_distance(parameter_arrays(nets[1]), parameter_arrays(nets[0])) < 1e-5


@pytest.mark.parametrize("deferred", [False, True])
def test_a_parameter_without_a_type_has_that_of_its_arrays(deferred):
    # Gluon makes it float32, which clipping needs. NumPy reads a missing type as float64.
    param = gluon.Parameter("w", shape=(0 if deferred else 3,), dtype=None, init="ones", allow_deferred_init=True)
    param.initialize(ctx=contexts(2))
    trainer = BucketedTrainer([param], "sgd", {"learning_rate": 0.5}, clip_norm=1.0)
    if deferred:
        param.shape = (3,)
        param._finish_deferred_init()
        trainer.prepare()
    for gradient in param.list_grad():
        gradient[:] = 1
    trainer.apply(2)
    assert all(np.allclose(array.asnumpy(), 1 - 0.5 / np.sqrt(3)) for array in param.list_data())
