"""Random resized crops: boxes as Inception's, Pillow's pixels, for any number of processes and devices."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.devices import contexts
from support.image_folders import encode_image, make_image, write_image_folder

from gluonlab.data import Loader, load_dataset
from gluonlab.data.images.decode_image import central_crop_box, decode_image, random_crop_box
from gluonlab.data.images.decoder_pool import DecoderPool
from gluonlab.data.loading.augmentation import Augment, Mixup
from gluonlab.data.sets.image_file_dataset import FileSplit
from gluonlab.errors import DataError

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 600)


def crop_with_pillow(path, box, size):
    """Decode the whole image, then crop and resize it."""
    with Image.open(path) as image:
        resized = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).transpose(2, 0, 1)


# --- boxes


@settings(max_examples=300)
@given(SEEDS, SIDES, SIDES)
def test_a_crop_box_is_inside_the_image_with_allowed_area_and_ratio(seed, width, height):
    """Within half a pixel on each side, because sides are whole pixels."""
    left, top, right, bottom = random_crop_box(seed, width, height)
    wide, high = right - left, bottom - top
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    assert (max(wide - 0.5, 0.5) / (high + 0.5)) < 4 / 3 and (wide + 0.5) / max(high - 0.5, 0.5) > 3 / 4
    if (left, top, right, bottom) != central_crop_box(width, height):
        assert (wide + 0.5) * (high + 0.5) >= 0.08 * width * height


def test_areas_ratios_and_positions_are_uniform():
    """For images of 10000 x 10000 and areas below a half, all boxes fit."""
    boxes = np.array([random_crop_box(seed, 10000, 10000) for seed in range(8000)])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 1e8
    assert areas.min() >= 0.08 and areas.max() <= 1
    left, top, right, bottom = boxes[areas < 0.5].T
    wide, high = right - left, bottom - top
    areas, ratios = areas[areas < 0.5], np.log(wide / high) / math.log(4 / 3)
    across, down = left / (10001 - wide), top / (10001 - high)
    for values, low, high_end in ((areas, 0.08, 0.5), (ratios, -1, 1), (across, 0, 1), (down, 0, 1)):
        counts = np.histogram(values, 4, (low, high_end))[0]
        assert counts.sum() >= len(values) - 2  # a ratio may lie outside by the rounding of a pixel
        assert counts.min() > 0.9 * len(values) / 4 and counts.max() < 1.1 * len(values) / 4
    assert abs(np.corrcoef([areas, ratios, across]) - np.eye(3)).max() < 0.05


@pytest.mark.parametrize(
    ("width", "height", "box"), [(4000, 20, (1986, 0, 2013, 20)), (20, 4000, (0, 1986, 20, 2013)), (1, 1, (0, 0, 1, 1))]
)
def test_without_a_fitting_box_the_center_is_cropped(width, height, box):
    """In 4000 x 20 pixels, 8 % of the area do not fit with a ratio from 3:4 to 4:3."""
    assert central_crop_box(width, height) == box
    assert all(random_crop_box(seed, width, height) == box for seed in range(50))


# --- pixels


@settings(max_examples=30)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(8, 40), SEEDS)
def test_the_pixels_of_a_box_equal_pillows(tmp_path_factory, width, height, size, seed):
    path = tmp_path_factory.getbasetemp() / "cropped.png"
    path.write_bytes(encode_image(make_image(0, width, height), "PNG"))
    expected = crop_with_pillow(path, random_crop_box(seed, width, height), size)
    assert np.array_equal(decode_image(str(path), size, seed), expected)


@pytest.mark.parametrize(("width", "height", "size"), [(333, 250, 60), (97, 131, 24)])
def test_a_jpeg_is_decoded_at_a_fraction_only_where_the_box_is_large_enough(tmp_path, width, height, size):
    """Boxes smaller than twice the size have Pillow's own pixels; larger ones are decoded at half the size or less."""
    path = tmp_path / "a.jpg"
    path.write_bytes(encode_image(make_image(0, width, height), quality=95))
    reduced = 0
    for seed in range(60):
        left, top, right, bottom = box = random_crop_box(seed, width, height)
        result, whole = decode_image(str(path), size, seed), crop_with_pillow(path, box, size)
        if min(right - left, bottom - top) < 2 * size:
            assert np.array_equal(result, whole)
        else:
            reduced += 1
            assert np.abs(result.astype(int) - whole).mean() < 12
    assert 0 < reduced < 60


