"""The page about runs: it says what their folders say, whatever these are called, and needs nothing else."""

import dataclasses
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluonlab.config import TrainConfig
from gluonlab.description import Description
from gluonlab.errors import DataError
from gluonlab.report.__main__ import main
from gluonlab.report.charts import MOST_POINTS, _thinned, charts, colour, dash
from gluonlab.report.page import as_page
from gluonlab.report.runs import read_runs
from gluonlab.report.tables import as_text, differences, epochs, in_common, in_words, results
from gluonlab.study.compare import compare
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan
from gluonlab.training.record import PARAMETERS
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")

SETTINGS = {"devices": ["cpu(0)", "cpu(1)"], "model": "lenet", "epochs": 3, "kvstore": "device", "learning_rate": 0.1}


def lines(epochs=3, steps=4, lr=0.1):
    made = []
    for epoch in range(1, epochs + 1):
        made += [
            {"kind": "step", "epoch": epoch, "step": (epoch - 1) * steps + step, "loss": 2.0 / epoch, "lr": lr / epoch}
            for step in range(1, steps + 1)
        ]
        made.append(
            {
                "kind": "epoch", "epoch": epoch, "step": epoch * steps, "images": 100, "seconds": 0.5 * epoch, "loss": 2.0 / epoch,
                "accuracy": [0.5, 0.9, 0.8][epoch - 1], "validation_loss": 1.0 / epoch,
            }
        )  # fmt: skip
    return made


def make_run(folder, metrics=None, **settings):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"gluonlab": "0.1.0", "settings": {**SETTINGS, **settings}, "config": {}}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (lines() if metrics is None else metrics)))
    return folder


def make_comparison(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"config": {}, "compare": [1, 2]}))
    return folder


