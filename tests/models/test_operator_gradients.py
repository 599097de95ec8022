"""The gradients of MXNet's operators are correct in graphs as runs bind them.

Every operator with a gradient is compared with numerical differences or with its definition: imperative,
hybridized, and bound as in a run; written and added; for all inputs and for each one; for inputs that are
parameters, are computed, or are used twice.
"""

import json
from collections import namedtuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.operator import get_all_registered_operators
from support.operator_gradients import ROLES, DrawnCase, operator_handle, operator_name, relative_error
from support.operators import FAMILIES, KINDS_WITHOUT_GRADIENT, NO_GRADIENT, X, all_cases, case

from gluonlab.data.loading.augmentation import to_float
from gluonlab.errors import ModelError
from gluonlab.models.replace_wrong_gradients import JOINT_GRADIENT_INPUTS, REFUSED, REWRITTEN, check_gradients
from gluonlab.models.symbol_graph import make_node
from gluonlab.parallel.data.replica import make_replicas
from gluonlab.training.user_components import check_user_network

# limits for numerical differences, and for gradients that MXNet computes in another way
BY_DIFFERENCES = {"float64": 1e-6, "float32": 2e-2}
ALIKE = {"float64": 1e-6, "float32": 1e-4}


def is_crash(case):
    """Return whether MXNet itself writes beyond its arrays, or ends the process."""
    return case.op == "SequenceLast" and not case.attrs.get("use_sequence_length")


def is_wrong(case):
    """Return whether MXNet's gradient is known to be wrong when all inputs have one."""
    kinds = ("prelu", "selu")
    return case.op in REWRITTEN and case.attrs.get("act_type", kinds[0]) in kinds


def faults(case, roles=ROLES, requests=("write", "add"), hybridized=True):
    """Return the faults of the gradients of an operator, one line per mode."""
    result = []

    def compare(way, gradients, right, limit):
        away = relative_error(gradients, right)
        if not away < limit:
            result.append(f"{case} {way}: {away:.2g}")

    drawn = DrawnCase(case)
    right, limit = drawn.by_differences(), BY_DIFFERENCES[drawn.dtype]
    exact = case.own is not None
    if exact:
        limit = ALIKE[drawn.dtype]
    if not is_crash(case) and case.attrs.get("act_type") != "selu" and not _is_wrong_at_once(case):
        compare("imperative", drawn.imperative_gradients(), right, limit)
        if not exact and drawn.dtype == "float32":
            right = drawn.imperative_gradients()
    for dtype in dict.fromkeys((drawn.dtype, "float32")):
        drawn = DrawnCase(case, dtype=dtype)
        if case.random:  # each type has numbers of its own
            right = drawn.imperative_gradients()
        for role in roles:
            graph, expected = drawn.make_graph(role), drawn.expected_gradients(right, role)
            for request in requests:
                if _is_fixed_gamma(case) and request == "add":
                    continue  # its gradient is zero, and is not added but written
                gradients = drawn.bound_gradients(graph, request)
                compare(f"{dtype} {role} {request}", gradients, expected, ALIKE[dtype])
            for only in range(len(expected)) if len(expected) > 1 and not _needs_all(case, dtype) else ():
                gradients = drawn.bound_gradients(graph, only=only)
                compare(f"{dtype} {role} only {only}", gradients, [expected[only]], ALIKE[dtype])
            if hybridized and not is_wrong(case) and not _is_loud(case, dtype):
                compare(f"{dtype} {role} hybridized", drawn.hybridized_gradients(graph), expected, ALIKE[dtype])
    return result


def _is_wrong_at_once(case):
    return case.op.startswith(("_npi_where_", "_npi_rarctan2"))


def _needs_all(case, dtype):
    """MXNet's own recurrent layers, which float64 takes; float32 takes oneDNN's."""
    return case.op == "RNN" and dtype == "float64"


def _is_fixed_gamma(case):
    return case.op == "BatchNorm" and case.attrs.get("fix_gamma")


def _is_loud(case, dtype):
    """Return whether MXNet raises an error."""
    return case.op == "Deconvolution" and dtype == "float32"


def drawn_cases():
    """Some of each family, and all that are rewritten."""
    cases = [each for each in all_cases() if each.op not in (*REWRITTEN, *JOINT_GRADIENT_INPUTS, "RNN")]
    rewritten = [each for each in all_cases() if is_wrong(each) or is_crash(each)]
    return rewritten[::3] + cases[5::30]


def test_drawn_operators_have_right_gradients_in_a_run():
    result = [fault for case in drawn_cases() for fault in faults(case, ("inner",), ("write",), hybridized=False)]
    assert not result, "\n".join(result)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_operator_has_right_gradients(family):
    result = [fault for case in FAMILIES[family]() for fault in faults(case)]
    assert not result, "\n".join(result)


def test_every_operator_of_mxnet_has_a_case_or_no_gradient():
    names = {operator_name(operator_handle(name)) for name in get_all_registered_operators()}
    known = {each.op for each in all_cases()} | NO_GRADIENT | set(REFUSED)
    left = {n for n in names - known if not any(kind in n for kind in KINDS_WITHOUT_GRADIENT)}
    assert not left
    assert not NO_GRADIENT & {each.op for each in all_cases()}


