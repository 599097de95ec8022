"""Training on mixed images: the loss has mixed one-hot labels, and k devices make the update of one."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device, device_spec
from support.quick_runs import run_quickly
from support.reference import cpu_contexts, parameter_arrays, relative_distance

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Loader
from gluonlab.data.loading.augmentation import Mixup, to_float
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.training_loss import make_loss
from gluonlab.training.build_network import make_net
from gluonlab.training.plan import make_plan
from gluonlab.training.run_memory import MemoryEstimator

CLASSES, SHAPE, ALPHA, SEED = 6, (2, 6, 6), 0.7, 4
RANDOM = np.random.RandomState(1)
# 31 images in batches of 10: the last has a single one, which leaves devices idle
SPLIT = ArraySplit(
    RANDOM.randint(0, 256, (31, *SHAPE)).astype(np.uint8), RANDOM.randint(0, CLASSES, 31).astype(np.int32)
)
BATCH = 10


def mix_one_hot(labels, smoothing, classes=CLASSES):
    """Return smoothed mixed one-hot labels (n, classes) for labels (n, 3): two classes, and the first's share."""
    one_hot, share = np.eye(classes), labels[:, 2:].astype("float64")
    mixed = share * one_hot[labels[:, 0].astype(int)] + (1 - share) * one_hot[labels[:, 1].astype(int)]
    return (1 - smoothing) * mixed + smoothing / classes


@given(
    st.integers(2, 12), st.integers(1, 5), st.just(0.0) | st.floats(0.001, 0.99), st.floats(0, 1), st.integers(0, 99)
)
def test_the_loss_and_its_gradient_are_those_of_the_formula(classes, images, smoothing, share, seed):
    """- sum over classes of q log p, and p - q."""
    random = np.random.RandomState(seed)
    scores = random.normal(0, 3, (images, classes))
    labels = np.column_stack([random.randint(0, classes, (images, 2)), np.full(images, share)]).astype("float32")
    q = mix_one_hot(labels, smoothing, classes)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    x = nd.array(scores)
    x.attach_grad()
    with autograd.record():
        loss = make_loss(smoothing, mixed=True)(x, nd.array(labels))
    loss.backward()
    np.testing.assert_allclose(loss.asnumpy(), -(q * logs).sum(axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x.grad.asnumpy(), np.exp(logs) - q, atol=1e-5)


def network(ctxs, batch_norm=False):
    net, norm = nn.HybridSequential(), [nn.BatchNorm()] * batch_norm
    net.add(nn.Conv2D(5, 3, use_bias=not batch_norm), *norm, nn.Activation("tanh"), nn.Dense(CLASSES))
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def make_step(net, ctxs, smoothing=0.0, cut=WHOLE_SHARDS, sync_bn=False):
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, make_kvstore("device"))
    return DataParallelStep(net, make_loss(smoothing, mixed=True), trainer, ctxs, to_float, cut, sync_bn)


def mixed_loader(ctxs, resident_bytes=0):
    return Loader(SPLIT, ctxs, BATCH, SEED, raw=True, resident_bytes=resident_bytes, mixup=Mixup(ALPHA))


def train_with_gluon(smoothing):
    """Return the parameters after training on one device, with images and labels mixed by NumPy."""
    net = network(cpu_contexts(1))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=None)
    loss = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
    order = np.random.RandomState([SEED, 0]).permutation(len(SPLIT))
    for step, begin in enumerate(range(0, len(order), BATCH)):
        share, indices = Mixup(ALPHA).draw(SEED, 0, step), order[begin : begin + BATCH]
        images, labels = SPLIT.images[indices] / 255, SPLIT.labels[indices]
        targets = mix_one_hot(np.column_stack([labels, labels[::-1], np.full(len(labels), share)]), smoothing)
        with autograd.record():
            total = loss(net(nd.array(share * images + (1 - share) * images[::-1])), nd.array(targets)).sum()
        total.backward()
        trainer.step(len(images))
    return parameter_arrays(net)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_any_devices_and_microbatches_make_the_update_of_one_device(k, smoothing):
    expected, ctxs = train_with_gluon(smoothing), contexts(k)
    for cut in (WHOLE_SHARDS, Microbatches(2), Microbatches(3), Microbatches(size=2)):
        net = network(ctxs)
        step = make_step(net, ctxs, smoothing, cut)
        for batch in mixed_loader(ctxs, resident_bytes=2**20):
            step(batch)
        for ctx in ctxs:
            assert relative_distance(parameter_arrays(net, ctx), expected) <= 1e-5


