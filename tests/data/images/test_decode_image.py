"""Image files become pixels, in any EXIF orientation; errors name the file."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps
from support.damage import corrupt_bytes
from support.examples import examples
from support.image_folders import decode_with_pillow, encode_image, make_image

from gluonlab.data.images.decode_image import (
    EXIF_ORIENTATION,
    MAX_PIXELS,
    _convert_to_rgb,
    decode_image,
    random_crop_box,
    read_short_side,
)
from gluonlab.data.images.image_locations import FORMAT_NAMES
from gluonlab.errors import DataError

JPEG = encode_image(make_image(1, 40, 30), quality=90)
PNG = encode_image(make_image(2, 20, 24), "PNG")


def write_image(path, content):
    path.write_bytes(content)
    return str(path)


GRAY = np.arange(256, dtype=np.uint8).reshape(16, 16)  # every value, dark to bright
COLOR = np.stack([GRAY, GRAY[::-1], GRAY.T], axis=2)
ALPHA = np.full_like(GRAY, 255)
SQUARES = {
    "1": (Image.fromarray(GRAY > 127), np.where(GRAY > 127, 255, 0)),
    "L": (Image.fromarray(GRAY), GRAY),
    "LA": (Image.fromarray(np.stack([GRAY, ALPHA], axis=2)), GRAY),
    "P": (Image.fromarray(GRAY).convert("P"), GRAY),
    "RGB": (Image.fromarray(COLOR), COLOR),
    "RGBA": (Image.fromarray(np.dstack([COLOR, ALPHA])), COLOR),
    "I;16": (Image.fromarray(GRAY.astype(np.uint16) * 257), GRAY),
    "I": (Image.fromarray(GRAY.astype(np.int32) * 257), GRAY),
    "PA": (Image.fromarray(np.stack([GRAY, ALPHA], axis=2)).convert("PA"), GRAY),
    "CMYK": (Image.fromarray(COLOR).convert("CMYK"), COLOR),
    "YCbCr": (Image.fromarray(COLOR).convert("YCbCr"), COLOR),
}


@pytest.mark.parametrize("mode", SQUARES)
def test_an_image_of_any_mode_looks_like_its_twin_of_8_bits(tmp_path, mode):
    """Through a PNG if it has the mode."""
    image, twin = SQUARES[mode]
    assert image.mode == mode
    if mode in ("PA", "CMYK", "YCbCr", "I"):
        pixels = np.asarray(_convert_to_rgb("a.png", image)).transpose(2, 0, 1)
    else:
        pixels = decode_image(write_image(tmp_path / "a.png", encode_image(image, "PNG")), 16)
    expected = twin.transpose(2, 0, 1) if twin.ndim == 3 else np.stack([twin] * 3)
    assert np.abs(pixels.astype(int) - expected).max() <= (3 if mode == "YCbCr" else 0)


@given(st.integers(0, 2**16 - 1))
def test_16_bits_become_the_nearest_of_8(value):
    image = _convert_to_rgb("a.png", Image.fromarray(np.full((1, 1), value, np.uint16)))
    assert np.asarray(image).tolist() == [[[round(value / 257)] * 3]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.int32([[0, 2**16]]), "a\\.png has gray values from 0 to 65536, which need more than 16 bits"),
        (np.float32([[0, 1]]), "a.png has gray values that are floats with an unknown range: replace"),
    ],
)
def test_values_of_an_unknown_range_are_refused(values, said):
    with pytest.raises(DataError, match=said):
        _convert_to_rgb("a.png", Image.fromarray(values))


def slopes(width, height):
    """Return colors that grow to the right, down, and with both, so that shifted pixels have other values."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([across, down, (across + down) / 2], axis=2).astype(np.uint8))


@settings(max_examples=40)
@given(st.integers(8, 90), st.integers(8, 90), st.integers(8, 40))
# at an eighth 10 x 9 pixels, the last of which show a quarter of what the others do
@example(74, 66, 8)
@example(32, 53, 8)
def test_the_central_square_is_resized(tmp_path_factory, width, height, size):
    """Decoding a JPEG at a fraction of its size may differ by the loss of JPEG itself."""
    folder = tmp_path_factory.getbasetemp()
    png = write_image(folder / "a.png", encode_image(make_image(0, width, height), "PNG"))
    assert np.array_equal(decode_image(png, size), decode_with_pillow(png, size))
    jpeg = write_image(folder / "a.jpg", encode_image(slopes(width, height), quality=95))
    error = np.abs(decode_image(jpeg, size).astype(int) - decode_with_pillow(jpeg, size))
    assert error.mean() < 2 and error.max() < 12
    assert read_short_side(jpeg) == min(width, height)


