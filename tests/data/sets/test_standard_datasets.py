"""MNIST's IDX files and CIFAR-10's batches are read exactly; errors name the file."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.idx_files import MNIST_NAMES, idx_bytes, write_file, write_mnist
from support.made_up_sources import BATCHES, RECORDS, cifar_batches

from gluonlab.data import load_dataset
from gluonlab.data.sets import standard_datasets
from gluonlab.data.sets.standard_datasets import RECORD_BYTES, read_cifar_records, read_idx, read_idx_split
from gluonlab.errors import DataError

SMALL = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return one folder for all examples of a property."""
    return tmp_path_factory.mktemp("files")


@given(
    st.integers(1, 4).flatmap(lambda n: st.tuples(*[st.integers(0, 5)] * n)),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["a", "a.gz"]),
)
def test_any_array_is_read_back(folder, shape, seed, name):
    array = np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)
    read = read_idx(write_file(folder / name, idx_bytes(array)), dimensions=len(shape))
    assert (read.dtype, read.shape) == (np.uint8, shape)
    assert np.array_equal(read, array)


CUT = [
    (name, content[:length])
    for name, content in {
        "cut": idx_bytes(SMALL),
        "cut.gz": gzip.compress(idx_bytes(SMALL)),
        "short.gz": gzip.compress(idx_bytes(SMALL)[:-1]) + b"!",
        "plain.gz": idx_bytes(SMALL) + b"!",  # not gzip at all
    }.items()
    for length in range(len(content))
]


def test_every_truncation_is_an_error_that_names_the_file(folder):
    for name, content in CUT:
        (folder / name).write_bytes(content)
        with pytest.raises(DataError, match=f"/{name}: .*: download it again, or use another --data"):
            read_idx(folder / name, dimensions=3)


