"""The tables of docs agree with the records."""

import pytest

import figures
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.host.resources import ISA_LIMIT_VARIABLE

FLAGS = ["avx", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"]


PROCESSOR = {"vendor": "AuthenticAMD", "family": 25, "model": 17, "flags": FLAGS}
CPU = {"cpu": "AMD EPYC", "processor": PROCESSOR, "cores": 2}
ZEN_4 = {**CPU, "instruction_set": "AVX512_CORE", "began": "2026-11-29T01:02:03Z"}
ZEN_4_AVX2 = {**CPU, "instruction_set": "AVX2", ISA_LIMIT_VARIABLE: "AVX2", "began": "2026-11-30T01:02:03Z"}


def make_record(bench, *series, about=ZEN_4):
    return Record(bench, {}, 3, "t", about, series)


def test_peers_are_compared_with_the_first_row_round_by_round():
    ours = Series("gluonlab-2x1", "", "images/s", (4000.0, 5000.0, 9000.0))
    peer = Series("torch-eager", "", "images/s", (2000.0, 5000.0, 3000.0))
    broken = Series("torch-ddp", "", "images/s", (), "it died")
    heads, line, *rows = figures.peers_table(make_record("peers", ours, peer, broken)).splitlines()
    assert heads == "| | Zen 4 (AVX-512): images/s | speed-up of gluonlab, 2 devices |" and set(line) == set("|-:")
    assert rows == ["| gluonlab, 2 devices | 5,000 | |", "| PyTorch, 2 threads | 3,000 | 2.00x |"]


def test_the_pages_have_the_figures_of_the_records():
    texts = [page.read_text(encoding="utf-8") for page in figures.PAGES]
    names = [name for text in texts for _, name, _ in figures.BLOCK.findall(text)]
    assert sorted(names) == sorted([*figures.TABLES, figures.OVERVIEW])
    assert set(figures.TABLES) <= set(figures.TITLES)
    assert [figures.replace_tables(text) for text in texts] == texts


def test_a_table_that_differs_from_its_record_is_replaced(tmp_path):
    make_record("peers", Series("gluonlab-2x1", "", "images/s", (1.0,))).write(tmp_path / "peers-lenet.json")
    text = "before\n<!-- figures: peers-lenet -->\nold\n<!-- end of figures -->\nafter\n"
    new = figures.replace_tables(text, tmp_path)
    assert "old" not in new and "| gluonlab, 2 devices | 1 | |" in new
    assert new.startswith("before\n<!--") and new.endswith("-->\nafter\n")


def test_figures_of_another_kind_of_cpu_follow_the_first(tmp_path):
    rate = Series("host-gluon-2 total", "Gluon's loop", "us", (7.4,))
    make_record("host", rate).write(tmp_path / "host.json")
    make_record("host", rate, about=ZEN_4_AVX2).write(tmp_path / "host@avx2.json")
    text = "<!-- figures: host -->\n<!-- end of figures -->\n"
    lines = figures.replace_tables(text, tmp_path).splitlines()
    assert [line for line in lines if line.endswith(":")] == [
        "AMD EPYC, Zen 4 (AVX-512), 2 cores, 2026-11-29:",
        "AMD EPYC, Zen 4 limited to AVX2, 2 cores, 2026-11-30:",
    ]
    assert sum(line.startswith("| Gluon's loop | 2 |") for line in lines) == 2
    make_record("host", rate).write(tmp_path / "host@again.json")
    with pytest.raises(ValueError, match="host: two records are of one kind of CPU"):
        figures.replace_tables(text, tmp_path)
