"""The tables of docs say what the records say."""

import re
from pathlib import Path

import figures
import pytest

from gluonlab.bench.harness.record import Record, Series
from gluonlab.engine import openmp


def record(bench, *series, **options):
    return Record(bench, options, 3, "t", {}, series)


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_peers_are_compared_with_the_first_row_round_by_round():
    ours = Series("gluonlab-2x1", "", "images/s", (4000.0, 5000.0, 9000.0))
    peer = Series("torch-eager", "", "images/s", (2000.0, 5000.0, 3000.0))
    broken = Series("torch-ddp", "", "images/s", (), "it died")
    table = cells(figures.peers_table(record("peers", ours, peer, broken)))
    assert table[0] == ["", "images/s", "gluonlab, 2 devices, is faster by"] and set(table[1]) == {
        "---",
        "---:",
    }
    assert table[2:] == [
        ["gluonlab, 2 devices", "5,000", ""],
        ["PyTorch, 2 threads", "3,000", "2.00x"],
    ]


def test_gradients_show_our_best_beside_others():
    seconds = {
        "ring": 0.002,
        "star": 0.004,
        "device": 0.006,
        "chapter": 0.008,
        figures.LIMIT: 0.001,
    }
    sums = [
        Series(f"allreduce 2 {arrays} {name}", "", "s", (value * 1.01,))
        for arrays in (1, 16)
        for name, value in seconds.items()
    ]
    steps = [
        Series(f"step 2 {kind} {store}", "", "s", (value,))
        for kind, store, value in (
            ("gluon.Trainer", "device", 0.09),
            ("BucketedTrainer", "device", 0.06),
            ("BucketedTrainer", "ring", 0.03),
        )
    ]
    table = cells(figures.gradients_table(record("gradients", *sums, *steps, size="46MB")))
    assert table[2] == [
        "2 devices: allreduce, 46 MB in one array, `ring`",
        "2.0 ms",
        "3.00x",
        "4.00x",
        "50%",
    ]
    assert table[4][1:3] == ["30.0 ms", "3.00x under gluon.Trainer, 2.00x in buckets"]


def test_images_and_host_have_their_columns():
    images = [
        Series(f"a -> b: {name}", "", "images/s", (rate,))
        for name, rate in (("packed", 400.0), ("torch", 100.0))
    ]
    assert cells(figures.images_table(record("images", *images)))[2:] == [
        ["gluonlab, packed", "400 (4.00x)"], ["PyTorch's DataLoader, 2 workers, Pillow", "100"]
    ]  # fmt: skip
    host = [
        Series(f"host-gluon-2 {name}", "Gluon's loop", "us", (7.4,))
        for name in ("forward", "total")
    ]
    assert cells(figures.host_table(record("host", *host)))[2] == [
        "Gluon's loop",
        "2",
        "7",
        "-",
        "-",
        "-",
        "7",
        "-",
    ]


def test_threads_are_compared_with_openmp_as_it_comes_round_by_round():
    rates = {
        "gluonlab quiet": (100.0, 300.0, 900.0),
        "openmp quiet": (50.0, 300.0, 300.0),
        "gluonlab beside": (7.0,),
    }
    found = [Series(f"lenet {name}", "", "images/s", values) for name, values in rates.items()]
    pair = Series("lenet sharing quiet", "", "images/s", (4800.0,))
    table = cells(figures.threads_table(record("threads", *found, pair)))
    assert len(table[0]) == 5 and table[0][1:3] == [
        "LeNet alone",
        "LeNet beside a process that computes",
    ]
    assert table[2:] == [
        ["1,000 looks, as gluonlab sets it", "300 (2x)", "7", "", ""],
        ["OpenMP as it comes: 300,000 looks", "300", "", "", ""],
        ["two `dist_sync` workers that share the cores", "4,800", "", "", ""],
    ]
    assert f"{int(openmp.SPIN_COUNT):,} looks" in table[2][0]
    busy = Record("threads", {}, 3, "t", {"cores": 2, "others": 1.64}, (pair,))
    assert figures.threads_table(busy).endswith(
        "|\n\nOther programs kept 1.6 of 2 cores busy during all of it.\n"
    )


