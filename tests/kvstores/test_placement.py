"""Stores made of schedules order GPUs by their links, as reported by NVML or of a named machine.

The machines are fake (fake_nvml.py). The numbers that CUDA gives GPUs are drawn.
"""

import json
from itertools import permutations

import mxnet as mx
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts, device, device_spec
from support.examples import examples
from support.fake_nvml import CUBE, RTX, T4, V100, fake_driver
from support.reference import cpu_contexts

from gluonlab.collectives import named_topologies as topology_module
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cost_model import ORDER_SIZES, estimate_cost, find_best_order
from gluonlab.collectives.named_topologies import make_topology, nvml_topology
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE
from gluonlab.config import TrainConfig
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.gpu import nvml
from gluonlab.gpu.nvml import visible_gpus
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.kvstores.allreduce_store import Placement
from gluonlab.kvstores.schedule_stores import ScheduleKVStore
from gluonlab.run import main as run
from gluonlab.training.plan import make_plan

MB_100 = 100e6


def pairs(count):
    return [(a, b) for b in range(count) for a in range(b)]


@st.composite
def linked_machines(draw, most=5):
    """Draw (driver, some of its GPUs in any order), with any NVLinks and any PCIe or unknown PCIe."""
    count = draw(st.integers(2, most))
    links = draw(st.dictionaries(st.sampled_from(pairs(count)), st.integers(1, 3)))
    cpus = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    switches = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    level = {(a, b): 50 if cpus[a] != cpus[b] else 40 if switches[a] != switches[b] else 20 for a, b in pairs(count)}
    is_pcie_known = draw(st.booleans())
    chosen = draw(st.permutations(range(count)))[: draw(st.integers(2, count))]
    return fake_driver(*[V100] * count, nvlinks=links, apart=level if is_pcie_known else None), chosen


@given(drawn=linked_machines(), name=st.sampled_from(sorted(ALGORITHMS)))
@examples(10, 20)
def test_a_placed_schedule_never_costs_more_than_an_unplaced_one(drawn, name):
    driver, chosen = drawn
    topology, schedule = nvml_topology(driver, chosen), make_schedule(name, len(chosen))
    order = find_best_order(schedule, topology)
    assert sorted(order) == list(range(len(chosen)))
    for size in ORDER_SIZES:
        unplaced = estimate_cost(schedule, topology, size).seconds
        assert estimate_cost(schedule.placed(order), topology, size).seconds <= unplaced * (1 + 1e-6)


@given(drawn=linked_machines(most=4))
@settings(max_examples=15)
def test_no_order_of_a_ring_is_cheaper_than_the_placed_one(drawn):
    driver, chosen = drawn
    topology, ring = nvml_topology(driver, chosen), make_schedule("ring", len(chosen))
    every = [estimate_cost(ring.placed(order), topology, 1e9).seconds for order in permutations(range(len(chosen)))]
    order = find_best_order(ring, topology)
    assert estimate_cost(ring.placed(order), topology, 1e9).seconds == pytest.approx(min(every))


@pytest.mark.parametrize(("name", "at_most_us"), [("ring", 3_940), ("tree", 17_800), ("halving_doubling", 6_360)])
def test_placement_makes_algorithms_faster_on_a_p3_16xlarge(name, at_most_us):
    # Unplaced they cost 17,932, 57,747 and 7,352 microseconds.
    topology, schedule = make_topology("p3.16xlarge"), make_schedule(name, 8)
    order = find_best_order(schedule, topology)
    assert estimate_cost(schedule.placed(order), topology, MB_100).seconds * 1e6 <= at_most_us


def show_gpus(monkeypatch, driver, visible=None):
    """Make CUDA show the GPUs of a machine; return their contexts."""
    gpus = visible_gpus(driver.gpus, visible).gpus
    # CUDA's four digits of the domain
    at = {number: f"{gpu.bus_id[4:].lower()}" for number, gpu in enumerate(gpus)}
    monkeypatch.setattr(nvml, "cached_driver", lambda: driver)
    monkeypatch.setattr(topology_module, "pci_bus_ids", lambda ctxs: [at[ctx.device_id] for ctx in ctxs])
    return [mx.gpu(number) for number in range(len(gpus))]


