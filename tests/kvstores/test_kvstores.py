"""Kvstores by name: their sums, their imports, and their refusals."""

import inspect
import subprocess
import sys

import mxnet as mx
import pytest
from support.devices import contexts

from gluonlab import kvstores
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import KVSTORES, check_kvstore, make_kvstore
from gluonlab.kvstores.mxnet_stores import MXNetKVStore
from gluonlab.kvstores.nccl_store import NcclKVStore
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.schedule_stores import ScheduleKVStore
from gluonlab.kvstores.sharded_optimizer import ShardedKVStore

AVAILABLE = sorted(set(KVSTORES) - {"nccl"})


def test_every_algorithm_and_every_schedule_for_links_is_a_store():
    by_schedule = [name for name, kind in KVSTORES.items() if kind.uses_topology]
    assert by_schedule == [*ALGORITHMS, *TOPOLOGY_AWARE, "sharded-optimizer"]
    assert tuple(TOPOLOGY_AWARE) == kvstores.TOPOLOGY_AWARE


LOADED = """
import sys
from gluonlab import BucketedTrainer, make_kvstore
make_kvstore(sys.argv[1])
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("gluonlab.")}))
print(*[name for name in sys.modules if name.startswith("gluonlab.collectives.")])
"""


@pytest.mark.parametrize("name, needs, not_needed", [("device", "", "collectives"), ("ring", "executor", "synthesis")])
def test_a_store_imports_what_it_needs(name, needs, not_needed):
    result = subprocess.run([sys.executable, "-c", LOADED, name], capture_output=True, text=True, check=True)
    packages, collectives = result.stdout.split("\n")[:2]
    unwanted = {"parallel", "launch", "export", "training", "bench", "exercises", "performance_model"}
    assert not unwanted & set(packages.split())
    assert needs in collectives and not_needed not in collectives.replace(".", " ").split()


@pytest.mark.parametrize("method", ["broadcast", "pushpull"])
@pytest.mark.parametrize("store", [GroupKVStore, MXNetKVStore, NcclKVStore, ScheduleKVStore, ShardedKVStore])
def test_stores_have_the_signatures_of_mxnets_stores(store, method):
    ours, theirs = (inspect.signature(getattr(cls, method)) for cls in (store, mx.kvstore.KVStoreBase))
    assert [(p.name, p.default) for p in ours.parameters.values()] == [
        (p.name, p.default) for p in theirs.parameters.values()
    ]


MISTAKES = [("rign", "ring"), ("Device", "device"), ("ncll", "nccl")]
MISTAKES += [(value, None) for value in ("", None, 3, ["device"], mx.kvstore.KVStoreBase)]


@pytest.mark.parametrize(("name", "suggestion"), MISTAKES)
def test_an_unknown_store_is_refused_with_the_choices(name, suggestion):
    guess = rf".* \(did you mean '{suggestion}'\?\)" if suggestion else ""
    for refuse in (make_kvstore, check_kvstore):
        with pytest.raises(KVStoreError, match=f"unknown kvstore .*: choose {', '.join(sorted(KVSTORES))}{guess}"):
            refuse(name)


def test_nccl_needs_an_mxnet_with_nccl():
    if mx.runtime.Features().is_enabled("NCCL"):
        assert make_kvstore("nccl").type == "nccl"
    else:
        with pytest.raises(
            KVStoreError, match="kvstore 'nccl' is not available, because this MXNet was built without NCCL"
        ):
            make_kvstore("nccl")


@pytest.mark.cpu_only("which store GPUs alone have")
def test_a_store_for_gpus_is_refused_for_cpu_devices():
    with pytest.raises(
        KVStoreError, match="kvstore 'nccl' needs GPUs, but the devices are CPU devices: choose kvstore 'device'"
    ):
        make_kvstore("nccl", [mx.cpu(0), mx.cpu(1)])


EARLY = {  # calls before there is an optimizer
    "save": lambda store, arrays: store.save_optimizer_states("states"),
    "load": lambda store, arrays: store.load_optimizer_states("states"),
    "reduce_scatter": lambda store, arrays: store.reduce_scatter(1, arrays, arrays),
    "update": lambda store, arrays: store.update(1),
    "update_overwriting_gradients": lambda store, arrays: store.update_overwriting_gradients(1, arrays, arrays),
    "get_key_state": lambda store, arrays: store.get_key_state(1),
    "keys_to_update": lambda store, arrays: store.keys_to_update(1, {}),
}


@pytest.mark.parametrize(
    ("name", "call"), [("device", "save"), ("local", "load"), *(("sharded-optimizer", call) for call in EARLY)]
)
def test_calls_before_set_optimizer_are_refused(name, call, empty_cwd):
    store, arrays = make_kvstore(name), [mx.nd.ones((3,), ctx=ctx) for ctx in contexts(2)]
    with pytest.raises(KVStoreError, match=f"^kvstore '{name}' has no optimizer yet: call set_optimizer first, or"):
        EARLY[call](store, arrays)
    assert list(empty_cwd.iterdir()) == []


@pytest.mark.parametrize("name", ["device", "sharded-optimizer"])
@pytest.mark.parametrize("optimizer", ["sgd", mx.optimizer.SGD])
def test_an_optimizer_is_an_instance(name, optimizer):
    with pytest.raises(
        KVStoreError, match="pass an instance, such as mx\\.optimizer\\.create\\('sgd', learning_rate=0\\.1\\)"
    ):
        make_kvstore(name).set_optimizer(optimizer)


def test_half_an_update_is_refused_without_the_other_half():
    store = make_kvstore("sharded-optimizer")
    store.set_optimizer(mx.optimizer.SGD())
    with pytest.raises(KVStoreError, match="key 1 cannot be updated: call reduce_scatter first"):
        store.update(1)


class Adam(mx.optimizer.Adam):
    """A user's class with the name of another class."""


class Ftrl(mx.optimizer.Ftrl):
    """A user's class with the name of another class."""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (mx.optimizer.Nadam, "mx.optimizer.Nadam needs whole parameters: use gluonlab.optimizers.Nadam,"),
        (Adam, f"{Adam.__module__}.Adam needs whole parameters: use gluonlab.optimizers.Adam,"),
        (Ftrl, f"{Ftrl.__module__}.Ftrl needs whole parameters: use mx.optimizer.Ftrl,"),
        (mx.optimizer.LAMB, "LAMB needs whole parameters: choose one of the optimizers AdaDelta,"),
    ],
)
def test_optimizers_with_the_name_of_an_allowed_class_are_distinguished(kind, message):
    with pytest.raises(KVStoreError) as raised:
        make_kvstore("sharded-optimizer").set_optimizer(kind())
    assert f"{message} " in str(raised.value)
    assert str(raised.value).endswith(", or another kvstore")


@pytest.mark.parametrize("name", ["device", "local"])
def test_missing_arguments_are_named(name):
    store = make_kvstore(name)
    store.init(1, mx.nd.ones((3,)))
    with pytest.raises(KVStoreError, match="pull needs arrays to write to: pass out=arrays"):
        store.pull(1)
    with pytest.raises(KVStoreError, match=r"\{'type': '2bit'|cannot compress"):
        store.set_gradient_compression("2bit")
