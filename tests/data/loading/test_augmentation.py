"""Random crops, flips and mixup: the same on any devices, and as defined."""

from itertools import chain

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts
from support.examples import examples
from support.reference import cpu_contexts

from gluonlab.data import ArraySplit, Loader
from gluonlab.data.loading.augmentation import Augment, Mixup, make_input_transform
from gluonlab.data.loading.split_batch import shard
from gluonlab.engine.fast_invoke import ndarray_from_numpy

# (n, C, H, W)
SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))
SEEDS = st.integers(0, 2**32 - 1)


def random_images(shape, seed=0):
    return np.random.RandomState(seed).randint(1, 256, shape).astype(np.uint8)


def augment_with_numpy(images, draw, padding):
    """Pad each image with black, then crop and mirror it as drawn."""
    height, width = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    out = np.empty_like(images)
    for i, (down, right, mirrored) in enumerate(zip(*draw)):
        top, left = padding + down, padding + right
        crop = padded[i, :, top : top + height, left : left + width]
        out[i] = crop[:, :, ::-1] if mirrored else crop
    return out


@settings(max_examples=60)
@given(SHAPES, st.sampled_from([np.uint8, np.float32]), st.integers(0, 12), st.booleans(), st.integers(1, 4), SEEDS)
def test_crops_and_flips_equal_numpy_on_any_number_of_devices(shape, dtype, padding, flip, k, seed):
    images, augment = random_images(shape, seed).astype(dtype), Augment(padding, flip)
    images = images - dtype(0.3) if dtype == np.float32 else images
    for step in range(2):  # the buffers of the first are used again
        draw = augment.draw(seed, 3, step, len(images))
        changed = augment(shard(ndarray_from_numpy(images), contexts(k)), draw)
        assert [x.context for x in changed] == contexts(min(k, len(images)))
        assert all(x.dtype == dtype for x in changed)
        assert np.array_equal(np.concatenate([x.asnumpy() for x in changed]), augment_with_numpy(images, draw, padding))


@given(SEEDS, st.integers(0, 100), st.integers(0, 1000), st.integers(0, 20), st.floats(0.5, 20))
def test_random_numbers_depend_on_seed_epoch_and_step(seed, epoch, step, padding, alpha):
    augment, mixup, key = Augment(padding, flip=True), Mixup(alpha), (seed, epoch, step)
    draw = augment.draw(*key, 200)
    assert all(map(np.array_equal, draw, augment.draw(*key, 200)))
    assert mixup.draw(*key) == mixup.draw(*key)
    for other in ((seed ^ 1, epoch, step), (seed, epoch + 1, step), (seed, epoch, step + 1)):
        assert not np.array_equal(draw.mirrored, augment.draw(*other, 200).mirrored)
        assert mixup.draw(*key) != mixup.draw(*other)


def test_shifts_are_uniform_and_half_of_the_images_are_mirrored():
    draw = Augment(2, flip=True).draw(0, 0, 0, 20_000)
    for begins in (draw.down, draw.right):
        counts = np.bincount(begins + 2)
        assert len(counts) == 5
        assert counts.min() > 0.9 * 4000 and counts.max() < 1.1 * 4000
    assert 0.48 < draw.mirrored.mean() < 0.52
    assert abs(np.corrcoef([draw.down, draw.right, draw.mirrored]) - np.eye(3)).max() < 0.05
    assert not Augment(2).draw(0, 0, 0, 1000).mirrored.any()