@pytest.mark.parametrize("k", [2, 3])
def test_sync_batchnorm_uses_the_mixtures_of_the_whole_batch(k):
    ctxs = contexts(k)
    net, reference_net = network(ctxs, batch_norm=True), network(cpu_contexts(1), batch_norm=True)
    step, reference = make_step(net, ctxs, sync_bn=True), make_step(reference_net, cpu_contexts(1))
    # without the last batch: one image has no variance
    for batch, reference_batch, _ in zip(mixed_loader(ctxs), mixed_loader(cpu_contexts(1)), range(3)):
        step(batch)
        reference(reference_batch)
    for ctx in ctxs:
        assert relative_distance(parameter_arrays(net, ctx), parameter_arrays(reference_net)) <= 1e-4


def test_evaluation_between_steps_uses_images_that_are_not_mixed():
    ctxs = contexts(2)
    net = network(ctxs)
    step = make_step(net, ctxs, smoothing=0.3, cut=Microbatches(2))
    for batch, unmixed in zip(mixed_loader(ctxs), Loader(SPLIT, ctxs, BATCH, shuffle=False, raw=True)):
        step(batch)
        scores = np.concatenate([net(to_float(nd, x)).asnumpy() for x in unmixed.xs]).astype("float64")
        labels = np.concatenate([y.asnumpy() for y in unmixed.ys])
        expected = (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]).sum()
        assert sum(part.loss.asscalar() for part in step.score(unmixed)) == pytest.approx(expected, rel=1e-5)


def test_a_new_share_compiles_nothing():
    """Only two graphs are bound: for full batches, and for the last batch on the first device."""
    ctxs, bound = contexts(2), []
    step, loader = make_step(network(ctxs), ctxs), mixed_loader(ctxs)
    for _ in range(3):
        for batch in loader:
            step(batch)
        bound.append([dict(replica._bound) for replica in step.replicas])
    assert [len(graphs) for graphs in bound[0]] == [2, 1]
    assert bound[0] == bound[1] == bound[2]


# --- whole runs


def test_a_run_mixes_in_training_and_not_in_validation(tmp_path):
    """With a learning rate of nearly zero the network stays the same, so only the loss differs."""
    settings = dict(lr=1e-30, optimizer="sgd", batch_size=None, global_batch_size=1437, label_smoothing=0.1)
    plain, mixed = (run_quickly(tmp_path, str(alpha), mixup=alpha, **settings) for alpha in (0, 1.5))
    assert mixed.history[0].val_loss == plain.history[0].val_loss
    split = plain.plan.dataset.train
    order, share = np.random.RandomState([0, 0]).permutation(1437), Mixup(1.5).draw(0, 0, 0)
    images, labels = split.images[order] / 255, split.labels[order]
    mixture = nd.array(share * images + (1 - share) * images[::-1], ctx=device())
    logs = nd.log_softmax(plain.net(mixture)).asnumpy().astype("float64")
    targets = mix_one_hot(np.column_stack([labels, labels[::-1], np.full(1437, share)]), 0.1, classes=10)
    assert mixed.history[0].loss == pytest.approx(-(targets * logs).sum(axis=1).mean(), rel=1e-5)


def test_memory_counts_partners_and_mixtures():
    def estimate(**settings):
        plan = make_plan(TrainConfig(**{"devices": device_spec(2), "model": "mlp", "mixup": 0.2, **settings}))
        return MemoryEstimator(plan, make_net(plan)).memory(10)

    image, mixture = 28 * 28 + 4, 4 * (28 * 28 + 3)
    # images and partners; two prefetched batches, one in use, one in preparation, and the graph's input
    assert estimate().data == (1437 + 360 + 2 * 719) * image + 5 * 10 * mixture
    assert estimate(resident_bytes=0, prefetch=3).data == 2 * 10 * image + 6 * 10 * mixture
    assert estimate(mixup=0.0, flip=True).data == (1437 + 360 + 719) * image + 5 * 10 * image
    for sync_bn in (False, True):
        assert estimate(model="resnet8", dataset="synthetic", sync_bn=sync_bn).activations > 0
