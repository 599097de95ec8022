"""Records of measurements, and comparisons with confidence intervals."""

import json
import math
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gluonlab
from benchmarks import overhead
from benchmarks.__main__ import main
from benchmarks.compare import compare, find_slower_rows, format_comparison
from benchmarks.rates import paired_ratio, unpaired_ratio
from gluonlab.bench.harness import interleaved_rounds
from gluonlab.bench.harness.machine_info import OtherProcessLoad
from gluonlab.bench.harness.measurement_record import Record, Series, read_record
from gluonlab.errors import ConfigError, DataError

PACKAGE = Path(gluonlab.__file__).parent
ABOUT = {"cpu": "a", "cores": 2, "versions": {"python": "3.11"}, "others": 0.0}
SPEEDS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40)


def make_record(*series, turns="t", **changes):
    return Record("peers", {"network": "lenet"}, 3, turns, {**ABOUT, **changes}, tuple(series))


def rates(*values, name="ours"):
    return Series(name, name, "images/s", values)


@settings(max_examples=15)  # each writes a file
@given(SPEEDS, st.text(min_size=1), st.none() | st.text(), st.sampled_from(["images/s", "us", "s"]))
def test_a_record_is_read_as_it_was_written(tmp_path_factory, values, name, reason, unit):
    path = tmp_path_factory.mktemp("records") / "record.json"
    before = make_record(Series(name, "label", unit, tuple(values), reason), rates(1, 2))
    before.write(path)
    assert read_record(path) == before
    assert json.loads(path.read_text())["format"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ("[]", "is not a results file"),
        ("{}", "'format'"),
        ('{"format": 2}', "its format is 2 instead of 1"),
        ("[" * 100_000, "is not a results file"),
        (make_record(rates(1)).as_json().replace("[1]", "[0]"), "values that are not greater than 0"),
        (make_record(rates(1)).as_json().replace("[1]", "[NaN]"), "values that are not greater than 0"),
        (make_record(rates(1)).as_json().replace('"peers"', "7"), "bench is not of type str"),
        (make_record(rates(1)).as_json().replace('"unit": "images/s", ', ""), "'unit'"),
    ],
)
def test_an_invalid_record_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(DataError, match="pass a file written by gluonlab bench with --out-file") as raised:
        read_record(path)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_texts_of_a_record_have_no_effect_on_a_terminal(tmp_path, ended):
    odd = "\\u001b[2J"
    path = tmp_path / "record.json"
    written = make_record(rates(1)).as_json()
    path.write_text(written.replace('"ours"', f'"{odd}"').replace('"peers"', f'"{odd}"'))
    status, out, _ = ended(main, "compare", str(path), str(path))
    assert status == 0 and r"\x1b[2J" in out and "\x1b" not in out


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.write_bytes(b"0" * 2**24 + b"0")])
def test_a_pipe_and_a_large_file_are_refused_at_once(tmp_path, make):
    make(tmp_path / "record.json")
    with pytest.raises(DataError):
        read_record(tmp_path / "record.json")


@pytest.mark.parametrize("n", range(1, 60))
def test_the_interval_of_pairs_is_that_of_scipys_sign_test(n):
    """Its ends are the outermost medians that a two-sided test at 5 % does not reject."""
    ratios = [random.Random(i).lognormvariate(0, 1) for i in range(n)]
    interval = paired_ratio(ratios, [1.0] * n)
    medians = [
        (low + high) / 2
        for i, (low, high) in enumerate(zip([0, *sorted(ratios)], [*sorted(ratios), 1e9]))
        if stats.binomtest(i, n).pvalue > 0.05
    ]
    if medians[0] < min(ratios):  # not even below all of them: there is no interval
        assert interval.lowest is None and n < 6
    else:
        outer = [ratio for ratio in ratios if not medians[0] < ratio < medians[-1]]
        lowest, highest = (max(r for r in outer if r < medians[0]), min(r for r in outer if r > medians[-1]))
        assert (interval.lowest, interval.highest) == (lowest, highest)


@pytest.mark.parametrize(
    ("interval", "paired"), [(paired_ratio, True), (unpaired_ratio, False)], ids=["in turns", "separate"]
)
def test_intervals_contain_the_true_ratio_in_95_of_100_cases(interval, paired):
    """In turns, slow rounds are slow for both. The rounds have long tails."""
    chance, inside, runs = random.Random(0), 0, 2000
    for _ in range(runs):
        drift = [chance.lognormvariate(0, 0.3) if paired else 1.0 for _ in range(15)]
        below = [d * math.exp(chance.expovariate(20)) for d in drift]
        above = [0.97 * d * math.exp(chance.expovariate(20)) for d in drift]
        result = interval(above, below)
        inside += result.lowest <= 0.97 <= result.highest
    assert 0.945 <= inside / runs <= 0.975