@pytest.mark.parametrize("budget", [0, 2**20], ids=["streaming", "resident"])
@pytest.mark.parametrize(("k", "world_size"), [(1, 1), (3, 1), (2, 2), (1, 3)])
def test_augmented_images_are_the_same_for_any_devices_and_workers(budget, k, world_size):
    split = ArraySplit(random_images((26, 2, 5, 6)), np.arange(26, dtype=np.int32))
    options = dict(raw=True, resident_bytes=budget, augment=Augment(3, True))
    workers = [Loader(split, contexts(k), 8, 5, rank, world_size, **options) for rank in range(world_size)]
    for epoch in range(2):
        order = np.random.RandomState([5, epoch]).permutation(26)
        parts = [list(worker) for worker in workers]
        for step, batches in enumerate(zip(*parts)):
            expected = order[8 * step : 8 * step + 8]
            result = np.concatenate([x.asnumpy() for xs, _ in batches for x in xs])
            draw = Augment(3, True).draw(5, epoch, step, len(expected))
            assert np.array_equal(result, augment_with_numpy(split.images[expected], draw, 3))


@pytest.mark.parametrize("colors", [((0.4,), (0.2,)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
def test_images_are_normalized_per_channel(colors):
    mean, deviation = (np.array(values).reshape(1, -1, 1, 1) for values in colors)
    images = random_images((5, mean.size, 4, 6))
    expected = (images / 255 - mean) / deviation
    function = make_input_transform(colors)
    symbol = function(mx.sym, mx.sym.var("x"))
    for ctx in contexts(2):
        x = nd.array(images, ctx, np.uint8)
        for result in (function(nd, x), symbol.bind(ctx, {"x": x}).forward()[0]):
            assert result.context == ctx
            np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-5, atol=1e-6)


# --- mixup: each image is mixed with the one at the other end of the concatenate batch

BUDGETS = {"streaming": 0, "resident": 2**20}
sizes = dict(n=st.integers(1, 40), batch=st.integers(1, 45), k=st.integers(1, 5), seed=SEEDS)


def make_split(n, shape=(2, 3, 4)):
    random = np.random.RandomState(n)
    return ArraySplit(random.randint(0, 256, (n, *shape)).astype(np.uint8), random.randint(0, 1000, n).astype(np.int32))


def concatenate(shards):
    return np.concatenate([shard.asnumpy() for shard in shards])


def read_epoch(*workers):
    """Yield images (n, C, H, W) and labels (n, 3) of each batch of an epoch, from all devices and workers."""
    for parts in zip(*(list(worker) for worker in workers)):
        yield concatenate([x for xs, _ in parts for x in xs]), concatenate([y for _, ys in parts for y in ys])


def mix_with_numpy(images, labels, share):
    """Mix a batch and its reverse by Zhang et al.'s formula, in float64."""
    images = images.astype(np.float64)
    mixed_labels = np.stack([labels, labels[::-1], np.full(len(labels), share)], axis=1)
    return share * images + (1 - share) * images[::-1], mixed_labels


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=list(BUDGETS))
@examples(15, 30)
@given(**sizes, alpha=st.floats(0, 10), raw=st.booleans())
@example(n=1, batch=1, k=1, seed=1, alpha=0.0078125, raw=False)  # draws 1.9e-45
def test_mixup_equals_its_formula_on_any_number_of_devices(budget, n, batch, k, seed, alpha, raw):
    split = make_split(n)
    options = dict(raw=raw, prefetch=1, resident_bytes=budget, mixup=Mixup(alpha))
    loader = Loader(split, contexts(k), batch, seed, **options)
    assert loader.is_resident == bool(budget)
    for epoch in range(2):
        order = np.random.RandomState([seed, epoch]).permutation(n)
        batches = list(loader)
        assert len(batches) == -(-n // batch)
        for step, (xs, ys) in enumerate(batches):
            expected = order[step * batch : (step + 1) * batch]
            images, labels = mix_with_numpy(*split.batch(expected), Mixup(alpha).draw(seed, epoch, step))
            assert [a.context for a in xs] == [a.context for a in ys] == contexts(min(k, len(expected)))
            assert [len(x) for x in xs] == [len(y) for y in ys]
            assert all(a.dtype == np.float32 for a in (*xs, *ys))
            np.testing.assert_allclose(concatenate(xs), images / (1 if raw else 255), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(concatenate(ys), labels, rtol=1e-6)


@examples(15, 30)
@given(**sizes, prefetch=st.integers(0, 3), workers=st.integers(1, 4))
def test_streaming_and_resident_batches_are_bit_identical_with_augmentation(n, batch, k, seed, prefetch, workers):
    """Some workers have no image of a small last batch."""

    def loaders(ctxs, count=1, **options):
        options.update(raw=True, augment=Augment(2, flip=True), mixup=Mixup(0.4))
        return [Loader(make_split(n), ctxs, batch, seed, rank, count, **options) for rank in range(count)]

    expected = list(read_epoch(*loaders(cpu_contexts(1), prefetch=0)))
    for options in (dict(resident_bytes=2**20), dict(prefetch=prefetch)):
        result = list(read_epoch(*loaders(contexts(k), workers, **options)))
        assert len(result) == len(expected)
        assert all(map(np.array_equal, chain(*result), chain(*expected)))


def test_a_partner_is_augmented_as_it_is_in_the_batch():
    split = make_split(9)
    plain, mixed = (
        Loader(split, contexts(2), 5, 4, raw=True, augment=Augment(2, flip=True), mixup=mixup)
        for mixup in (None, Mixup(1))
    )
    for step, (result, (images, labels)) in enumerate(zip(read_epoch(mixed), read_epoch(plain))):
        expected = mix_with_numpy(images, labels, Mixup(1).draw(4, 0, step))
        np.testing.assert_allclose(result[0], expected[0], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(result[1], expected[1], rtol=1e-6)


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=list(BUDGETS))
@pytest.mark.parametrize("changed", [False, True])
def test_a_restored_loader_resumes_with_the_same_batches(budget, changed):
    def loader(seed):
        options = dict(raw=True, resident_bytes=budget)
        if changed:
            options.update(augment=Augment(2, True), mixup=Mixup(0.4))
        return Loader(make_split(20), contexts(2), 6, seed, **options)

    first, restored, expected = loader(5), loader(0), loader(5)
    batches = iter(first)
    for _ in range(2):
        next(batches)
    restored.restore(first.state())
    batches.close()  # it has read ahead
    expected, result = ([batch for _ in range(2) for batch in read_epoch(it)] for it in (expected, restored))
    assert len(result) == 6
    assert all(map(np.array_equal, chain(*result), chain(*expected[2:])))


@pytest.mark.parametrize(("world_size", "max_reads"), [(1, 1), (3, 2)])
def test_nothing_is_read_twice_by_one_worker(world_size, max_reads):
    split, reads = make_split(22), np.zeros(22, int)
    read = split.batch
    split.batch = lambda indices: [np.add.at(reads, indices, 1), read(indices)][1]
    for rank in range(world_size):
        list(Loader(split, contexts(2), 8, rank=rank, world_size=world_size, mixup=Mixup(1)))
    assert reads.max() == max_reads


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1, 5])
def test_mixup_shares_have_a_beta_distribution(alpha):
    """Mean 1/2, variance 1 / (4 (2 alpha + 1)), skewness 0, within five standard errors of 1,500 draws."""
    shares = np.array([Mixup(alpha).draw(0, epoch, step) for epoch in range(15) for step in range(100)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert 0 <= shares.min() < shares.max() <= 1
    assert abs(shares.mean() - 0.5) < 5 * (variance / 1500) ** 0.5
    fourth = ((shares - 0.5) ** 4).mean()
    assert abs(((shares - 0.5) ** 2).mean() - variance) < 5 * ((fourth - variance**2) / 1500) ** 0.5
    assert abs(((shares - 0.5) ** 3).mean()) < 5 * (((shares - 0.5) ** 6).mean() / 1500) ** 0.5


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-5])
def test_a_tiny_alpha_mixes_practically_nothing(alpha):
    """An image is then itself, or its partner."""
    shares = [Mixup(alpha).draw(0, 0, step) for step in range(200)]
    assert all(min(share, 1 - share) < 1e-6 for share in shares)
    assert 60 < sum(share > 0.5 for share in shares) < 140
