"""The page about runs: it says what their folders say, whatever these are called, and needs nothing
else.
"""

import base64
import json
import re
import shutil
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_runs import QUICK_SETTINGS, SETTINGS, ReportParser, make_metrics, make_run

from gluonlab.config import TrainConfig
from gluonlab.errors import DataError
from gluonlab.report.__main__ import main
from gluonlab.report.report_page import draw_charts, make_page
from gluonlab.report.run_tables import format_results, format_setting, setting_differences, shared_settings
from gluonlab.runs import run_reader
from gluonlab.runs.plot_curves import MAX_POINTS, downsample
from gluonlab.runs.run_reader import RunDescription, read_runs
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.study.compare_devices import compare
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")


def test_the_page_contains_results_and_setting_differences(tmp_path):
    paths = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", make_metrics(epochs=2), kvstore="ring", devices=["cpu(0)"]),
    ]
    page = ReportParser(make_page(read_runs(paths)))
    assert page.tables["results"][1:] == [
        ["a", "2", "0.8000", "0.9000", "100", "50", "3.0", ""],
        ["b", "1", "0.9000", "0.9000", "133", "133", "1.5", "2 of 3 epochs"],
    ]
    assert page.tables["differences"][1:] == [["devices", "cpu(0) cpu(1)", "cpu(0)"], ["kvstore", "device", "ring"]]
    assert page.tables[""][-2:] == [
        ["1", "2.0000", "1.0000", "0.5000", "200", "0.50"],
        ["2", "1.0000", "0.5000", "0.9000", "100", "1.00"],
    ]


def test_the_page_needs_no_other_file(tmp_path):
    text = make_page(read_runs([make_run(tmp_path / "a")]))
    assert set(ReportParser(text).fetched) == {"data:,"}
    assert "default-src 'none'" in text and not re.search(r"url\((?!#)", text)


def test_a_folder_may_have_any_name(tmp_path):
    odd = ["<script>alert(1)</script>", "a & b", '"quoted"', "$\\frac{1", "_hidden", "läuft", "x" * 200]
    made = [make_run(tmp_path / name.replace("/", "_"), model=f"<b>{name}</b>") for name in odd]
    page = ReportParser(make_page(read_runs([*made, make_run(tmp_path / "other")])))
    assert [row[0] for row in page.tables["results"][1:-1]] == [each.name for each in made]
    assert page.tables["differences"][1] == ["model", *[f"<b>{name}</b>" for name in odd], "lenet"]


SPACE = "{http://www.w3.org/2000/svg}"


def tree_of(svg):
    return ElementTree.fromstring(svg[svg.index("<svg") :])


def test_charts_have_a_curve_per_run_and_a_point_per_epoch(tmp_path):
    drawn = draw_charts(read_runs([make_run(tmp_path / "a"), make_run(tmp_path / "b", make_metrics(epochs=2))]))
    assert list(drawn) == [
        "Training loss", "Test loss", "Test accuracy, %", "Test accuracy, %, against time",
        "Images per second", "Learning rate",
    ]  # fmt: skip
    for title in list(drawn)[:5]:
        paths = tree_of(drawn[title]).iter(f"{SPACE}path")
        thick = [path for path in paths if "stroke-width: 1.6" in path.get("style", "")]
        assert [len(re.findall("[ML]", path.get("d"))) for path in thick[:2]] == [3, 2]


def ticks(svg, axis=2):
    """The numbers beside the horizontal axis, 1, or the vertical one, 2."""
    groups = tree_of(svg).iter()
    [axis] = [each for each in groups if each.get("id") == f"matplotlib.axis_{axis}"]
    texts = [text.text.replace("\N{MINUS SIGN}", "-") for text in axis.iter(f"{SPACE}text")]
    return [float(text) for text in texts if not text[0].isalpha()]


def xs(svg, gid):
    """Where the points of a curve lie, as shares of the axis from its first tick to its last."""
    by_id = {group.get("id") or "": group for group in tree_of(svg).iter()}
    ticks = [group for name, group in by_id.items() if re.match(r"xtick_\d+$", name)]
    marks = [float(list(tick.iter(f"{SPACE}use"))[-1].get("x")) for tick in ticks]
    path = next(by_id[gid].iter(f"{SPACE}path")).get("d")
    found = [float(x) for x in re.findall(r"[ML] ([\d.]+)", path)]
    return [(x - min(marks)) / (max(marks) - min(marks)) for x in found]


