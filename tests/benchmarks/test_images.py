"""python -m gluonlab.bench images: every reader reads every image, and the table says what was
measured.
"""

import json
from dataclasses import replace

import pytest
from PIL import Image

from benchmarks import image_readers, images
from benchmarks.__main__ import main
from benchmarks.images import BATCH_SIZE, Photographs, make_jpegs, make_rows, subjects, table
from gluonlab.bench.harness.rounds import Measurement, Subject, image_rates

pytestmark = pytest.mark.cpu_only("bench images reads for two CPU devices")
SMALL = Photographs(20, 16, 8, BATCH_SIZE + 2)


@pytest.fixture
def folder(tmp_path):
    make_jpegs(tmp_path / "set", SMALL)
    return tmp_path / "set"


def measured(name, speeds):
    answers = [{"images": 10 * speed, "seconds": 10.0} for speed in speeds]
    return Measurement(Subject(name, f"the {name}", "images"), answers, steps=1)


def test_the_jpegs_are_those_promised(folder):
    paths = sorted((folder / "train").rglob("*.jpg"))
    assert len(paths) == SMALL.count
    with Image.open(paths[0]) as image:
        assert (image.format, image.size) == ("JPEG", (20, 16))


@pytest.mark.parametrize("reader", image_readers.READERS)
def test_a_reader_counts_whole_epochs(folder, tmp_path, monkeypatch, reader):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = image_readers.make(reader, str(folder), SMALL.size)(steps=2)
    assert answer["images"] == 2 * SMALL.count
    assert answer["seconds"] > 0


@pytest.mark.torch
def test_pytorchs_loader_is_measured_by_a_worker_of_its_own(python, folder):
    [subject] = [each for each in subjects(folder, SMALL.size) if each.name == images.PEER]
    done = python(*subject.command()[1:])
    assert json.loads(done.stdout) == {"ready": True}, done.stderr


def rows_of(label, measurements):
    for one in measurements:
        one.subject = replace(one.subject, name=f"{label}: {one.subject.name}")
    return make_rows(image_rates(measurements))


def test_the_rows_are_images_per_second_beside_pytorchs():
    rows = rows_of(
        "a -> b", [measured("packed", [10, 20, 40]), measured(images.PEER, [10, 10, 10])]
    )
    assert [(row.images_per_second, row.lowest, row.highest, row.ratio) for row in rows] == [
        (20, 10, 40, 2.0),
        (10, 10, 10, 1.0),
    ]
    broken = Measurement(Subject("record", "the record", "images"), reason="it died " * 30)
    text = table([*rows, *rows_of("a -> b", [broken])], rounds=3)
    assert max(map(len, text.splitlines())) <= 80
    assert "2.00x" in text and "it died" in text


def test_the_command_prints_every_set(ended, monkeypatch):
    monkeypatch.setattr(images, "SETS", (SMALL,))
    monkeypatch.setattr(
        images,
        "measure",
        lambda subjects, rounds: [measured(each.name, [5.0] * rounds) for each in subjects],
    )
    monkeypatch.setattr("gluonlab.bench.harness.machine.Others.cores", lambda self: 0.0)
    status, out, err = ended(main, "images", "--rounds", "2", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)["series"]
    assert {(one["name"].partition(":")[0], *one["values"]) for one in found} == {
        ("20x16 -> 8x8", 5.0, 5.0)
    }
    status, out, err = ended(main, "images", "--rounds", "2")
    assert (status, err) == (0, "")
    assert "20x16 -> 8x8" in out
