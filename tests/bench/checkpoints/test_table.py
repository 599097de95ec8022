"""What is printed of a record follows from its series by the definitions."""

import pytest

from gluonlab.bench.checkpoints import names, table
from gluonlab.bench.harness.record import Series

RESNET, LENET = names.TASKS["resnet18"], names.TASKS["lenet"]


def series(**longer):
    """The machine was half as fast in the second of three rounds."""
    rounds = (1.0, 2.0, 1.0)
    return [
        Series(name, name, "s", tuple(seconds * (1 + more) for seconds in rounds))
        for name, more in {"none": 0.0, **longer}.items()
    ]


def test_what_is_kept_costs_what_its_steps_take_longer_round_by_round():
    rows = {row.name: row for row in table.make_rows(series(checkpoints=0.02, files=0.25))}
    assert tuple(rows) == names.NAMES
    assert rows["none"].step_s == 1.0 and rows["none"].longer is None
    assert rows["checkpoints"].longer == pytest.approx(0.02)
    assert rows["files"].longer == pytest.approx(0.25) and rows["files"].step_s == 1.25
    assert rows["check 1"].step_s is None and rows["check 1"].longer is None


def test_six_rounds_are_the_fewest_that_tell_how_sure_they_are():
    none = Series("none", "none", "s", (1.0,) * 6)
    taken = (1.01, 1.03, 1.02, 0.99, 1.1, 1.02)
    rows = table.make_rows([none, Series("checkpoints", "", "s", taken)])
    assert rows[1].interval == "-1.0..10.0 %" and rows[0].interval == ""
    assert table.make_rows(series(checkpoints=0.02))[1].interval == ""


def test_resnet18_on_two_devices_is_judged():
    promise = "a checkpoint every 50 steps <= 3% of the steps' time: "
    for longer, ending in ((0.0299, "3.0 % reached"), (0.0312, "3.1 % not reached")):
        rows = table.make_rows(series(checkpoints=longer))
        assert table.verdict(rows, RESNET, 2) == promise + ending
    assert table.verdict(table.make_rows(series()), RESNET, 2) == f"{promise}not measured"
    for task, devices in ((LENET, 2), (RESNET, 4)):
        assert "reached" not in table.verdict(rows, task, devices)


def test_the_text_fits_a_terminal_whatever_is_missing():
    text = table.text(series(checkpoints=0.02), RESNET, 2, 3)
    assert max(map(len, text.split("\n"))) <= 80 and "not measured" in text