@given(st.data())
def test_a_damaged_gzip_file_never_passes_for_another(folder, data):
    """gzip's checksum finds a flipped byte, unless the byte means nothing, such as one of a time stamp."""
    content = bytearray(write_file(folder / "whole.gz", idx_bytes(SMALL)).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = folder / "damaged.gz"
    path.write_bytes(bytes(content))
    try:
        assert np.array_equal(read_idx(path, dimensions=3), SMALL)
    except DataError as error:
        assert str(path) in str(error)


SIZES = st.sampled_from([0, 1, 2, 28, 2**16, 2**31, 2**32 - 1])
SHAPE_HEADERS = st.tuples(SIZES, SIZES, SIZES).map(lambda shape: make_header(*shape))


@given(st.binary(max_size=16) | SHAPE_HEADERS, st.binary(max_size=4), st.sampled_from([1, 3]))
def test_a_damaged_header_raises_only_a_data_error(folder, header, rest, dimensions):
    path = write_file(folder / "fuzz", header + idx_bytes(SMALL)[len(header) :] + rest)
    try:
        assert read_idx(path, dimensions).ndim == dimensions
    except DataError as error:
        assert str(path) in str(error)


def test_a_file_that_expands_a_thousandfold_is_read(folder):
    zeros = np.zeros((20_000, 28, 28), np.uint8)
    path = write_file(folder / "zeros.gz", idx_bytes(zeros))
    assert path.stat().st_size < zeros.nbytes / 200
    assert np.array_equal(read_idx(path, 3), zeros)


def make_header(*shape):
    return struct.pack(">HBB3I", 0, 8, 3, *shape)


ZEROS = gzip.compress(bytes(2**27), 1)  # the members of a gzip file may be chained
BOMBS = {
    "a huge shape": (make_header(*[2**32 - 1] * 3), "truncated: 16 bytes, but its header"),
    "more than it promises": (
        gzip.compress(idx_bytes(SMALL) + bytes(2**26), 1),
        r"\.gz: too long: more than the 40 bytes that its header \(2, 3, 4\) announces",
    ),
    **{
        f"more than it can inflate to, {promised}": (
            gzip.compress(make_header(promised, 28, 28) + bytes(2**20), 1),
            f"announces {promised * 784 + 16} bytes, more than the maximum decompressed size of [0-9]+",
        )
        for promised in (2**21, 2**32 - 1)
    },
    "more than a gibibyte": (
        gzip.compress(make_header(2**15 + 1, 2**15, 1)) + ZEROS * 8,
        f"announces {2**30 + 2**15 + 16} bytes, more than the maximum decompressed size of {2**30}",
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_is_a_bomb_is_refused_with_little_memory(folder, kind):
    content, message = BOMBS[kind]
    path = folder / ("bomb" if content[:2] == b"\0\0" else "bomb.gz")
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it starts with nothing, expected 00 00 08 03"),
        (b"<htm", "it starts with 3c 68 74 6d"),
        (b"\0\0\x0d\x03" + bytes(12), "values of type 0x0d, expected unsigned bytes"),
        (idx_bytes(SMALL[0]), "2 dimensions, expected 3"),
        (idx_bytes(SMALL)[:10], "truncated in its header: 10 of 16 bytes"),
        (idx_bytes(SMALL)[:-1], r"truncated: 39 bytes, but its header \(2, 3, 4\) announces 40"),
        (idx_bytes(SMALL) + b"\0", r"too long: more than the 40 bytes that its header \(2, 3, 4\) announces"),
    ],
)
def test_a_fault_of_an_idx_file_is_described(folder, content, message):
    with pytest.raises(DataError, match=message):
        read_idx(write_file(folder / "wrong", content), 3)


@pytest.mark.parametrize(
    ("images", "labels", "named", "message"),
    [
        ((3, 28, 28), [0, 9, 10], "labels", "label 10 at position 2, expected 0 to 9"),
        ((3, 28, 28), [0, 1], "labels", "2 labels for the 3 images of images"),
        ((2, 28, 27), [0, 1], "images", "images of 28x27 pixels, expected 28x28"),
        ((0, 28, 28), [], "images", "it contains no images"),
    ],
)
def test_images_and_labels_must_fit_each_other(folder, images, labels, named, message):
    images_path = write_file(folder / "images", idx_bytes(np.zeros(images, np.uint8)))
    labels_path = write_file(folder / "labels", idx_bytes(np.array(labels, np.uint8)))
    with pytest.raises(DataError, match=f"/{named}: {message}"):
        read_idx_split(images_path, labels_path, classes=10)


# --- the four files of a data set


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("below", ["", "NAME"])
def test_a_data_set_is_found_in_its_folder(tmp_path, name, ending, below):
    arrays = write_mnist(tmp_path / below.replace("NAME", name), ending=ending)
    dataset = load_dataset(name, str(tmp_path))
    assert (dataset.name, dataset.image_shape, len(dataset.classes)) == (name, (1, 28, 28), 10)
    for split, images, labels in ((dataset.train, *arrays[:2]), (dataset.test, *arrays[2:])):
        read_images, read_labels = split.batch(np.arange(len(split)))
        assert np.array_equal(read_images[:, 0], images)
        assert read_labels.dtype == np.int32 and np.array_equal(read_labels, labels)


def test_without_a_folder_the_files_are_named():
    with pytest.raises(
        DataError, match="run gluonlab data download mnist, or use another folder with --data-dir DIR"
    ) as error:
        load_dataset("mnist")
    assert all(name in str(error.value) for name in MNIST_NAMES)


@pytest.mark.parametrize("name", MNIST_NAMES)
def test_the_file_that_is_missing_is_named_and_no_other(tmp_path, name):
    write_mnist(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(
        DataError,
        match=rf"mnist is incomplete: cannot find {name} \(plain or .gz\) in {tmp_path}/mnist or {tmp_path}: run",
    ):
        load_dataset("mnist", str(tmp_path))


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_missing_folder_is_named(tmp_path, name):
    with pytest.raises(DataError, match=r"--data-dir .*/nowhere is not a folder"):
        load_dataset(name, str(tmp_path / "nowhere"))


@pytest.mark.parametrize("read", [lambda path: read_idx(path, 3), read_cifar_records])
def test_a_file_that_cannot_be_read_is_named(tmp_path, read):
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)


# --- CIFAR-10's batches


def write_batches(folder, records=RECORDS):
    folder.mkdir(parents=True, exist_ok=True)
    batches = cifar_batches(records)
    for name, content in batches.items():
        (folder / name).write_bytes(content)
    return batches


def read_by_definition(content):
    """Yield label and (3, 32, 32) image of each record, byte by byte as the format's page defines."""
    for begin in range(0, len(content), 3073):
        image = np.empty((3, 32, 32), np.uint8)
        for channel in range(3):
            for row in range(32):
                at = begin + 1 + channel * 1024 + row * 32
                image[channel, row] = list(content[at : at + 32])
        yield content[begin], image


@pytest.mark.parametrize("below", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_every_image_is_read_in_order(tmp_path, monkeypatch, below):
    batches = write_batches(tmp_path / below)
    monkeypatch.setenv("GLUONLAB_DATA", str(tmp_path))  # the usual folder
    dataset = load_dataset("cifar10", records=RECORDS)
    assert (dataset.name, dataset.classes) == ("cifar10", standard_datasets.CIFAR_CLASSES)
    for split, names in ((dataset.train, BATCHES[:5]), (dataset.test, BATCHES[5:])):
        images, labels = split.batch(np.arange(len(split)))
        expected = [record for name in names for record in read_by_definition(batches[name])]
        assert len(split) == len(expected) == RECORDS * len(names)
        assert labels.tolist() == [label for label, _ in expected]
        assert np.array_equal(images, np.stack([image for _, image in expected]))


@pytest.mark.parametrize("name", BATCHES[::5])
def test_the_batch_that_is_missing_is_named_with_the_command_that_fetches_it(tmp_path, name):
    write_batches(tmp_path / "cifar10")
    (tmp_path / "cifar10" / name).unlink()
    with pytest.raises(
        DataError, match=f"cifar10 is incomplete: cannot find {name} in {tmp_path}/cifar10 or "
    ) as error:
        load_dataset("cifar10", str(tmp_path), records=RECORDS)
    assert f"gluonlab data download cifar10 --data-dir {tmp_path}" in str(error.value)


WHOLE = cifar_batches()[BATCHES[0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 0 bytes, but 3 images need 9,219"),
        (WHOLE[:-1], "truncated: 9,218 bytes, but 3 images need 9,219"),
        (WHOLE[: 2 * RECORD_BYTES], "truncated: 6,146 bytes"),
        (WHOLE + b"\0", "too long: more than 9,219 bytes, but 3 images need 9,219"),
        (WHOLE[:RECORD_BYTES] + b"\x0a" + WHOLE[RECORD_BYTES + 1 :], "label 10 at position 1, expected 0 to 9"),
        (WHOLE[: 2 * RECORD_BYTES] + b"\xff" + WHOLE[2 * RECORD_BYTES + 1 :], "label 255 at position 2"),
    ],
)
def test_a_fault_of_a_batch_is_described(tmp_path, content, message):
    write_batches(tmp_path)
    with pytest.raises(DataError, match="but 10,000 images need 30,730,000"):
        load_dataset("cifar10", str(tmp_path))
    (tmp_path / BATCHES[3]).write_bytes(content)
    with pytest.raises(DataError, match=rf"/{BATCHES[3]}: {message}.*: download it again, or use another --data-dir$"):
        load_dataset("cifar10", str(tmp_path), records=RECORDS)


@given(st.integers(0, 4 * RECORD_BYTES), st.lists(st.tuples(st.integers(0, 3 * RECORD_BYTES - 1), st.integers(0, 255))))
def test_a_damaged_batch_raises_only_a_data_error(folder, length, changes):
    content = bytearray(WHOLE)
    for position, value in changes:
        content[position] = value
    path = folder / "fuzz.bin"
    path.write_bytes(bytes(content[:length]) + bytes(max(0, length - len(content))))
    whole = length == len(content) and max(content[::RECORD_BYTES]) < 10
    try:
        assert read_cifar_records(path, RECORDS).tobytes() == content
        assert whole
    except DataError as error:
        assert str(path) in str(error)
        assert not whole
