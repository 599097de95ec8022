"""What is printed of promises follows from their series by the definitions."""

import pytest
from hypothesis import given, strategies

from benchmarks import verdict
from benchmarks.verdict import COMMON, TRAININGS, is_kept
from gluonlab.bench.harness.record import Series
from gluonlab.errors import ConfigError


def series(gains, profiled=1.02):
    """Of each training 2x was promised."""
    found = [
        Series("plain", "plain", "s", (1.0, 2.0, 1.0)),
        Series("profiled", "profiled", "s", (profiled, 2 * profiled, 9.0)),
    ]
    for name, gain in zip(TRAININGS, gains):
        found.append(Series(f"promised {name}", f"{name}: --x", "times", (2.0,)))
        found.append(Series(f"delivered {name}", name, "times", (gain - 1, gain, 9.0)))
    return found


@given(strategies.lists(strategies.sampled_from([1.5, 1.79, 1.81, 2.5]), min_size=10, max_size=10))
def test_a_promise_is_kept_if_four_fifths_of_the_gain_come(gains):
    said = verdict.text(series(gains))
    good = sum(gain > 1.8 for gain in gains)
    reached = "reached" if good >= 8 else "not reached"
    assert f"8 of 10: {good} of 10 {reached}\n" in said
    assert said.endswith("2.0 % reached") and max(map(len, said.split("\n"))) <= 80


def test_only_the_gain_counts_and_not_the_speed_before():
    assert is_kept(1.1, 1.08) and not is_kept(1.1, 1.07) and not is_kept(2.0, 1.7)


@pytest.mark.parametrize("advised", range(11))
def test_a_training_without_advice_keeps_no_promise_and_is_named(advised):
    found = series([2.5] * advised)
    for name in list(TRAININGS)[advised:]:
        found.append(Series(f"promised {name}", name, "times", (), "nothing is advised"))
    said = verdict.text(found)
    reached = "reached" if advised >= 8 else "not reached"
    assert f"8 of 10: {advised} of 10 {reached}\n" in said
    table = said.split("\n\n")[0].splitlines()[1:]
    unadvised = [line for line in table if line.endswith("nothing is advised")]
    assert len(table) == 10 and len(unadvised) == 10 - advised
    for line, name in zip(unadvised, list(TRAININGS)[advised:]):
        assert line.startswith(f"{name} ") and len(line) <= 80


def test_nothing_is_judged_where_nothing_was_measured():
    assert "8 of 10: not measured\n" in verdict.text([])


def test_a_worker_trains_as_the_settings_say():
    run = verdict.make({**COMMON, "model": "mlp", "batch_size": 3})
    answer = run(4)
    assert answer["images"] == 4 * 2 * 3 and answer["seconds"] > 0
    with pytest.raises(ConfigError, match="unknown setting 'no'"):
        verdict.make({"no": 1})
