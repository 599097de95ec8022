"""gluonlab study strategies: bench's measurement, kept round by round."""

import json

import pytest

from gluonlab.bench.harness.measurement_command import cpu_devices
from gluonlab.bench.measure_splits import measure_splits
from gluonlab.bench.splits import SPLIT_NAMES, TASKS

pytestmark = pytest.mark.cpu_only("the study is of CPU devices")


@pytest.mark.long
def test_each_round_is_kept_and_what_needs_no_clock_is_what_bench_says(study, tmp_path):
    folder = tmp_path / "study"
    words = ["--model", "mlp", "--microbatches", "2", "--rounds", "2", "--out", str(folder)]
    status, out, _ = study("strategies", *words, "--json")
    assert status == 0
    found = {one["name"]: one["values"] for one in json.loads(out)["series"]}
    assert [len(found[f"step {name}"]) for name in SPLIT_NAMES] == [2] * len(SPLIT_NAMES)
    cuts = json.loads((folder / "study.json").read_text())["options"]["cuts"]
    same = measure_splits(TASKS["mlp"], cpu_devices(2), 2, 2, rounds=1, cuts=cuts)
    assert {one.label for one in same} >= {f"{way}, cut {cut}" for way, cut in cuts.items()}
    for one in same:
        if one.name.startswith(("moved", "memory", "links")):
            assert found[one.name] == [*one.values] * 2
    assert (folder / "measurements.jsonl").read_text().count("\n") == 2

    before = (folder / "measurements.jsonl").read_bytes()
    status, _, _ = study("strategies", "--resume", str(folder), "--language", "ja")
    page = (folder / "study.html").read_text(encoding="utf-8")
    assert status == 0 and "分割" in page and page.count("<figure>") == 3
    assert (folder / "measurements.jsonl").read_bytes() == before
