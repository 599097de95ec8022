"""The page about runs contains what their folders contain, whatever their names, and needs no other file."""

import base64
import json
import re
import shutil
import statistics
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_runs import QUICK_SETTINGS, SETTINGS, ReportParser, make_metrics, make_run

from gluonlab.config import TrainConfig
from gluonlab.errors import DataError
from gluonlab.optimizers import server_optimizer
from gluonlab.report.__main__ import main
from gluonlab.report.report_page import draw_charts, make_page
from gluonlab.report.run_tables import (
    MAX_STALENESS,
    _staleness_row,
    format_results,
    format_setting,
    setting_differences,
    shared_settings,
)
from gluonlab.runs import run_reader
from gluonlab.runs.plot_curves import MAX_POINTS, downsample
from gluonlab.runs.run_reader import RunDescription, read_runs
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.study.compare_device_counts import compare
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")


def make_runs(folder, **metrics):
    """Write runs with these lines, and read them."""
    return read_runs([make_run(folder / name, lines) for name, lines in metrics.items()])


def test_the_page_contains_results_and_setting_differences_and_needs_no_other_file(tmp_path):
    one = make_run(tmp_path / "b", make_metrics(epochs=2), kvstore="ring", devices=["cpu(0)"])
    text = make_page(read_runs([make_run(tmp_path / "a"), one]))
    page = ReportParser(text)
    assert page.tables["results"][1:] == [
        ["a", "2", "0.8000", "0.9000", "100", "50", "3.0", ""],
        ["b", "1", "0.9000", "0.9000", "133", "133", "1.5", "2 of 3 epochs"],
    ]
    assert page.tables["differences"][1:] == [["devices", "cpu(0) cpu(1)", "cpu(0)"], ["kvstore", "device", "ring"]]
    assert page.tables[""][-2:] == [
        ["1", "2.0000", "1.0000", "0.5000", "200", "0.50"],
        ["2", "1.0000", "0.5000", "0.9000", "100", "1.00"],
    ]
    assert set(page.fetched) == {"data:,"}
    assert "default-src 'none'" in text and not re.search(r"url\((?!#)", text)


def test_a_folder_may_have_any_name(tmp_path):
    names = ["<script>alert(1)</script>", "a & b", '"quoted"', "$\\frac{1", "_hidden", "läuft", "x" * 200]
    runs = [make_run(tmp_path / name.replace("/", "_"), model=f"<b>{name}</b>") for name in names]
    page = ReportParser(make_page(read_runs([*runs, make_run(tmp_path / "other")])))
    assert [row[0] for row in page.tables["results"][1:-1]] == [run.name for run in runs]
    assert page.tables["differences"][1] == ["model", *[f"<b>{name}</b>" for name in names], "lenet"]


SPACE = "{http://www.w3.org/2000/svg}"


def parse_svg(svg):
    return ElementTree.fromstring(svg[svg.index("<svg") :])


def test_charts_have_a_curve_per_run_and_a_point_per_epoch(tmp_path):
    charts = draw_charts(make_runs(tmp_path, a=make_metrics(), b=make_metrics(epochs=2)))
    *by_epoch, learning_rate = charts
    assert by_epoch == [
        "Training loss", "Validation loss", "Validation accuracy, %", "Validation accuracy, %, by time",
        "Images per second",
    ]  # fmt: skip
    assert learning_rate == "Learning rate"
    for title in by_epoch:
        paths = parse_svg(charts[title]).iter(f"{SPACE}path")
        thick = [path for path in paths if "stroke-width: 1.6" in path.get("style", "")]
        assert [len(re.findall("[ML]", path.get("d"))) for path in thick[:2]] == [3, 2]


def read_ticks(svg, axis=2):
    """Return the numbers beside the horizontal axis, 1, or the vertical one, 2."""
    [group] = [group for group in parse_svg(svg).iter() if group.get("id") == f"matplotlib.axis_{axis}"]
    texts = [text.text.replace("\N{MINUS SIGN}", "-") for text in group.iter(f"{SPACE}text")]
    return [float(text) for text in texts if not text[0].isalpha()]


def read_xs(svg, gid):
    """Return the positions of a curve's points, as shares of the axis from its first tick to its last."""
    by_id = {group.get("id") or "": group for group in parse_svg(svg).iter()}
    ticks = [group for name, group in by_id.items() if re.match(r"xtick_\d+$", name)]
    marks = [float(list(tick.iter(f"{SPACE}use"))[-1].get("x")) for tick in ticks]
    path = next(by_id[gid].iter(f"{SPACE}path")).get("d")
    return [(float(x) - min(marks)) / (max(marks) - min(marks)) for x in re.findall(r"[ML] ([\d.]+)", path)]


