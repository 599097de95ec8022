"""The random numbers of mx.np.random on simulated GPUs: means and deviations, gradients as closed
forms, and drawing of things.
"""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gpu, nd

SHAPE = (200, 100)
EULER = 0.5772156649


def moments(draw):
    numbers = draw.asnumpy().astype("float64")
    return numbers.mean(), numbers.std(), numbers.size


@pytest.fixture(scope="module", autouse=True)
def scratch_memory():
    """Scratch memory and states of random numbers are there before."""
    nd.argsort(nd.zeros((300_000,), ctx=gpu(0)))
    for _ in range(8):
        mx.np.random.normal(0, 1, (300_000,), ctx=gpu(0))
        mx.np.random.gamma(2.0, 1.0, (10_000,), ctx=gpu(0))
        nd.random.negative_binomial(2, 0.5, shape=(1,), ctx=gpu(0))
    nd.waitall()


# Of mx.np.random: what each is given, its mean and its deviation.
DISTRIBUTIONS = {
    "uniform": ((-1, 3), 1, 4 / 12**0.5), "normal": ((2, 3), 2, 3),
    "logistic": ((2, 3), 2, 3 * np.pi / 3**0.5), "gumbel": ((2, 3), 2 + 3 * EULER, 3 * np.pi / 6**0.5),
    "gamma": ((3, 2), 6, 12**0.5), "beta": ((2, 3), 0.4, 0.2),
    "lognormal": ((0, 0.5), np.exp(0.125), np.exp(0.125) * np.expm1(0.25) ** 0.5), "exponential": ((2,), 2, 2),
    "rayleigh": ((2,), 2 * (np.pi / 2) ** 0.5, 2 * (2 - np.pi / 2) ** 0.5),
    "weibull": ((2,), (np.pi / 4) ** 0.5, (1 - np.pi / 4) ** 0.5), "pareto": ((5,), 0.25, (5 / 48) ** 0.5),
    "power": ((2,), 2 / 3, 18**-0.5),
}  # fmt: skip


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_distributions_by_mean_and_deviation_of_numbers_and_of_arrays(name, arrays):
    arguments, mean, deviation = DISTRIBUTIONS[name]
    if arrays:
        arguments = [mx.np.full((1, SHAPE[1]), argument, ctx=gpu(0)) for argument in arguments]
    mx.random.seed(3)
    with gpu(0):
        numbers = getattr(mx.np.random, name)(*arguments, size=SHAPE)
    found_mean, found_deviation, count = moments(numbers)
    assert abs(found_mean - mean) < 5 * deviation / count**0.5
    np.testing.assert_allclose(found_deviation, deviation, rtol=0.1)


