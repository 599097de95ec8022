"""Augmentation: what NumPy would do image by image, the same for any number of devices, and for
every seed again.
"""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts

from gluonlab.data import ArraySplit, Loader
from gluonlab.data.loading.augment import Augment, make_input, to_float
from gluonlab.data.loading.shards import shard
from gluonlab.engine.invoke import from_host

# (n, C, H, W)
SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))
SEEDS = st.integers(0, 2**32 - 1)


def images_of(shape, seed=0):
    return np.random.RandomState(seed).randint(1, 256, shape).astype(np.uint8)


def by_numpy(images, draw, padding):
    """Each image by itself: padded with black, cropped where the draw says, mirrored if it says
    so.
    """
    n, channels, height, width = images.shape
    padded = np.zeros((n, channels, height + 2 * padding, width + 2 * padding), images.dtype)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    out = np.empty_like(images)
    for i, (down, right, mirrored) in enumerate(zip(*draw)):
        crop = padded[
            i,
            :,
            padding + down : padding + down + height,
            padding + right : padding + right + width,
        ]
        out[i] = crop[:, :, ::-1] if mirrored else crop
    return out


@settings(max_examples=60)
@given(
    SHAPES, st.sampled_from([np.uint8, np.float32]), st.integers(0, 12), st.booleans(),
    st.integers(1, 4), SEEDS,
)  # fmt: skip
def test_crops_and_flips_are_numpys_on_any_number_of_devices(shape, dtype, padding, flip, k, seed):
    images, augment = images_of(shape, seed).astype(dtype), Augment(padding, flip)
    images = images - dtype(0.3) if dtype == np.float32 else images
    for step in range(2):  # the buffers of the first are used again
        draw = augment.draw(seed, 3, step, len(images))
        changed = augment(shard(from_host(images), contexts(k)), draw)
        assert [x.context for x in changed] == contexts(min(k, len(images)))
        assert all(x.dtype == dtype for x in changed)
        assert np.array_equal(
            np.concatenate([x.asnumpy() for x in changed]), by_numpy(images, draw, padding)
        )


@given(SEEDS, st.integers(0, 100), st.integers(0, 1000), st.integers(0, 20))
def test_a_draw_depends_on_seed_epoch_and_step(seed, epoch, step, padding):
    augment = Augment(padding, flip=True)
    draw, again = augment.draw(seed, epoch, step, 200), augment.draw(seed, epoch, step, 200)
    assert all(np.array_equal(a, b) for a, b in zip(draw, again))
    for other in ((seed ^ 1, epoch, step), (seed, epoch + 1, step), (seed, epoch, step + 1)):
        assert not np.array_equal(draw.mirrored, augment.draw(*other, 200).mirrored)


def test_crops_begin_everywhere_alike_and_half_of_the_images_are_mirrored():
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
def test_all_devices_and_workers_see_the_images_that_one_would_see(budget, k, world_size):
    split = ArraySplit(images_of((26, 2, 5, 6)), np.arange(26, dtype=np.int32))
    workers = [
        Loader(
            split,
            contexts(k),
            8,
            5,
            rank,
            world_size,
            raw=True,
            resident_bytes=budget,
            augment=Augment(3, True),
        )
        for rank in range(world_size)
    ]
    for epoch in range(2):
        order = np.random.RandomState([5, epoch]).permutation(26)
        parts = [list(worker) for worker in workers]
        for step, batches in enumerate(zip(*parts)):
            wanted = order[8 * step : 8 * step + 8]
            found = np.concatenate([x.asnumpy() for xs, _ in batches for x in xs])
            draw = Augment(3, True).draw(5, epoch, step, len(wanted))
            assert np.array_equal(found, by_numpy(split.images[wanted], draw, 3))


def test_a_loader_that_goes_on_later_sees_the_same_images():
    def loader():
        return Loader(split, contexts(2), 4, 5, raw=True, augment=Augment(2, True))

    split = ArraySplit(images_of((10, 1, 6, 6)), np.zeros(10, np.int32))
    whole = [[x.asnumpy() for x in xs] for xs, _ in loader()]
    late = loader()
    late.restore({"epoch": 0, "step": 2, "seed": 5})
    [rest] = [[x.asnumpy() for x in xs] for xs, _ in late]
    assert all(np.array_equal(a, b) for a, b in zip(rest, whole[2]))


@pytest.mark.parametrize(
    "colours", [((0.4,), (0.2,)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
)
def test_images_are_normalised_channel_by_channel(colours):
    mean, deviation = (np.array(each).reshape(1, -1, 1, 1) for each in colours)
    images = images_of((5, mean.size, 4, 6))
    wanted = (images / 255 - mean) / deviation
    function = make_input(colours)
    symbol = function(mx.sym, mx.sym.var("x"))
    for ctx in contexts(2):
        x = nd.array(images, ctx, np.uint8)
        for found in (function(nd, x), symbol.bind(ctx, {"x": x}).forward()[0]):
            assert found.context == ctx
            np.testing.assert_allclose(found.asnumpy(), wanted, rtol=1e-5, atol=1e-6)


def test_without_colours_the_input_is_what_it_was():
    assert make_input(None) is to_float
