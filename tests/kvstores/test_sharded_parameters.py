"""Drawn parameters under the sharded optimizer, beside plain Gluon on one device."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from support.devices import contexts
from support.examples import examples
from support.reference import distance

from gluonlab import optimizers
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore


def made_up(shapes, ctxs, dtype):
    names = [f"p{number}_weight" for number in range(len(shapes))]
    params = [gluon.Parameter(name, shape=shape, dtype=dtype) for name, shape in zip(names, shapes)]
    for param in params:
        param.initialize(mx.init.One(), ctx=ctxs)
    return params


def all_fresh(params):
    for param in params:
        for array in param.list_data():
            array._fresh_grad = True


class Both:
    """The parameters on some devices under the store, and on one without any; ``sides``: both."""

    def __init__(self, shapes, devices, dtype, optimizer, path):
        self.path, self.params = path, made_up(shapes, contexts(devices), dtype)
        self.alone = made_up(shapes, [mx.cpu()], dtype)
        store = make_kvstore("sharded-optimizer")
        self.trainer = gluon.Trainer(self.params, optimizer(), kvstore=store)
        plain = gluon.Trainer(self.alone, optimizer(), kvstore=None)
        self.sides = [(self.trainer, self.params), (plain, self.alone)]
        self.tolerance = 1e-2 if dtype == "float16" else 1e-5

    def step(self, random, of=None):
        """With new gradients of whole numbers for all, or every other one: the rest is stale."""
        for number, (param, single) in enumerate(zip(self.params, self.alone)):
            grads = param.list_grad()
            for device, grad in enumerate(grads):
                if of is None or (number + device) % 2 == of:
                    grad[:] = nd.array(random.randint(-3, 4, param.shape), dtype=param.dtype)
            total = sum(grad.asnumpy().astype("float64") for grad in grads)
            single.grad()[:] = nd.array(total, dtype=param.dtype)
        before = [grad.asnumpy() for param in self.params for grad in param.list_grad()]
        for trainer, params in self.sides:
            all_fresh(params)
            trainer.step(4)
        after = [grad.asnumpy() for param in self.params for grad in param.list_grad()]
        assert all(np.array_equal(a, b) for a, b in zip(before, after))

    def check(self):
        for param, single in zip(self.params, self.alone):
            for data in param.list_data():
                assert distance([data.asnumpy()], [single.data().asnumpy()]) < self.tolerance


def new_gradients(both):
    for _, params in both.sides:
        for param in params:
            param.grad_req = "add"
            param.grad_req = "write"


def other_devices(both):
    """Not in place of the first, from which gluon.Trainer hands parameters out."""
    for param in both.params:
        first, *others = param.list_ctx()
        param.reset_ctx([first, *contexts(8)[8 - len(others) :]])


def cast_and_back(both):
    for _, params in both.sides:
        for param in params:
            dtype = param.dtype
            param.cast("float64")
            param.cast(dtype)


def load(both):
    for trainer, _ in both.sides:
        trainer.save_states(both.path)
        trainer.load_states(both.path)


def load_while_frozen(both):
    for _, params in both.sides:
        params[0].grad_req = "null"
    load(both)
    for _, params in both.sides:
        params[0].grad_req = "write"


def another_trainer(both):
    """It takes the store for a step."""
    others = made_up([(3,)], both.params[0].list_ctx(), "float32")
    other = gluon.Trainer(others, "adam", kvstore=both.trainer._kvstore)
    for grad in others[0].list_grad():
        grad[:] = 1
    all_fresh(others)
    other.step(1)


def sgd(kind=mx.optimizer.SGD, **settings):
    return lambda: kind(learning_rate=0.25, momentum=0.5, **settings)


KINDS = [  # an optimizer, a type
    (sgd(), "float64"),
    (sgd(multi_precision=True), "float16"),
    (sgd(wd=0.125, clip_gradient=0.5), "float32"),
    (sgd(optimizers.SGD), "float32"),
    (lambda: mx.optimizer.Adam(learning_rate=0.01), "float32"),
    (mx.optimizer.AdaDelta, "float32"),
]
SHAPES = [(1,), (2,), (7,), (5, 3), (8, 8, 3, 3), (1, 1)]
EVENTS = [new_gradients, other_devices, cast_and_back, load, load_while_frozen, another_trainer]
cases = st.tuples(
    st.integers(1, 5),
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([None, 0, 1, *EVENTS]), min_size=2, max_size=5),
    st.integers(0, 99),
)


def check_case(case, path):
    devices, shapes, (optimizer, dtype), events, seed = case
    both, random = Both(shapes, devices, dtype, optimizer, path), np.random.RandomState(seed)
    for event in [None, *events, None]:
        if not callable(event):
            both.step(random, event)
        # no Trainer goes on from other types
        elif dtype != "float16" or event is not cast_and_back:
            event(both)
        both.check()


@examples(8, 12)
@given(case=cases)
@example(case=(2, [(7,), (5, 3)], KINDS[1], [load_while_frozen], 0))
@example(case=(3, [(5, 3)], KINDS[0], [other_devices, 1], 0))
def test_parameters_are_updated_as_on_one_device_and_gradients_stay(case, tmp_path_factory):
    check_case(case, str(tmp_path_factory.mktemp("states") / "states"))


@pytest.mark.long
@settings(max_examples=300)
@given(case=cases)
def test_many_parameters_are_updated_as_on_one_device(case, tmp_path_factory):
    check_case(case, str(tmp_path_factory.mktemp("states") / "states"))


def test_a_state_that_does_not_fit_other_arrays_is_said():
    [param] = params = made_up([(7,)], contexts(2), "float32")
    optimizer = sgd(multi_precision=True)()
    trainer = gluon.Trainer(params, optimizer, kvstore=make_kvstore("sharded-optimizer"))
    trainer.step(1, ignore_stale_grad=True)
    param.cast("float16")
    store = "kvstore 'sharded-optimizer'"
    state = r"the optimizer's state, .*, does not fit float16\[7\] on [cg]pu\(0\): keep .* types"
    with pytest.raises(KVStoreError, match=f"^{store}, key 0: {state}"):
        trainer.step(1, ignore_stale_grad=True)
