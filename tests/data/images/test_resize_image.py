"""Images resized by cykooz.resizer, compared with those resized by Pillow."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.image_folders import encode_image

from gluonlab.data.images import resize_image as resize
from gluonlab.data.images.decode_image import decode_image
from gluonlab.data.images.resize_image import CYKOOZ, MAX_DIFFERENCE, PILLOW, resize_image, resize_rows, resolve_resizer
from gluonlab.errors import DataError, GluonlabWarning

pytestmark = pytest.mark.skipif(resize.cykooz is None, reason="cykooz.resizer has no wheel here")
ORIENTATION = 0x0112


@pytest.fixture(autouse=True)
def clear_cached_resizer():
    resize.default_resizer.cache_clear()
    yield
    resize.default_resizer.cache_clear()


def noise(width, height, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)


def photograph(width, height, seed=0):
    """Smooth colors with some noise."""
    coarse = Image.fromarray(noise(-(-width // 8), -(-height // 8), seed))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + noise(width, height, seed) % 25 - 12).clip(0, 255).astype(np.uint8)


def difference(pixels, size, box):
    """Between cykooz.resizer and Pillow, of 255: (size, size, 3).

    Pillow resizes across and then down, in two calls: in one, its releases differ in the order.
    """
    image, (left, top, right, bottom) = Image.fromarray(pixels), box
    bilinear = Image.Resampling.BILINEAR
    across = image.resize((size, image.height), bilinear, box=(left, 0, right, image.height))
    expected = np.asarray(across.resize((size, size), bilinear, box=(0, top, size, bottom)))
    result = np.asarray(resize_image(image, size, box, CYKOOZ))[:, :, :3]
    return np.abs(result.astype(int) - expected)


@st.composite
def boxes(draw, width, height):
    """Parts of an image; their edges are whole, halves or quarters of pixels."""
    parts = draw(st.sampled_from([1, 2, 4]))
    edges = []
    for side in (width, height):
        begin = draw(st.integers(0, side * parts - 1))
        edges.append((begin / parts, draw(st.integers(begin + 1, side * parts)) / parts))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from([noise, photograph]), st.integers(0, 2**32 - 1))
def test_no_pixel_differs_by_more_than_two(data, make, seed):
    """Nor from Pillow in one call. A crop without resizing keeps its pixels."""
    width, height = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))
    size, box = data.draw(st.integers(1, 250)), data.draw(boxes(width, height))
    pixels = make(width, height, seed)
    assert difference(pixels, size, box).max() <= 2 == MAX_DIFFERENCE
    one, other = (
        np.asarray(resize_image(Image.fromarray(pixels), size, box, resizer)).astype(int)[:, :, :3]
        for resizer in (PILLOW, CYKOOZ)
    )
    assert np.abs(one - other).max() <= MAX_DIFFERENCE
    assert difference(noise(50, 40), 16, (7, 11, 23, 27)).max() == 0


@pytest.mark.parametrize("make", [noise, photograph])
def test_few_pixels_differ_at_all(make):
    random = np.random.RandomState(0)
    means = []
    for seed in range(20):
        left, top = random.randint(0, 120), random.randint(0, 90)
        box = (left, top, left + random.randint(100, 200), top + random.randint(80, 150))
        means.append(difference(make(320, 240, seed), 224, box).mean())
    assert np.mean(means) < 0.005


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_an_array_and_an_image_have_the_same_pixels(data):
    width, height = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    size, box = data.draw(st.integers(1, 60)), data.draw(boxes(width, height))
    image = Image.fromarray(noise(width, height))
    rows = np.frombuffer(image.tobytes("raw", "RGBX"), np.uint8).reshape(height, width, 4)
    for resizer in (PILLOW, CYKOOZ):
        one, other = resize_rows(rows, size, box, resizer), resize_image(image, size, box, resizer)
        assert np.array_equal(np.asarray(one)[:, :, :3], np.asarray(other)[:, :, :3])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(9, 120), st.integers(9, 120), st.integers(8, 60), st.integers(1, 8),
    st.sampled_from(["RGB", "L", "CMYK"]), st.booleans(), st.sampled_from([None, 0, 1, 2]),
)  # fmt: skip
@example(120, 100, 16, 6, "RGB", True, None)  # decoded at a fraction of its size
def test_files_of_every_kind_differ_by_no_more(tmp_path_factory, width, height, size, turned, mode, progressive, seed):
    """Turned by EXIF, in gray, in CMYK, progressive, cut at random, decoded by either library."""
    path = str(tmp_path_factory.getbasetemp() / "any.jpg")
    exif = Image.Exif()
    exif[ORIENTATION] = turned
    image = Image.fromarray(photograph(width, height)).convert(mode)
    Path(path).write_bytes(encode_image(image, exif=exif, progressive=progressive, quality=90))
    expected = decode_image(path, size, seed).astype(int)
    result = [decode_image(path, size, seed, quick, CYKOOZ) for quick in (False, True)]
    assert np.array_equal(*result)
    assert np.abs(result[0] - expected).max() <= MAX_DIFFERENCE


@pytest.mark.parametrize("left", [2, 300])
def test_a_truncated_file_has_the_same_error(tmp_path, left):
    path = tmp_path / "cut.jpg"
    path.write_bytes(encode_image(Image.fromarray(photograph(320, 240)))[:-left])
    errors = []
    for resizer in (PILLOW, CYKOOZ):
        for quick in (False, True):
            with pytest.raises(DataError) as error:
                decode_image(str(path), 224, None, quick, resizer)
            errors.append(str(error.value))
    assert len(set(errors)) == 1


def test_cykooz_is_the_default_if_it_is_installed(monkeypatch):
    assert resolve_resizer(None) == resolve_resizer(CYKOOZ) == CYKOOZ
    assert resolve_resizer(PILLOW) == PILLOW
    monkeypatch.setattr(resize, "cykooz", None)
    resize.default_resizer.cache_clear()
    assert resolve_resizer(None) == resolve_resizer(PILLOW) == PILLOW
    for is_arm, advice in (
        (False, "is not installed: run pip install cykooz.resizer, or"),
        (True, "has no wheels for"),
    ):
        monkeypatch.setattr(resize, "needs_arm_libraries", lambda is_arm=is_arm: is_arm)
        with pytest.raises(DataError, match=f"--resizer cykooz requires the package .*, which {advice}"):
            resolve_resizer(CYKOOZ)
    with pytest.raises(DataError, match="--resizer opencv: choose cykooz or pillow"):
        resolve_resizer("opencv")


def test_with_different_pixels_cykooz_is_not_used_and_warns_once(monkeypatch):
    right = resize._resize_with_cykooz
    monkeypatch.setattr(resize, "_resize_with_cykooz", lambda *given: right(*given).point(lambda x: x ^ 4))
    with pytest.warns(GluonlabWarning, match="produce different pixels, so cykooz.resizer is not used") as warning:
        assert resolve_resizer(None) == resolve_resizer(None) == PILLOW
    assert len(warning) == 1
