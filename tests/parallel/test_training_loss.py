"""Label smoothing: its formula, its gradient, and where it does not apply."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from support.devices import contexts, device
from support.examples import examples
from support.kvstore_runs import BATCHES, make_small_net
from support.reference import cpu_contexts, identity, parameter_arrays, relative_distance
from support.steps import make_step, train_steps

from gluonlab.parallel.data.replica import make_replicas
from gluonlab.parallel.training_loss import SmoothedCrossEntropy, make_loss

PLAIN = gluon.loss.SoftmaxCrossEntropyLoss()


def smoothed_loss_and_gradient(scores, labels, smoothing):
    """- sum over classes of q log p, and its gradient p - q, in float64."""
    scores = scores.astype("float64")
    classes = scores.shape[1]
    q = np.full(scores.shape, smoothing / classes)
    q[np.arange(len(labels)), labels] += 1 - smoothing
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return -(q * logs).sum(axis=1), np.exp(logs) - q


@examples(40)
@given(st.integers(2, 12), st.integers(1, 5), st.floats(0.001, 0.99), st.integers(0, 1000))
def test_the_loss_and_its_gradient_are_those_of_the_formula(classes, images, smoothing, seed):
    random = np.random.RandomState(seed)
    scores, labels = random.normal(0, 3, (images, classes)).astype("float32"), random.randint(0, classes, images)
    expected, gradient = smoothed_loss_and_gradient(scores, labels, smoothing)
    x = nd.array(scores)
    x.attach_grad()
    with autograd.record():
        result = SmoothedCrossEntropy(smoothing)(x, nd.array(labels, dtype="int32"))
    result.backward()
    assert np.allclose(result.asnumpy(), expected, rtol=1e-5, atol=1e-5)
    assert np.allclose(x.grad.asnumpy(), gradient, atol=1e-5)


def test_without_smoothing_the_loss_is_gluons_own():
    for smoothing in (0.0, 1e-310):
        assert type(make_loss(smoothing)) is gluon.loss.SoftmaxCrossEntropyLoss


def test_training_is_smoothed_and_evaluation_is_not():
    images, labels = BATCHES[0]
    net = make_small_net(contexts(1))
    (replica,) = make_replicas(net, make_loss(0.2), identity, contexts(1))
    x, y = nd.array(images, ctx=device()), nd.array(labels, ctx=device(), dtype="int32")
    scores = net(x).asnumpy()
    for train, smoothing in ((True, 0.2), (False, 0.0)):
        loss, result = (array.asnumpy() for array in replica.forward(x, y, train=train))
        assert loss == pytest.approx(smoothed_loss_and_gradient(scores, labels, smoothing)[0].sum(), rel=1e-5)
        assert relative_distance([result], [scores]) <= 1e-5


@pytest.mark.parametrize("k", [1, 3])
def test_k_devices_descend_the_smoothed_loss_as_one(k):
    """The reference records Gluon's one-hot form on one device."""
    expected = make_small_net(cpu_contexts(1))
    trainer = gluon.Trainer(expected.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=None)
    loss = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
    for images, labels in BATCHES:
        with autograd.record():
            soft = nd.one_hot(nd.array(labels), 4, 1 - 0.3 + 0.3 / 4, 0.3 / 4)
            total = loss(expected(nd.array(images)), soft).sum()
        total.backward()
        trainer.step(len(images))
    ctxs = contexts(k)
    net = make_small_net(ctxs)
    train_steps(make_step(net, ctxs, loss=make_loss(0.3), learning_rate=0.5), BATCHES, ctxs)
    for ctx in ctxs:
        assert relative_distance(parameter_arrays(net, ctx), parameter_arrays(expected)) <= 1e-5