def test_means_lie_in_the_middle_of_their_epoch_and_evaluations_at_its_end(tmp_path):
    drawn = draw_charts(read_runs([make_run(tmp_path / "a")]))
    for title, expected in {
        "Training loss": [1 / 6, 3 / 6, 5 / 6], "Images per second": [1 / 6, 3 / 6, 5 / 6],
        "Test loss": [1 / 3, 2 / 3, 1], "Test accuracy, %": [1 / 3, 2 / 3, 1],
    }.items():  # fmt: skip
        assert xs(drawn[title], "curve-run-0") == pytest.approx(expected, abs=1e-3), title


def test_the_best_epoch_is_marked(tmp_path):
    """Of 0.5, 0.9 and 0.8: in the table, and by a ring of its own in the charts."""
    runs = read_runs([make_run(tmp_path / "a"), make_run(tmp_path / "b", [])])
    rows = re.findall(r'<tr( class="best")?><td>(\d)</td>', make_page(runs))
    assert rows == [("", "1"), (' class="best"', "2"), ("", "3")]
    for title in ("Test accuracy, %", "Test accuracy, %, against time"):
        assert re.findall(r'<g id="(best-run-\d+)"', draw_charts(runs)[title]) == ["best-run-0"]


def test_epochs_are_counted_from_0_in_whole_numbers(tmp_path):
    for count in (1, 3):
        drawn = draw_charts(read_runs([make_run(tmp_path / str(count), make_metrics(epochs=count))]))
        for title in ("Training loss", "Test accuracy, %", "Images per second"):
            shown = ticks(drawn[title], axis=1)
            assert shown[0] == 0 and count in shown and all(tick == int(tick) for tick in shown)


@pytest.mark.parametrize("accuracies", [[1.0], [0.0], [0.99, 1.0], [0.0, 1.0], [0.9999, 1.0], [0.9, 0.8]], ids=str)
def test_the_accuracy_axis_stays_between_0_and_100_percent(tmp_path, accuracies):
    epochs = [line for line in make_metrics() if line["kind"] == "epoch"]
    made = [{**line, "accuracy": accuracy} for line, accuracy in zip(epochs, accuracies)]
    drawn = draw_charts(read_runs([make_run(tmp_path / "a", made)]))
    for title in ("Test accuracy, %", "Test accuracy, %, against time"):
        assert 0 <= min(ticks(drawn[title])) < max(ticks(drawn[title])) <= 100


def test_a_constant_learning_rate_has_no_chart(tmp_path):
    metrics = [{**line, "lr": 0.1} for line in make_metrics()]
    assert "Learning rate" not in draw_charts(read_runs([make_run(tmp_path / "a", metrics)]))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3000))
def test_downsampled_curves_keep_their_mean_and_order(values):
    xs, ys = downsample([float(i) for i in range(len(values))], values)
    assert len(xs) == len(ys) <= MAX_POINTS and xs == sorted(xs)
    assert min(values) - 1e-6 <= min(ys) and max(ys) <= max(values) + 1e-6
    if len(values) % len(ys) == 0:
        assert sum(ys) / len(ys) == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_an_unfinished_run_is_shown(tmp_path):
    unfinished = [line for line in make_metrics() if line["kind"] == "step"][:3]
    runs = read_runs([make_run(tmp_path / "a", unfinished), make_run(tmp_path / "b", [])])
    page = ReportParser(make_page(runs))
    # none without a point
    assert list(draw_charts(runs)) == ["Training loss"] and draw_charts(runs[1:]) == {}
    assert "<figure" not in make_page(runs[1:])
    assert [row[2:] for row in page.tables["results"][1:]] == [["-", "-", "-", "-", "0.0", "0 of 3 epochs"]] * 2


MORE = {
    "label_smoothing": 0.1, "clip_norm": 1.0, "crop_padding": 2, "flip": True, "microbatches": 2,
    "wd": 1e-4, "no_bias_decay": True, "bucket_bytes": 0, "resident_bytes": 0, "prefetch": 3,
}  # fmt: skip


