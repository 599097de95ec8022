"""bench allreduce --choose: auto's table, its prices, its regret beside all that was measured."""

import json
import re

import pytest
from support.devices import named
from support.plain_price import plain_price

from gluonlab.bench.allreduce import choose
from gluonlab.bench.allreduce.measure import Row
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.for_links import FOR_LINKS, make_for_links
from gluonlab.collectives.topology import make_topology

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
    assert [row["from_bytes"] for row in found["table"]] == [row.size_bytes for row in made.table()]
    for choice in found["choices"]:
        size = choice["size_bytes"]
        seconds = plain_price(made.cheapest(size), topology, size)
        assert choice["predicted_us"] == pytest.approx(seconds * 1e6)
        assert choice["floor_us"] == pytest.approx(floor_of(topology).seconds(size) * 1e6)
        assert choice["regret"] is None and choice["steps"] == len(made.cheapest(size).steps)


def test_measured_it_stands_beside_every_schedule_and_the_regret_is_said(bench):
    asked = ("allreduce", "--choose", "--devices", named(3), "--sizes", "1KiB,64KiB")
    status, out, _ = bench(*asked, "--rounds", "1")
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert "regret: auto's time by the best one's" in " ".join(out.split())
    found = json.loads(bench(*asked, "--rounds", "1", "--json")[1])
    assert [choice["size_bytes"] for choice in found["choices"]] == [1024, 65536]
    for choice in found["choices"]:
        assert choice["regret"] == pytest.approx(choice["time_us"] / choice["best_us"])
        assert choice["regret"] >= 1
        assert choice["best"].split(",")[0].split(" ")[0] in {*ALGORITHMS, *FOR_LINKS}


def row(label, size, seconds):
    return Row(label, 4, size, size // 4, "float32", 1, seconds, 0.0)


def test_the_regret_is_that_of_the_quickest_row_of_the_same_size():
    made = make_for_links("auto", make_topology("p3.8xlarge"), 4)
    rows = [
        row("auto", 1024, (3.0, 2.0, 9.0)),
        row("ring", 1024, (2.0, 2.0, 2.0)),
        row("star", 1024, (2.5, 2.5, 2.5)),
        row("auto", 4096, (1.0, 1.0, 1.0)),
        row("ring", 4096, (1.5, 1.5, 1.5)),
    ]
    small, large = choose.choices(made, [1024, 4096], rows)
    assert (small.best, small.best_s, small.regret) == ("ring", 2.0, 1.5)
    assert (large.best, large.regret) == ("auto", 1.0)
    said = " ".join(choose.text(made, [small, large]).split())
    assert "1.25 in the median of the sizes, 1.50 at worst" in said


@pytest.mark.parametrize(
    "more, what",
    [
        (("--plot", "p.png"), "--plot has no effect with --choose"),
        (("--algorithms", "ring"), "--algorithms has no effect with --choose"),
        (("--simulate", "p3.8xlarge", "--rounds", "3"), "--rounds has no effect with --simulate"),
        (("--simulate", "p4.8xlarge"), "unknown topology 'p4.8xlarge'"),
    ],
)
def test_what_has_no_effect_is_one_line(bench, more, what):
    status, out, err = bench("allreduce", "--choose", *more)
    assert (status, out) == (2, "") and err.startswith(f"error: {what}") and err.count("\n") == 1