def test_splits_are_compared_with_one_device_and_their_bubbles_with_the_ideal():
    values = {
        "step one": (1.0, 2.0, 4.0),
        "step data": (0.5, 1.0, 2.0),
        "memory data 0": (3e6,),
        "memory data 1": (4e6,),
        "moved data": (5e6,),
        "links data": (0.002,),
        "step 1f1b": (0.8,),
        "memory 1f1b 0": (1e6,),
        "memory 1f1b 1": (2e6,),
        "alone 1f1b 0": (0.6,),
        "alone 1f1b 1": (0.6,),
        "price 1f1b": (0.7,),
        "price bubble 1f1b": (0.125,),
        "host 1f1b": (5e-6,),
    }
    found = [Series(name, name, "s", value) for name, value in values.items()]
    absent = ("layers", "channels", "gpipe", "interleaved")
    found += [Series(f"step {name}", name, "s", (), "it cannot") for name in absent]
    table = cells(figures.splits_table(record("splits", *found, microbatches=8)))
    assert table[3][:5] == ["data", "1000.0 ms", "2.00x", "5.0 MB", "2.00 ms"]
    assert table[3][5:] == ["3 4 MB", "", "", ""]
    assert table[4][:3] == ["pipeline, `1f1b`", "800.0 ms", "1.25x"]
    assert table[4][5:] == ["1 2 MB", "25%", "12%", "11%"] and len(table) == 5


def test_checkpoints_are_compared_with_the_steps_alone_round_by_round():
    seconds = {"none": (0.1, 0.2, 0.1), "checkpoints": (0.102, 0.204, 0.3), "check 10": (0.2,)}
    found = [Series(name, name, "s", values) for name, values in seconds.items()]
    table = cells(figures.checkpoints_table(record("checkpoints", *found)))
    assert table[0] == ["", "a step", "longer by", "95 % interval"]
    assert table[2:] == [
        ["nothing is kept", "100.0 ms", "", ""],
        ["`--checkpoint-every 50`", "204.0 ms", "2.0 %", ""],
        ["`--check-replicas 10`", "200.0 ms", "100.0 %", ""],
    ]


def test_processes_stand_beside_one_with_as_many_devices():
    rates = {"1x1": (100.0,), "1x2": (200.0,), "2x1 dist_sync": (180.0,), "2x1 horovod": ()}
    found = [Series(name, name, "images/s", values) for name, values in rates.items()]
    options = {"network": "lenet", "scaling": "weak", "processes": "1,2", "gpus": "1"}
    table = cells(
        figures.scaling_table(record("scaling", *found, **options, backends="dist_sync,horovod"))
    )
    assert table[2:] == [
        ["1", "", "1", "64", "100", "1.00x", "100%", ""],
        ["1", "", "2", "128", "200", "2.00x", "100%", ""],
        ["2", "`dist_sync`, one server", "2", "128", "180", "1.80x", "90%", "0.90x"],
    ]


def test_the_pages_hold_what_the_records_say():
    texts = [page.read_text(encoding="utf-8") for page in figures.PAGES]
    shown = [name for text in texts for _, name, _ in figures.BLOCK.findall(text)]
    assert sorted(shown) == sorted(figures.TABLES)
    assert [figures.with_tables(text) for text in texts] == texts


def test_a_table_that_differs_from_its_record_is_made_anew(tmp_path):
    record("peers", Series("gluonlab-2x1", "", "images/s", (1.0,))).write(
        tmp_path / "peers-lenet.json"
    )
    text = "before\n<!-- figures: peers-lenet -->\nold\n<!-- end of figures -->\nafter\n"
    new = figures.with_tables(text, tmp_path)
    assert "old" not in new and "| gluonlab, 2 devices | 1 | |" in new
    assert new.startswith("before\n<!--") and new.endswith("-->\nafter\n")


@pytest.mark.parametrize("name", figures.TABLES)
def test_every_row_that_is_measured_has_a_name_in_the_readme(name):
    if name.startswith("peers"):
        subjects = figures.peers.COMPARISONS[name[len("peers-") :]].subjects()
        assert {subject.name for subject in subjects} <= set(figures.LABELS)
    elif name == "images":
        assert {subject.name for subject in figures.images.subjects(Path("x"), 1)} <= set(
            figures.LABELS
        )
    else:
        assert re.search(r"^(host|gradients|threads|splits|checkpoints|scaling-\w+)$", name)