@pytest.mark.parametrize("name", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_parameter_may_be_an_array(name, dtype, which):
    arguments, mean, deviation = DISTRIBUTIONS[name]
    arguments = list(arguments)
    arguments[which] = mx.np.full(SHAPE[1:], arguments[which], ctx=gpu(0))
    drawn = getattr(mx.np.random, name)(*arguments, size=SHAPE, dtype=dtype, ctx=gpu(0))
    found_mean, found_deviation, count = moments(drawn)
    assert drawn.dtype == np.dtype(dtype)
    assert abs(found_mean - mean) < 5 * deviation / count**0.5 and abs(found_deviation - deviation) < 0.1


# What gradients are, from what was drawn: of location and scale, or of the only parameter.
SLOPES = {
    "normal": lambda drawn, loc, scale: (np.ones_like(drawn), (drawn - loc) / scale),
    "logistic": lambda drawn, loc, scale: (np.ones_like(drawn), (drawn - loc) / scale),
    "gumbel": lambda drawn, loc, scale: (np.ones_like(drawn), (drawn - loc) / scale),
    "exponential": lambda drawn, scale: (drawn / scale,),
    "rayleigh": lambda drawn, scale: (drawn / scale,),
    "weibull": lambda drawn, a: (-np.log(drawn) * drawn / a,),
    "pareto": lambda drawn, a: (-np.log1p(drawn) * (drawn + 1) / a,),
}


@given(name=st.sampled_from(sorted(SLOPES)), rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 99))
def test_gradients_of_parameters_are_those_of_what_was_drawn(name, rows, columns, seed):
    values = np.random.RandomState(seed).uniform(0.5, 2, (len(DISTRIBUTIONS[name][0]), columns)).astype("float32")
    arguments = [mx.np.array(value, ctx=gpu(0)) for value in values]
    for argument in arguments:
        argument.attach_grad()
    with autograd.record():
        drawn = getattr(mx.np.random, name)(*arguments, size=(rows, columns), ctx=gpu(0))
    drawn.backward()
    expected = SLOPES[name](drawn.asnumpy().astype("float64"), *values)
    for argument, slope in zip(arguments, expected):
        np.testing.assert_allclose(argument.grad.asnumpy(), slope.sum(axis=0), rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def refusal():
    """Not in a test: now and then MXNet keeps the memory of what it has refused."""
    with pytest.raises(ValueError) as refused:
        mx.np.random.normal(0, mx.np.array([1.0, -1.0], ctx=gpu(0)), ctx=gpu(0)).wait_to_read()
    return str(refused.value)


def test_a_scale_below_0_is_refused(refusal):
    assert "scale < 0" in refusal


@given(count=st.integers(1, 40), share=st.floats(0, 1))
def test_a_choice_without_replacement_takes_nothing_twice(count, share):
    size = int(count * share)
    for weights in [None, mx.np.full((count,), 1 / count, ctx=gpu(0))]:
        chosen = mx.np.random.choice(count, (size,), replace=False, p=weights, ctx=gpu(0)).asnumpy()
        assert len(set(chosen)) == size and set(chosen) <= set(range(count))


def counts_of(chosen, most):
    return np.bincount(chosen.asnumpy().ravel().astype("int64"), minlength=most)


@pytest.mark.parametrize("weights", [[0.25] * 4, [0.1, 0.2, 0, 0.7]])
def test_choices_come_as_often_as_their_weights_say(weights):
    mx.random.seed(2)
    count, shares = 20_000, np.array(weights)
    on_gpu = mx.np.array(weights, ctx=gpu(0))
    rows = nd.array([weights, weights[::-1]], ctx=gpu(0))
    result = [counts_of(mx.np.random.choice(4, (count,), p=on_gpu, ctx=gpu(0)), 4)]
    result += [counts_of(nd.random.multinomial(rows, shape=count, dtype=dtype)[0], 4) for dtype in ("int32", "float32")]
    if weights[0] == weights[1]:
        result.append(counts_of(mx.np.random.choice(4, (count,), ctx=gpu(0)), 4))
    for times in result:
        assert (abs(times - count * shares) <= 5 * np.sqrt(count * shares * (1 - shares))).all()


def test_a_bernoulli_number_is_1_as_often_as_its_probability_or_logit_says():
    mx.random.seed(2)
    for arguments in [{"prob": 0.3}, {"logit": np.log(0.3 / 0.7)}]:
        for kind in (float, lambda value: mx.np.full((100,), value, ctx=gpu(0))):
            given_as = {name: kind(value) for name, value in arguments.items()}
            drawn = mx.npx.random.bernoulli(**given_as, size=SHAPE, ctx=gpu(0)).asnumpy()
            assert set(np.unique(drawn)) == {0, 1} and abs(drawn.mean() - 0.3) < 0.02


@given(rows=st.integers(1, 4), columns=st.integers(2, 6), times=st.integers(1, 5))
def test_the_gradient_of_a_drawn_logarithm_adds_up_what_was_drawn(rows, columns, times):
    probabilities = np.random.RandomState(rows + columns).dirichlet(np.ones(columns), rows).astype("float32")
    array = nd.array(probabilities, ctx=gpu(0))
    array.attach_grad()
    with autograd.record():
        drawn, logarithms = nd.random.multinomial(array, shape=times, get_prob=True)
    logarithms.backward()
    drawn = drawn.asnumpy().reshape(rows, times)
    expected = np.stack([np.bincount(row, minlength=columns) for row in drawn]) / probabilities
    np.testing.assert_allclose(array.grad.asnumpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(
        logarithms.asnumpy().reshape(rows, times),
        np.log(np.take_along_axis(probabilities, drawn, axis=1)),
        rtol=1e-4,
        atol=1e-6,
    )


# Of mx.nd.random, with the mean and the deviation.
COUNTS = {
    "negative_binomial": ({"k": 4, "p": 0.4}, 6, 15**0.5),
    "generalized_negative_binomial": ({"mu": 6, "alpha": 0.25}, 6, 15**0.5),
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_counts_by_mean_and_deviation(name):
    arguments, mean, deviation = COUNTS[name]
    mx.random.seed(4)
    for given_as in (arguments, {key: nd.full((2,), value, ctx=gpu(0)) for key, value in arguments.items()}):
        where = {"ctx": gpu(0)} if given_as is arguments else {}
        found_mean, found_deviation, count = moments(getattr(nd.random, name)(**given_as, shape=SHAPE, **where))
        assert abs(found_mean - mean) < 5 * deviation / count**0.5
        np.testing.assert_allclose(found_deviation, deviation, rtol=0.05)
