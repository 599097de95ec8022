"""The tables of docs say what the records say."""

import re
from pathlib import Path

import pytest

import figures
from gluonlab.bench.harness.record import Record, Series
from gluonlab.engine import openmp
from gluonlab.host.instruction_set import LIMIT
from kinds_of_cpu import kind_of

ZEN_4_FLAGS = ["avx", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"]


def about(instructions, model=17, family=25, flags=ZEN_4_FLAGS, cpu="AMD EPYC", **more):
    vendor = "GenuineIntel" if family == 6 else "AuthenticAMD"
    processor = {"vendor": vendor, "family": family, "model": model, "flags": flags}
    return {"cpu": cpu, "processor": processor, "instruction_set": instructions, **more}


ZEN_4 = about("AVX512_CORE", began="2026-11-29T01:02:03Z", cores=2)
ZEN_4_AVX2 = about("AVX2", **{LIMIT: "AVX2"}, began="2026-11-30T01:02:03Z", cores=2)


def record(bench, *series, about=ZEN_4, **options):
    return Record(bench, options, 3, "t", about, series)


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_peers_are_compared_with_the_first_row_round_by_round():
    ours = Series("gluonlab-2x1", "", "images/s", (4000.0, 5000.0, 9000.0))
    peer = Series("torch-eager", "", "images/s", (2000.0, 5000.0, 3000.0))
    broken = Series("torch-ddp", "", "images/s", (), "it died")
    table = cells(figures.peers_table(record("peers", ours, peer, broken)))
    heads = ["", "Zen 4 (AVX-512): images/s", "gluonlab, 2 devices, is faster by"]
    assert table[0] == heads and set(table[1]) == {"---", "---:"}
    assert table[2:] == [
        ["gluonlab, 2 devices", "5,000", ""],
        ["PyTorch, 2 threads", "3,000", "2.00x"],
    ]


def test_each_kind_of_cpu_has_columns_of_its_own():
    def measured(about, *rates):
        names = ("gluonlab-2x1", "classic", "torch-eager")[: len(rates)]
        series = [Series(name, "", "images/s", (rate,)) for name, rate in zip(names, rates)]
        return record("peers", *series, about=about)

    records = [measured(ZEN_4, 400.0, 100.0), measured(ZEN_4_AVX2, 300.0, 150.0, 200.0)]
    table = cells(figures.peers_table(*records))
    faster = "gluonlab, 2 devices, is faster by"
    heads = ["Zen 4 (AVX-512): images/s", faster, "Zen 4 limited to AVX2: images/s", faster]
    assert table[0] == ["", *heads]
    assert table[2:] == [
        ["gluonlab, 2 devices", "400", "", "300", ""],
        [figures.LABELS["classic"], "100", "4.00x", "150", "2.00x"],
        ["PyTorch, 2 threads", "-", "-", "200", "1.50x"],
    ]


@pytest.mark.parametrize(
    "of, kind",
    [
        (ZEN_4, "AMD EPYC, Zen 4 (AVX-512)"),
        (ZEN_4_AVX2, "AMD EPYC, Zen 4 limited to AVX2"),
        # a limit that leaves all that the CPU has
        (about("AVX512_CORE", **{LIMIT: "ALL"}), "AMD EPYC, Zen 4 (AVX-512)"),
        (about("AVX2", 1, flags=["avx2"], **{LIMIT: "AVX2"}), "AMD EPYC, Zen 3 (AVX2)"),
        (
            about("AVX512_CORE", 85, 6, cpu="Intel(R) Xeon(R) Processor @ 2.50GHz"),
            "Intel Xeon, Cascade Lake (AVX-512)",
        ),
        (
            about("AVX512_CORE", 85, 6, ZEN_4_FLAGS[:-1], "Intel(R) Xeon(R) CPU"),
            "Intel Xeon, Skylake (AVX-512)",
        ),
        (about("AVX2", 200, 25, ["avx2"], "AMD X"), "AMD X, family 25, model 200 (AVX2)"),
        ({"cpu": "aarch64", "instruction_set": ""}, "aarch64 (no vector instructions)"),
        ({"cpu": "AMD EPYC"}, "AMD EPYC, Zen 4 (AVX-512)"),  # older records
        ({"cpu": "Intel(R) Xeon(R) Processor"}, "Intel Xeon, model not recorded"),
        ({"cpu": "another"}, "another"),
    ],
)
def test_the_kind_of_a_cpu_is_read_from_its_record(of, kind):
    assert str(kind_of(of)) == kind


def test_networks_are_compared_before_and_after_optimize():
    rates = {"nin plain": (10.0, 20.0), "nin optimized": (20.0, 30.0), "lenet plain": (1.0,)}
    found = [Series(name, "", "images/s", values) for name, values in rates.items()]
    failed = Series("lenet optimized", "", "images/s", (), "the losses differ")
    table = cells(figures.optimize_table(record("optimize", *found, failed)))
    assert table[0] == ["images/s", "Zen 4 (AVX-512): as it is", "optimized", "is faster by"]
    assert table[2:] == [["d2l's NiN, batches of 8 of 96x96", "15", "25", "1.75x"]]


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
    assert sorted(shown) == sorted([*figures.TABLES, figures.OVERVIEW])
    assert set(figures.TABLES) <= set(figures.TITLES)
    assert [figures.with_tables(text) for text in texts] == texts


def test_a_table_that_differs_from_its_record_is_made_anew(tmp_path):
    record("peers", Series("gluonlab-2x1", "", "images/s", (1.0,))).write(
        tmp_path / "peers-lenet.json"
    )
    text = "before\n<!-- figures: peers-lenet -->\nold\n<!-- end of figures -->\nafter\n"
    new = figures.with_tables(text, tmp_path)
    assert "old" not in new and "| gluonlab, 2 devices | 1 | |" in new
    assert new.startswith("before\n<!--") and new.endswith("-->\nafter\n")


def test_figures_of_another_kind_of_cpu_lie_beside_the_first(tmp_path):
    rate = Series("host-gluon-2 total", "Gluon's loop", "us", (7.4,))
    record("host", rate).write(tmp_path / "host.json")
    record("host", rate, about=ZEN_4_AVX2).write(tmp_path / "host@avx2.json")
    text = "<!-- figures: host -->\n<!-- end of figures -->\n"
    lines = figures.with_tables(text, tmp_path).splitlines()
    assert [line for line in lines if line.endswith(":")] == [
        "AMD EPYC, Zen 4 (AVX-512), 2 cores, 2026-11-29:",
        "AMD EPYC, Zen 4 limited to AVX2, 2 cores, 2026-11-30:",
    ]
    assert sum(line.startswith("| Gluon's loop | 2 |") for line in lines) == 2
    record("host", rate).write(tmp_path / "host@again.json")
    with pytest.raises(ValueError, match="host: two records are of one kind of CPU"):
        figures.with_tables(text, tmp_path)


def test_the_overview_tells_measured_quoted_and_not_measured_apart(tmp_path):
    rate = Series("gluonlab-2x1", "", "images/s", (1.0,))
    record("peers", rate).write(tmp_path / "peers-lenet.json")
    record("peers", rate, about=ZEN_4_AVX2).write(tmp_path / "peers-lenet@avx2.json")
    other = about("AVX2", 1, 26, ["avx2"], began="2026-12-01T00:00:00Z")
    record("peers", rate, about=other).write(tmp_path / "peers-resnet18@other.json")
    heads, _, *rows = cells(figures.overview_table(tmp_path))
    assert heads == ["measured on", *map(str, figures.KINDS), "AMD EPYC, Zen 5 (AVX2)"]
    found = {row[0]: dict(zip(heads[1:], row[1:])) for row in rows}
    assert set(found) == set(figures.TITLES.values())
    names = list(figures.TITLES.values())
    first, second = (list(found[name].values()) for name in names[:2])
    assert first == ["2026-11-29", "2026-11-30", "quoted", "quoted", "not measured"]
    assert second == ["not measured"] * 4 + ["2026-12-01"]
    others = [cell for row in rows[2:] for cell in row[1:]]
    assert set(others) == {"not measured", "quoted"} and others.count("quoted") == 3


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
        assert re.search(
            r"^(host|optimize|gradients|threads|splits|checkpoints|scaling-\w+)$", name
        )
