"""The page shows how stale the gradients of processes were that did not wait for each other."""

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


def of_epochs(*pushes):
    """A run's lines, with the servers' counts of its epochs."""
    told = [
        {"kind": "event", "event": "staleness", "epoch": epoch, "step": 4 * epoch, "pushes": counts}
        for epoch, counts in enumerate(pushes, start=1)
    ]
    return make_metrics() + told


def test_the_counts_of_all_epochs_are_summed_run_by_run(tmp_path):
    assert server_optimizer.MAX_COUNTED_UPDATES == MAX_STALENESS
    above = [0] * MAX_STALENESS + [1]
    runs = read_runs(
        [
            make_run(tmp_path / "waits"),
            make_run(tmp_path / "two", of_epochs([4, 39, 3], [], [1000, 0, 0, 2])),
            make_run(tmp_path / "many", of_epochs([0, 1], above)),
            make_run(tmp_path / "none", of_epochs([0, 0])),
        ]
    )
    page = ReportParser(make_page(runs))
    assert page.tables["staleness"] == [
        ["run", "pushes", "mean", "median", "largest"],
        ["two", "1,048", "0.05", "0", "3"],  # (39 + 2 * 3 + 3 * 2) / 1048
        ["many", "2", "31.50 or more", "1", "62 or more"],
    ]


def test_a_chart_has_the_shares_of_each_run(tmp_path):
    runs = read_runs([make_run(tmp_path / "two", of_epochs([1, 2], [1, 0, 4]))])
    svg = draw_charts(runs)[CHART]
    [points] = re.findall(r'<path d="(M[^"]+)"[^>]*stroke-width: 1.6', svg)
    heights = [float(y) for y in re.findall(r"[ML] [0-9.]+ ([0-9.]+)", points)]
    assert len(heights) == 3
    # of 8 pushes 2, 2 and 4: the first two lie alike, and the last is higher, upwards is smaller
    assert heights[0] == heights[1] > heights[2]


def test_synchronous_runs_have_no_staleness(tmp_path):
    runs = read_runs([make_run(tmp_path / "waits")])
    assert CHART not in draw_charts(runs) and "staleness" not in ReportParser(make_page(runs)).tables


@given(st.lists(st.integers(0, 5), min_size=1, max_size=MAX_STALENESS).filter(any))
def test_the_numbers_are_those_of_all_pushes_one_by_one(pushes):
    each = [met for met, times in enumerate(pushes) for _ in range(times)]
    assert _staleness_row(pushes) == (
        str(len(each)), f"{statistics.mean(each):.2f}", str(statistics.median_low(each)),
        str(max(each)),
    )  # fmt: skip