class Page(HTMLParser):
    """Tables by id, as rows of texts; everything that the page would fetch; and whether tags are closed in order."""

    VOID = {"meta", "link", "br"}

    def __init__(self, text):
        super().__init__()
        self.tables, self.fetched, self.open, self.rows = {}, [], [], None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.fetched += [
            values[name] for name in ("src", "href", "xlink:href") if name in values and not values[name].startswith("#")
        ]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(values.get("id", ""), [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_the_page_holds_the_results_and_what_differs(tmp_path):
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", lines(epochs=2), kvstore="ring", devices=["cpu(0)"])]
    page = Page(as_page(read_runs(paths)))
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
    text = as_page(read_runs([make_run(tmp_path / "a")]))
    assert set(Page(text).fetched) == {"data:,"}
    assert "default-src 'none'" in text and not re.search(r"url\((?!#)", text) and "<script" not in text


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a & b", '"quoted"', "$\\frac{1", "_hidden", "läuft", "x" * 200])
def test_a_folder_may_have_any_name(tmp_path, name):
    made = make_run(tmp_path / name.replace("/", "_"), model=f"<b>{name}</b>")
    page = Page(as_page(read_runs([made, make_run(tmp_path / "other")])))
    assert page.tables["results"][1][0] == made.name
    assert page.tables["differences"][1] == ["model", f"<b>{name}</b>", "lenet"]


def points(svg, curve):
    """The number of points of the curve with this number among those with dots."""
    groups = ElementTree.fromstring(svg[svg.index("<svg") :]).iter("{http://www.w3.org/2000/svg}path")
    thick = [path for path in groups if "stroke-width: 1.6" in path.get("style", "")]
    return len(re.findall("[ML]", thick[curve].get("d")))


def test_charts_have_a_curve_per_run_and_a_point_per_epoch(tmp_path):
    drawn = charts(read_runs([make_run(tmp_path / "a"), make_run(tmp_path / "b", lines(epochs=2))]))
    assert list(drawn) == [
        "Training loss", "Validation accuracy, %", "Validation accuracy, %, against time", "Images per second", "Learning rate",
    ]  # fmt: skip
    for title in list(drawn)[:4]:
        assert [points(drawn[title], curve) for curve in range(2)] == [3, 2]


def ticks(svg, axis=2):
    """The numbers beside the horizontal axis, 1, or the vertical one, 2."""
    [axis] = [
        group for group in ElementTree.fromstring(svg[svg.index("<svg") :]).iter() if group.get("id") == f"matplotlib.axis_{axis}"
    ]
    texts = [text.text.replace("\N{MINUS SIGN}", "-") for text in axis.iter("{http://www.w3.org/2000/svg}text")]
    return [float(text) for text in texts if not text[0].isalpha()]


def test_epochs_are_counted_from_0_in_whole_numbers(tmp_path):
    for count in (1, 3):
        drawn = charts(read_runs([make_run(tmp_path / str(count), lines(epochs=count))]))
        for title in ("Training loss", "Validation accuracy, %", "Images per second"):
            shown = ticks(drawn[title], axis=1)
            assert shown[0] == 0 and count in shown and all(tick == int(tick) for tick in shown)


@pytest.mark.parametrize("accuracies", [[1.0], [0.0], [0.99, 1.0], [0.0, 1.0], [0.9999, 1.0], [0.9, 0.8]], ids=str)
def test_nobody_is_better_than_100_percent_nor_worse_than_0(tmp_path, accuracies):
    epochs = [line for line in lines() if line["kind"] == "epoch"]
    made = [{**line, "accuracy": accuracy} for line, accuracy in zip(epochs, accuracies)]
    drawn = charts(read_runs([make_run(tmp_path / "a", made)]))
    for title in ("Validation accuracy, %", "Validation accuracy, %, against time"):
        assert 0 <= min(ticks(drawn[title])) < max(ticks(drawn[title])) <= 100


def test_a_constant_learning_rate_has_no_chart(tmp_path):
    metrics = [{**line, "lr": 0.1} for line in lines()]
    assert "Learning rate" not in charts(read_runs([make_run(tmp_path / "a", metrics)]))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3000))
def test_thinned_curves_keep_their_mean_and_order(values):
    xs, ys = _thinned([float(i) for i in range(len(values))], values)
    assert len(xs) == len(ys) <= MOST_POINTS and xs == sorted(xs)
    assert min(values) - 1e-6 <= min(ys) and max(ys) <= max(values) + 1e-6
    if len(values) % len(ys) == 0:
        assert sum(ys) / len(ys) == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_a_run_that_has_only_begun_is_shown_too(tmp_path):
    unfinished = [line for line in lines() if line["kind"] == "step"][:3]
    runs = read_runs([make_run(tmp_path / "a", unfinished), make_run(tmp_path / "b", [])])
    page = Page(as_page(runs))
    assert list(charts(runs)) == ["Training loss"] and charts(runs[1:]) == {}  # none without a point
    assert "<figure" not in as_page(runs[1:])
    assert [row[2:] for row in page.tables["results"][1:]] == [["-", "-", "-", "-", "0.0", "0 of 3 epochs"]] * 2


PLAIN = {"devices": "cpu", "threads": 1, "model": "mlp", "epochs": 1}
MORE = {
    "label_smoothing": 0.1, "clip_norm": 1.0, "crop_padding": 2, "flip": True, "microbatches": 2, "wd": 1e-4, "no_bias_decay": True,
    "bucket_bytes": 0, "resident_bytes": 0, "prefetch": 3,
}  # fmt: skip


def test_settings_of_real_runs_that_differ_are_shown_and_no_others(tmp_path):
    first = train(TrainConfig(**PLAIN, out=str(tmp_path / "a")), reporter=Reporter())
    pretrained = str(first.run_dir / PARAMETERS)
    train(TrainConfig(**PLAIN, **MORE, pretrained=pretrained, out=str(tmp_path / "b"), confusion=True), reporter=Reporter())
    page = Page(as_page(read_runs([tmp_path / "a", tmp_path / "b"])))
    assert sorted(page.tables["differences"][1:]) == sorted(
        [
            ["wd", "0", "0.0001"], ["label_smoothing", "0", "0.1"], ["clip_norm", "-", "1"], ["crop_padding", "0", "2"],
            ["flip", "no", "yes"], ["microbatches", "-", "2"], ["no_bias_decay", "no", "yes"], ["bucket_bytes", "4194304", "0"],
            ["resident_bytes", "268435456", "0"], ["prefetch", "2", "3"], ["pretrained", "-", pretrained],
        ]
    )  # fmt: skip
    shared = dict(in_common(read_runs([tmp_path / "a", tmp_path / "b"])))
    assert shared["image_shape"] == "1 28 28" and shared["sync_bn"] == "no" and "compress" not in shared
    assert not {"gpus", "threads", "batch_size", "lr", "out", "confusion"} & set(shared)  # said under other names, or products


# a setting that Plan.settings tells: what goes with it -> another value of it
SETTLED = {
    "gpus": ({}, 2), "devices": ({}, "cpu*2"), "threads": ({"devices": "cpu", "threads": 1}, 2), "batch_size": ({}, 7),
    "global_batch_size": ({}, 7), "epochs": ({}, 3), "lr": ({}, 0.5), "scale_lr": ({"gpus": 2}, True), "model": ({}, "lenet-avg"),
    "dataset": ({}, "synthetic"), "kvstore": ({"gpus": 2}, "ring"), "optimizer": ({}, "adam"), "momentum": ({}, 0.5),
    "wd": ({}, 0.5), "seed": ({}, 1), "lr_schedule": ({}, "cosine"), "warmup_epochs": ({}, 1),
    "lr_decay": ({"lr_schedule": "step"}, 0.3), "lr_decay_epochs": ({"lr_schedule": "step"}, "2"),
    "final_lr": ({"lr_schedule": "linear"}, 1e-3),
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrainConfig)])
def test_no_field_that_decides_how_a_run_goes_is_left_out(name):
    """Those of a later gluonlab neither; ``require_gpu`` changes no run, and ``image_size`` is in the images' shape."""
    more, value = SETTLED.get(name, ({}, None))
    config = TrainConfig(**{"optimizer": "sgd", "lr": 0.1, **more})
    used = make_plan(config).settings()
    if name in SETTLED:
        changed = Description(Path(), config.to_dict(), make_plan(config.replace(**{name: value})).settings())
    else:
        changed = Description(Path(), {**config.to_dict(), name: "changed"}, used)
    different = changed.settings != Description(Path(), config.to_dict(), used).settings
    assert different == (name not in ("require_gpu", "image_size", "memory", "confusion", "export", "out"))


