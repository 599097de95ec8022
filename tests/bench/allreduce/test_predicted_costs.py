"""What auto chooses, and prices against ranks."""

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
from gluonlab.collectives.lower_bounds import floor_of
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE, make_for_links

pytestmark = pytest.mark.usefixtures("short")


def test_prices_alone_need_no_devices_and_say_which_schedule_from_where_on(bench):
    asked = ("allreduce", "--choose", "--simulate", "p3.8xlarge", "--sizes", "1KiB,4MiB,1GiB")
    status, out, _ = bench(*asked)
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert re.search(r"^ +1 B  sharded +2 +4$", out, re.M) and "regret" not in out
    assert re.search(r"^ +16 MiB  synthesised +4 +12$", out, re.M)
    found = json.loads(bench(*asked, "--json")[1])
    topology = make_topology("p3.8xlarge")
    made = make_for_links("auto", topology, 4)
    assert [row["from_bytes"] for row in found["table"]] == [row.size_bytes for row in made.size_thresholds()]
    for choice in found["choices"]:
        size = choice["size_bytes"]
        seconds = reference_cost(made.cheapest(size), topology, size)
        assert choice["predicted_us"] == pytest.approx(seconds * 1e6)
        assert choice["floor_us"] == pytest.approx(floor_of(topology).seconds(size) * 1e6)
        assert choice["regret"] is None and choice["steps"] == len(made.cheapest(size).steps)


def test_measured_it_stands_beside_every_schedule_and_the_regret_is_said(bench):
    asked = ("allreduce", "--choose", "--devices", device_spec(3), "--sizes", "1KiB,64KiB")
    status, out, _ = bench(*asked, "--rounds", "1")
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert "regret: auto's time by the best one's" in " ".join(out.split())
    found = json.loads(bench(*asked, "--rounds", "1", "--json")[1])
    assert [choice["size_bytes"] for choice in found["choices"]] == [1024, 65536]
    for choice in found["choices"]:
        assert choice["regret"] == pytest.approx(choice["time_us"] / choice["best_us"])
        assert choice["regret"] >= 1
        assert choice["best"].split(",")[0].split(" ")[0] in {*ALGORITHMS, *TOPOLOGY_AWARE}


def row(label, size, seconds):
    return AllreduceRow(label, 4, size, size // 4, "float32", 1, seconds, 0.0)


def test_the_regret_is_that_of_the_quickest_row_of_the_same_size():
    made = make_for_links("auto", make_topology("p3.8xlarge"), 4)
    rows = [
        row("auto", 1024, (3.0, 2.0, 9.0)), row("ring", 1024, (2.0,) * 3),
        row("star", 1024, (2.5,) * 3), row("auto", 4096, (1.0,) * 3), row("ring", 4096, (1.5,) * 3),
    ]  # fmt: skip
    small, large = predicted_costs.choose_algorithms(made, [1024, 4096], rows)
    assert (small.best, small.best_s, small.regret) == ("ring", 2.0, 1.5)
    assert (large.best, large.regret) == ("auto", 1.0)
    said = " ".join(predicted_costs.choices_text(made, [small, large]).split())
    assert "1.25 in the median of the sizes, 1.50 at worst" in said


MACHINE, SIZE = "g4dn.12xlarge", 10**8


def test_each_number_of_hosts_has_its_own_prices_and_floor(bench):
    asked = ("allreduce", "--simulate", MACHINE, "--hosts", "1:4", "--algorithms", "ring,star")
    status, out, _ = bench(*asked)
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert re.findall(r"^ +(\d+) ranks$", out, re.M) == ["4", "8", "16"]
    rows = json.loads(bench(*asked, "--json")[1])["rows"]
    found = {(row["world_size"], row["algorithm"]): row for row in rows}
    for hosts in (1, 2, 4):
        topology = make_topology(MACHINE if hosts == 1 else f"{MACHINE}*{hosts}")
        for name in ("ring", "star"):
            row = found[topology.world_size, name]
            seconds = reference_cost(make_schedule(name, topology.world_size), topology, SIZE)
            assert row["time_us"] == pytest.approx(seconds * 1e6)
            assert row["floor_us"] == pytest.approx(floor_of(topology).seconds(SIZE) * 1e6)


def test_the_picture_has_a_curve_for_each_algorithm_with_the_floor_beneath(bench, empty_cwd):
    rows, _ = predicted_costs.price_hosts("p3.8xlarge", [1, 2, 4], None, SIZE)
    axes = make_ranks_figure(rows, "title").axes[0]
    *curves, floor = axes.lines
    assert floor.get_label().startswith("floor") and list(floor.get_xdata()) == [4, 8, 16]
    beneath = dict(zip(floor.get_xdata(), floor.get_ydata()))
    labels = [curve.get_label() for curve in curves]
    assert labels.count("synthesised") == 1 and len(set(labels)) == len(labels)
    for curve in curves:
        assert all(y >= beneath[x] * (1 - 1e-9) for x, y in zip(*curve.get_data()))
    look = [(c.get_color(), c.get_marker(), c.get_markerfacecolor(), c.get_ls()) for c in curves]
    assert len(set(look)) == len(look)
    words = ("--simulate", MACHINE, "--hosts", "1,2", "--algorithms", "ring", "--plot", "r.png")
    assert bench("allreduce", *words)[0] == 0
    assert (empty_cwd / "r.png").read_bytes()[:4] == b"\x89PNG"


def test_rows_of_one_table_have_names_of_their_own():
    for name in ("p3.16xlarge*4", "p3.16xlarge", "g4dn.12xlarge*2"):
        topology = make_topology(name)
        labels = [plan.label for plan in make_plans(None, topology.world_size, topology=topology)]
        assert len(set(labels)) == len(labels)


def test_what_there_is_for_fewer_hosts_alone_is_priced_on_these(bench):
    words = ("--simulate", "p3.8xlarge", "--hosts", "4:8", "--algorithms", "synthesised,ring")
    rows = json.loads(bench("allreduce", *words, "--json")[1])["rows"]
    assert {row["algorithm"] for row in rows if row["world_size"] == 32} == {"ring"}
    assert {row["algorithm"].split(",")[0] for row in rows if row["world_size"] == 16} == {
        "synthesised", "ring",
    }  # fmt: skip
