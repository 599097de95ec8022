"""simplejpeg and Pillow decode JPEGs to the decoders_agree pixels, and report damage in the decoders_agree words."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.damage import corrupt_bytes
from support.image_folders import encode_image, make_image

from gluonlab.data.images import turbojpeg
from gluonlab.data.images.decode_image import decode_image
from gluonlab.errors import DataError, GluonlabWarning


@pytest.fixture(autouse=True)
def clear_cached_comparison():
    turbojpeg.matches_pillow.cache_clear()
    yield
    turbojpeg.matches_pillow.cache_clear()


def decode_or_error(path, size, seed, quick):
    try:
        return decode_image(str(path), size, seed, quick).tolist()
    except DataError as error:
        return str(error)


def decoders_agree(path, size=24, seeds=(None, 5)):
    return all(decode_or_error(path, size, seed, True) == decode_or_error(path, size, seed, False) for seed in seeds)


@settings(max_examples=40)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(8, 40), st.integers(1, 100),
    st.sampled_from([0, 1, 2]), st.booleans(), st.sampled_from(["RGB", "L", "CMYK"]),
    st.sampled_from([None, b"profile" * 20]),
)  # fmt: skip
def test_any_jpeg_has_the_same_pixels(
    tmp_path_factory, width, height, size, quality, subsampling, progressive, mode, profile
):
    path = tmp_path_factory.getbasetemp() / "any.jpg"
    image = make_image(0, width, height, mode=mode)
    options = dict(quality=quality, subsampling=subsampling, progressive=progressive)
    path.write_bytes(encode_image(image, icc_profile=profile, **options))
    assert decoders_agree(path, size)
    assert (turbojpeg.read_plain_jpeg_size(path.read_bytes()) == (width, height)) == (mode != "CMYK")


@settings(max_examples=80)
@given(st.data(), st.sampled_from(["RGB", "L"]), st.sampled_from([None, 1, 2, 30, 400]))
def test_a_damaged_jpeg_has_the_same_pixels_or_the_same_error(tmp_path_factory, data, mode, cut):
    content = encode_image(make_image(1, 30, 24, mode=mode), quality=90)
    path = tmp_path_factory.getbasetemp() / "damaged.jpg"
    path.write_bytes(content[:-cut] if cut else corrupt_bytes(data, content))
    assert decoders_agree(path, 24, [None])


JPEG = encode_image(make_image(1, 30, 24), quality=90)
TURNED = Image.Exif()
TURNED[0x0112] = 6
OTHERS = {
    "exif": encode_image(make_image(1, 30, 24), exif=TURNED),
    "cmyk": encode_image(make_image(1, 30, 24, mode="CMYK")),
    "rgb": JPEG[:2] + b"\xff\xee\0\x0eAdobe\0d\0\0\0\0\0" + JPEG[20:],
    "png": encode_image(make_image(1, 30, 24), "PNG"),
    "two pictures": encode_image(make_image(1, 30, 24), "MPO", save_all=True, append_images=[make_image(2, 30, 24)]),
    "large": encode_image(make_image(1, 1030, 524)),
    "12 bits": JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    "arithmetic": JPEG.replace(b"\xff\xc0", b"\xff\xc9"),
    "lossless": JPEG.replace(b"\xff\xc0", b"\xff\xc3"),
    "empty": b"",
    "start alone": b"\xff\xd8\xff",
    "no pixels": JPEG.replace(struct.pack(">HH", 24, 30), bytes(4)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_jpegs_that_are_not_plain_are_decoded_by_pillow(tmp_path, kind):
    (tmp_path / "a.jpg").write_bytes(OTHERS[kind])
    assert turbojpeg.read_plain_jpeg_size(OTHERS[kind]) is None
    assert decoders_agree(tmp_path / "a.jpg")


def test_a_truncated_header_has_a_size_or_none():
    for length in range(len(JPEG)):
        result = turbojpeg.read_plain_jpeg_size(JPEG[:length])
        assert result == (30, 24) if result else length < JPEG.index(b"\xff\xda") + 4, length
    assert turbojpeg.read_plain_jpeg_size(JPEG[: JPEG.index(b"\xff\xc0") + 9]) is None


@pytest.mark.parametrize("ends", range(-2, 12))
def test_a_header_may_end_anywhere_in_what_is_read_first(tmp_path, ends):
    # a comment moves the frame across the end of the first bytes that are read
    frame = JPEG.index(b"\xff\xc0")
    length = turbojpeg.HEADER_BYTES - frame - 2 - ends
    comment = b"\xff\xfe" + struct.pack(">H", length) + b"c" * (length - 2)
    (tmp_path / "a.jpg").write_bytes(JPEG[:frame] + comment + JPEG[frame:])
    assert decoders_agree(tmp_path / "a.jpg")


def test_with_different_pixels_it_is_not_used_and_warns_once(monkeypatch):
    right = turbojpeg.decode_jpeg
    monkeypatch.setattr(turbojpeg, "decode_jpeg", lambda content: right(content) ^ 1)
    with pytest.warns(GluonlabWarning, match="produce different pixels, so simplejpeg is not used") as warning:
        assert not turbojpeg.matches_pillow() and not turbojpeg.matches_pillow()
    assert len(warning) == 1


def test_without_simplejpeg_pillow_decodes_all_images(monkeypatch):
    monkeypatch.setattr(turbojpeg, "simplejpeg", None)
    assert not turbojpeg.matches_pillow()
