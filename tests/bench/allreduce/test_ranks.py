"""bench allreduce --hosts: prices against the number of ranks, as a table and as a picture."""

import json
import re

import pytest
from support.plain_price import plain_price

from gluonlab.bench.allreduce import ranks
from gluonlab.bench.allreduce.plans import make_plans
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.topology import make_topology

pytestmark = pytest.mark.usefixtures("short")
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
            seconds = plain_price(make_schedule(name, topology.world_size), topology, SIZE)
            assert row["time_us"] == pytest.approx(seconds * 1e6)
            assert row["floor_us"] == pytest.approx(floor_of(topology).seconds(SIZE) * 1e6)


def test_the_picture_has_a_curve_for_each_algorithm_with_the_floor_beneath(bench, empty_cwd):
    rows, _ = ranks.priced("p3.8xlarge", [1, 2, 4], None, SIZE)
    axes = ranks.make_figure(rows, "title").axes[0]
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


@pytest.mark.parametrize(
    "more, what",
    [
        (("--hosts", "0"), "--hosts"),
        (("--hosts", "1:129"), "--hosts"),
        (("--hosts", "4:2"), "--hosts 4:2: write the smaller number first, 2:4"),
        (("--hosts", "1", "--devices", "4"), "--devices has no effect with --hosts"),
        (("--hosts", "1", "--sizes", "1KiB,2KiB"), "--sizes 1KiB,2KiB: with --hosts one size"),
        (("--algorithms", "auto", "--chunks", "8"), "auto cuts buffers itself"),
        (("--hosts", "8", "--algorithms", "synthesised"), "--algorithms synthesised: there are"),
        (("--hosts", "1", "--algorithms", "auto"), "--algorithms auto is always one"),
    ],
)
def test_mistakes_are_one_line(bench, more, what):
    status, out, err = bench("allreduce", "--simulate", MACHINE, *more)
    assert (status, out) == (2, "") and err.startswith(f"error: {what}") and err.count("\n") == 1


def test_hosts_need_a_machine_with_a_network(bench):
    status, _, err = bench("allreduce", "--simulate", "nvswitch", "--hosts", "1,2")
    assert status == 2 and "nvswitch is no particular machine" in err
    assert bench("allreduce", "--hosts", "2")[2].startswith(
        "error: --hosts has no effect when measuring; it belongs to --simulate"
    )


def test_what_there_is_for_fewer_hosts_alone_is_priced_on_these(bench):
    words = ("--simulate", "p3.8xlarge", "--hosts", "4:8", "--algorithms", "synthesised,ring")
    rows = json.loads(bench("allreduce", *words, "--json")[1])["rows"]
    assert {row["algorithm"] for row in rows if row["world_size"] == 32} == {"ring"}
    assert {row["algorithm"].split(",")[0] for row in rows if row["world_size"] == 16} == {
        "synthesised", "ring",
    }  # fmt: skip
