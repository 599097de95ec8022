"""ServerOptimizer, called as MXNet's server calls it, on each server's part of one flat array."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from gluonlab.optimizers.optimizer_registry import OPTIMIZERS, make_optimizer
from gluonlab.optimizers.server_optimizer import (
    ParameterAttributes,
    Piece,
    ServerOptimizer,
    assigned_server,
    initial_staleness_report,
    make_layout,
)

PARAMETERS = {  # by name, with a factor of its weight decay
    "a_weight": ((3, 5), 1.0), "a_bias": ((3,), 0.0), "b_weight": ((2, 3, 2), 1.0),
}  # fmt: skip
FIRST, NOTES = 2**16 + 3, 2**16 + 10


@pytest.fixture(autouse=True)
def _mistakes_fail(monkeypatch):
    """Fail instead of ending the process, as a server does after a mistake."""
    monkeypatch.setattr("os._exit", lambda status: pytest.fail("the server ends"))


def split_over_servers(flat, arrays):
    """Return the flat array of some arrays, split as MXNet splits it."""
    whole = np.zeros(flat.size, np.float32)
    for piece in flat.pieces:
        whole[piece.begin : piece.end] = arrays[piece.key].ravel()
    return np.split(whole, flat.servers)


def make_server_rule(optimizer, flat, place):
    """Return the rule of a server, which knows its place."""
    notes = {key: assigned_server(key, flat.servers) for key in range(NOTES, NOTES + flat.servers)}
    rule = ServerOptimizer(copy.deepcopy(optimizer), {FIRST: flat}, {}, notes)
    row = nd.array(initial_staleness_report(flat.servers)[place])
    rule.update_multi_precision(NOTES, row, nd.zeros_like(row), None)
    return rule


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_updates_on_servers_what_it_updates_here(name, servers):
    drawn, kind = np.random.RandomState(3), OPTIMIZERS[name]
    momentum = {"momentum": 0.9} if kind.momentum else {}
    optimizer = make_optimizer(name, {"learning_rate": 0.05, "wd": 0.1, **momentum})
    own = copy.deepcopy(optimizer)
    own.param_dict = {
        key: ParameterAttributes(name, 1.0, decay) for key, (name, (_, decay)) in enumerate(PARAMETERS.items())
    }
    shapes = [shape for shape, _ in PARAMETERS.values()]
    values = [drawn.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    flat = make_layout(
        [
            Piece(key, 0, values[key].size, () if kind.element_wise else shape, 1.0, decay, name)
            for key, (name, (shape, decay)) in enumerate(PARAMETERS.items())
        ],
        servers,
    )
    kept = [nd.array(part) for part in split_over_servers(flat, values)]
    rules = [make_server_rule(optimizer, flat, place) for place in range(servers)]
    here, updater = [nd.array(value) for value in values], mx.optimizer.get_updater(own)
    for _ in range(5):
        grads = [drawn.normal(0, 1, shape).astype(np.float32) for shape in shapes]
        for key, (weight, grad) in enumerate(zip(here, grads)):
            updater(key, nd.array(grad), weight)
        for rule, weights, part in zip(rules, kept, split_over_servers(flat, grads)):
            rule.update_multi_precision(FIRST, weights, nd.array(part), None)
    expected = split_over_servers(flat, [weight.asnumpy() for weight in here])
    for weights, part in zip(kept, expected):
        assert np.abs(weights.asnumpy() - part).max() <= 1e-6