def test_means_lie_in_the_middle_of_their_epoch_and_evaluations_at_its_end(tmp_path):
    charts = draw_charts(make_runs(tmp_path, a=make_metrics()))
    for titles, expected in (
        (("Training loss", "Images per second"), [1 / 6, 3 / 6, 5 / 6]),
        (("Validation loss", "Validation accuracy, %"), [1 / 3, 2 / 3, 1]),
    ):
        for title in titles:
            assert read_xs(charts[title], "curve-run-0") == pytest.approx(expected, abs=1e-3), title


def test_the_best_epoch_is_marked(tmp_path):
    """The best of 0.5, 0.9 and 0.8 is marked in the table, and by a ring in the charts."""
    runs = make_runs(tmp_path, a=make_metrics(), b=[])
    rows = re.findall(r'<tr( class="best")?><td>(\d)</td>', make_page(runs))
    assert rows == [("", "1"), (' class="best"', "2"), ("", "3")]
    for title in ("Validation accuracy, %", "Validation accuracy, %, by time"):
        assert re.findall(r'<g id="(best-run-\d+)"', draw_charts(runs)[title]) == ["best-run-0"]


def test_epochs_are_counted_from_0_in_whole_numbers(tmp_path):
    for count in (1, 3):
        charts = draw_charts(make_runs(tmp_path / str(count), a=make_metrics(epochs=count)))
        for title in ("Training loss", "Validation accuracy, %", "Images per second"):
            ticks = read_ticks(charts[title], axis=1)
            assert ticks[0] == 0 and count in ticks and all(tick == int(tick) for tick in ticks)


@pytest.mark.parametrize("accuracies", [[1.0], [0.0], [0.99, 1.0], [0.0, 1.0], [0.9999, 1.0], [0.9, 0.8]], ids=str)
def test_the_accuracy_axis_stays_between_0_and_100_percent(tmp_path, accuracies):
    epochs = [line for line in make_metrics() if line["kind"] == "epoch"]
    lines = [{**line, "val_accuracy": accuracy} for line, accuracy in zip(epochs, accuracies)]
    charts = draw_charts(make_runs(tmp_path, a=lines))
    for title in ("Validation accuracy, %", "Validation accuracy, %, by time"):
        ticks = read_ticks(charts[title])
        assert 0 <= min(ticks) < max(ticks) <= 100


def test_a_constant_learning_rate_has_no_chart(tmp_path):
    lines = [{**line, "lr": 0.1} for line in make_metrics()]
    assert "Learning rate" not in draw_charts(make_runs(tmp_path, a=lines))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3000))
def test_downsampled_curves_keep_their_mean_and_order(values):
    xs, ys = downsample([float(i) for i in range(len(values))], values)
    assert len(xs) == len(ys) <= MAX_POINTS and xs == sorted(xs)
    assert min(values) - 1e-6 <= min(ys) and max(ys) <= max(values) + 1e-6
    if len(values) % len(ys) == 0:
        assert sum(ys) / len(ys) == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_an_unfinished_run_is_shown(tmp_path):
    steps = [line for line in make_metrics() if line["kind"] == "step"][:3]
    runs = make_runs(tmp_path, a=steps, b=[])
    page = ReportParser(make_page(runs))
    assert list(draw_charts(runs)) == ["Training loss"] and draw_charts(runs[1:]) == {}  # none without a point
    assert "<figure" not in make_page(runs[1:])
    assert [row[2:] for row in page.tables["results"][1:]] == [["-", "-", "-", "-", "0.0", "0 of 3 epochs"]] * 2


MORE = {
    "label_smoothing": 0.1, "clip_norm": 1.0, "crop_padding": 2, "flip": True, "microbatches": 2,
    "wd": 1e-4, "no_bias_decay": True, "bucket_bytes": 0, "device_cache_bytes": 0, "prefetch": 3,
}  # fmt: skip