@pytest.mark.parametrize(
    "wrong",
    [
        case("LeakyReLU", (2, 3, 4), (3,), act_type="prelu", single=True),
        case("LeakyReLU", X, act_type="selu", single=True),
        case("_npi_where_rscalar", X[:1], X[:1], scalar=2.0, learned=[1]),
        case("_npi_rarctan2_scalar", X, scalar=1.37),
    ],
    ids=str,
)
def test_every_rewritten_operator_has_a_wrong_gradient_in_mxnet(wrong):
    """No operator is rewritten without need."""
    drawn = DrawnCase(wrong)
    plain = drawn.bound_gradients(drawn.make_graph("inner"), ours=False)
    assert relative_error(plain, drawn.by_differences()) > 0.03


class Layer(gluon.HybridBlock):
    """A layer that is a function of F and an array."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, x):
        return self.function(F, x)


def rows_to_steps(F, x):
    return F.SequenceLast(F.stack(x, 2 * x, axis=0))


def make_net():
    with mx.name.NameManager():
        net = nn.HybridSequential()
        net.add(
            nn.Conv2D(4, 3, in_channels=3), nn.PReLU(in_channels=4),
            nn.Conv2D(4, 3, in_channels=4), nn.PReLU(), nn.Flatten(),
            nn.Dense(6, in_units=64), nn.PReLU(), Layer(rows_to_steps), nn.Dense(3, in_units=6),
        )  # fmt: skip
    return net


def right_gradients(net, images, labels):
    """Imperative, where PReLU's gradients are right, without SequenceLast, where none is."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    layers = list(net)
    with autograd.record():
        x = images.astype("float32") / 255
        for layer in layers[:-2]:
            x = layer(x)
        losses = loss(layers[-1](2 * x), labels).sum()
    losses.backward()
    return [param.grad().asnumpy() for param in net.collect_params().values()]


@pytest.mark.parametrize("add", [False, True])
def test_a_replica_has_the_gradients_of_the_plain_network(add):
    random = np.random.RandomState(3)
    images = nd.array(random.randint(0, 255, (5, 3, 8, 8)), dtype="uint8")
    labels = nd.array([0, 2, 1, 1, 0], dtype="int32")
    net = make_net()
    net.initialize(mx.init.Normal(0.3))
    for name, param in net.collect_params().items():
        if name.endswith("alpha"):
            param.set_data(nd.array(random.uniform(0.1, 0.6, param.shape)))
    right = right_gradients(net, images, labels)
    [replica] = make_replicas(net, gluon.loss.SoftmaxCrossEntropyLoss(), to_float, [mx.cpu()])
    if add:
        for param in net.collect_params().values():
            param.grad()[:] = 1.5
    replica.forward(images, labels, accumulate=add)
    replica.backward()
    result = [param.grad().asnumpy() - 1.5 * add for param in net.collect_params().values()]
    assert relative_error(result, right) < 1e-5


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda F, x: F.LeakyReLU(x, act_type="rrelu")[0], "act_type='rrelu'"),
        (lambda F, x: x + F.BlockGrad(F.LeakyReLU(x, act_type="rrelu")[0]), "act_type='rrelu'"),
        (lambda F, x: F.contrib.foreach(
            lambda row, state: (F.LeakyReLU(row, act_type="selu"), state), x, [])[0], "foreach"),
    ],
)  # fmt: skip
def test_an_operator_that_cannot_be_trained_is_refused_before_training(function, message):
    with pytest.raises(ModelError, match=message) as caught:
        check_layers(nn.Flatten(), nn.Dense(3), Layer(function))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("Mine uses ")


def check_layers(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    check_user_network(net, "Mine", (1, 4, 4), 3)


def test_refused_operators_are_allowed_without_gradients_and_before_blockgrad():
    check_layers(Layer(lambda F, x: F.make_loss(x)), nn.Flatten(), nn.Dense(3))
    blocked = Layer(lambda F, x: F.broadcast_div(x, F.BlockGrad(F.make_loss(F.square(x))) + 1))
    check_layers(nn.Flatten(), nn.Dense(3), blocked)
    trained = Layer(lambda F, x: F.broadcast_div(F.BlockGrad(x), F.make_loss(F.square(x)) + 1))
    with pytest.raises(ModelError, match="Mine contains make_loss, whose gradient ignores the loss"):
        check_layers(nn.Flatten(), nn.Dense(3), trained)


@pytest.mark.parametrize("op", sorted(set(REFUSED) - {"LeakyReLU", "_npi_norm"}))
def test_operators_of_mx_np_that_cannot_be_trained_are_refused(op):
    nodes = [{"op": "null", "name": "x", "inputs": []}, make_node(op, "bad", [[0, 0, 0]])]
    parts = {"nodes": nodes, "heads": [[1, 0, 0]]}
    graph = namedtuple("Graph", "tojson")(lambda **_: json.dumps(parts))
    with pytest.raises(ModelError, match=r"^Mine uses (np|contrib)\."):
        check_gradients(graph, "Mine", ["x"])
    check_gradients(graph, "Mine", [])
