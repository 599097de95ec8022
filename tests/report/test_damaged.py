"""What is no run, or a damaged one, is one line in the report; everything else is a page."""

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

MISTAKES = {
    "none": ([], "no run folder is given"),
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
def test_a_user_error_prints_one_line_and_writes_nothing(mistake, empty_cwd, ended):
    arguments, message = MISTAKES[mistake]
    make_run(empty_cwd / "good")
    make_run(empty_cwd / "unmeasured").joinpath("metrics.jsonl").unlink()
    (make_run(empty_cwd / "damaged") / "config.json").write_text("{")
    (make_run(empty_cwd / "foreign") / "config.json").write_text("{}")
    (make_run(empty_cwd / "torn") / "metrics.jsonl").write_text(json.dumps(make_metrics()[0]) + '\n{"kind": \n{}\n')
    make_run(empty_cwd / "odd", [{**make_metrics()[-1], "accuracy": None}])
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
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: ") and message in error
    assert sorted(empty_cwd.rglob("*")) == before


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """config.json and metrics.jsonl of a real run of two epochs."""
    out = tmp_path_factory.mktemp("real") / "run"
    asked = {**QUICK_SETTINGS, "devices": device_spec(1), "epochs": 2, "batch_size": 1437, "out": str(out)}
    train(TrainConfig(**asked), reporter=Reporter())
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
    line[draw(st.sampled_from([*line, "validation_loss"]))] = draw(JSON_VALUES)
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


def spoilt(change, kind="epoch"):
    """The lines, with other values in the last of a kind."""
    made = make_metrics()
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
def test_an_impossible_number_is_named_in_the_error(tmp_path, change, kind, ended):
    run = make_run(tmp_path / "a", spoilt(change, kind))
    status, out, err = ended(main, str(run), "--out", str(tmp_path / "page.html"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    said = f"a line of kind '{kind}' has no possible number for {min(change)}: leave this run out"
    assert said in err


def test_invalid_utf8_is_shown_as_far_as_possible(tmp_path, ended):
    made = [make_run(tmp_path / os.fsdecode(name), model="\ud800net") for name in (b"a\xff", b"a\xfe")]
    status, out, _ = ended(main, *map(str, made), "--out", str(tmp_path / "page.html"))
    assert status == 0 and out.count("\na?  ") == 2
    assert "?net" in (tmp_path / "page.html").read_text(encoding="utf-8")
