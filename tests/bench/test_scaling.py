"""What bench scaling compares, what its table says of it, and that it really measures."""

import pytest
from hypothesis import given, strategies

from gluonlab.bench import scaling
from gluonlab.bench.harness.interleaved_rounds import measure_subjects
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.worker_processes import BACKENDS
from gluonlab.bench.scaling import NETWORKS, STRONG, WEAK, make_layouts
from gluonlab.bench.workloads import TASKS

HOROVOD = pytest.mark.horovod
SERVERS = pytest.param("dist_sync", marks=pytest.mark.long)
COUNTS = strategies.lists(strategies.integers(1, 4), min_size=1, unique=True)


@given(
    strategies.sampled_from(NETWORKS),
    strategies.sampled_from([WEAK, STRONG]),
    COUNTS,
    COUNTS,
    strategies.lists(strategies.sampled_from(BACKENDS), min_size=1, unique=True),
)
def test_every_group_stands_beside_one_process_with_as_many_devices(network, kind, processes, devices, backends):
    found = make_layouts(network, kind, processes, devices, backends)
    assert len({way.name for way in found}) == len(found)
    assert found[0][:3] == (1, 1, "")
    alone = {way.all_devices for way in found if way.processes == 1}
    assert alone >= {way.all_devices for way in found}
    asked = {(p, d, b) for p in processes for d in devices for b in backends if p > 1}
    assert {way[:3] for way in found if way.processes > 1} == asked
    images = {way.global_batch_size / (way.all_devices if kind == WEAK else 2) for way in found}
    assert images == {TASKS[network].global_batch_size / 2}


def series(found, rates):
    return [
        Series(way.name, way.name, "images/s", tuple(values), None if values else "no answer")
        for way, values in zip(found, rates)
    ]


def test_ratios_are_medians_over_the_rounds_and_a_missing_row_says_why():
    found = make_layouts("lenet", WEAK, [2], [1], BACKENDS)
    assert [way.name for way in found] == ["1x1", "1x2", "2x1 dist_sync", "2x1 horovod"]
    measured = series(found, [(100, 200, 100), (160, 400, 200), (150, 340, 180), ()])
    one, two, served, missing = scaling.make_rows(found, measured)
    assert (one.speedup, one.efficiency, one.beside) == (1, 1, 1)
    assert (two.speedup, two.efficiency) == (2, 1)
    assert (served.speedup, served.efficiency) == (1.7, 0.85)
    assert served.beside == 0.9  # of 0.9375, 0.85 and 0.9
    assert missing.reason == "no answer"
    text = scaling.format_results("lenet", WEAK, found, measured, 3)
    assert max(map(len, text.split("\n"))) <= 80
    assert text.endswith(
        "2 processes over dist_sync >= 0.88x one with 2 devices: 0.90x reached\n"
        "2 processes over horovod >= 0.65x one with 2 devices: not measured"
    )


@pytest.mark.parametrize("backend", [SERVERS, pytest.param("horovod", marks=HOROVOD)])
def test_processes_really_train_together(backend):
    found = make_layouts("lenet", STRONG, [2], [1], [backend])
    assert found[-1][:4] == (2, 1, backend, 128)
    [one] = measure_subjects(scaling.make_subjects("lenet", found)[-1:], rounds=1)
    assert one.reason is None and one.images_per_second()[0] > 0
