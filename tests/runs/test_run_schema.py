"""Lines of metrics.jsonl: the docs describe their fields, and written lines are read unchanged."""

import dataclasses
import json
import math
import re
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet.gluon import nn
from support.commands import file_names
from support.devices import device_spec
from support.image_folders import write_image_folder
from support.process_group import SumExchange, ThreadGroup

from gluonlab.config import TrainConfig
from gluonlab.errors import DataError
from gluonlab.runs import run_schema as schema
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import LINES, METRICS, ConfusionEvent, DivergedEvent, Epoch, LossScaleEvent, Step
from gluonlab.runs.run_writer import RunDirectory
from gluonlab.training.plan import make_plan
from gluonlab.training.user_components import make_user_components

DOCS = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")


def read_section(title):
    """Return the rows of the first table below this heading, and the text of the section."""
    text = re.split(r"^#+ ", DOCS.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]], text


def test_the_docs_describe_each_kind_of_line():
    assert len(re.findall(r'^### `"kind"', DOCS, re.M)) == len(LINES)
    for kind in LINES:
        rows, text = read_section(", ".join(f'`"{key}": "{value}"`' for key, value in kind.tag.items()))
        assert kind.__doc__.splitlines()[0] in text
        assert rows == [
            [f"`{field.name}`", field.metadata["unit"], field.metadata["meaning"]] for field in dataclasses.fields(kind)
        ]


def test_the_docs_describe_the_files_and_their_format():
    files, _ = read_section("Run directory")
    assert {row[0].strip("`/") for row in files} | {schema.COMPARISON} == {
        schema.CHECKPOINTS, schema.CONFIG, schema.METRICS, schema.PARAMETERS, schema.CURVES, schema.CONFUSION,
        schema.EXPORT, schema.COMPARISON, schema.TIMELINE, schema.TRACE, schema.TENSORBOARD, schema.WRONG_IMAGES,
    }  # fmt: skip
    assert f"`{schema.COMPARISON}`" in DOCS and f"describes format {schema.FORMAT}." in DOCS


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_the_docs_name_every_setting(tmp_path):
    base = {"devices": device_spec(4), "kvstore": "ring", "topology": "p3.16xlarge"}
    write_image_folder(tmp_path)
    (tmp_path / "val").rename(tmp_path / ".aside")
    configs = [
        {**base, "optimizer": "sgd", "momentum": 0.9, "lr_schedule": "step"},
        {**base, "optimizer": "adam", "lr_schedule": "linear"},
        {**base, "strategy": "pipeline"}, {**base, "strategy": "layers", "cut": "3"}, {**base, "strategy": "tensor"},
        {"devices": device_spec(2), "device_weights": "2,1"}, {**base, "class_weights": "balanced"},
        {"dataset": f"folder:{tmp_path}", "val_split": 0.5},
    ]  # fmt: skip
    plans = [make_plan(TrainConfig(**settings)) for settings in configs]
    plans.append(make_plan(TrainConfig(**base), group=ThreadGroup(SumExchange(2), 0)))
    plans.append(make_plan(TrainConfig(**base, drop_last=True), components=make_user_components(nn.Dense(10))))
    text = DOCS.split("| setting | meaning |")[1].split("\n## ")[0]
    names = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", text, re.M))))
    used = {name for plan in plans for name in plan.settings()}
    assert names == used | {"deterministic", "tf32", "update_on_servers"}


NUMBERS = {
    "int": st.integers(1, 2**53),
    "float": st.floats(1e-9, 1.0),
    "str": st.text(max_size=9),
    "Mapping[str, str]": st.dictionaries(st.text(max_size=3), st.just("a" * 64), max_size=2),
    "Mapping[str, Mapping[str, float]]": st.dictionaries(
        st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.floats(0.0, 1.0), max_size=2), max_size=2
    ),
    "Mapping[str, Optional[float]]": st.dictionaries(
        st.text(min_size=1, max_size=3), st.one_of(st.none(), st.floats(-1e39, 1e39)), max_size=2
    ),
    "Sequence[int]": st.lists(st.integers(0, 99), max_size=4),
    "Sequence[Sequence[int]]": st.lists(st.lists(st.integers(0, 99), max_size=2), max_size=2),
}


@st.composite
def any_line(draw):
    kind, values = draw(st.sampled_from(LINES)), {}
    for field in dataclasses.fields(kind):
        values[field.name] = draw(NUMBERS[re.sub(r"Optional\[(.*)\]", r"\1", field.type)])
        if field.type.startswith("Optional") and draw(st.booleans()):
            values[field.name] = None
    return kind(**values)


@settings(max_examples=25)
@given(st.lists(any_line(), max_size=5))
def test_written_lines_are_read_unchanged(tmp_path_factory, lines):
    with closing(RunDirectory.create(str(tmp_path_factory.mktemp("new")), "name")) as run:
        run.write(*lines)
    assert read_lines(run.path) == lines


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_line_contains_nan_or_infinity(tmp_path, number):
    with closing(RunDirectory.create(str(tmp_path / "run"), "name")) as run:
        for line in (Step(1, number, 0.1), LossScaleEvent(1, 1, number, 0)):
            with pytest.raises(ValueError, match="not JSON compliant"):
                run.write(Step(1, 1.0, 0.1), line)
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.write_config({}, settings={"lr": number})
    assert file_names(run.path) == [METRICS] and (run.path / METRICS).read_text() == ""


def write_metrics(folder, lines):
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


@settings(max_examples=25)
@given(any_line(), st.data())
def test_an_impossible_value_is_named_with_its_line(tmp_path_factory, line, data):
    folder = tmp_path_factory.mktemp("run")
    field = data.draw(st.sampled_from(dataclasses.fields(line)))
    value = data.draw(st.sampled_from([True, math.nan, -1e40, 10**400, {"": 1}, [[0.5]], "1", [-1]]))
    if value == "1" and field.type == "str":
        value = 1
    write_metrics(folder, [Step(1, 1.0, 0.1).to_dict(), {**line.to_dict(), field.name: value}])
    message = f"this line of kind '{line.tag['kind']}' has no valid value for {field.name}: omit this run"
    with pytest.raises(DataError, match=re.escape(f"{METRICS}, line 2: {message}") + "$"):
        read_lines(folder)


def test_lines_of_unknown_kinds_are_skipped(tmp_path):
    known = [Step(1, 1.0, 0.1), Epoch(1, 1, 9, 1.0, 1.0, 0.5), DivergedEvent("x"), ConfusionEvent([[1]])]
    unknown = [{"kind": "later", "loss": "x"}, {"kind": "event", "event": "later"}]
    write_metrics(tmp_path, [unknown[0], *(line.to_dict() for line in known), unknown[1]])
    assert read_lines(tmp_path) == known
