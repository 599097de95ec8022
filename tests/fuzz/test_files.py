"""Files with bytes changed, cut out or put in: data sets, images, archives, states, runs."""

import gzip
import json
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from PIL import Image
from support.damage import JSON_VALUES, corrupt_bytes, mutated_json
from support.fuzzing import allow_gluonlab_errors, fuzz_property
from support.image_folders import encode_image
from support.made_up_runs import make_run
from support.made_up_sources import make_tar
from support.records import write_records

from gluonlab.bench.harness.measurement_record import Record, Series, read_record
from gluonlab.collectives.named_topologies import p3_8xlarge
from gluonlab.collectives.topology_file import read_topology, write_topology
from gluonlab.data.fetching.download_sources import ArchiveContents
from gluonlab.data.fetching.extract_archive import unpack_archive
from gluonlab.data.images.decode_image import decode_image
from gluonlab.data.images.image_locations import open_image_file
from gluonlab.data.sets import packed_folder
from gluonlab.data.sets.csv_and_record_files import read_image_list, read_records
from gluonlab.data.sets.standard_datasets import read_cifar_records, read_idx
from gluonlab.optimizers import optimizer_states
from gluonlab.report.run_tables import format_results
from gluonlab.runs.run_reader import read_runs

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (24, 24, 3), np.uint8)
NUMBERS = (0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
JUNK = [struct.pack(form, n % 2**size) for n in NUMBERS for form, size in ((">I", 32), ("<Q", 64))]


MAGIC = struct.pack("<I", 0xCED7230A)  # with which the frames of a record file begin
IDX = struct.pack(">4I", 0x803, 5, 4, 3) + bytes(60)
CIFAR = bytes(3073 * 2)
IMAGES = {format: encode_image(Image.fromarray(PIXELS), format) for format in ("JPEG", "PNG")}
TAR = make_tar([(name, bytes(600)) for name in ("top/a.bin", "top/b/c.bin", "top/" + "d" * 150)], compress=False)
SERIES = (Series("a", "b", "images/s", (1.0, 2.0)),)
RECORD = json.loads(Record("peers", {"network": "lenet"}, 2, "t", {"cpu": "a"}, SERIES).as_json())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """``place(content, suffix)`` writes a file, which replaces the one before; returns its path."""
    folder = tmp_path_factory.mktemp("fuzz")

    def write(content, suffix=""):
        path = folder / f"file{suffix}"
        path.write_bytes(content)
        return path

    return write


@fuzz_property
@given(st.data(), st.booleans())
def test_an_idx_file_is_read_or_refused(place, data, compress):
    content = gzip.compress(IDX, mtime=0) if compress else IDX
    path = place(corrupt_bytes(data, content, junk=JUNK), ".gz" if compress else "")
    with allow_gluonlab_errors("IDX"):
        assert read_idx(path, 3).ndim == 3


@fuzz_property
@given(st.data())
def test_a_cifar_file_is_read_or_refused(place, data):
    path = place(corrupt_bytes(data, CIFAR))
    with allow_gluonlab_errors("CIFAR"):
        assert read_cifar_records(path, 2).shape == (2, 3073)


@fuzz_property
@given(st.data())
def test_a_record_file_is_read_or_refused(place, data):
    path = place(b"", ".rec")
    write_records(path, [b"0123456789", MAGIC * 3, b""], [0, 1, 2], names=["a/0", "b/1", "c/2"])
    changed = data.draw(st.sampled_from([path, path.with_suffix(".lst")]))
    changed.write_bytes(corrupt_bytes(data, changed.read_bytes(), junk=JUNK))
    with allow_gluonlab_errors("records"):
        result = read_records(path)
        sizes = [len(open_image_file(location).read()) for location in result.locations]
        assert sizes == [location.size for location in result.locations]
        assert all(name.isprintable() for name in result.label_names.values())


@fuzz_property
@given(st.data())
def test_a_list_of_images_is_read_or_refused(place, data):
    image = place(IMAGES["PNG"], ".png").name
    path = place(corrupt_bytes(data, f'image,label\n"{image}","a"\n'.encode()), ".csv")
    with allow_gluonlab_errors("lists"):
        result = read_image_list(path, path.parent)
        assert result.locations == [str(path.parent / image)] and result.labels[0].isprintable()


@fuzz_property
@given(st.data(), st.sampled_from(sorted(IMAGES)), st.none() | st.integers(0, 2**32 - 1))
def test_an_image_is_decoded_or_refused(place, data, format, seed):
    path = place(corrupt_bytes(data, IMAGES[format], junk=JUNK))
    with allow_gluonlab_errors("images"):
        assert decode_image(str(path), 8, seed).shape == (3, 8, 8)


@fuzz_property
@given(st.data(), st.booleans())
def test_an_archive_is_unpacked_below_its_folder_or_refused(tmp_path, data, compress):
    content = corrupt_bytes(data, TAR, junk=[b"../", b"/", b"\0", b"1", b"2", b"x", b"7777777"])
    (tmp_path / "a.tar").write_bytes(gzip.compress(content, mtime=0) if compress else content)
    target = tmp_path / "around" / "target"
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    with allow_gluonlab_errors("archives"):
        unpack_archive(tmp_path / "a.tar", target, ArchiveContents(10_000, max_files=9))
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert not any(path.is_symlink() for path in target.rglob("*"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "around"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a file of optimizer states."""
    path = tmp_path_factory.mktemp("states") / "states"
    weight = optimizer_states.ParameterState("weight", (2, 3), 4, (nd.ones((2, 3)),))
    states = optimizer_states.States("sgd", 4, {"momentum": 0.9}, (weight,))
    optimizer_states.write_states(path, optimizer_states.states_to_arrays(states))
    return path.read_bytes()


@fuzz_property
@given(st.data())
def test_optimizer_states_are_read_or_refused(place, saved, data):
    path = place(corrupt_bytes(data, saved, junk=JUNK))
    with allow_gluonlab_errors("optimizer states"):
        optimizer_states.read_states(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@fuzz_property
@given(st.data())
def test_a_runs_folder_is_read_or_refused(run, place, data):
    folder = place(b"").parent
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(run / name, folder / name)
    changed = folder / data.draw(st.sampled_from(["config.json", "metrics.jsonl"]))
    if data.draw(st.booleans()):
        changed.write_bytes(corrupt_bytes(data, changed.read_bytes(), junk=[b"[" * 9999, b"9" * 5000]))
    else:
        lines = changed.read_text().splitlines() if changed.suffix == ".jsonl" else []
        value = json.loads(lines[-1] if lines else changed.read_text())
        changed.write_text("\n".join([*lines[:-1], json.dumps(data.draw(mutated_json(value))), ""]))
    with allow_gluonlab_errors("runs"):
        format_results(read_runs([folder]))


PACKED = {"format": 1, "name": "a", "classes": ["a", "b"], "image_shape": [3, 8, 8]}


@fuzz_property
@given(st.data())
def test_a_packed_folder_is_read_or_refused(place, data):
    folder = place(b"").parent
    for kind in ("train", "test"):
        np.save(folder / f"{kind}-images.npy", np.zeros((2, 3, 8, 8), np.uint8))
        np.save(folder / f"{kind}-labels.npy", np.array([0, 1], np.int32))
    (folder / packed_folder.INDEX).write_text(json.dumps(PACKED))
    changed = data.draw(st.sampled_from(sorted([*folder.glob("*.npy"), folder / packed_folder.INDEX])))
    if changed.suffix == ".json" and data.draw(st.booleans()):
        changed.write_text(json.dumps(data.draw(mutated_json(PACKED))))
    else:
        changed.write_bytes(corrupt_bytes(data, changed.read_bytes()))
    with allow_gluonlab_errors("packed folders"):
        name, train, _, _ = packed_folder.read_packed(folder, None, data.draw(st.sampled_from([0, 2**20])))
        assert name.isprintable() and "/" not in name
        train.batch(np.arange(len(train)))


@fuzz_property
@given(st.data())
def test_a_record_of_a_measurement_is_read_or_refused(place, data):
    value = data.draw(mutated_json(RECORD) | JSON_VALUES)
    path = place(json.dumps(value).encode())
    if data.draw(st.booleans()):
        path = place(corrupt_bytes(data, path.read_bytes()))
    with allow_gluonlab_errors("records"):
        assert read_record(path).title.isprintable()


BY_HAND = {
    "name": "t", "devices": 3, "latency_s": 1e-5, "lane_bytes_per_s": 2e9, "gpu": "V100",
    "switches": ["a", {"name": "b", "bytes_per_s": 1e9}],
    "links": [{"between": [0, "a"], "lanes": 2}, {"between": [1, "a"], "bytes_per_s": 1e9},
              {"name": "c", "from": 2, "to": "b", "bytes_per_s": 1e9, "latency_s": 0},
              {"from": "b", "to": 2, "bytes_per_s": 1e9}, {"between": ["a", "b"], "lanes": 1}],
    "routes": [{"from": 0, "to": 1, "links": ["c"]}], "groups": [[0, 1], [2]],
}  # fmt: skip


@fuzz_property
@given(st.data(), st.booleans(), st.booleans())
def test_a_topology_is_read_or_refused(place, data, by_hand, bytewise):
    path = place(json.dumps(BY_HAND).encode(), ".json")
    if not by_hand:
        write_topology(p3_8xlarge(), path)
    content = path.read_bytes()
    if bytewise:
        path.write_bytes(corrupt_bytes(data, content, junk=[b"[" * 9999, b"9" * 5000, b"1e999"]))
    else:
        path.write_text(json.dumps(data.draw(mutated_json(json.loads(content)) | JSON_VALUES)))
    with allow_gluonlab_errors("topologies"):
        assert read_topology(path).name.isprintable()
