"""Sweeps: every point once in each round, in turns, and never again."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import REPOSITORY

from gluonlab.study.sweep.engine import Sweep
from gluonlab.study.sweep.measurements import InMemory, key_of

POINTS = [{"size": 1}, {"size": 2}, {"size": 3}]


def noting(calls):
    def measure(settings, number):
        calls.append((settings["size"], number))
        return {"value": settings["size"] * 100 + number}

    return measure


def test_each_round_measures_every_point_once_and_begins_with_another():
    calls = []
    with Sweep(InMemory(), noting(calls), shown=False) as sweep:
        found = sweep.run(POINTS, range(3))
    assert calls == [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (1, 1), (3, 2), (1, 2), (2, 2)]
    assert found == [[{"value": size * 100 + number} for number in range(3)] for size in (1, 2, 3)]
    assert sweep.done == sweep.wanted == 9


def test_what_is_measured_is_not_measured_again_and_later_points_are_added():
    store, calls = InMemory(), []
    with Sweep(store, noting(calls), shown=False) as sweep:
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
    assert key_of({name: settings[name] for name in names}) == key_of(settings)
    assert json.loads(key_of(settings)) == settings
    assert key_of({**settings, "one more": 1}) != key_of(settings)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_study_killed_ten_times_gives_the_table_of_the_undisturbed_one(tmp_path, seed):
    done = subprocess.run(
        [sys.executable, "-m", "support.sweep_kills", str(tmp_path), str(seed), "10"],
        capture_output=True, text=True, timeout=600, check=True, cwd=REPOSITORY / "tests",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["lines"] == told["different"] == 100
    assert told["cut_short"] == 10
    whole, study = (tmp_path / name / "result.json" for name in ("whole", "study"))
    assert study.read_bytes() == whole.read_bytes()
