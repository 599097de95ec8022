"""``bench processes``: its rows, their ratios, and a real measurement of processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.bench import scaling
from gluonlab.bench.harness.interleaved_rounds import measure_subjects
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.worker_processes import BACKENDS
from gluonlab.bench.scaling import MODELS, STRONG, WEAK, make_layouts
from gluonlab.bench.workloads import TASKS

HOROVOD = pytest.mark.horovod
SERVERS = pytest.param("dist_sync", marks=pytest.mark.long)
COUNTS = st.lists(st.integers(1, 4), min_size=1, unique=True)


@given(
    st.sampled_from(MODELS), st.sampled_from([WEAK, STRONG]), COUNTS, COUNTS,
    st.lists(st.sampled_from(BACKENDS), min_size=1, unique=True),
)  # fmt: skip
def test_every_group_is_compared_with_one_process_of_as_many_devices(network, kind, processes, devices, backends):
    layouts = make_layouts(network, kind, processes, devices, backends)
    assert len({layout.name for layout in layouts}) == len(layouts)
    assert layouts[0][:3] == (1, 1, "")
    single_process = {layout.all_devices for layout in layouts if layout.processes == 1}
    assert single_process >= {layout.all_devices for layout in layouts}
    expected = {(p, d, b) for p in processes for d in devices for b in backends if p > 1}
    assert {layout[:3] for layout in layouts if layout.processes > 1} == expected
    images = {layout.global_batch_size / (layout.all_devices if kind == WEAK else 2) for layout in layouts}
    assert images == {TASKS[network].global_batch_size / 2}


def test_ratios_are_medians_over_the_rounds_and_a_missing_row_has_a_reason():
    layouts = make_layouts("lenet", WEAK, [2], [1], BACKENDS)
    assert [layout.name for layout in layouts] == ["1x1", "1x2", "2x1 dist_sync", "2x1 horovod"]
    rates = [(100, 200, 100), (160, 400, 200), (150, 340, 180), ()]
    reasons = (None, None, None, "no answer")
    measured = [
        Series(layout.name, layout.name, "images/s", *values) for layout, *values in zip(layouts, rates, reasons)
    ]
    one, two, group, missing = scaling.make_rows(layouts, measured)
    assert (one.speedup, one.efficiency, one.one_process_ratio) == (1, 1, 1)
    assert (two.speedup, two.efficiency) == (2, 1)
    assert (group.speedup, group.efficiency, group.one_process_ratio) == (
        1.7,
        0.85,
        0.9,
    )  # median of 0.9375, 0.85 and 0.9
    assert missing.reason == "no answer"
    text = scaling.format_results("lenet", WEAK, layouts, measured, 3)
    assert max(map(len, text.split("\n"))) <= 80
    assert text.endswith(
        "2 processes over dist_sync >= 0.88x one with 2 devices: 0.90x reached\n"
        "2 processes over horovod >= 0.65x one with 2 devices: not measured"
    )


@pytest.mark.parametrize("backend", [SERVERS, pytest.param("horovod", marks=HOROVOD)])
def test_processes_really_train_together(backend):
    layouts = make_layouts("lenet", STRONG, [2], [1], [backend])
    assert layouts[-1][:4] == (2, 1, backend, 128)
    [result] = measure_subjects(scaling.make_subjects("lenet", layouts)[-1:], rounds=1)
    assert result.reason is None and result.images_per_second()[0] > 0
