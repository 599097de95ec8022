"""bench links on real devices: the matrices, and the topology file."""

import json
import re

import mxnet as mx
import pytest
from support.devices import device_spec, runs_on_gpus
from support.fake_nvml import CUBE, T4, V100, fake_driver

from gluonlab.bench.allreduce.memory_bandwidth import MemorySpeeds
from gluonlab.bench.links import measure_links, topology_from_links
from gluonlab.bench.links.infer_topology import (
    ALL,
    BOTH,
    INTO,
    OUT,
    SHIFT,
    DeviceMeasurement,
    LinkFit,
    list_simultaneous_groups,
)
from gluonlab.bench.links.measure_links import LinkMeasurement
from gluonlab.collectives.named_topologies import nvml_topology
from gluonlab.collectives.topology import all_pairs
from gluonlab.collectives.topology_file import read_topology
from gluonlab.errors import DeviceError

QUICK = ("--bytes", "4KiB,256KiB", "--rounds", "1")


@pytest.fixture
def links(bench, monkeypatch, empty_cwd):
    """Return ``links("--save", ...)``, which runs the command on three devices."""
    monkeypatch.setattr(measure_links, "BLOCK_S", 0.001)
    return lambda *more: bench("links", "--devices", device_spec(3), *QUICK, *more)


def test_a_saved_file_is_a_topology_for_other_commands(links, allreduce, empty_cwd):
    status, out, err = links("--save", "m.json", "--json")
    assert (status, err) == (0, "")
    record, topology = json.loads(out), read_topology(empty_cwd / "m.json")
    assert [(pair["from"], pair["to"]) for pair in record["pairs"]] == all_pairs(3)
    assert all(pair["bandwidth"] > 0 and pair["latency_us"] >= 0 for pair in record["pairs"])
    assert (record["rounds"], record["sizes"], len(record["adds"])) == (1, [4096, 2**18], 3)
    assert (topology.name, topology.world_size) == ("m", 3)
    note = r"measured on \d{4}-\d\d-\d\d by gluonlab .*1 rounds of 4 KiB to 256 KiB"
    assert re.match(note, topology.note)
    if runs_on_gpus():
        assert {group["copies"] for group in record["together"]} == {BOTH, OUT, INTO, SHIFT, ALL}
        assert "inferred" in topology.note and topology.gpu in ("V100", "")
    else:
        assert topology.routes == MemorySpeeds(**record["speeds"]).topology(3).routes
    simulate = "simulate m.json --json --bytes 1MiB"
    status, out, err = allreduce(*simulate.split())
    assert (status, err, json.loads(out)["topology"]) == (0, "", "m")
    measure = f"bench --devices {device_spec(3)} --topology m.json --algorithms ring --bytes 4KiB --rounds 1 --iters 1"
    for words, text in (("draw ring --topology m.json", "m, 3 devices"), (measure, "schedule on m,")):
        status, out, err = allreduce(*words.split())
        assert (status, err) == (0, "") and text in " ".join(out.split())


def test_the_table_is_printed_with_the_files_name_and_an_existing_file_stays(links, empty_cwd):
    status, out, err = links("--save", "m.json")
    assert (status, err) == (0, "")
    assert "GB/s to" in out and "us to" in out and "written to m.json" in out
    assert ("share one memory" in out) != runs_on_gpus()
    assert max(map(len, out.splitlines())) <= 80
    (empty_cwd / "m.json").write_text("mine")
    status, out, err = links("--save", "m.json")
    assert (status, out) == (2, "") and "--save m.json exists" in err
    assert (empty_cwd / "m.json").read_text() == "mine"


@pytest.mark.parametrize("world_size", [2, 8, 16])
@pytest.mark.parametrize("speeds", [None, MemorySpeeds(1e-5, 2e10, 1e10, 1e10, 5e9)])
def test_the_matrix_of_any_number_of_devices_fits_a_terminal(world_size, speeds):
    pairs = {pair: LinkFit(1.23456e-5, 123.456e9, 0.01) for pair in all_pairs(world_size)}
    together = dict.fromkeys([] if speeds else list_simultaneous_groups(pairs), 1.0)
    measured = DeviceMeasurement(world_size, pairs, [3e11] * world_size, 2**24, together)
    lines = measure_links.format_measurement(LinkMeasurement(measured, (4096, 2**24), 7, speeds)).splitlines()
    assert max(map(len, lines)) <= 80
    rows = " ".join(line for line in lines if line.lstrip().startswith("from")).split()
    assert rows.count("123.5") == rows.count("12.3") == world_size * (world_size - 1)


def test_gpus_are_numbered_as_nvidia_smi_does(monkeypatch):
    """Device i of the file is GPU i, however CUDA numbers the GPUs. Gaps are refused."""
    ctxs = [mx.gpu(number) for number in range(3)]
    for numbers, order in (([2, 0, 1], [1, 2, 0]), (None, [0, 1, 2])):
        monkeypatch.setattr(topology_from_links, "nvml_numbers", lambda ctxs, numbers=numbers: numbers)
        assert topology_from_links.order_devices(ctxs) == [ctxs[index] for index in order]
    monkeypatch.setattr(topology_from_links, "nvml_numbers", lambda ctxs: [4, 5, 7])
    with pytest.raises(DeviceError, match=r"GPUs 4, 5, 7 of .*: unset CUDA_VISIBLE_DEVICES, .* gpu:\*$"):
        topology_from_links.order_devices(ctxs)


@pytest.mark.parametrize(
    ("driver", "gpu"),
    [(fake_driver(*[V100] * 8, nvlinks=CUBE), "V100"), (fake_driver(*[T4] * 4), "T4"), (fake_driver(V100, T4), "")],
)
def test_the_links_that_nvml_reports_are_a_file(bench, allreduce, monkeypatch, empty_cwd, driver, gpu):
    monkeypatch.setattr(topology_from_links.nvml, "cached_driver", lambda: driver)
    status, out, err = bench("links", "--nvml", "--save", "m.json")
    assert (status, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    assert f"m: {len(driver.gpus)} GPUs, {gpu or 'of an unknown kind'}" in out
    written = read_topology(empty_cwd / "m.json")
    expected = nvml_topology(driver, range(len(driver.gpus)))
    assert (dict(written.routes), written.groups) == (dict(expected.routes), expected.groups)
    assert (written.gpu, written.name) == (gpu, "m") and "links: reported by NVML" in written.note
    status, out, err = allreduce("simulate", "m.json", "--bytes", "1MiB", "--json")
    assert (status, err, json.loads(out)["world_size"]) == (0, "", len(driver.gpus))


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (topology_from_links.nvml.Driver(error="no driver"), r"reports no links \(no driver\): measure"),
        (fake_driver(V100), "NVML reports only 1 GPU, but a link connects two GPUs: measure"),
        (topology_from_links.nvml.Driver(unreadable_gpus=((1, "lost"),)), r"GPU 1 does not answer \(lost\)"),
    ],
)
def test_without_a_driver_or_gpus_it_is_one_line_and_no_file(bench, monkeypatch, empty_cwd, driver, words):
    monkeypatch.setattr(topology_from_links.nvml, "cached_driver", lambda: driver)
    status, out, err = bench("links", "--nvml", "--save", "m.json")
    assert (status, out, err.count("\n")) == (2, "", 1) and re.search(words, err)
    assert not list(empty_cwd.iterdir())
