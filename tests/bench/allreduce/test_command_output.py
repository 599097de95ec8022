"""The allreduce command: plots, predicted costs, drawings, and the search for schedules."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import device_spec

from gluonlab.bench.allreduce import plot_bandwidth as allreduce_plot
from gluonlab.bench.allreduce import predicted_costs
from gluonlab.bench.allreduce.candidate_schedules import make_auto_plan, make_plans
from gluonlab.bench.allreduce.measure_allreduce import CHOICES, AllreduceRow
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost_model import estimate_cost
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.render import as_svg, as_text, draw
from gluonlab.collectives.synthesis.precomputed_schedules import read_schedules
from gluonlab.collectives.topology_aware import make_for_links
from gluonlab.errors import OutputError
from gluonlab.files.atomic_files import check_new_path, new_file
from gluonlab.plain_text import format_size

pytestmark = pytest.mark.usefixtures("short")
CUBE = make_topology("p3.16xlarge")
PLANS = make_plans(None, 8, topology=CUBE)


def test_the_picture_has_every_algorithm_measured_and_predicted_and_the_limit():
    def make_row(name, size):
        predicted_s = None if name == "device" else size * 1e-6
        return AllreduceRow(
            name, 4, size, size // 4, "float32", 1, (size * 2e-6,) * 3, 0.0, predicted_s, (size * 5e-7,)
        )

    rows = [make_row(name, size) for size in (1024, 4096) for name in ("ring", "star", "device")]
    curves = [(curve.label, len(curve.predicted)) for curve in allreduce_plot.make_curves(rows)]
    assert curves == [("ring", 2), ("star", 2), ("device", 0)]
    figure = allreduce_plot.make_figure(rows, 4, "title")
    time, bus = figure.axes
    lines = [(line.get_linestyle(), pytest.approx(list(line.get_ydata()))) for line in time.lines]
    measured, predicted, limit = ("-", [2048, 8192]), ("--", [1024, 4096]), (":", [512, 2048])  # microseconds
    assert [measured, predicted, measured, predicted, measured, limit] == lines
    assert time.get_legend_handles_labels()[1] == ["ring", "star", "device", "memory limit"]
    gb_per_s = {"-": 1.5 / 2000, "--": 1.5 / 1000, ":": 1.5 / 500}  # n = 4
    for line in bus.lines:
        assert list(line.get_ydata()) == pytest.approx([gb_per_s[line.get_linestyle()]] * 2)
    assert all(list(line.get_xdata()) == [1024, 4096] for line in [*time.lines, *bus.lines])
    assert [axes.get_xscale() + axes.get_yscale() for axes in figure.axes] == ["loglog"] * 2


def test_no_two_algorithms_look_alike():
    labels = [*CHOICES, "ring placed", "bidirectional_ring placed"]
    assert len({allreduce_plot.curve_style(label) for label in labels}) == len(labels)


def test_simulation_prices_every_algorithm_in_both_orders_without_mxnet(python, tmp_path):
    command = (
        "import sys; from gluonlab.allreduce import main\ntry: main(sys.argv[1:])\n"
        "finally: assert 'mxnet' not in sys.modules"
    )
    args = ["simulate", "p3.16xlarge", "--bytes", "1KiB,46MB"]
    done = python("-c", command, *args, "--json")
    assert done.returncode == 0, done.stderr
    rows = {(row["algorithm"], row["size_bytes"]): row for row in json.loads(done.stdout)["rows"]}
    auto = make_auto_plan(make_for_links("auto", CUBE, 8))
    for plan in [*PLANS, auto]:
        for size in (1024, 46_000_000):
            row, priced = rows.pop((plan.label, size)), estimate_cost(plan.schedule_for(size), CUBE, size)
            expected = (priced.seconds * 1e6, priced.busbw / 1e9, row["time_us"] / row["floor_us"])
            assert (row["time_us"], row["busbw"], row["times_floor"]) == pytest.approx(expected)
            assert row["times_floor"] >= 1
            assert row["bottleneck"] in {"additions", *(step.bottleneck for step in priced.steps)}
    assert rows == {}


def test_the_table_of_costs_fits_the_terminal_and_names_the_order(allreduce):
    status, out, _ = allreduce("simulate", "p3.16xlarge", "--bytes", "46MB")
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    times = {line[:27].strip(): float(line[27:39].replace(",", "")) for line in re.findall(r"^  \w*ring.*", out, re.M)}
    for name in ("ring", "bidirectional_ring"):
        assert times[f"{name} placed"] < times[name] / 4
    assert "order 0-3-2-1-5-6-7-4" in out


@settings(max_examples=10)
@given(st.lists(st.sampled_from([8, 1024, 2**20, 46_000_000]), min_size=1, max_size=3, unique=True))
def test_the_lowest_cost_of_each_size_is_marked_and_no_other(sizes):
    rows = predicted_costs.predict_costs(CUBE, PLANS, sizes)
    for size, group in zip(sizes, predicted_costs.cost_table(rows, CUBE).split("\n\n")[2:]):
        marked = [line[2:27].strip() for line in group.split("\n")[1:] if line.startswith("*")]
        costs = {row.algorithm: row.cost.seconds for row in rows if row.size_bytes == size}
        assert marked == [name for name, seconds in costs.items() if seconds == min(costs.values())] != []


def test_of_many_sizes_the_cheapest_of_each_fits_a_screen(allreduce):
    """On 24 lines, one of them for the shell. With --all the table has every row of --json."""
    words = ("simulate", "p3.16xlarge", "--bytes", "1KiB:256MiB:4")
    lines = allreduce(*words)[1].splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80 and "--all" in " ".join(lines)
    rows = json.loads(allreduce(*words, "--json")[1])["rows"]
    for size, line in zip([4**power for power in range(5, 15)], lines[3:]):
        lowest = min((row for row in rows if row["size_bytes"] == size), key=lambda row: row["time_us"])
        assert line[:9].strip() == format_size(size) and line[11:36].strip() == lowest["algorithm"]
        assert float(line[36:48].replace(",", "")) == pytest.approx(lowest["time_us"], rel=1e-2)
    assert lines[13] == ""
    expected = [row for row in rows if row["size_bytes"] in (2**10, 2**28)]
    _, out, _ = allreduce(*words[:-1], "1KiB,256MiB", "--all")
    assert len(expected) > 2 * 10 and len(out.splitlines()) > len(expected)


def test_the_table_of_costs_has_the_lower_bound_below_each_size_and_each_costs_ratio_to_it(allreduce):
    topology = make_topology("p3.8xlarge")
    _, out, _ = allreduce("simulate", "p3.8xlarge", "--bytes", "1MiB,1GiB", "--all")
    bounds_us = [float(us.replace(",", "")) for us in re.findall(r"\(lower bound\) +([\d.,]+)\n", out)]
    expected = [find_lower_bound(topology).seconds(size) * 1e6 for size in (2**20, 2**30)]
    assert bounds_us == pytest.approx(expected, rel=1e-3)
    ring = estimate_cost(make_schedule("ring", 4), topology, 2**20).seconds * 1e6
    assert f"{ring / expected[0]:.2f} x" in re.search(r"  ring  .*", out).group()


def test_a_drawing_with_a_topology_has_its_devices_and_prices_above_its_floor(allreduce):
    status, out, _ = allreduce("draw", "sharded", "--topology", "p3.8xlarge")
    drawing, estimate_costs = out.split("p3.8xlarge, 4 devices")
    assert status == 0 and drawing.strip() == as_text(make_schedule("sharded", 4)).strip()
    assert re.search(r"1 KiB\n  sharded .* 1\.00 x", estimate_costs) and estimate_costs.count("(lower bound)") == 3


def test_the_bottleneck_is_the_link_that_is_waited_for_longest():
    ring = estimate_cost(make_schedule("ring", 8), make_topology("p3.16xlarge"), 46e6)
    waiting = dict.fromkeys((step.bottleneck for step in ring.steps), 0.0)
    for step in ring.steps:
        waiting[step.bottleneck] += step.transfer_s
    assert waiting[predicted_costs.find_bottleneck(ring)] == max(waiting.values())
    slow = replace(make_topology("pcie", 4), reduce_bytes_per_s=1e6)
    assert predicted_costs.find_bottleneck(estimate_cost(make_schedule("star", 4), slow, 46e6)) == "additions"
    nothing = estimate_cost(make_schedule("star", 1), make_topology("pcie", 1), 46e6)
    assert predicted_costs.find_bottleneck(nothing) == ""


def test_a_drawing_is_a_text_a_page_or_a_picture_that_replaces_nothing(allreduce, empty_cwd):
    def draw_to(name, *words):
        assert allreduce("draw", *words, "--out-file", name)[0] == 0
        return (empty_cwd / name).read_text(encoding="utf-8")

    text = as_text(make_schedule("tree", 3, chunks=2)) + "\n"
    assert allreduce("draw", "tree", "--devices", device_spec(3), "--chunks", "2") == (0, text, "")
    assert draw_to("ring.html", "ring") == draw("ring", 4)
    status, out, err = allreduce("draw", "star", "--out-file", "ring.html")
    assert (status, out) == (2, "") and err.startswith("error: --out-file ring.html exists")
    assert (empty_cwd / "ring.html").read_text(encoding="utf-8") == draw("ring", 4)
    assert draw_to("ja.html", "ring", "--language", "ja") == draw("ring", 4, language="ja")
    schedule = make_schedule("hierarchical", 4, chunks=2, groups=((0, 2), (1, 3)))
    words = "hierarchical --devices 4 --groups 0,2/1,3 --chunks 2"
    assert draw_to("p.SVG", *words.split()) == as_svg(schedule)
    assert sorted(path.name for path in empty_cwd.iterdir()) == ["ja.html", "p.SVG", "ring.html"]


def test_a_search_prints_and_writes_schedules_that_other_modes_read(allreduce, empty_cwd):
    options = "solve nvswitch --devices 3 --seconds 3600 --bytes 1KiB"
    words = options.split()
    status, out, _ = allreduce(*words, "--out-file", "found.json")
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert re.search(r"^ +4 +3 +4.0000 +4.0000  optimal$", out, re.M)
    assert re.search(r"synthesized, 4 steps +40.0 .* 1.00 x", out) and "(lower bound)" in out
    [result] = read_schedules(empty_cwd / "found.json").front
    time_us = pytest.approx(estimate_cost(result.schedule, make_topology("nvswitch", 3), 1024).seconds * 1e6)
    record = json.loads(allreduce(*words, "--json")[1])
    assert record["front"] == [{"steps": 4, "chunks": 3, "rounds": 4.0, "bound": 4.0, "optimal": True}]
    assert [row["time_us"] for row in record["rows"]] == [time_us]
    status, out, err = allreduce(*words[:-2], "--out-file", "found.json")
    assert status == 2 and err.startswith("error: --out-file found.json exists")
    simulate = "simulate found.json --algorithms synthesized --bytes 1KiB --json"
    assert [row["time_us"] for row in json.loads(allreduce(*simulate.split())[1])["rows"]] == [time_us]
    _, out, err = allreduce("draw", "synthesized", "--topology", "found.json")
    assert out.startswith("synthesized: allreduce, 3 ranks, 3 chunks, 4 steps") and not err


def test_known_links_have_rows_of_their_own(allreduce):
    _, out, _ = allreduce("simulate", "p3.16xlarge", "--bytes", "1MiB", "--json")
    times = {row["algorithm"]: row["time_us"] for row in json.loads(out)["rows"]}
    assert min(times, key=times.get) == "synthesized, 4 steps"
    assert times["synthesized, 4 steps"] <= 60
    assert times["multi_ring"] == pytest.approx(155.3, abs=0.05)


def test_schedules_made_for_links_are_drawn(allreduce, empty_cwd):
    _, out, _ = allreduce("draw", "synthesized", "--topology", "p3.16xlarge")
    assert out.startswith("synthesized: allreduce, 8 ranks, 12 chunks, 4 steps")
    _, out, _ = allreduce("draw", "multi_ring", "--devices", "3")
    assert out.startswith("multi_ring: allreduce, 3 ranks, 3 chunks, 4 steps")
    for name in ("a.html", "a.svg"):
        assert allreduce("draw", "synthesized", "--topology", "p3.8xlarge", "--out-file", name)[0] == 0
        assert "synthesized" in (empty_cwd / name).read_text(encoding="utf-8")


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "speed.png"
    check_new_path("--plot", path)
    path.write_text("another program's")
    with pytest.raises(OutputError, match=r"--plot .*speed.png exists"), new_file("--plot", path) as temporary:
        temporary.write_text("ours")
    assert path.read_text() == "another program's" and list(tmp_path.iterdir()) == [path]


def test_a_folder_without_the_right_to_write_is_named(empty_cwd, monkeypatch, allreduce):
    monkeypatch.setattr("os.access", lambda *args: False)  # root may write everywhere
    status, _, err = allreduce("draw", "ring", "--out-file", "ring.html")
    assert status == 2 and "is not writable" in err