def test_a_crop_has_the_right_position_at_every_reduced_size(tmp_path):
    """Colors increase to the right and down, so the mean of a crop shows its position."""
    across, down = np.meshgrid(np.linspace(0, 255, 1001), np.linspace(0, 255, 701))
    image = Image.fromarray(np.stack([across, down, 0 * down], axis=2).astype(np.uint8))
    path = tmp_path / "a.jpg"
    path.write_bytes(encode_image(image, quality=100, subsampling=0))
    for size in (16, 60, 130, 260):  # 1/8, 1/4, 1/2 and all of it, for most boxes
        for seed in range(12):
            left, top, right, bottom = random_crop_box(seed, 1001, 701)
            red, green, _ = decode_image(str(path), size, seed).reshape(3, -1).mean(axis=1)
            assert red == pytest.approx((left + right) / 2 / 1001 * 255, abs=2)
            assert green == pytest.approx((top + bottom) / 2 / 701 * 255, abs=2)


# --- processes, devices and workers


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    """The training images as splits with 1 and 3 decoder processes."""
    root = write_image_folder(tmp_path_factory.mktemp("images") / "animals", train=13, val=3, size=40)
    dataset = load_dataset(f"folder:{root}", decoders=1, image_size=16, random_resized_crop=True, memory=2**30)
    assert isinstance(dataset.train, FileSplit) and not isinstance(dataset.test, FileSplit)
    dataset.train.decoders.close()
    pools = {count: DecoderPool(16, count) for count in (1, 3)}
    yield {count: FileSplit(dataset.train.paths, dataset.train.labels, pool) for count, pool in pools.items()}
    for pool in pools.values():
        pool.close()


def read_epochs(*workers, count=2):
    """Return images and labels of each batch of some epochs, from all devices and workers."""
    return [
        [np.concatenate([a.asnumpy() for batch in parts for a in tuple(batch)[i]]) for i in (0, 1)]
        for _ in range(count)
        for parts in zip(*(list(worker) for worker in workers))
    ]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for one, other in zip(a, b) for x, y in zip(one, other))


@pytest.mark.parametrize("mixup", [None, Mixup(0.5)], ids=["plain", "mixup"])
def test_any_number_of_decoders_devices_and_workers_sees_the_same_pixels(splits, mixup):
    def loader(count, k, rank=0, world_size=1, **options):
        options.update(raw=True, random_crops=True, augment=Augment(1, flip=True), mixup=mixup)
        return Loader(splits[count], contexts(k), 11, 5, rank, world_size, **options)

    expected = read_epochs(loader(1, 1, prefetch=0))
    assert same(read_epochs(loader(3, 1, prefetch=3)), expected)
    assert same(read_epochs(loader(3, 2)), expected)
    assert same(read_epochs(*(loader(1, 2, rank, 2) for rank in range(2))), expected)
    late = loader(3, 2)
    late.restore({"epoch": 0, "step": 2, "seed": 5})
    assert same(read_epochs(late), expected[2:])


def test_each_epoch_has_new_crops_from_its_seeds(splits):
    split = splits[1]
    loader = Loader(split, contexts(2), 39, shuffle=False, raw=True, random_crops=True)
    (first, labels), (second, _) = read_epochs(loader)
    assert np.array_equal(labels, split.labels)
    assert all(not np.array_equal(a, b) for a, b in zip(first, second))
    for images, epoch in ((first, 0), (second, 1)):
        seeds = np.random.RandomState(np.random.PCG64([0, epoch, 0, 3])).randint(0, 2**32, 39, dtype=np.uint32)
        assert all(
            np.array_equal(image, decode_image(path, 16, int(seed), resizer=split.decoders.resizer))
            for image, path, seed in zip(images, split.paths, seeds)
        )


def test_a_split_without_files_is_refused():
    with pytest.raises(DataError, match="random crops need image files, but this split has none"):
        Loader(load_dataset("digits").train, contexts(1), 8, random_crops=True)