@pytest.mark.cpu_only("it shows the settings of CPU devices")
def test_settings_of_real_runs_that_differ_are_shown_and_no_others(tmp_path):
    first = train(TrainConfig(**QUICK_SETTINGS, out=str(tmp_path / "a")), reporter=Reporter())
    pretrained = str(first.run_dir / PARAMETERS)
    more = {**QUICK_SETTINGS, **MORE, "pretrained": pretrained, "confusion": True}
    train(TrainConfig(**more, out=str(tmp_path / "b")), reporter=Reporter())
    runs = read_runs([tmp_path / "a", tmp_path / "b"])
    rows = ReportParser(make_page(runs)).tables["differences"][1:]
    assert {name: values for name, *values in rows} == {
        "wd": ["0", "0.0001"], "label_smoothing": ["0", "0.1"], "clip_norm": ["-", "1"], "crop_padding": ["0", "2"],
        "flip": ["no", "yes"], "microbatches": ["-", "2"], "no_bias_decay": ["no", "yes"],
        "bucket_bytes": ["4194304", "0"], "device_cache_bytes": ["268435456", "0"], "prefetch": ["2", "3"],
        "pretrained": ["-", pretrained],
    }  # fmt: skip
    shared = dict(shared_settings(runs))
    assert (shared["image_shape"], shared["sync_bn"]) == ("1 28 28", "no")
    # shown under other names, not set, or outputs
    assert not {"compress", "gpus", "threads", "batch_size", "lr", "out", "confusion"} & set(shared)


def test_settings_are_the_used_ones_and_unknown_requested_ones(tmp_path):
    """Without outputs, and without requests that were resolved to something else."""
    config = {"gpus": 2, "lr": 3, "later": 1, "compress": None, "kvstore": "x", "out": "y"}
    settings = RunDescription(tmp_path, config, {**SETTINGS, "earlier": 2}).settings
    assert settings == {**SETTINGS, "earlier": 2, "later": 1, "compress": None}


def test_a_comparison_is_replaced_by_its_runs(tmp_path, ended):
    """In the order of the numbers of devices, beside other runs."""
    rows = compare(TrainConfig(model="mlp", epochs=1, out=str(tmp_path / "cmp")), [2, 1], Reporter())
    for name in ("16-devices", "3-devices"):
        shutil.copytree(tmp_path / "cmp" / "1-device", tmp_path / "cmp" / name)
    folders = [tmp_path / "cmp", make_run(tmp_path / "other")]
    status, out, err = ended(main, *map(str, folders), "--json", "--out-file", str(tmp_path / "a.html"))
    assert status == 0, err
    shown = [(run["run"], run["devices"]) for run in json.loads(out)["runs"]]
    assert shown[:2] == [(rows[1].run_dir, 1), (rows[0].run_dir, 2)]
    assert [run.name for run in read_runs(folders)] == ["1-device", "2-devices", "3-devices", "16-devices", "other"]


def test_a_folder_of_runs_is_replaced_by_them_in_natural_order(tmp_path):
    for name in ("run-10", "run-9", "run-1"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "notes.txt").touch()
    assert [run.name for run in read_runs([tmp_path / "runs"])] == ["run-1", "run-9", "run-10"]


HOSTILE = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("name", "kind", "title"),
    [
        ("confusion.png", "png", "What was taken for what"),
        ("wrong.png", "png", "What it got wrong"),
        ("timeline.svg", "svg+xml", "Where the time went"),
    ],
)
def test_a_picture_is_embedded_without_running_its_scripts(tmp_path, monkeypatch, name, kind, title):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    picture = re.compile(rf'src="data:image/{re.escape(kind)};base64,([^"]*)"')
    (runs[0] / name).mkdir()
    assert picture.findall(make_page(read_runs(runs))) == []
    (runs[0] / name).rmdir()
    (runs[0] / name).write_text(HOSTILE)
    text = make_page(read_runs(runs))
    assert [base64.b64decode(content).decode() for content in picture.findall(text)] == [HOSTILE]
    assert f"{title}: a" in text and text.count("<script") == 1  # the page's own
    monkeypatch.setattr(run_reader, "MAX_PICTURE_BYTES", 10)
    with pytest.raises(DataError, match=f"{re.escape(name)} is larger than the maximum of 10 bytes"):
        make_page(read_runs(runs[:1]))


def test_runs_have_the_shortest_unique_names(tmp_path):
    paths = [make_run(tmp_path / name) for name in ("x/run", "y/run", "y/other")]
    assert [run.name for run in read_runs(paths)] == ["x/run", "y/run", "y/other"]
    assert [run.name for run in read_runs(paths[1:])] == ["run", "other"]


