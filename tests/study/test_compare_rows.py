"""The table of a comparison: speed-up and efficiency are relative to the first run."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.study.compare_device_counts import comparison_table, make_comparison_rows

RUNS = st.lists(st.tuples(st.integers(1, 16), st.floats(1, 1e6)), min_size=1, max_size=5)


def result(devices, images_per_second):
    """The attributes of a result that the table needs."""
    plan = SimpleNamespace(ctxs=[None] * devices, global_batch_size=64 * devices)
    return SimpleNamespace(plan=plan, images_per_second=images_per_second, val_accuracy=0.5, run_dir="run")


@given(RUNS)
def test_efficiency_is_the_speed_of_a_device_over_that_of_one_of_the_first_run(runs):
    rows = make_comparison_rows([result(*run) for run in runs])
    devices, speed = runs[0]
    for row, (own_devices, own_speed) in zip(rows, runs):
        assert row.efficiency == pytest.approx((own_speed / own_devices) / (speed / devices))
        assert row.speedup == pytest.approx(own_speed / speed)
        assert (row.devices, row.global_batch_size) == (own_devices, 64 * own_devices)


def test_a_comparison_that_begins_with_two_devices():
    """4 devices at twice the speed of 2 are fully used, not half."""
    lines = comparison_table(make_comparison_rows([result(2, 1000), result(4, 2000), result(8, 3000)])).splitlines()
    shown = [line.split()[3:5] for line in lines[1:]]
    assert shown == [["1.00x", "100%"], ["2.00x", "100%"], ["3.00x", "75%"]]
