"""A product with ones in the place of an average over all pixels: the same results, gradients and
names as the pooling.
"""

import json

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts, device

from gluonlab.models import get_model
from gluonlab.models.rewriting import product_where_all_is_averaged

sides = st.integers(1, 6)
poolings = st.one_of(
    st.fixed_dictionaries(
        {
            "global_pool": st.just(True),
            "kernel": st.sampled_from([(1, 1), (7, 7)]),
            "pad": st.just((3, 3)),
        }
    ),
    st.fixed_dictionaries({"kernel": st.tuples(sides, sides), "stride": st.just((2, 2))}),
    st.fixed_dictionaries(
        {"kernel": st.tuples(sides, st.integers(2, 6)), "pad": st.just((0, 1))}
    ),  # oneDNN wants less padding than window
)


def operators(graph):
    return [node["op"] for node in json.loads(graph.tojson())["nodes"]]


def results(graph, image, heads):
    """The output in training and in prediction, and the gradient of the image."""
    ctx, gradient = (
        device(),
        nd.array(np.full(image.shape, np.nan), ctx=device(), dtype=image.dtype),
    )
    executor = graph.bind(
        ctx, {"image": nd.array(image, ctx=ctx, dtype=image.dtype)}, args_grad={"image": gradient}
    )
    output = executor.forward(is_train=True)[0].asnumpy()
    executor.backward([nd.array(heads, ctx=ctx, dtype=image.dtype)])
    return output, executor.forward(is_train=False)[0].asnumpy(), gradient.asnumpy()


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), sides, sides),
    attrs=poolings,
    kind=st.sampled_from(["avg", "avg", "avg", "max", "sum"]),
    dtype=st.sampled_from(["float32", "float32", "float64"]),
    seed=st.integers(0, 2**16),
)
def test_equals_the_pooling(shape, attrs, kind, dtype, seed):
    image = mx.sym.var("image")
    pooling = mx.sym.Pooling(image, name="pool", pool_type=kind, **attrs)
    try:
        _, [output_shape], _ = pooling.infer_shape(image=shape)
    except mx.MXNetError:
        return  # there is no place for its window
    product = product_where_all_is_averaged(pooling, {"image": shape}, {"image": dtype})
    whole = attrs.get("global_pool") or (attrs["kernel"] == shape[2:] and "pad" not in attrs)
    replaced = bool(kind == "avg" and dtype == "float32" and whole and shape[2:] != (1, 1))
    assert ("dot" in operators(product)) == replaced and (replaced or product is pooling)
    assert (product.list_arguments(), product.list_outputs()) == (
        pooling.list_arguments(),
        pooling.list_outputs(),
    )
    random = np.random.RandomState(seed)
    values, heads = (
        random.uniform(-1, 1, shape).astype(dtype),
        random.uniform(-1, 1, output_shape).astype(dtype),
    )
    for own, expected in zip(results(product, values, heads), results(pooling, values, heads)):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "gluoncv:mobilenet0.5", "lenet-avg"])
def test_networks_end_with_it(name):
    """Their last pooling is the one that they have of all pixels; LeNet's average pairs of pixels
    only.
    """
    graph = get_model(name, 10, contexts(1))(mx.sym.var("image"))
    shapes = {"image": (2, 1 if name == "lenet-avg" else 3, 64, 64)}
    product = product_where_all_is_averaged(
        graph, shapes, dict.fromkeys(graph.list_arguments(), "float32")
    )
    assert operators(product).count("dot") == (name != "lenet-avg")


def test_a_block_that_is_called_twice_averages_each_time_what_it_gets():
    block = nn.HybridSequential()
    block.add(nn.Activation("tanh"), nn.GlobalAvgPool2D())
    image = mx.sym.var("image")
    both = block(image) + block(
        mx.sym.slice(image, begin=(None, None, 1, 1), end=(None, None, None, None))
    )
    check_on_images(both, replaced=0)  # its names stand for two shapes


def check_on_images(pooling, replaced):
    """As it was, but for so many averages that have become products."""
    shape = (2, 3, 4, 5)
    product = product_where_all_is_averaged(pooling, {"image": shape}, {"image": "float32"})
    assert operators(product).count("dot") == replaced
    values = np.random.RandomState(0).uniform(-1, 1, shape).astype("float32")
    [output] = pooling.infer_shape(image=shape)[1]
    for own, expected in zip(
        results(product, values, np.ones(output)), results(pooling, values, np.ones(output))
    ):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def some(x, count):
    """(n, count): the first numbers of each image."""
    return mx.sym.slice_axis(mx.sym.Flatten(x), axis=1, begin=0, end=count)


# MXNet 1.9.1 raises an error where any type is asked for before that of their inputs is known
NEEDS_TYPE = {
    "SwapAxis": lambda x: mx.sym.SwapAxis(x, dim1=1, dim2=2),
    "Dropout": lambda x: mx.sym.Dropout(x, p=0),
    "LRN": lambda x: mx.sym.LRN(x, nsize=3),
    "UpSampling": lambda x: mx.sym.UpSampling(x, scale=2, sample_type="nearest"),
    "SequenceReverse": mx.sym.SequenceReverse,
    "SequenceMask": mx.sym.SequenceMask,
    "ROIPooling": lambda x: mx.sym.ROIPooling(
        x, some(x, 5) * 0, pooled_size=(2, 2), spatial_scale=1
    ),
    "BilinearSampler": lambda x: mx.sym.BilinearSampler(
        x, mx.sym.GridGenerator(some(x, 6), transform_type="affine", target_shape=(3, 3))
    ),
    "SpatialTransformer": lambda x: mx.sym.SpatialTransformer(
        x, some(x, 6), target_shape=(3, 3), transform_type="affine", sampler_type="bilinear"
    ),
    "take": lambda x: mx.sym.take(x, some(x, 1) * 0 + 1, axis=0).sum(1),
}


@pytest.mark.parametrize("name", NEEDS_TYPE)
def test_images_may_pass_operators_that_must_be_told_their_type(name):
    made = NEEDS_TYPE[name](mx.sym.tanh(mx.sym.var("image")))
    with pytest.raises(mx.MXNetError, match="type"):
        made.infer_type_partial()  # else the case proves nothing
    check_on_images(
        mx.sym.Pooling(made, kernel=(1, 1), global_pool=True, pool_type="avg"), replaced=1
    )
