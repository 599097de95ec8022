"""CIFAR-10's binary files: what was written is read, and whatever is wrong with a file is said of
that file.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import named
from support.made_up_sources import BATCHES, RECORDS, cifar_batches

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.data.sets.cifar import CLASSES, RECORD_BYTES, read_records
from gluonlab.errors import DataError
from gluonlab.training.loop import train


def write_batches(folder, records=RECORDS):
    folder.mkdir(parents=True, exist_ok=True)
    batches = cifar_batches(records)
    for name, content in batches.items():
        (folder / name).write_bytes(content)
    return batches


def by_the_book(content):
    """Label and (3, 32, 32) image of each record, byte by byte as the format's page tells."""
    for begin in range(0, len(content), 3073):
        image = np.empty((3, 32, 32), np.uint8)
        for channel in range(3):
            for row in range(32):
                at = begin + 1 + channel * 1024 + row * 32
                image[channel, row] = list(content[at : at + 32])
        yield content[begin], image


@pytest.mark.parametrize(
    "below", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"]
)
def test_every_image_is_read_in_order(tmp_path, below):
    batches = write_batches(tmp_path / below)
    dataset = load_dataset("cifar10", str(tmp_path), records=RECORDS)
    assert (dataset.name, dataset.image_shape, dataset.classes) == ("cifar10", (3, 32, 32), CLASSES)
    for split, names in ((dataset.train, BATCHES[:5]), (dataset.test, BATCHES[5:])):
        images, labels = split.batch(np.arange(len(split)))
        expected = [record for name in names for record in by_the_book(batches[name])]
        assert len(split) == len(expected) == RECORDS * len(names)
        assert labels.tolist() == [label for label, _ in expected]
        assert np.array_equal(images, np.stack([image for _, image in expected]))


def test_the_usual_folder_is_read_when_none_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONLAB_DATA", str(tmp_path))
    write_batches(tmp_path / "cifar10")
    assert len(load_dataset("cifar10", records=RECORDS).train) == 5 * RECORDS


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"recipe": "quick"}, id="lenet"),
        pytest.param({}, id="cifar_resnet20", marks=pytest.mark.long),
    ],
)
def test_an_epoch_of_its_own_networks_runs(tmp_path, monkeypatch, asked):
    """They take images of 32x32 in three colours."""
    write_batches(tmp_path)
    dataset = load_dataset("cifar10", str(tmp_path), records=RECORDS)
    monkeypatch.setattr("gluonlab.training.plan.load_dataset", lambda name, root: dataset)
    common = dict(
        dataset="cifar10", devices=named(2), epochs=1, batch_size=4, out=str(tmp_path / "run")
    )
    result = train(TrainConfig(**common, **asked))
    assert result.plan.model == ("lenet" if asked else "cifar_resnet20")
    assert result.history[0].images == 5 * RECORDS


@pytest.mark.parametrize("name", BATCHES)
def test_the_file_that_is_missing_is_named_with_the_command_that_fetches_it(tmp_path, name):
    write_batches(tmp_path / "cifar10")
    (tmp_path / "cifar10" / name).unlink()
    with pytest.raises(DataError) as error:
        load_dataset("cifar10", str(tmp_path), records=RECORDS)
    assert f"cifar10 lacks {name}, in {tmp_path}/cifar10 and {tmp_path}: download" in str(
        error.value
    )
    assert f"python -m gluonlab.data download cifar10 --data-dir {tmp_path}" in str(error.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"--data-dir .*/nowhere is not a folder"):
        load_dataset("cifar10", str(tmp_path / "nowhere"))


WHOLE = cifar_batches()[BATCHES[0]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated, 0 bytes where 3 images take 9,219"),
        (WHOLE[:-1], "truncated, 9,218 bytes where 3 images take 9,219"),
        (WHOLE[: 2 * RECORD_BYTES], "truncated, 6,146 bytes"),
        (WHOLE + b"\0", "too long, more than 9,219 bytes where 3 images take 9,219"),
        (
            WHOLE[:RECORD_BYTES] + b"\x0a" + WHOLE[RECORD_BYTES + 1 :],
            "label 10 at position 1, expected 0 to 9",
        ),
        (
            WHOLE[: 2 * RECORD_BYTES] + b"\xff" + WHOLE[2 * RECORD_BYTES + 1 :],
            "label 255 at position 2",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, said):
    write_batches(tmp_path)
    (tmp_path / BATCHES[3]).write_bytes(content)
    with pytest.raises(
        DataError, match=rf"/{BATCHES[3]}: {said}.*: fetch it again, or give another --data-dir$"
    ):
        load_dataset("cifar10", str(tmp_path), records=RECORDS)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_records(tmp_path)


def test_whole_files_have_ten_thousand_images(tmp_path):
    write_batches(tmp_path)
    with pytest.raises(DataError, match="where 10,000 images take 30,730,000"):
        load_dataset("cifar10", str(tmp_path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all examples of a property."""
    return tmp_path_factory.mktemp("cifar")


@given(
    st.integers(0, 4 * RECORD_BYTES),
    st.lists(st.tuples(st.integers(0, 3 * RECORD_BYTES - 1), st.integers(0, 255))),
)
def test_no_file_raises_anything_but_a_data_error(folder, length, changes):
    content = bytearray(WHOLE)
    for position, value in changes:
        content[position] = value
    path = folder / "fuzz.bin"
    path.write_bytes(bytes(content[:length]) + bytes(max(0, length - len(content))))
    whole = length == len(content) and max(content[::RECORD_BYTES]) < 10
    try:
        assert read_records(path, RECORDS).tobytes() == content
        assert whole
    except DataError as error:
        assert str(path) in str(error)
        assert not whole
