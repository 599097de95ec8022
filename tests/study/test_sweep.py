"""Sweeps: every point once in each round, in turns, and never open_again; the folder that keeps them."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.full_disk import limit_file_size
from support.processes import REPOSITORY

import gluonlab
from gluonlab.errors import ConfigError, DataError, DivergedError, OutputError
from gluonlab.study.sweep import MeasurementStore, StudyFolder, Sweep, load_study_options, open_study, settings_key

POINTS = [{"size": 1}, {"size": 2}, {"size": 3}]


def record_calls(calls):
    def measure(settings, number):
        calls.append((settings["size"], number))
        return {"value": settings["size"] * 100 + number}

    return measure


def test_each_round_measures_every_point_once_and_begins_with_another():
    calls = []
    with Sweep(MeasurementStore(), record_calls(calls), show_progress=False) as sweep:
        found = sweep.run(POINTS, range(3))
    assert calls == [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (1, 1), (3, 2), (1, 2), (2, 2)]
    assert found == [[{"value": size * 100 + number} for number in range(3)] for size in (1, 2, 3)]
    assert sweep.done == sweep.total == 9


def test_what_is_measured_is_not_measured_again_and_later_points_are_added():
    store, calls = MeasurementStore(), []
    with Sweep(store, record_calls(calls), show_progress=False) as sweep:
        sweep.run(POINTS[:2], range(1))
        del calls[:]
        found = sweep.run(POINTS, range(2))
    assert sorted(calls) == [(1, 1), (2, 1), (3, 0), (3, 1)]
    assert found[0] == [{"value": 100}, {"value": 101}]


PLAIN = st.one_of(st.integers(), st.booleans(), st.text(max_size=3), st.none())


@given(st.dictionaries(st.text(max_size=3), PLAIN, max_size=4), st.randoms())
def test_the_key_of_a_point_is_that_of_its_settings_in_any_order(settings, chance):
    names = list(settings)
    chance.shuffle(names)
    assert settings_key({name: settings[name] for name in names}) == settings_key(settings)
    assert json.loads(settings_key(settings)) == settings
    assert settings_key({**settings, "one more": 1}) != settings_key(settings)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_study_killed_ten_times_gives_the_table_of_the_undisturbed_one(tmp_path, seed):
    done = subprocess.run(
        [sys.executable, "-m", "support.sweep_kills", str(tmp_path), str(seed), "10"],
        capture_output=True, text=True, timeout=600, check=True, cwd=REPOSITORY / "tests",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert json.loads(done.stdout) == {"lines": 100, "different": 100, "cut_short": 10}
    whole, study = (tmp_path / name / "result.json" for name in ("whole", "study"))
    assert study.read_bytes() == whole.read_bytes()


OPTIONS = {"sizes": [1, 2], "target": 0.9}


def fill_study(path):
    with open_study("toy", OPTIONS, str(path)) as folder:
        for number in range(2):
            folder.store.add({"size": number}, 0, {"value": number / 3})
    return path / "measurements.jsonl"


def test_a_folder_goes_on_with_what_it_holds(tmp_path):
    fill_study(tmp_path / "a")
    assert load_study_options(tmp_path / "a", "toy") == OPTIONS
    with open_study("toy", OPTIONS, str(tmp_path / "a")) as folder:
        assert folder.store.find({"size": 1}, 0) == {"value": 1 / 3}  # bit for bit
        assert folder.store.find({"size": 1}, 1) is None
        assert len(folder.store.list_measurements()) == 2


@pytest.mark.parametrize("cut", range(1, 50, 7))
def test_a_last_line_that_was_cut_off_is_removed(tmp_path, cut):
    file = fill_study(tmp_path / "a")
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    with open_study("toy", OPTIONS, str(tmp_path / "a")) as folder:
        assert [each.settings for each in folder.store.list_measurements()] == [{"size": 0}]
        folder.store.add({"size": 1}, 0, {"value": 1 / 3})
    assert file.read_bytes() == whole


@pytest.mark.parametrize("line", ["{", "[]", '{"settings": 1, "round": 0, "values": {}}', "\x00"])
def test_a_damaged_line_is_named(tmp_path, line):
    file = fill_study(tmp_path / "a")
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(DataError, match=r"line 3 of .* is not a valid measurement: remove this line"):
        StudyFolder.open(str(tmp_path / "a"), "toy", OPTIONS)
    file.write_text(file.read_text().replace(f"{line}\n", ""))
    StudyFolder.open(str(tmp_path / "a"), "toy", OPTIONS).close()  # and the lock is free


def test_other_options_are_refused_with_the_difference(tmp_path):
    fill_study(tmp_path / "a")
    for study, options, message in (
        ("toy", {**OPTIONS, "sizes": [1, 4]}, "--sizes 1,2, not 1,4: use the same options"),
        ("toy", {**OPTIONS, "seeds": 3}, "--seeds None, not 3"),
        ("other", OPTIONS, "contains the study 'toy'"),
    ):
        with pytest.raises(ConfigError, match=message):
            StudyFolder.open(str(tmp_path / "a"), study, options)
    with pytest.raises(DataError, match=r"contains the study 'toy': .* toy --resume"):
        load_study_options(tmp_path / "a", "other")


def test_another_version_does_not_go_on(tmp_path, monkeypatch):
    fill_study(tmp_path / "a")
    monkeypatch.setattr(gluonlab, "__version__", "99.0.0")
    with pytest.raises(ConfigError, match=r"not 99\.0\.0"):
        StudyFolder.open(str(tmp_path / "a"), "toy", OPTIONS)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', "\x00" * 9])
def test_a_damaged_description_is_one_line(tmp_path, content):
    fill_study(tmp_path / "a")
    (tmp_path / "a" / "study.json").write_text(content)
    for read in (
        lambda: load_study_options(tmp_path / "a", "toy"),
        lambda: StudyFolder.open(str(tmp_path / "a"), "toy", OPTIONS),
    ):
        with pytest.raises(DataError, match=r"study\.json"):
            read()


def test_a_folder_has_one_process_at_a_time(tmp_path):
    with open_study("toy", OPTIONS, str(tmp_path / "a")) as folder:
        folder.store.add({}, 0, {})
        for open_again in (
            lambda: StudyFolder.open(str(tmp_path / "a"), "toy", OPTIONS),
            lambda: load_study_options(tmp_path / "a", "toy"),
        ):
            with pytest.raises(OutputError, match="is in use by process"):
                open_again()


def test_a_study_that_was_killed_as_it_wrote_its_first_file_can_begin_again(tmp_path):
    """Its name is one that `gluonlab.files.atomic_files.atomic_path` makes. It is not locked."""
    (tmp_path / ".study.json-0123abcd").write_text('{"form')
    fill_study(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.name[0] != "."} == {"measurements.jsonl", "study.json"}
    assert not (tmp_path / ".study.json-0123abcd").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        StudyFolder.open(str(tmp_path), "toy", OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_is_left_where_nothing_was_measured(tmp_path):
    with pytest.raises(DataError), open_study("toy", OPTIONS, str(tmp_path / "a" / "b")):
        raise DataError("no such data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, DivergedError])
def test_what_breaks_it_off_says_what_is_kept_and_how_to_go_on(tmp_path, kind):
    with pytest.raises(kind) as ended, open_study("toy", OPTIONS, str(tmp_path / "a b")) as folder:
        folder.store.add({"size": 1}, 0, {"value": 1})
        raise kind("why")
    kept = f"{tmp_path / 'a b'} contains 1 measurement; to resume: "
    command = f"gluonlab study toy --resume '{tmp_path / 'a b'}'"
    assert str(ended.value) == ("why; " if kind is DivergedError else "") + kept + command
    assert json.loads((tmp_path / "a b" / "measurements.jsonl").read_text())["round"] == 0


def test_a_full_disk_is_one_line_and_leaves_whole_lines(tmp_path):
    file = fill_study(tmp_path / "a")
    before = file.read_bytes()
    with limit_file_size(len(before) + 20), pytest.raises(OutputError, match="cannot write"), open_study(
        "toy", OPTIONS, str(tmp_path / "a")
    ) as folder:
        folder.store.add({"size": 9}, 0, {"value": 1})
    assert file.read_bytes() == before