def test_a_comparison_stands_for_its_runs(tmp_path, ended):
    """As gluonlab.run writes them, beside other runs, by numbers of devices."""
    rows = compare(TrainConfig(model="mlp", epochs=1, out=str(tmp_path / "cmp")), [2, 1], Reporter())
    for name in ("16-devices", "3-devices"):
        shutil.copytree(tmp_path / "cmp" / "1-device", tmp_path / "cmp" / name)
    make_run(tmp_path / "other")
    status, out, err = ended(main, str(tmp_path / "cmp"), str(tmp_path / "other"), "--json", "--out", str(tmp_path / "a.html"))
    assert status == 0, err
    shown = json.loads(out)["runs"]
    assert [(run["run"], run["devices"]) for run in shown[:2]] == [(rows[1].run_dir, 1), (rows[0].run_dir, 2)]
    names = ["1-device", "2-devices", "3-devices", "16-devices", "other"]
    assert [run.name for run in read_runs([tmp_path / "cmp", tmp_path / "other"])] == names


def test_runs_have_the_shortest_names_that_tell_them_apart(tmp_path):
    paths = [make_run(tmp_path / "x" / "run"), make_run(tmp_path / "y" / "run"), make_run(tmp_path / "y" / "other")]
    assert [run.name for run in read_runs(paths)] == ["x/run", "y/run", "y/other"]
    assert [run.name for run in read_runs(paths[1:])] == ["run", "other"]


def test_every_run_of_many_looks_different():
    assert len({(colour(number), dash(number)) for number in range(28)}) == 28


def test_settings_are_either_in_common_or_different(tmp_path):
    runs = read_runs([make_run(tmp_path / "a", momentum=0.9), make_run(tmp_path / "b", seed=3)])
    assert differences(runs) == [("momentum", "0.9", "-"), ("seed", "-", "3")]
    assert [name for name, _ in in_common(runs)] == list(SETTINGS)
    assert [in_words(value) for value in (None, True, 0.1, 1e-05, ["gpu(0)", "gpu(1)"])] == [
        "-",
        "yes",
        "0.1",
        "1e-05",
        "gpu(0) gpu(1)",
    ]