@pytest.mark.cpu_only("it tells the settings of CPU devices")
def test_settings_of_real_runs_that_differ_are_shown_and_no_others(tmp_path):
    first = train(TrainConfig(**QUICK_SETTINGS, out=str(tmp_path / "a")), reporter=Reporter())
    pretrained = str(first.run_dir / PARAMETERS)
    asked = {**QUICK_SETTINGS, **MORE, "pretrained": pretrained, "confusion": True}
    train(TrainConfig(**asked, out=str(tmp_path / "b")), reporter=Reporter())
    page = ReportParser(make_page(read_runs([tmp_path / "a", tmp_path / "b"])))
    assert sorted(page.tables["differences"][1:]) == sorted(
        [
            ["wd", "0", "0.0001"], ["label_smoothing", "0", "0.1"], ["clip_norm", "-", "1"],
            ["crop_padding", "0", "2"], ["flip", "no", "yes"], ["microbatches", "-", "2"],
            ["no_bias_decay", "no", "yes"], ["bucket_bytes", "4194304", "0"],
            ["resident_bytes", "268435456", "0"], ["prefetch", "2", "3"],
            ["pretrained", "-", pretrained],
        ]
    )  # fmt: skip
    shared = dict(shared_settings(read_runs([tmp_path / "a", tmp_path / "b"])))
    assert (shared["image_shape"], shared["sync_bn"]) == ("1 28 28", "no")
    assert "compress" not in shared
    # said under other names, or products
    assert not {"gpus", "threads", "batch_size", "lr", "out", "confusion"} & set(shared)


def test_settings_are_the_used_ones_and_other_requested_ones(tmp_path):
    """Those of other versions, too, but not what is only made of a run, nor what has come to
    something else.
    """
    asked = {"gpus": 2, "lr": 3, "later": 1, "compress": None, "kvstore": "x", "out": "y"}
    described = RunDescription(tmp_path, asked, {**SETTINGS, "earlier": 2})
    more = {"earlier": 2, "later": 1, "compress": None}
    assert described.settings == {**SETTINGS, **more}


def test_a_comparison_is_replaced_by_its_runs(tmp_path, ended):
    """As gluonlab.run writes them, beside other runs, by numbers of devices."""
    rows = compare(TrainConfig(model="mlp", epochs=1, out=str(tmp_path / "cmp")), [2, 1], Reporter())
    for name in ("16-devices", "3-devices"):
        shutil.copytree(tmp_path / "cmp" / "1-device", tmp_path / "cmp" / name)
    make_run(tmp_path / "other")
    folders = [tmp_path / "cmp", tmp_path / "other"]
    status, out, err = ended(main, *map(str, folders), "--json", "--out", str(tmp_path / "a.html"))
    assert status == 0, err
    shown = [(run["run"], run["devices"]) for run in json.loads(out)["runs"]]
    assert shown[:2] == [(rows[1].run_dir, 1), (rows[0].run_dir, 2)]
    names = ["1-device", "2-devices", "3-devices", "16-devices", "other"]
    assert [run.name for run in read_runs(folders)] == names


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
    made, other = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    picture = re.compile(rf'src="data:image/{re.escape(kind)};base64,([^"]*)"')
    (made / name).mkdir()
    assert picture.findall(make_page(read_runs([made, other]))) == []
    (made / name).rmdir()
    (made / name).write_text(HOSTILE)
    text = make_page(read_runs([made, other]))
    assert [base64.b64decode(found).decode() for found in picture.findall(text)] == [HOSTILE]
    assert f"{title}: a" in text and text.count("<script") == 1  # our own
    monkeypatch.setattr(run_reader, "MAX_PICTURE_BYTES", 10)
    with pytest.raises(DataError, match=f"{re.escape(name)} has more than the 10 bytes"):
        make_page(read_runs([made]))


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


def test_the_command_writes_a_page(tmp_path, ended):
    made = make_run(tmp_path / "a")
    status, out, _ = ended(main, str(made), "--out", str(tmp_path / "page.html"))
    assert status == 0 and out.endswith(f"written to {tmp_path / 'page.html'}\n")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == make_page(read_runs([made]))
    status, out, _ = ended(main, str(made), "--json", "--out", str(tmp_path / "other.html"))
    assert json.loads(out)["runs"] == [
        {"run": str(made), "devices": 2, "epochs": 3, "accuracy": 0.8, "best_accuracy": 0.9,
         "images_per_second": 100, "seconds": 3}
    ]  # fmt: skip


def test_only_an_earlier_report_is_overwritten(tmp_path, ended):
    """Nor what a link of that name leads to, if that is no report."""
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    page = tmp_path / "page.html"
    for run in (one, two):
        assert ended(main, str(run), "--out", str(page))[0] == 0
        assert page.read_text(encoding="utf-8") == make_page(read_runs([run]))
    for name, content in {"notes.html": "mine", "long.html": "x" * 10**6}.items():
        (tmp_path / name).write_text(content)
        status, _, err = ended(main, str(one), "--out", str(tmp_path / name))
        assert status == 2 and "exists: choose another name, or remove it first" in err
        assert (tmp_path / name).read_text() == content
