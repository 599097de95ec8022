"""EXIF says which way up an image is, and images come out as Pillow itself would turn them."""

import numpy as np
import pytest
from PIL import Image, ImageOps
from support.image_folders import encoded, picture

from gluonlab.data.images.decode import (
    EXIF_ORIENTATION,
    decode,
    random_box,
    short_side,
    shown_size,
    stored_box,
)

EIGHT = range(1, 9)


def stored(path, turned, width, height, format="JPEG"):
    """A file of an image that EXIF turns."""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = turned
    image = Image.fromarray(slopes(width, height))
    path.write_bytes(encoded(image, format, exif=exif))
    return str(path)


def slopes(width, height):
    """No two corners are alike."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([across, down, (across + down) / 2], axis=2).astype(np.uint8)


def by_pillow(path, size, seed=None):
    """Decoded whole, turned whole, then cut and resized: (3, size, size)."""
    with Image.open(path) as image:
        image = ImageOps.exif_transpose(image).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    if seed is not None:
        box = random_box(seed, *image.size)
    resized = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).transpose(2, 0, 1).astype(int)


@pytest.mark.parametrize("turned", EIGHT)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_turned_as_its_exif_says(tmp_path, format, turned):
    """Resizing before turning rounds otherwise: by 1 at most."""
    path = stored(tmp_path / "image", turned, 40, 30, format)
    for seed in (None, 7):
        assert np.abs(decode(path, 24, seed) - by_pillow(path, 24, seed)).max() <= 1
    assert short_side(path) == 30


@pytest.mark.parametrize("turned", EIGHT)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_so_is_a_jpeg_that_is_decoded_at_a_fraction_of_its_size(tmp_path, turned, seed):
    """Of sides that are no multiples of 8, so that the last pixels show less than the others."""
    path = stored(tmp_path / "image.jpg", turned, 133, 99)
    error = np.abs(decode(path, 8, seed) - by_pillow(path, 8, seed))
    assert error.mean() < 2 and error.max() < 12


@pytest.mark.parametrize("turned", EIGHT)
def test_a_square_that_needs_no_resizing_has_the_very_pixels(tmp_path, turned):
    path = stored(tmp_path / "image.jpg", turned, 24, 24)
    assert np.array_equal(decode(path, 24), by_pillow(path, 24))


@pytest.mark.parametrize("turned", EIGHT)
def test_a_box_is_where_pillow_finds_it(turned):
    width, height = 7, 5
    whole = Image.fromarray(np.arange(35, dtype=np.uint8).reshape(height, width))
    exif = whole.getexif()
    exif[EXIF_ORIENTATION] = turned
    shown = ImageOps.exif_transpose(whole)
    assert shown_size((width, height), turned) == shown.size
    box = (1, 2, 4, 3)
    part = whole.crop(stored_box(box, (width, height), turned))
    assert sorted(np.asarray(part).ravel()) == sorted(np.asarray(shown.crop(box)).ravel())


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_nonsense_turns_nothing(tmp_path, value):
    path = stored(tmp_path / "image.jpg", value, 24, 24)
    assert np.array_equal(decode(path, 24), by_pillow(path, 24))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_spoils_no_pixels(tmp_path):
    content = encoded(picture(0, 24, 24), exif=b"Exif\0\0MM\0*\xff\xff\xff\xff\x01\x12")
    (tmp_path / "a.jpg").write_bytes(content)
    (tmp_path / "b.jpg").write_bytes(encoded(picture(0, 24, 24)))
    assert np.array_equal(*(decode(str(tmp_path / name), 24) for name in ("a.jpg", "b.jpg")))