def test_the_text_fits_a_terminal(tmp_path):
    runs = read_runs([make_run(tmp_path / ("long-" * 30)), make_run(tmp_path / "b", lines(epochs=1))])
    text = as_text(runs)
    assert max(map(len, text.split("\n"))) <= 80 and "\n...ong-  " in text and "1 of 3 epochs" in text
    assert len(results(runs)) == 2 and len(epochs(runs[0])) == 3


def test_the_command_writes_a_page(tmp_path, ended):
    made = make_run(tmp_path / "a")
    status, out, _ = ended(main, str(made), "--out", str(tmp_path / "page.html"))
    assert status == 0 and out.endswith(f"written to {tmp_path / 'page.html'}\n")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == as_page(read_runs([made]))
    status, out, _ = ended(main, str(made), "--json", "--out", str(tmp_path / "other.html"))
    assert json.loads(out)["runs"] == [
        {"run": str(made), "devices": 2, "epochs": 3, "accuracy": 0.8, "best_accuracy": 0.9, "images_per_second": 100, "seconds": 3}
    ]


MISTAKES = {
    "none": ([], "no run is given"),
    "no folder": (["absent"], "absent is no folder: give folders that"),
    "no metrics": (["unmeasured"], "unmeasured holds no metrics.jsonl"),
    "twice": (["good", "./good"], "good is given twice"),
    "damaged config": (["damaged"], "damaged/config.json cannot be read (it is no JSON)"),
    "foreign config": (["foreign"], "foreign/config.json is not what a run writes: give folders"),
    "nested line": (["deep"], "metrics.jsonl, line 1: '[[[["),
    "damaged line": (["torn"], "metrics.jsonl, line 2: '{\"kind\": ' is no line"),
    "no number": (["odd"], "a line of kind 'epoch' has no possible number for accuracy"),
    "nested": (["nested"], "nested/config.json cannot be read (it is no JSON)"),
    "symbolic links in a circle": (["circle"], "circle is no folder: give folders that"),
    "long name": (["x" * 300], "cannot be read (File name too long)"),
    "pipe": (["pipe"], "pipe/config.json cannot be read (it is no file)"),
    "no run in it": (["begun"], "begun is a comparison in which no run has begun"),
    "within another": (["outer"], "outer/begun is a comparison within another"),
    "twice in a comparison": (["twice", "twice/1-device"], "twice/1-device is given twice"),
    "long page": (["good", "--out", "x" * 300], "cannot be written (File name too long)"),
    "exists": (["good", "--out", "good/config.json"], "--out good/config.json exists"),
    "nowhere": (["good", "--out", "nowhere/page.html"], "there is no folder nowhere"),
    "option": (["good", "--outt", "x"], "did you mean '--out'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(mistake, empty_cwd, ended):
    arguments, message = MISTAKES[mistake]
    make_run(empty_cwd / "good")
    make_run(empty_cwd / "unmeasured").joinpath("metrics.jsonl").unlink()
    (make_run(empty_cwd / "damaged") / "config.json").write_text("{")
    (make_run(empty_cwd / "foreign") / "config.json").write_text("{}")
    (make_run(empty_cwd / "torn") / "metrics.jsonl").write_text(json.dumps(lines()[0]) + '\n{"kind": \n{}\n')
    make_run(empty_cwd / "odd", [{**lines()[-1], "accuracy": None}])
    (make_run(empty_cwd / "nested") / "config.json").write_text("[" * 100_000)
    (make_run(empty_cwd / "deep") / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    (empty_cwd / "circle").symlink_to("circle")
    (make_run(empty_cwd / "pipe") / "config.json").unlink()
    os.mkfifo(empty_cwd / "pipe" / "config.json")
    make_comparison(empty_cwd / "begun")
    make_comparison(empty_cwd / "outer")
    make_comparison(empty_cwd / "outer" / "begun")
    make_run(make_comparison(empty_cwd / "twice") / "1-device")
    before = sorted(empty_cwd.rglob("*"))
    status, out, error = ended(main, *arguments)
    assert status == 2 and out == "" and error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert sorted(empty_cwd.rglob("*")) == before


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """config.json and metrics.jsonl of a real run of two epochs."""
    out = tmp_path_factory.mktemp("real") / "run"
    train(TrainConfig(**{**PLAIN, "epochs": 2}, batch_size=1437, out=str(out)), reporter=Reporter())
    return (out / "config.json").read_text(), (out / "metrics.jsonl").read_text()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(-1, 3)
    | st.sampled_from([10**400, -(10**400), 2**53, 1e308, 1e-320, "\ud800", 0, 2**31]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@st.composite
def mutated(draw, value):
    """The JSON value with another one somewhere in it, or something left out."""
    if not isinstance(value, (dict, list)) or not value:
        return draw(JSON)
    copy = value.copy()
    place = draw(st.sampled_from(sorted(copy) if isinstance(copy, dict) else range(len(copy))))
    if draw(st.integers(0, 4)) == 0:
        del copy[place]
    else:
        copy[place] = draw(mutated(copy[place]))
    return copy


@st.composite
def torn(draw, text):
    """The text with other bytes somewhere in it."""
    begin = draw(st.integers(0, len(text)))
    return text.encode()[:begin] + draw(st.binary(max_size=9)) + text.encode()[begin + draw(st.integers(0, 9)) :]


@st.composite
def with_another_value(draw, metrics):
    """The lines, with another value in a field of one of them."""
    lines = [json.loads(line) for line in metrics.splitlines()]
    line = draw(st.sampled_from(lines))
    line[draw(st.sampled_from([*line, "validation_loss"]))] = draw(JSON)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def damaged(config, metrics):
    """Both files, one of them damaged."""
    changed_config = mutated(json.loads(config)).map(lambda value: json.dumps(value).encode())
    changed_line = mutated(json.loads(metrics.splitlines()[-1])).map(lambda value: json.dumps(value).encode() + b"\n")
    return st.one_of(
        *[st.tuples(st.just(config.encode()), made) for made in (with_another_value(metrics), changed_line, torn(metrics))],
        *[st.tuples(made, st.just(metrics.encode())) for made in (changed_config, torn(config))],
    )


@settings(max_examples=40)
@given(st.data())
def test_damaged_files_are_data_errors_or_pages(real, tmp_path_factory, data):
    config, metrics = data.draw(damaged(*real))
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_bytes(config)
    (folder / "metrics.jsonl").write_bytes(metrics)
    try:
        runs = read_runs([folder])
    except DataError as error:
        assert "\n" not in str(error)
        return
    as_text(runs)
    Page(as_page(runs))


def spoilt(change, kind="epoch"):
    """The lines, with other values in the last of a kind."""
    made = lines()
    last = max(number for number, line in enumerate(made) if line["kind"] == kind)
    made[last].update(change)
    return made


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        *[({"validation_loss": value}, "epoch") for value in ("x", [1], float("inf"), True)],
        *[({"step": value}, kind) for value in (0, 10**400, 1.5) for kind in ("step", "epoch")],
        *[({"accuracy": value}, "epoch") for value in (1.5, -0.1, 10**400)],
        *[({"seconds": value}, "epoch") for value in (0, 1e-320, -1)],
        *[({"lr": value}, "step") for value in (-1, float("nan"), "0.1")],
    ],
)
def test_a_number_that_cannot_be_is_named(tmp_path, change, kind, ended):
    status, out, err = ended(main, str(make_run(tmp_path / "a", spoilt(change, kind))), "--out", str(tmp_path / "page.html"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"a line of kind '{kind}' has no possible number for {min(change)}: leave this run out" in err


def test_texts_that_are_no_utf8_are_shown_as_far_as_they_are(tmp_path, ended):
    made = [make_run(tmp_path / os.fsdecode(name), model="\ud800net") for name in (b"a\xff", b"a\xfe")]
    status, out, _ = ended(main, *map(str, made), "--out", str(tmp_path / "page.html"))
    assert status == 0 and out.count("\na?  ") == 2
    assert "?net" in (tmp_path / "page.html").read_text(encoding="utf-8")