@given(visible=st.permutations(range(8)), count=st.integers(3, 8), data=st.data())
@settings(max_examples=10)
def test_the_order_does_not_depend_on_cuda_visible_devices(visible, count, data):
    visible = visible[:count]
    with pytest.MonkeyPatch.context() as monkeypatch:
        ctxs = show_gpus(monkeypatch, fake_driver(*[V100] * 8, nvlinks=CUBE), ",".join(map(str, visible)))
        ctxs = data.draw(st.permutations(ctxs))[: data.draw(st.integers(3, count))]
        placed = make_kvstore("ring", ctxs).placement(ctxs)
    numbers = [visible[ctx.device_id] for ctx in ctxs]
    real, ring = make_topology("p3.16xlarge").subset(numbers), make_schedule("ring", len(ctxs))
    result = estimate_cost(ring.placed(placed.order), real, MB_100).seconds
    assert result <= estimate_cost(ring, real, MB_100).seconds * (1 + 1e-9)
    if count == len(ctxs) == 8:
        assert result * 1e6 == pytest.approx(3_932, abs=1)


def test_a_ring_crosses_between_cpus_only_once_each_way(monkeypatch):
    # Without NVLinks, with GPUs 0, 2, 4, 6 on one CPU and 1, 3, 5, 7 on the other.
    level = {(a, b): 40 if a % 2 == b % 2 else 50 for a, b in pairs(8)}
    ctxs = show_gpus(monkeypatch, fake_driver(*[T4] * 8, apart=level))
    order = make_kvstore("ring", ctxs).placement(ctxs).order
    assert sum(order[i] % 2 != order[i - 1] % 2 for i in range(8)) == 2


@pytest.mark.parametrize(
    "driver", [fake_driver(*[V100] * 8, nvlinks=CUBE), nvml.Driver(error="nvidia-ml-py is not installed")]
)
def test_a_named_machine_overrides_the_links_of_nvml(monkeypatch, driver):
    ctxs = show_gpus(monkeypatch, fake_driver(*[V100] * 8))
    monkeypatch.setattr(nvml, "cached_driver", lambda: driver)
    placed = make_kvstore("ring", ctxs, topology="p3.16xlarge").placement(ctxs)
    assert placed == Placement((0, 3, 2, 1, 5, 6, 7, 4), "by the links of p3.16xlarge")


def test_gpus_keep_their_order_if_nvml_reports_nothing(monkeypatch):
    ctxs = show_gpus(monkeypatch, fake_driver(*[RTX] * 4))
    monkeypatch.setattr(nvml, "cached_driver", lambda: nvml.Driver(error="nvidia-ml-py is not installed"))
    placed = make_kvstore("tree", ctxs).placement(ctxs)
    assert placed.order == (0, 1, 2, 3)
    assert placed.reason == "in numerical order, because NVML reports no links (nvidia-ml-py is not installed)"


@pytest.mark.cpu_only("of GPUs the driver is asked for their links")
@pytest.mark.parametrize("name", [name for name, kind in KVSTORES.items() if kind.uses_topology])
def test_stores_on_cpu_devices_sum_the_same_with_and_without_a_named_machine(name, monkeypatch):
    monkeypatch.setattr(nvml, "cached_driver", lambda: pytest.fail("NVML is looked for"))
    ctxs = [mx.cpu(i) for i in range(5)]
    for topology in (None, "p3.16xlarge"):
        store = make_kvstore(name, ctxs, topology=topology)
        arrays = [nd.array(np.arange(11) * (i + 1), ctx=ctx) for i, ctx in enumerate(ctxs)]
        store.pushpull("weight", arrays)
        assert all(np.array_equal(array.asnumpy(), np.arange(11) * 15) for array in arrays)
        unnamed = "by the usual speeds of CPU devices" if name in TOPOLOGY_AWARE else ""
        assert store.placement(ctxs).reason == (f"by the links of {topology}" if topology else unnamed)


