"""``bench pipeline``: costs of all schedules, and drawings of one."""

import json
import re

import pytest

from gluonlab.parallel.pipeline.pipeline_cost import Costs, equal_shares, ideal_bubble, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, make_pipeline
from gluonlab.parallel.pipeline.render import as_svg, as_text, draw


def read_rows(out):
    return {row["schedule"]: row for row in json.loads(out)["rows"]}


def test_all_schedules_are_priced_without_mxnet(python):
    command = (
        "import sys; from gluonlab.bench.__main__ import main\ntry: main(sys.argv[1:])\n"
        "finally: assert 'mxnet' not in sys.modules"
    )
    done = python("-c", command, "pipeline", "--microbatches", "8", "--json")
    assert done.returncode == 0, done.stderr
    rows = read_rows(done.stdout)
    assert list(rows) == list(SCHEDULES)
    assert rows["gpipe"]["seconds"] == pytest.approx(11 * 3e-3)
    for name, shares in (("1f1b", 1), ("interleaved", 2)):
        assert rows[name]["bubble"] == pytest.approx(ideal_bubble(4, 8, shares))
    assert [row["speed_up"] for row in rows.values()] == pytest.approx([1, 32 / 11, 32 / 11, 64 / 19])
    assert [row["kept"] for row in rows.values()] == [1, 8, 4, 5.5]
    assert rows["1f1b"]["kept_by_stage"] == [4, 3, 2, 1]


def test_the_table_fits_the_terminal_and_explains_its_columns(bench):
    status, out, _ = bench("pipeline", "--devices", "2", "--microbatches", "4")
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert out.startswith("2 devices, 4 microbatches\nschedule ")
    assert re.search(r"\n1f1b +2 +15 +20.0% +1.60x +2\n", out)
    assert "Predictions, not measurements" in out and "bubble:" in out


def test_costs_are_those_of_a_share_or_of_each_stage(bench):
    shares = read_rows(bench("pipeline", "--devices", "2", "--costs", "10,20,1,4", "--json")[1])
    for name, several in (("1f1b", 1), ("interleaved", 2)):
        costs = Costs.uniform(2 * several, 0.01 / several, 0.02 / several, 0.001, 0.004 / several)
        expected = predict_timeline(make_pipeline(name, 2, 8, several), costs)
        assert shares[name]["seconds"] == pytest.approx(expected.seconds)
    rows = read_rows(bench("pipeline", "--devices", "4", "--costs", "10,20,1/12,24,1/30,60/10,20", "--json")[1])
    assert list(rows) == ["sequential", "gpipe", "1f1b"]  # of four stages
    transfers = ((0.001, 0.001), (0.001, 0.001), (0, 0))
    costs = Costs((0.01, 0.012, 0.03, 0.01), (0.02, 0.024, 0.06, 0.02), transfers, (0,) * 4)
    assert rows["gpipe"]["seconds"] == pytest.approx(predict_timeline(make_pipeline("gpipe", 4, 8), costs).seconds)


def test_a_drawing_is_a_text_a_picture_or_a_page_that_replaces_nothing(bench, empty_cwd):
    schedule = make_pipeline("1f1b", 3, 5)
    timeline = predict_timeline(schedule, equal_shares(schedule))
    options = "pipeline --draw 1f1b --devices 3 --microbatches 5"
    words = options.split()
    assert bench(*words) == (0, as_text(schedule, timeline) + "\n", "")
    for name, options, expected in (
        ("p.svg", (), as_svg(schedule, timeline)),
        ("p.html", (), draw(schedule)),
        ("ja.html", ("--language", "ja"), draw(schedule, language="ja")),
    ):
        assert bench(*words, "--out-file", name, *options)[0] == 0
        assert (empty_cwd / name).read_text(encoding="utf-8") == expected
    status, out, err = bench(*words, "--out-file", "p.html")
    assert (status, out) == (2, "") and err.startswith("error: --out-file p.html exists")


def test_stages_per_device_are_for_the_schedule_that_is_drawn_or_for_interleaved(bench):
    sizes = ("--devices", "2", "--microbatches", "4", "--stages-per-device", "3")
    assert bench("pipeline", "--draw", "sequential", *sizes)[1].startswith("sequential: 2 devices, 6 stages")
    rows = read_rows(bench("pipeline", *sizes, "--json")[1])
    assert [row["stages"] for row in rows.values()] == [2, 2, 2, 6]
