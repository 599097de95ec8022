"""gluonlab study scaling: the measurement of bench, kept by round, and its report."""

import json

import pytest

from gluonlab.bench.harness.measurement_record import Series
from gluonlab.study.scaling import build_report, list_cases

OPTIONS = {"network": "lenet", "devices": [1, 2], "stores": ["device", "ring"],
           "splits": ["layers"], "kinds": ["weak", "strong"], "rounds": 3}  # fmt: skip


def test_one_device_is_measured_once_for_each_kind_and_the_rest_with_several():
    found = [(case.kind, case.store_or_split, case.layout.devices, case.layout.global_batch_size)
             for case in list_cases(OPTIONS)]  # fmt: skip
    assert found == [
        ("weak", "device", 1, 64), ("weak", "device", 2, 128), ("weak", "ring", 2, 128),
        ("weak", "layers", 2, 128),
        ("strong", "device", 1, 128), ("strong", "device", 2, 128), ("strong", "ring", 2, 128),
        ("strong", "layers", 2, 128),
    ]  # fmt: skip


def series(missing="", options=OPTIONS):
    """Made-up rounds, in which the machine's speed changes and ring is 1.5 times one device."""
    for case in list_cases(options):
        name = case.name.replace(" ", "-")
        factor = {1: 1.0, 2: 1.8}[case.layout.devices] - {"ring": 0.3, "layers": 0.9}.get(case.store_or_split, 0)
        values = tuple(1000 * load * factor for load in (1.0, 0.5, 0.8))
        starts = tuple(2.0 + load + 0.25 * case.layout.devices for load in (0.1, 0.2, 0.3))
        gone = name == missing
        yield Series(name, name, "images/s", () if gone else values, "it died" if gone else None)
        yield Series(f"start {name}", name, "s", () if gone else starts)


def test_a_slow_round_changes_neither_speedups_nor_differences_of_start_times():
    report = build_report(list(series()), OPTIONS, "en")
    text = " ".join(report.sentences)
    assert "device, weak scaling: 64 images per device: 2 devices are 1.80 times as fast as one" in text
    assert "ring, strong scaling: 128 images over all devices: 2 devices are 1.50 times as fast as one" in text
    assert text.count("(95 % interval 1.50 to 1.50)") == 2
    assert "strategy: layers, weak scaling: 64 images per device: 2 devices are 0.90 tim" in text
    assert "2.45 s on 1 device, and after 2.70 s on 2: +0.25 s (95 % interval 0.25 to 0.25)" in text
    ring = next(row for row in report.tables[0].rows if row[0] == "ring")
    assert ring[2:4] == ["2", "128"] and ring[5:] == ["1.50", "1.50..1.50", "75%"]
    assert list(report.charts) == ["weak", "strong", "start"]
    assert "弱スケーリング" in build_report(list(series()), OPTIONS, "ja").charts["weak"].notes[0]


def test_a_failed_measurement_is_reported_and_left_out():
    report = build_report(list(series("weak-ring-2")), OPTIONS, "en")
    assert "weak-ring-2: it died." in report.sentences
    assert [row[0] for row in report.tables[0].rows if row[1] == "weak"] == ["device", "device", "strategy: layers"]


@pytest.mark.parametrize("kinds", [["weak", "strong"], ["weak"], ["strong"]], ids=str)
def test_start_times_are_reported_once_for_each_store_and_split(kinds):
    """The start does not depend on how the batch grows with the devices."""
    options = {**OPTIONS, "kinds": kinds}
    report = build_report(list(series(options=options)), options, "en")
    assert [row[:3] for row in report.tables[1].rows] == [
        ["device", "1", "2.45"], ["device", "2", "2.70"], ["ring", "2", "2.70"],
        ["strategy: layers", "2", "2.70"],
    ]  # fmt: skip
    [curve] = report.charts["start"].curves
    assert curve.points == [(1, pytest.approx(2.45)), (2, pytest.approx(2.7))]


@pytest.mark.long
@pytest.mark.cpu_only("the study is of CPU devices")
def test_rounds_are_kept_and_a_finished_study_measures_nothing_again(study, tmp_path):
    folder = tmp_path / "study"
    status, out, _ = study("scaling", "--quick", "--rounds", "1", "--out", str(folder), "--json")
    assert status == 0
    found = {one["name"]: one["values"] for one in json.loads(out)["series"]}
    assert len(found) == 12 and all(len(values) == 1 and values[0] > 0 for values in found.values())
    before = (folder / "measurements.jsonl").read_bytes()
    status, _, _ = study("scaling", "--resume", str(folder), "--language", "ja")
    assert status == 0 and (folder / "measurements.jsonl").read_bytes() == before
