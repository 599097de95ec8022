"""The page shows how stale the gradients of asynchronous processes were."""

import re
import statistics

from hypothesis import given
from hypothesis import strategies as st
from support.made_up_runs import ReportParser, make_metrics, make_run

from gluonlab.optimizers import server_optimizer
from gluonlab.report.report_page import draw_charts, make_page
from gluonlab.report.run_tables import MAX_STALENESS, _staleness_row
from gluonlab.runs.run_reader import read_runs

CHART = "Staleness: pushes, %, by updates of others"


def make_lines(*pushes):
    """Return a run's lines, with the servers' counts of its epochs."""
    return make_metrics() + [
        {"kind": "event", "event": "staleness", "epoch": epoch, "step": 4 * epoch, "pushes": counts}
        for epoch, counts in enumerate(pushes, start=1)
    ]


def test_the_counts_of_all_epochs_are_summed_run_by_run(tmp_path):
    assert server_optimizer.MAX_COUNTED_UPDATES == MAX_STALENESS
    lines = {
        "synchronous": None, "two": make_lines([4, 39, 3], [], [1000, 0, 0, 2]),
        "many": make_lines([0, 1], [0] * MAX_STALENESS + [1]), "none": make_lines([0, 0]),
    }  # fmt: skip
    page = ReportParser(make_page(read_runs([make_run(tmp_path / name, lines[name]) for name in lines])))
    assert page.tables["staleness"] == [
        ["run", "pushes", "mean", "median", "largest"],
        ["two", "1,048", "0.05", "0", "3"],  # (39 + 2 * 3 + 3 * 2) / 1048
        ["many", "2", "31.50 or more", "1", "62 or more"],
    ]


def test_a_chart_has_the_shares_of_each_asynchronous_run(tmp_path):
    runs = read_runs([make_run(tmp_path / "synchronous"), make_run(tmp_path / "two", make_lines([1, 2], [1, 0, 4]))])
    [points] = re.findall(r'<path d="(M[^"]+)"[^>]*stroke-width: 1.6', draw_charts(runs)[CHART])
    # of 8 pushes 2, 2 and 4; a smaller y is higher
    first, second, third = [float(y) for y in re.findall(r"[ML] [0-9.]+ ([0-9.]+)", points)]
    assert first == second > third
    assert CHART not in draw_charts(runs[:1]) and "staleness" not in ReportParser(make_page(runs[:1])).tables


@given(st.lists(st.integers(0, 5), min_size=1, max_size=MAX_STALENESS).filter(any))
def test_the_numbers_are_those_of_all_pushes_one_by_one(pushes):
    ages = [age for age, count in enumerate(pushes) for _ in range(count)]
    mean, median = f"{statistics.mean(ages):.2f}", str(statistics.median_low(ages))
    assert _staleness_row(pushes) == (str(len(ages)), mean, median, str(max(ages)))