WRONG = {
    "empty": (b"", f"not a {FORMAT_NAMES}"),
    "text": (b"a file of words, and not of pixels", f"not a {FORMAT_NAMES}"),
    "jpeg 2000": (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40), f"not a {FORMAT_NAMES}"),
    "cut gif": (encode_image(make_image(0), "GIF")[:-40], "damaged ("),
    "cut webp": (encode_image(make_image(0), "WEBP")[:-40], "damaged ("),
    "cut bmp": (encode_image(make_image(0), "BMP")[:-40], "damaged ("),
    "cut tiff": (encode_image(make_image(0), "TIFF")[:400], "damaged ("),
    "cut ppm": (encode_image(make_image(0), "PPM")[:-40], "damaged ("),
    "cut jpeg": (JPEG[: len(JPEG) // 2], "damaged ("),
    "cut png": (PNG[: len(PNG) // 2], "damaged ("),
    "header only": (JPEG[:4], f"not a {FORMAT_NAMES}"),
}


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("kind", WRONG)
def test_a_damaged_file_is_named_with_the_fault_and_the_remedy(tmp_path, monkeypatch, kind, lenient):
    """Also if another library has set Pillow's LOAD_TRUNCATED_IMAGES."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    content, said = WRONG[kind]
    path = write_image(tmp_path / "wrong.jpg", content)
    with pytest.raises(DataError) as error:
        decode_image(path, 16)
    line = str(error.value)
    assert line.startswith(f"{path} is {said}"), line
    assert line.endswith("--skip-corrupt") and "\n" not in line


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(tmp_path):
    for name, why in (("missing.jpg", "No such file or directory"), (".", "Is a directory")):
        with pytest.raises(DataError, match=rf"cannot be read \({why}\)"):
            decode_image(str(tmp_path / name), 16)


def with_header_size(side, format):
    """Return the beginning of an image whose header claims this width and height."""
    if format == "JPEG":
        begin = JPEG.index(b"\xff\xc0") + 5  # SOF0: length, precision, then height and width
        return JPEG[:begin] + struct.pack(">HH", side, side) + JPEG[begin + 4 :]
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header
    return start + struct.pack(">I", zlib.crc32(header)) + PNG[PNG.index(b"IDAT") - 4 :]


@pytest.mark.parametrize(("side", "format"), [(2**13 + 1, "PNG"), (2**16, "PNG"), (2**31 - 1, "PNG"), (65000, "JPEG")])
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path, side, format):
    assert side**2 > MAX_PIXELS
    path = write_image(tmp_path / "bomb", with_header_size(side, format))
    said = r"bomb .*(pixels, more than|decompression bomb|exceeds limit)"
    for read in (read_short_side, lambda path: decode_image(path, 16)):
        with pytest.raises(DataError, match=said):
            read(path)


@pytest.mark.parametrize("original", [JPEG, PNG], ids=["JPEG", "PNG"])
@examples(60, 150)
@given(st.data())
def test_a_damaged_file_gives_pixels_or_a_data_error(tmp_path_factory, original, data):
    path = write_image(tmp_path_factory.getbasetemp() / "damaged.jpg", corrupt_bytes(data, original, 4))
    try:
        assert decode_image(path, 16).shape == (3, 16, 16)
    except DataError as error:
        assert str(error).startswith(f"{path} ")
        assert "\n" not in str(error)


# --- EXIF orientations, compared with Pillow's exif_transpose

EIGHT = range(1, 9)


def make_exif(orientation):
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    return exif


def write_turned(path, orientation, width, height, format="JPEG"):
    return write_image(path, encode_image(slopes(width, height), format, exif=make_exif(orientation)))


def turn_with_pillow(path, size, seed=None):
    """Decode and turn the whole image, then crop and resize; return (3, size, size)."""
    with Image.open(path) as image:
        image = ImageOps.exif_transpose(image).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side) if seed is None else random_crop_box(seed, *image.size)
    resized = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).transpose(2, 0, 1).astype(int)


@pytest.mark.parametrize("turned", EIGHT)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(tmp_path, format, turned):
    """Resizing before turning rounds otherwise: by 1 at most."""
    path = write_turned(tmp_path / "image", turned, 40, 30, format)
    for seed in (None, 7):
        assert np.abs(decode_image(path, 24, seed) - turn_with_pillow(path, 24, seed)).max() <= 1
    assert read_short_side(path) == 30
    path = write_turned(tmp_path / "image", turned, 24, 24, format)  # needs no resizing
    assert np.array_equal(decode_image(path, 24), turn_with_pillow(path, 24))


@pytest.mark.parametrize("turned", EIGHT)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_exif_orientation_is_applied_to_a_jpeg_decoded_at_reduced_size(tmp_path, turned, seed):
    """The sides are not multiples of 8, so the last pixels cover less than the others."""
    path = write_turned(tmp_path / "image.jpg", turned, 133, 99)
    error = np.abs(decode_image(path, 8, seed) - turn_with_pillow(path, 8, seed))
    assert error.mean() < 2 and error.max() < 12


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [*map(make_exif, (0, 9, 65535)), b"Exif\0\0MM\0*\xff\xff\xff\xff\x01\x12"])
def test_invalid_or_damaged_exif_is_ignored(tmp_path, exif):
    path = write_image(tmp_path / "a.jpg", encode_image(slopes(24, 24), exif=exif))
    assert np.array_equal(decode_image(path, 24), decode_with_pillow(path, 24))
