"""Operators accept NumPy's numbers in shapes, axes and lists, with any version of NumPy."""

import mxnet as mx
import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.devices import contexts

from gluonlab.engine.fast_invoke import Attributes, OperatorCall
from gluonlab.engine.mxnet_fixes import AttributeStr, attribute_text

INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


def pairs_of(kinds, values):
    """Draw (NumPy's number, Python's number) of one value."""
    numbers = st.builds(lambda kind, value: getattr(numpy, kind)(value), st.sampled_from(kinds), values)
    return numbers.map(lambda number: (number, number.item()))


PLAIN = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text()).map(lambda value: (value, value))
NUMBER = st.one_of(
    PLAIN,
    pairs_of(INTEGERS, st.integers(0, 127)),
    pairs_of(["int64"], st.integers(-(2**63), 2**63 - 1)),
    pairs_of(["float64"], st.floats()),
    pairs_of(["float16", "float32"], st.integers(-64, 64).map(lambda quarters: quarters / 4)),
    pairs_of(["bool_"], st.booleans()),
    pairs_of(["str_"], st.text("abn.'\"", min_size=1)),
)


def sequences(pairs):
    """Draw a pair of equal tuples or lists."""
    build = lambda kind, items: tuple(kind(side) for side in zip(*items)) or (kind(), kind())  # noqa: E731
    return st.builds(build, st.sampled_from([tuple, list]), st.lists(pairs, max_size=4))


@settings(max_examples=50)
@given(st.recursive(NUMBER, sequences, max_leaves=8))
@example(((numpy.int64(2),), (2,)))
@example(([(numpy.int64(2), [numpy.True_])], [(2, [True])]))
@example((("np.", numpy.float32(0.5)), ("np.", 0.5)))
def test_numpys_numbers_have_the_text_of_pythons_in_sequences_of_any_depth(pair):
    of_numpy, of_python = pair
    assert attribute_text(of_numpy) == AttributeStr(of_numpy) == str(of_python)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_in_a_list_is_written_as_it_is_by_itself(value):
    number = numpy.float32(value)
    assert attribute_text([number]) == f"[{number!s}]"
    assert numpy.float32(attribute_text([number])[1:-1]) == number


@settings(max_examples=5)
@given(st.lists(st.sampled_from(INTEGERS), min_size=2, max_size=2))
def test_operators_of_nd_take_shapes_of_numpys_integers(kinds):
    two, three = getattr(numpy, kinds[0])(2), getattr(numpy, kinds[1])(3)
    x = mx.nd.arange(6)
    assert mx.nd.zeros((two, 3)).shape == mx.nd.random.uniform(shape=(two, three)).shape == (2, 3)
    assert mx.nd.reshape(x, shape=[three, two]).shape == x.reshape(shape=(three, -1)).shape == (3, 2)
    assert x.reshape((2, 3)).tile(reps=(two, three)).shape == (4, 9)
    weight, grad = mx.nd.ones(2), mx.nd.ones(2)
    rates = dict(lrs=[numpy.float32(0.5)], wds=(numpy.float64(0),), num_weights=1)
    mx.nd.multi_sgd_update(weight, grad, out=weight, **rates)
    assert weight.asnumpy().tolist() == [0.5, 0.5]


def test_prepared_calls_take_numpys_integers():
    tiled = mx.nd.zeros((2, 3))
    OperatorCall("tile", [mx.nd.ones((1, 3))], tiled)(Attributes({"reps": (numpy.int64(2), 1)}))
    assert tiled.asnumpy().tolist() == [[1.0] * 3] * 2


def test_a_network_takes_sizes_of_numpys_integers():
    two, three = numpy.int64(2), numpy.int64(3)
    net = mx.gluon.nn.Conv2D(two, (three, three), in_channels=two)
    net.initialize()
    images = mx.nd.ones((1, 2, 5, 5))
    plain = net(images).asnumpy()
    net.hybridize()
    assert (net(images).asnumpy() == plain).all() and plain.shape == (1, 2, 3, 3)


def test_operators_of_np_take_shapes_of_numpys_integers():
    two, three = numpy.int64(2), numpy.int64(3)
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.arange(6).reshape((two, -1))
        assert x.shape == mx.np.full((two, three), 1.0).shape == x.transpose((numpy.int64(1), 0)).T.shape == (2, 3)
        assert [part.shape for part in mx.np.split(x, [numpy.int64(1), two], axis=1)] == [(2, 1)] * 3
        assert mx.np.pad(x, ((numpy.int64(1), two), (0, 0))).shape == (5, 3)
        shards = mx.gluon.utils.split_and_load(x.T, contexts(2), even_split=False)
        assert [shard.shape for shard in shards] == [(2, 2), (1, 2)]


@pytest.mark.long
def test_operators_take_numpys_integers_if_mxnet_was_imported_first(python):
    code = """
import gluonlab.engine.mxnet_setup as engine
engine.remove_setup_hook()
import mxnet, numpy
engine.install_setup_hook()
assert mxnet.nd.zeros((numpy.int64(2), 3)).shape == (2, 3)
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
