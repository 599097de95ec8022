"""Each optimizer agrees with its definition in float64, for any rates, decay, limits and gradients."""

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from support import optimizer_references as references
from support.examples import examples
from support.reference import arrays_equal
from support.updates import assert_close, estimate_rounding_errors, run_updates, running_sizes

from gluonlab.errors import ConfigError
from gluonlab.optimizers import LAMB, LARS, NAG, OPTIMIZERS, SGD, AdaDelta, Adamax, Nadam
from gluonlab.optimizers.optimizer_registry import NOT_OFFERED, make_optimizer

WITH_MOMENTUM = [name for name, kind in OPTIMIZERS.items() if kind.momentum]
RATES = st.one_of(st.just(0.0), st.floats(1e-18, 1e-12), st.floats(1e-5, 1.0))


@st.composite
def problems(draw):
    """Draw (weight, [(gradient, rate), ...]): float32 numbers, some gradients 0."""
    rng = np.random.RandomState(draw(st.integers(0, 2**31)))
    shape = draw(st.sampled_from([(1,), (3, 5), (2, 3, 2)]))
    rates = draw(st.lists(RATES, min_size=1, max_size=8))
    size = 10.0 ** draw(st.integers(-12, 12))
    kept = draw(st.sampled_from([0.0, 0.5, 1.0]))

    def numbers(scale, share=1.0):
        drawn = rng.standard_normal(shape) * (rng.random_sample(shape) < share) * scale
        return drawn.astype("float32").astype("float64")

    return numbers(10.0 ** draw(st.integers(-3, 1))), [(numbers(size, kept), rate) for rate in rates]


@pytest.mark.parametrize("name", OPTIMIZERS)
@examples(6, 300)
@given(
    problem=problems(),
    wd=st.sampled_from([0.0, 0.1]),
    limit=st.sampled_from([None, 0.05]),
    momentum=st.sampled_from([0.0, 0.9]),
)
# without any gradient
@example((np.ones((2,)), [(np.zeros((2,)), 0.1)] * 3), 0.0, None, 0.9)
def test_every_optimizer_follows_its_definition(name, problem, wd, limit, momentum):
    weight, steps = problem
    options = {"momentum": momentum} if name in WITH_MOMENTUM else {}
    if name == "ftml":  # whose definition divides by the rate, here even in float64
        steps = [(grad, max(rate, 1e-6)) for grad, rate in steps]
    if name == "signum":  # rounding decides on the sign of a sum
        wd = momentum = options["momentum"] = 0.0
    reference = partial(getattr(references, name), wd=wd, clip=limit, **options)
    expected, penalty = list(reference(weight, steps)), OPTIMIZERS[name].element_wise
    if name == "lamb":  # whose rate is another if all weights are 0, which rounding decides
        maxima = [np.abs(array).max() for array in expected]
        assume(all(own > 1e-3 * size for own, size in zip(maxima, running_sizes(expected, weight))))
    result = run_updates(make_optimizer(name, {"wd": wd, "clip_gradient": limit, **options}), weight, steps)
    tolerance = 2e-6 if name in ("sgd", "nag") else 1e-5
    blurs = estimate_rounding_errors(reference, weight, steps, wd if penalty else 0.0, tolerance)
    assert_close(result, expected, weight, tolerance, blurs)


@pytest.mark.filterwarnings("ignore:Accumulating with float16")
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-5), ("float16", 0.01)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_weights_of_other_types(name, dtype, tolerance):
    rng = np.random.RandomState(4)
    weight = rng.uniform(1, 2, (3, 4)).astype("float16").astype("float64")
    steps = [(rng.choice([-1.5, 0.75, 2], (3, 4)), 0.02)] * 3
    options = {"momentum": 0.5} if name in WITH_MOMENTUM else {}
    expected = list(getattr(references, name)(weight, steps, **options))
    assert_close(run_updates(make_optimizer(name, options), weight, steps, dtype), expected, weight, tolerance)


