"""The tables of a record of splits follow from its series by the definitions."""

import pytest

from gluonlab.bench import splits
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.splits import SPLIT_NAMES, TASKS


def make_series(step_1f1b=0.9):
    """Return the series of two devices: 0.3 s and 0.5 s of computation, 0.1 s of updates."""
    steps = {"one": 1.2, "data": 0.8, "layers": 1.1, "channels": 1.3, "gpipe": 1.0}
    steps["1f1b"] = step_1f1b
    rows = [Series(f"step {name}", f"{name}, cut 3", "s", (2 * steps[name], steps[name])) for name in steps]
    rows.append(Series("step interleaved", "interleaved", "s", (), "the chain is too short"))
    values = {
        **{f"memory {name} {device}": 3e6 + device * 1e6 for name in steps for device in (0, 1)},
        **{f"{what} {name}": 2e6 for name in steps if name != "one" for what in ("moved", "links")},
        "alone 1f1b 0": 0.3, "alone 1f1b 1": 0.5, "update 1f1b 0": 0.1, "update 1f1b 1": 0.1,
        "at once": 0.8,
        **{f"{what} {name}": 0.25 for name in ("gpipe", "1f1b") for what in ("price", "host")},
        **{f"price bubble {name}": 0.25 for name in ("gpipe", "1f1b")},
    }  # fmt: skip
    # the machine was half as fast in the first round
    return rows + [
        Series(name, name, "s", (2 * value, value) if name[0] in "au" else (value,)) for name, value in values.items()
    ]


def test_ratios_and_bubbles_are_those_of_rounds():
    rows = {row.name: row for row in splits.make_rows(make_series())}
    assert list(rows) == list(SPLIT_NAMES)
    assert rows["data"].speed == pytest.approx(1.5) and rows["one"].moved_bytes == 0
    assert rows["1f1b"].cuts == "3" and rows["1f1b"].memory == (3e6, 4e6)
    assert rows["interleaved"].reason == "the chain is too short"
    pipelines = {row.name: row for row in splits.make_pipeline_rows(make_series(), microbatches=8)}
    assert list(pipelines) == ["gpipe", "1f1b"]
    # gpipe has the same stages
    assert pipelines["gpipe"].bubble == pytest.approx(1 - 1.0 / (2 * 1.0))
    assert pipelines["1f1b"].bubble == pytest.approx(1 - 1.0 / (2 * 0.9))
    assert pipelines["1f1b"].ideal_bubble == pytest.approx(1 / 9)


def test_the_overlap_is_judged_for_two_devices_and_eight_microbatches():
    limit = 1.1 * 9 / 8 * 0.8
    promise = "a step of 1f1b <= 1.238x its stages run independently: "
    assert splits.judge_overlap(make_series(limit - 1e-9), 8) == f"{promise}1.24x reached"
    assert splits.judge_overlap(make_series(limit + 0.01), 8) == f"{promise}1.25x not reached"
    assert "reached" not in splits.judge_overlap(make_series(), 4)
    without = [row for row in make_series() if row.name != "at once"]
    assert splits.judge_overlap(without, 8) == f"{promise}not measured"


def test_the_text_fits_a_terminal_whatever_is_missing():
    text = splits.format_results(make_series(), TASKS["lenet"], 8, 2)
    assert max(map(len, text.split("\n"))) <= 80
    assert "interleaved   the chain is too short" in text
    assert splits.format_megabytes([1e6, 2e6, 3e6, 4e6]) == "1 2 3 4"
    assert splits.format_megabytes([5e6, 2e6, 3e6, 4e6, 3e6]) == "2..5"