def test_settings_are_either_shared_or_different(tmp_path):
    runs = read_runs([make_run(tmp_path / "a", momentum=0.9), make_run(tmp_path / "b", seed=3)])
    assert setting_differences(runs) == [("momentum", "0.9", "-"), ("seed", "-", "3")]
    assert [name for name, _ in shared_settings(runs)] == list(SETTINGS)
    values = {"-": None, "yes": True, "0.1": 0.1, "1e-05": 1e-05, "gpu(0) gpu(1)": ["gpu(0)", "gpu(1)"]}
    assert {said: format_setting(value) for said, value in values.items()} == dict(zip(values, values))


def test_the_text_fits_a_terminal(tmp_path):
    long, short = (make_run(tmp_path / ("long-" * 30)), make_run(tmp_path / "b", make_metrics(epochs=1)))
    text = format_results(read_runs([long, short]))
    assert max(map(len, text.split("\n"))) <= 80
    assert "\n...ong-  " in text and "1 of 3 epochs" in text


def test_the_command_writes_a_page_and_json(tmp_path, ended):
    run, page = make_run(tmp_path / "a"), tmp_path / "page.html"
    status, out, _ = ended(main, str(run), "--out-file", str(page))
    assert status == 0 and out.endswith(f"written to {page}\n")
    assert page.read_text(encoding="utf-8") == make_page(read_runs([run]))
    _, out, _ = ended(main, str(run), "--json", "--out-file", str(tmp_path / "other.html"))
    numbers = {"val_accuracy": 0.8, "best_val_accuracy": 0.9, "images_per_second": 100, "seconds": 3}
    assert json.loads(out)["runs"] == [{"run": str(run), "devices": 2, "epochs": 3, **numbers}]


def test_only_an_earlier_report_is_overwritten(tmp_path, ended):
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    page = tmp_path / "page.html"
    for run in (one, two):
        assert ended(main, str(run), "--out-file", str(page))[0] == 0
        assert page.read_text(encoding="utf-8") == make_page(read_runs([run]))
    for name, content in {"notes.html": "mine", "long.html": "x" * 10**6}.items():
        (tmp_path / name).write_text(content)
        status, _, err = ended(main, str(one), "--out-file", str(tmp_path / name))
        assert status == 2 and "exists: choose another name, or remove it first" in err
        assert (tmp_path / name).read_text() == content


# --- staleness of asynchronous gradients

CHART = "Staleness: pushes, %, by updates of other workers"


def make_lines(*pushes):
    """Return a run's lines, with the servers' counts of its epochs."""
    return make_metrics() + [
        {"kind": "event", "event": "staleness", "epoch": epoch, "step": 4 * epoch, "pushes": counts}
        for epoch, counts in enumerate(pushes, start=1)
    ]


def test_the_counts_of_all_epochs_are_summed_run_by_run(tmp_path):
    assert server_optimizer.MAX_COUNTED_UPDATES == MAX_STALENESS
    lines = {
        "synchronous": None, "two": make_lines([4, 39, 3], [], [1000, 0, 0, 2]),
        "many": make_lines([0, 1], [0] * MAX_STALENESS + [1]), "none": make_lines([0, 0]),
    }  # fmt: skip
    page = ReportParser(make_page(read_runs([make_run(tmp_path / name, lines[name]) for name in lines])))
    assert page.tables["staleness"] == [
        ["run", "pushes", "mean", "median", "largest"],
        ["two", "1,048", "0.05", "0", "3"],  # (39 + 2 * 3 + 3 * 2) / 1048
        ["many", "2", "31.50 or more", "1", "62 or more"],
    ]


def test_a_chart_has_the_shares_of_each_asynchronous_run(tmp_path):
    runs = read_runs([make_run(tmp_path / "synchronous"), make_run(tmp_path / "two", make_lines([1, 2], [1, 0, 4]))])
    [points] = re.findall(r'<path d="(M[^"]+)"[^>]*stroke-width: 1.6', draw_charts(runs)[CHART])
    # of 8 pushes 2, 2 and 4; a smaller y is higher
    first, second, third = [float(y) for y in re.findall(r"[ML] [0-9.]+ ([0-9.]+)", points)]
    assert first == second > third
    assert CHART not in draw_charts(runs[:1]) and "staleness" not in ReportParser(make_page(runs[:1])).tables


@given(st.lists(st.integers(0, 5), min_size=1, max_size=MAX_STALENESS).filter(any))
def test_the_numbers_are_those_of_all_pushes_one_by_one(pushes):
    ages = [age for age, count in enumerate(pushes) for _ in range(count)]
    mean, median = f"{statistics.mean(ages):.2f}", str(statistics.median_low(ages))
    assert _staleness_row(pushes) == (str(len(ages)), mean, median, str(max(ages)))