@pytest.mark.parametrize("momentum, wd", [(0.0, 0.5), (0.9, 0.5), (0.9, 0.0)])
def test_signum_takes_the_sign_of_momentum_and_decay(momentum, wd):
    rng = np.random.RandomState(0)
    weight = rng.standard_normal((40,))
    steps = [(rng.standard_normal((40,)), rate) for rate in (0.1, 0.2, 0.05, 0.0, 0.1)]
    result = run_updates(make_optimizer("signum", {"momentum": momentum, "wd": wd}), weight, steps)
    assert_close(result, list(references.signum(weight, steps, momentum, wd)), weight)


@pytest.mark.parametrize("cls, mxnets", [(SGD, mx.optimizer.SGD), (NAG, mx.optimizer.NAG)])
@settings(max_examples=5)
@given(
    problem=problems(),
    rate=st.floats(1e-9, 1.0),
    limit=st.sampled_from([None, 0.05]),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_with_a_constant_rate_updates_have_the_bits_of_mxnets(cls, mxnets, problem, rate, limit, momentum):
    weight, steps = problem
    steps = [(grad, rate) for grad, _ in steps]
    for wd in (0.0, 0.1) if cls is SGD else (0.0,):
        options = {"momentum": momentum, "clip_gradient": limit, "wd": wd}
        result, expected = (run_updates(kind(**options), weight, steps) for kind in (cls, mxnets))
        assert arrays_equal(result, expected)


@pytest.mark.parametrize("cls", [SGD, NAG])
@settings(max_examples=5)
@given(rates=st.lists(RATES, min_size=2, max_size=6), lr_mults=st.tuples(RATES, RATES))
def test_float16_weights_keep_a_float32_copy(cls, rates, lr_mults):
    # Two parameters with different rates, which MXNet would update in one call.
    rng = np.random.RandomState(1)
    draw = lambda: rng.standard_normal((7,)).astype("float16").astype("float64")  # noqa: E731
    starts = [draw() for _ in range(2)]
    steps = [[(draw(), rate) for rate in rates] for _ in range(2)]
    optimizer = cls(momentum=0.9, wd=0.01, multi_precision=True)
    optimizer.param_dict = {key: gluon.Parameter(f"p{key}", lr_mult=lr_mults[key]) for key in range(2)}
    updater, weights = (mx.optimizer.get_updater(optimizer), [nd.array(start, dtype="float16") for start in starts])
    for step, rate in enumerate(rates):
        optimizer.set_learning_rate(rate)
        grads = [nd.array(steps[key][step][0], dtype="float16") for key in range(2)]
        if cls is SGD:
            updater([0, 1], grads, weights)
        else:
            for key in range(2):
                updater(key, grads[key], weights[key])
    reference = references.sgd if cls is SGD else references.nag
    for key in range(2):
        own = [(grad, rate * lr_mults[key]) for grad, rate in steps[key]]
        *_, expected = reference(starts[key], own, momentum=0.9, wd=0.01)
        master = updater.states[key][1].asnumpy()
        assert np.abs(master - expected).max() <= 3e-6 * max(1, np.abs(expected).max())
        assert np.array_equal(weights[key].asnumpy(), master.astype("float16"))


@pytest.mark.filterwarnings("ignore:Accumulating with float16")
@pytest.mark.parametrize("name", [name for name, kind in OPTIMIZERS.items() if "gluonlab" in kind.cls.__module__])
def test_zero_gradients_do_not_change_float16_weights_although_epsilon_is_0_in_float16(name):
    weight = nd.ones((3,), dtype="float16")
    mx.optimizer.get_updater(make_optimizer(name, {}))(0, nd.zeros((3,), dtype="float16"), weight)
    assert (weight.asnumpy() == 1).all()


@pytest.mark.parametrize("cls", [AdaDelta, Adamax, NAG, Nadam, LARS, LAMB])
def test_gradients_are_not_changed(cls):
    grad, weight = nd.array([0.5, -3.0]), nd.array([1.0, 2.0])
    mx.optimizer.get_updater(cls(rescale_grad=0.25, wd=0.1, clip_gradient=0.3, learning_rate=0.1))(0, grad, weight)
    assert grad.asnumpy().tolist() == [0.5, -3.0]


@pytest.mark.parametrize("name, rate", [("lamb", 0.1), ("lars", 100.0)])
def test_norms_of_large_parameters_are_those_of_float64(name, rate):
    # MXNet adds a million squares one by one: the third digit is wrong. The fifth depends on the BLAS.
    weight = np.random.RandomState(0).standard_normal(1_000_000).astype("float32").astype("float64")
    steps = [(weight[::-1] * 1e-3, rate)]
    [expected] = getattr(references, name)(weight, steps)
    [result] = run_updates(make_optimizer(name, {}), weight, steps)
    assert np.abs(result - expected).max() <= 1e-4 * np.abs(expected - weight).max()


def test_lars_does_not_scale_the_rate_of_biases_and_normalization():
    for name in ("dense0_bias", "batchnorm0_gamma", "batchnorm0_beta", "dense0_weight"):
        optimizer = LARS(learning_rate=0.1)
        optimizer.param_dict = {0: gluon.Parameter(name)}
        weight = nd.array([3.0, 4.0])
        mx.optimizer.get_updater(optimizer)(0, nd.array([0.0, 1.0]), weight)
        step = 0.1 * (0.001 * 5 if name == "dense0_weight" else 1)
        assert weight.asnumpy() == pytest.approx([3, 4 - step], abs=1e-6)


@pytest.mark.parametrize("cls", [SGD, NAG])
def test_sparse_gradients_are_refused(cls):
    weight = nd.ones((3, 2))
    updater = mx.optimizer.get_updater(cls(momentum=0.9, learning_rate=0.1))
    message = f"dense parameters and gradients: use mx.optimizer.{cls.__name__} for sparse arrays"
    with pytest.raises(ConfigError, match=message):
        updater(0, nd.ones((3, 2)).tostype("row_sparse"), weight)


@pytest.mark.parametrize("cls", [SGD, NAG])
def test_a_negative_momentum_is_refused(cls):
    with pytest.raises(ConfigError, match=r"momentum=-0\.5: must be at least 0"):
        cls(momentum=-0.5)


def test_every_optimizer_of_mxnet_is_offered_or_has_a_reason():
    known = set(OPTIMIZERS) | set(NOT_OFFERED)
    assert set(mx.optimizer.Optimizer.opt_registry) - {"test"} <= known
    assert set(NOT_OFFERED) <= set(mx.optimizer.Optimizer.opt_registry)
    assert not set(OPTIMIZERS) & set(NOT_OFFERED)


@pytest.mark.parametrize("name", ["adam", "adamax", "nadam", "ftml", "lamb"])
@pytest.mark.parametrize("share", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [1.0, -0.1, float("nan"), "half", True])
def test_a_beta_that_would_divide_by_zero_is_refused(name, share, value):
    with pytest.raises(ConfigError, match=rf"^{share} {value}: must be a number of at least 0 and less than 1$"):
        make_optimizer(name, {share: value})


@pytest.mark.parametrize(("cls", "count"), [(Adamax, 3), (Nadam, 5), (LAMB, 4)])
def test_arguments_have_the_positions_of_mxnets(cls, count):
    values, names = [0.25, 0.5, 0.75, 0.125, 0.0625], ["lr", "beta1", "beta2", "epsilon", "schedule_decay"]
    for optimizer in (cls(*values[:count]), getattr(mx.optimizer, cls.__name__)(*values[:count])):
        assert [getattr(optimizer, name) for name in names[:count]] == values[:count]