def test_more_images_and_fewer_microseconds_are_both_faster():
    first = make_record(rates(10, 20, 40), Series("time", "time", "us", (4.0, 8.0, 6.0)))
    second = make_record(rates(20, 40, 80), Series("time", "time", "us", (2.0, 4.0, 3.0)))
    assert [row.ratio.value for row in compare(first, second).rows] == [2, 2]
    assert [row.ratio.value for row in compare(second, first).rows] == [0.5, 0.5]


def test_rounds_are_paired_only_when_they_were_measured_in_turns():
    first, second = rates(*[10.0 * n for n in range(1, 9)]), rates(*[11.0 * n for n in range(1, 9)])
    paired = compare(make_record(first), make_record(second))
    [row] = paired.rows
    assert paired.in_turns and (row.ratio.lowest, row.ratio.highest) == pytest.approx((1.1, 1.1))
    apart = compare(make_record(first), make_record(second, turns="other"))
    assert not apart.in_turns and apart.rows[0].ratio.lowest < 0.8
    assert "not measured in turns" in " ".join(apart.notes)


def test_other_machines_loads_and_instruction_sets_are_named_if_both_records_have_them():
    old = make_record(rates(1))
    with_, without = (make_record(rates(1), instruction_set=name) for name in ("AVX512_CORE", "AVX2"))
    notes = ["cpu: a and b.", "Other processes kept 1.2 cores busy during the second."]
    assert compare(old, make_record(rates(1), cpu="b", others=1.25)).notes == notes
    [note] = compare(with_, without).notes
    assert "different instruction sets: AVX512_CORE and AVX2. " in note
    assert compare(with_, with_).notes == compare(old, without).notes == []


def test_different_measurements_are_not_compared():
    other = replace(make_record(), options={"network": "resnet18"})
    with pytest.raises(ConfigError, match="lenet and peers --network resnet18 are different measurements: compare"):
        compare(make_record(), other)


def test_a_row_is_slower_only_when_its_whole_interval_is():
    first = make_record(rates(*[1.0] * 15), rates(*[1.0] * 15, name="noisy"))
    second = make_record(rates(*[0.95] * 15), rates(*[0.9, 1.0] * 7, 0.9, name="noisy"))
    comparison = compare(first, second)
    assert find_slower_rows([comparison], 0.97) == ["peers --network lenet: ours"]
    assert max(map(len, format_comparison(comparison).split("\n"))) <= 80


def test_the_command_compares_files_and_folders(ended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, value in (("a", 100.0), ("b", 90.0)):
        (tmp_path / folder).mkdir()
        make_record(rates(*[value] * 15)).write(tmp_path / folder / "peers.json")
    status, out, err = ended(main, "compare", "a", "b")
    assert (status, err) == (0, "") and "0.900  0.900..0.900" in out
    assert max(map(len, out.split("\n"))) <= 80
    limited = ("a/peers.json", "b/peers.json", "--json", "--fail-below", "0.97")
    status, out, err = ended(main, "compare", *limited)
    slow = "error: slower, below 0.97 with 95 % confidence: peers --network lenet: ours\n"
    assert (status, err) == (1, slow)
    assert json.loads(out)[0]["rows"][0]["ratio"] == {"value": 0.9, "lowest": 0.9, "highest": 0.9}
    for words, message in (
        ("a b/peers.json", "pass two files, or two directories"),
        ("a .", "contain no results files of the same name"),
        ("a/none.json a/peers.json", "cannot be read"),
    ):
        status, out, err = ended(main, "compare", *words.split())
        assert status == 2 and message in err and err.count("\n") == 1


@pytest.mark.long
def test_two_checkouts_take_turns(ended, tmp_path, monkeypatch):
    """The other is a copy whose job answers with its process id, to see that it restarts."""
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "gluonlab", ignore=shutil.ignore_patterns("__pycache__"))
    job = copy / "tools" / "benchmarks" / "host_jobs.py"
    job.parent.mkdir(parents=True)
    (job.parent / "__init__.py").touch()
    answer = "{'seconds': 0.1, 'total': os.getpid()}"
    job.write_text(f"import os\ndef make(kind, device_count):\n    return lambda steps: {answer}\n")
    monkeypatch.setattr(overhead, "DEVICE_COUNTS", (1,))
    monkeypatch.setattr(interleaved_rounds, "ROUND_S", 0.01)
    monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 0.0)
    out = tmp_path / "after.json"
    turns = ("overhead", "--rounds", "3", "--baseline", str(copy), "--restart-every", "2")
    status, text, err = ended(main, *turns, "--out-file", str(out))
    assert (status, err) == (0, "") and "host-gluonlab-1 total" in text
    ours, theirs = read_record(out), read_record(tmp_path / "after-baseline.json")
    first, second, third = theirs.find("host-gluonlab-1 total").values
    assert first == second != third
    assert ours.about["restart_every"] == theirs.about["restart_every"] == 2
    assert len(ours.find("host-gluonlab-1 forward").values) == 3
    assert ours.turns == theirs.turns and compare(theirs, ours).in_turns
    assert theirs.about["commit"] is None  # the copy is no checkout of git, whatever lies around it
