"""Lines of metrics.jsonl: what they hold is what the docs say, what is written is read again."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet.gluon import nn
from support.devices import device_spec
from support.image_folders import write_image_folder
from support.process_group import SumExchange, ThreadGroup

from gluonlab.config import TrainConfig
from gluonlab.errors import DataError
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import (
    CHECKPOINTS,
    COMPARISON,
    CONFIG,
    CONFUSION,
    CURVES,
    EXPORT,
    FORMAT,
    LINES,
    METRICS,
    PARAMETERS,
    TENSORBOARD,
    TIMELINE,
    TRACE,
    WRONG_IMAGES,
    ConfusionEvent,
    DivergedEvent,
    Epoch,
    LossScaleEvent,
    Step,
)
from gluonlab.runs.run_writer import RunDirectory
from gluonlab.training.plan import make_plan
from gluonlab.training.user_components import make_user_components

LINEAR = {"optimizer": "adam", "lr_schedule": "linear"}
DOCS = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")


def section(title):
    """The rows of the first table below this heading, each a list of cells."""
    text = re.split(r"^#+ ", DOCS.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]], text


@pytest.mark.parametrize("kind", LINES, ids=lambda kind: kind.__name__)
def test_the_docs_describe_each_kind_of_line(kind):
    title = ", ".join(f'`"{key}": "{value}"`' for key, value in kind.tag.items())
    rows, text = section(title)
    assert kind.__doc__.splitlines()[0] in text
    assert rows == [
        [f"`{field.name}`", field.metadata["unit"], field.metadata["meaning"]] for field in dataclasses.fields(kind)
    ]


def test_the_docs_describe_every_kind_and_the_files_and_their_format():
    assert len(re.findall(r'^### `"kind"', DOCS, re.M)) == len(LINES)
    files, _ = section("The folder of a run")
    assert {row[0].strip("`/") for row in files} | {COMPARISON} == {
        CHECKPOINTS, CONFIG, METRICS, PARAMETERS, CURVES, CONFUSION, EXPORT, COMPARISON,
        TIMELINE, TRACE, TENSORBOARD, WRONG_IMAGES,
    }  # fmt: skip
    assert f"`{COMPARISON}`" in DOCS and f"format, number {FORMAT}." in DOCS


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_the_docs_name_every_setting(tmp_path):
    base = {"devices": device_spec(4), "kvstore": "ring", "topology": "p3.16xlarge"}
    kinds = (
        {"optimizer": "sgd", "momentum": 0.9, "lr_schedule": "step"}, LINEAR,
        {"split": "pipeline"}, {"split": "layers", "cut": "3"}, {"split": "channels"},
    )  # fmt: skip
    plans = [make_plan(TrainConfig(**{**base, **more})) for more in kinds]
    plans.append(make_plan(TrainConfig(**base), group=ThreadGroup(SumExchange(2), 0)))
    plans.append(make_plan(TrainConfig(**base, drop_last=True), components=make_user_components(nn.Dense(10))))
    plans.append(make_plan(TrainConfig(devices=device_spec(2), device_weights="2,1")))
    plans.append(make_plan(TrainConfig(**base, class_weights="balanced")))
    write_image_folder(tmp_path)
    (tmp_path / "val").rename(tmp_path / ".aside")
    plans.append(make_plan(TrainConfig(dataset=f"folder:{tmp_path}", val_share=0.5)))
    text = DOCS.split("| setting | meaning |")[1].split("\n## ")[0]
    used = {name for plan in plans for name in plan.settings()}
    names = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", text, re.M))))
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
def some_line(draw):
    kind = draw(st.sampled_from(LINES))
    values = {}
    for field in dataclasses.fields(kind):
        values[field.name] = draw(NUMBERS[re.sub(r"Optional\[(.*)\]", r"\1", field.type)])
        if field.type.startswith("Optional") and draw(st.booleans()):
            values[field.name] = None
    return kind(**values)


@settings(max_examples=25)
@given(st.lists(some_line(), max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory, lines):
    run = RunDirectory.create(str(tmp_path_factory.mktemp("new")), "name")
    for line in lines:
        run.write(line)
    run.close()
    assert read_lines(run.path) == lines


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_line_contains_nan_or_infinity(tmp_path, number):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    for line in (Step(1, number, 0.1), LossScaleEvent(1, 1, number, 0)):
        with pytest.raises(ValueError, match="not JSON compliant"):
            run.write(Step(1, 1.0, 0.1), line)
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.write_config({}, settings={"lr": number})
    run.close()
    assert (run.path / METRICS).read_text() == "" and not (run.path / CONFIG).exists()


@settings(max_examples=25)
@given(some_line(), st.data())
def test_an_impossible_value_is_named_with_its_line(tmp_path_factory, line, data):
    folder = tmp_path_factory.mktemp("run")
    field = data.draw(st.sampled_from(dataclasses.fields(line)))
    impossible = [True, math.nan, -1e40, 10**400, {"": 1}, [[0.5]], "1", [-1]]
    wrong = data.draw(st.sampled_from(impossible))
    if wrong == "1" and field.type == "str":
        wrong = 1
    content = [Step(1, 1.0, 0.1).to_dict(), {**line.to_dict(), field.name: wrong}]
    (folder / METRICS).write_text("".join(json.dumps(each) + "\n" for each in content))
    kind = line.tag["kind"]
    said = f"{METRICS}, line 2: a line of kind '{kind}' has no possible number for {field.name}: "
    with pytest.raises(DataError, match=re.escape(said) + "leave this run out$"):
        read_lines(folder)


def test_lines_of_unknown_kinds_are_skipped(tmp_path):
    known = [Step(1, 1.0, 0.1), Epoch(1, 1, 9, 1.0, 1.0, 0.5), DivergedEvent("x")]
    known.append(ConfusionEvent([[1]]))
    lines = [{"kind": "later", "loss": "x"}, *(line.to_dict() for line in known)]
    lines.append({"kind": "event", "event": "later"})
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_lines(tmp_path) == known