BY_LINKS = "by the links of p3.16xlarge"
SCHEDULES = "1 B synthesized (4 steps, 12 chunks)", "8 MiB synthesized (5 steps, 48 chunks)"


@pytest.mark.parametrize(
    ("kvstore", "kind", "expected"),
    [
        ("ring", "order", [str(device(number)) for number in (0, 3, 2, 1, 5, 6, 7, 4)]),
        ("auto", "schedules", [f"from {text}" for text in SCHEDULES]),
    ],
)
def test_a_plan_records_the_order_of_devices_or_the_schedules_by_size(kvstore, kind, expected):
    plan = make_plan(TrainConfig(devices=device_spec(8), kvstore=kvstore, topology="p3.16xlarge"))
    words = f"order {' '.join(expected)}" if kind == "order" else ", ".join(expected)
    assert plan.describe_placement() == f", {words}, {BY_LINKS}"
    assert (plan.settings()[kind], plan.settings()["placed"]) == (expected, BY_LINKS)


@pytest.mark.cpu_only("of GPUs the driver is asked for their links")
def test_only_devices_that_have_the_same_part_of_a_network_sum():
    def settings_of(devices, **asked):
        return make_plan(TrainConfig(devices=devices, **{"kvstore": "auto", **asked})).settings()

    asked = {"strategy": "pipeline", "pipeline_parallel": 2}
    two_copies = settings_of("cpu*4", **asked)["schedules"]
    assert two_copies == settings_of("cpu*2")["schedules"]
    assert "schedules" not in settings_of("cpu*2", **asked)
    assert "schedules" not in settings_of("cpu*1")
    for name in ("ring", "device"):  # these are not placed unless a machine is named
        assert not {"order", "placed"} & set(settings_of("cpu*8", kvstore=name))


@pytest.mark.long
def test_a_run_prints_and_records_the_order_of_devices(tmp_path):
    out = tmp_path / "run"
    options = ["--kvstore", "ring", "--topology", "p3.16xlarge", "--epochs", "1"]
    result = CliRunner().invoke(run, ["--devices", device_spec(8), *options, "--out", str(out)])
    assert result.exit_code == 0, result.output
    content = json.loads((out / "config.json").read_text())
    assert content["config"]["topology"] == "p3.16xlarge"
    assert f"ring, order {' '.join(content['settings']['order'])}, {BY_LINKS}" in result.output


@pytest.mark.parametrize(
    ("kvstore", "topology", "count", "kind", "words"),
    [
        ("ring", "p3", 2, ScheduleError, "unknown topology 'p3': choose .*p3.16xlarge"),
        (
            "device",
            "p3.16xlarge",
            2,
            KVStoreError,
            "kvstore .device. is built into MXNet .*: choose one of the kvstores star,",
        ),
        (
            "ring",
            "p3.8xlarge",
            5,
            KVStoreError,
            r"'ring' on [cg]pu\(0\) .*: p3.8xlarge has 4 devices, but 5 are requested: choose 1 to 4",
        ),
    ],
)
def test_a_topology_that_cannot_place_is_refused(kvstore, topology, count, kind, words):
    with pytest.raises(kind, match=words):
        make_kvstore(kvstore, contexts(count), topology=topology)


@pytest.mark.cpu_only("no machine has twelve GPUs")
def test_machines_without_a_fixed_size_have_any_number_of_devices():
    ctxs = cpu_contexts(12)
    assert sorted(make_kvstore("ring", ctxs, topology="pcie").placement(ctxs).order) == list(range(12))


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"name": "rign"}, ScheduleError, "did you mean 'ring'"),
        ({"order": (0, 0)}, ScheduleError, "list each of the devices 0 to 1 exactly once"),
        ({"order": (0, 1), "topology": "pcie"}, KVStoreError, "remove one of them"),
    ],
)
def test_a_store_of_an_unknown_algorithm_or_order_is_refused_when_it_is_made(given, kind, words):
    with pytest.raises(kind, match=words):
        ScheduleKVStore(**{"name": "ring", **given})
