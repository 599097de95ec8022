"""Folders that are not runs, and damaged runs, are one line in the report."""

import itertools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import JSON_VALUES, mutated_json
from support.devices import device_spec
from support.made_up_runs import QUICK_SETTINGS, ReportParser, make_comparison, make_metrics, make_run

from gluonlab.config import TrainConfig
from gluonlab.errors import DataError
from gluonlab.report.__main__ import main
from gluonlab.report.report_page import make_page
from gluonlab.report.run_tables import format_results
from gluonlab.runs.run_reader import read_runs
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter


def write_files(folder):
    """Write runs, comparisons, and everything that is neither."""
    for name in ("good", "unmeasured", "damaged", "foreign", "torn", "nested", "deep", "pipe"):
        make_run(folder / name)
    make_run(folder / "odd", [{**make_metrics()[-1], "val_accuracy": None}])
    for name in ("begun", "outer", "outer/begun", "twice"):
        make_comparison(folder / name)
    make_run(folder / "twice" / "1-device")
    (folder / "unmeasured/metrics.jsonl").unlink()
    (folder / "circle").symlink_to("circle")
    (folder / "pipe/config.json").unlink()
    os.mkfifo(folder / "pipe/config.json")
    for name, text in {
        "damaged/config.json": "{", "foreign/config.json": "{}", "nested/config.json": "[" * 100_000,
        "torn/metrics.jsonl": json.dumps(make_metrics()[0]) + '\n{"kind": \n{}\n',
        "deep/metrics.jsonl": "[" * 100_000 + "\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text)


MISTAKES = [
    ([], "no run directory was given"),
    (["absent"], "absent is not a folder: pass only run directories"),
    (["unmeasured"], "unmeasured contains no metrics.jsonl"),
    (["good", "./good"], "good is listed twice"),
    (["damaged"], "damaged/config.json is not valid JSON"),
    (["foreign"], "foreign/config.json was not written by gluonlab run: pass only run directories"),
    (["deep"], "metrics.jsonl, line 1: '[[[["),
    (["torn"], "metrics.jsonl, line 2: '{\"kind\": ' is not a valid line of metrics.jsonl: omit this run"),
    (["odd"], "this line of kind 'epoch' has no valid value for val_accuracy"),
    (["nested"], "nested/config.json is not valid JSON"),
    (["circle"], "circle is not a folder: pass only run directories"),
    (["x" * 300], "cannot be read (File name too long)"),
    (["pipe"], "pipe/config.json cannot be read (it is not a regular file)"),
    (["begun"], "begun is the directory of a comparison whose runs have not started"),
    (["outer"], "outer/begun is a comparison within another"),
    (["twice", "twice/1-device"], "twice/1-device is listed twice"),
    (["good", "--out-file", "x" * 300], "cannot be written (File name too long)"),
    (["good", "--out-file", "good/config.json"], "--out-file good/config.json exists"),
    (["good", "--out-file", "nowhere/page.html"], "the folder nowhere does not exist"),
    (["good", "--out-fil", "x"], "did you mean '--out-file'?"),
]


def test_a_user_error_prints_one_line_and_writes_nothing(empty_cwd, ended):
    write_files(empty_cwd)
    files = sorted(empty_cwd.rglob("*"))
    for arguments, message in MISTAKES:
        status, out, error = ended(main, *arguments)
        assert (status, out, error.count("\n")) == (2, "", 1), error
        assert error.startswith("error: ") and message in error
        assert sorted(empty_cwd.rglob("*")) == files


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """config.json and metrics.jsonl of a real run of two epochs."""
    out = tmp_path_factory.mktemp("real") / "run"
    settings = {**QUICK_SETTINGS, "devices": device_spec(1), "epochs": 2, "batch_size": 1437}
    train(TrainConfig(**settings, out=str(out)), reporter=Reporter())
    return (out / "config.json").read_text(), (out / "metrics.jsonl").read_text()


@st.composite
def torn(draw, text):
    """The text with other bytes somewhere in it."""
    begin, content = draw(st.integers(0, len(text))), text.encode()
    return content[:begin] + draw(st.binary(max_size=9)) + content[begin + draw(st.integers(0, 9)) :]


@st.composite
def with_another_value(draw, metrics):
    """The lines, with another value in a field of one of them."""
    lines = [json.loads(line) for line in metrics.splitlines()]
    line = draw(st.sampled_from(lines))
    line[draw(st.sampled_from([*line, "val_loss"]))] = draw(JSON_VALUES)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def damaged(config, metrics):
    """Both files, one of them damaged."""

    def changed(text):
        return mutated_json(json.loads(text)).map(lambda value: json.dumps(value).encode())

    configs = changed(config) | torn(config)
    others = with_another_value(metrics) | changed(metrics.splitlines()[-1]) | torn(metrics)
    return st.tuples(st.just(config.encode()), others) | st.tuples(configs, st.just(metrics.encode()))


@settings(max_examples=20)
@given(st.data())
def test_damaged_files_raise_a_data_error_or_give_a_page(real, tmp_path_factory, data):
    config, metrics = data.draw(damaged(*real))
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_bytes(config)
    (folder / "metrics.jsonl").write_bytes(metrics)
    try:
        runs = read_runs([folder])
    except DataError as error:
        assert "\n" not in str(error)
        return
    format_results(runs)
    ReportParser(make_page(runs))


@pytest.mark.parametrize(
    ("name", "values", "kinds"),
    [
        ("val_loss", ("x", [1], float("inf"), True), ["epoch"]),
        ("step", (0, 10**400, 1.5), ["step", "epoch"]),
        ("val_accuracy", (1.5, -0.1, 10**400), ["epoch"]),
        ("seconds", (0, 1e-320, -1), ["epoch"]),
        ("lr", (-1, float("nan"), "0.1"), ["step"]),
    ],
)
def test_an_impossible_number_is_named_in_the_error(tmp_path, name, values, kinds, ended):
    for number, (kind, value) in enumerate(itertools.product(kinds, values)):
        lines = make_metrics()
        next(line for line in reversed(lines) if line["kind"] == kind)[name] = value
        status, out, err = ended(main, str(make_run(tmp_path / str(number), lines)))
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"this line of kind '{kind}' has no valid value for {name}: omit this run" in err


def test_invalid_utf8_is_shown_as_far_as_possible(tmp_path, ended):
    runs = [make_run(tmp_path / os.fsdecode(name), model="\ud800net") for name in (b"a\xff", b"a\xfe")]
    status, out, _ = ended(main, *map(str, runs), "--out-file", str(tmp_path / "page.html"))
    assert status == 0 and out.count("\na?  ") == 2
    assert "?net" in (tmp_path / "page.html").read_text(encoding="utf-8")
