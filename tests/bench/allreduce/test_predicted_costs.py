"""The schedules that auto chooses, and costs by number of ranks."""

import json
import re

import pytest
from support.devices import device_spec
from support.schedule_reference import reference_cost

from gluonlab.bench.allreduce import predicted_costs
from gluonlab.bench.allreduce.candidate_schedules import make_plans
from gluonlab.bench.allreduce.measure_allreduce import AllreduceRow
from gluonlab.bench.allreduce.plot_bandwidth import make_ranks_figure
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE, make_for_links

pytestmark = pytest.mark.usefixtures("short")


def test_choices_are_printed_with_their_costs_without_devices(allreduce):
    command = ("choose", "--simulate", "p3.8xlarge", "--bytes", "1KiB,4MiB,1GiB")
    status, out, _ = allreduce(*command)
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert re.search(r"^ +1 B  sharded +2 +4$", out, re.M) and "regret" not in out
    assert re.search(r"^ +16 MiB  synthesized +4 +12$", out, re.M)
    record, topology = json.loads(allreduce(*command, "--json")[1]), make_topology("p3.8xlarge")
    auto = make_for_links("auto", topology, 4)
    assert [row["from_bytes"] for row in record["table"]] == [row.size_bytes for row in auto.size_thresholds()]
    for choice in record["choices"]:
        size = choice["size_bytes"]
        costs = reference_cost(auto.cheapest(size), topology, size), find_lower_bound(topology).seconds(size)
        assert (choice["predicted_us"], choice["floor_us"]) == pytest.approx([seconds * 1e6 for seconds in costs])
        assert choice["regret"] is None and choice["steps"] == len(auto.cheapest(size).steps)


def test_auto_is_measured_with_every_schedule_and_its_regret_is_printed(allreduce):
    command = ("choose", "--devices", device_spec(3), "--bytes", "1KiB,64KiB")
    status, out, _ = allreduce(*command, "--rounds", "1")
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert "regret: auto's median time divided by the best one's" in " ".join(out.split())
    choices = json.loads(allreduce(*command, "--rounds", "1", "--json")[1])["choices"]
    assert [choice["size_bytes"] for choice in choices] == [1024, 65536]
    for choice in choices:
        assert choice["regret"] == pytest.approx(choice["time_us"] / choice["best_us"])
        assert choice["regret"] >= 1
        assert choice["best"].split(",")[0].split(" ")[0] in {*ALGORITHMS, *TOPOLOGY_AWARE}


def test_the_regret_is_that_of_the_quickest_row_of_the_same_size():
    auto = make_for_links("auto", make_topology("p3.8xlarge"), 4)
    times = {
        1024: {"auto": (3.0, 2.0, 9.0), "ring": (2.0,) * 3, "star": (2.5,) * 3},
        4096: {"auto": (1.0,) * 3, "ring": (1.5,) * 3},
    }
    rows = [
        AllreduceRow(name, 4, size, size // 4, "float32", 1, seconds, 0.0)
        for size in times
        for name, seconds in times[size].items()
    ]
    small, large = predicted_costs.choose_algorithms(auto, [1024, 4096], rows)
    assert (small.best, small.best_s, small.regret) == ("ring", 2.0, 1.5)
    assert (large.best, large.regret) == ("auto", 1.0)
    text = " ".join(predicted_costs.choices_text(auto, [small, large]).split())
    assert "1.25 for the median size, 1.50 at worst" in text


MACHINE, SIZE = "g4dn.12xlarge", 10**8


def test_each_number_of_hosts_has_its_own_costs_and_lower_bound(allreduce):
    command = ("simulate", MACHINE, "--hosts", "1:4", "--algorithms", "ring,star")
    status, out, _ = allreduce(*command)
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert re.findall(r"^ +(\d+) ranks$", out, re.M) == ["4", "8", "16"]
    rows = json.loads(allreduce(*command, "--json")[1])["rows"]
    rows = {(row["world_size"], row["algorithm"]): row for row in rows}
    for hosts in (1, 2, 4):
        topology = make_topology(MACHINE if hosts == 1 else f"{MACHINE}*{hosts}")
        for name in ("ring", "star"):
            row, schedule = rows[topology.world_size, name], make_schedule(name, topology.world_size)
            costs = reference_cost(schedule, topology, SIZE), find_lower_bound(topology).seconds(SIZE)
            assert (row["time_us"], row["floor_us"]) == pytest.approx([seconds * 1e6 for seconds in costs])


def test_the_picture_has_a_curve_for_each_algorithm_with_the_floor_beneath(allreduce, empty_cwd):
    rows, _ = predicted_costs.predict_costs_by_hosts("p3.8xlarge", [1, 2, 4], None, SIZE)
    axes = make_ranks_figure(rows, "title").axes[0]
    *curves, floor = axes.lines
    assert floor.get_label().startswith("lower bound") and list(floor.get_xdata()) == [4, 8, 16]
    beneath = dict(zip(floor.get_xdata(), floor.get_ydata()))
    labels = [curve.get_label() for curve in curves]
    assert labels.count("synthesized") == 1 and len(set(labels)) == len(labels)
    for curve in curves:
        assert all(y >= beneath[x] * (1 - 1e-9) for x, y in zip(*curve.get_data()))
    styles = {(c.get_color(), c.get_marker(), c.get_markerfacecolor(), c.get_ls()) for c in curves}
    assert len(styles) == len(curves)
    words = ("simulate", MACHINE, "--hosts", "1,2", "--algorithms", "ring", "--plot", "r.png")
    assert allreduce(*words)[0] == 0
    assert (empty_cwd / "r.png").read_bytes()[:4] == b"\x89PNG"


def test_rows_of_one_table_have_names_of_their_own():
    for name in ("p3.16xlarge*4", "p3.16xlarge", "g4dn.12xlarge*2"):
        topology = make_topology(name)
        labels = [plan.label for plan in make_plans(None, topology.world_size, topology=topology)]
        assert len(set(labels)) == len(labels)


def test_schedules_that_exist_only_for_few_hosts_have_costs_for_these(allreduce):
    words = ("simulate", "p3.8xlarge", "--hosts", "4:8", "--algorithms", "synthesized,ring")
    rows = json.loads(allreduce(*words, "--json")[1])["rows"]
    names = {(row["world_size"], row["algorithm"].split(",")[0]) for row in rows}
    assert names == {(16, "synthesized"), (16, "ring"), (32, "ring")}
