"""A damaged study.json: a study goes on with options that it could have written, or says a line."""

import copy
import io
import json
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluonlab
from gluonlab.study import __main__ as command

OPTIONS = {
    "batch-size": {
        "panels": {"digits": {"sizes": [2, 8, 64], "target": 0.9}}, "seeds": 3,
        "tuning_seeds": 2, "gpus": None,
    },
    "learning-rate": {
        "devices": [1, 2], "batch_size": 32, "rates": [0.01, 0.02], "epochs": 3, "seeds": 2,
    },
    "scaling": {
        "network": "lenet", "devices": [1, 2], "stores": ["device", "ring"],
        "splits": ["layers"], "kinds": ["weak", "strong"], "rounds": 5,
    },
    "splits": {"network": "lenet", "devices": 2, "microbatches": 8, "rounds": 5,
               "cuts": {"1f1b": "2,4"}},
}  # fmt: skip
ODD = st.one_of(
    st.sampled_from([None, True, -1, 0, 1.5, 2**70, float("nan"), float("inf"), "", "a\nb", "5"]),
    st.text(max_size=3), st.just([]), st.just({}), st.just([None, {}]), st.just([[1]]),
    st.just({"digits": 3}), st.just({"no": {"sizes": [1, 2], "target": 0.5}}),
)  # fmt: skip


def gone_on(monkeypatch, study, text):
    """What the study would go on with, if it does, its exit status, and what it complains of."""
    found = []
    complaints = io.StringIO()
    with monkeypatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(command, "_answer", lambda study, options, *_: found.append(options))
        (Path(folder) / "study.json").write_text(text, encoding="utf-8")
        with redirect_stderr(complaints), pytest.raises(SystemExit) as ended:
            command.main([study, "--resume", folder])
    return found, ended.value.code, complaints.getvalue()


def written(name, options, **head):
    about = {"format": 1, "gluonlab": gluonlab.__version__, "study": name, "options": options}
    return json.dumps({**about, **head})


def plain(options):
    return options if isinstance(options, dict) else options._asdict()


def places(value, path=()):
    """Where something stands, at any depth."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if (
        isinstance(value, list)) else ()  # fmt: skip
    for name, each in inner:
        yield from places(each, (*path, name))


def damaged(options, path, how, odd):
    """A copy in which what stands at ``path`` is something else, is gone, or has company."""
    whole = [copy.deepcopy(options)]
    at, name = whole, 0
    for step in path:
        at, name = at[name], step
    if how == "replaced" or not path:
        at[name] = odd
    elif how == "gone":
        del at[name]
    elif isinstance(at, dict):
        at["another"] = odd
    else:
        at.append(odd)
    return whole[0]


def could_be(study, options):
    """The reference: by hand, what the study's options can be."""
    number = lambda value, least, most: type(value) is int and least <= value <= most  # noqa: E731

    def numbers(values, least, most, count):
        return (
            isinstance(values, list) and len(values) >= count
            and all(number(each, least, most) for each in values)
            and all(one < other for one, other in zip(values, values[1:]))
        )  # fmt: skip

    def some(values, names):
        return (
            isinstance(values, list) and values and all(each in names for each in values)
            and all(values.count(each) == 1 for each in values)
        )  # fmt: skip

    def real(value):
        return type(value) is float and 0 < value < float("inf")

    if not isinstance(options, dict) or set(options) != set(OPTIONS[study]):
        return False
    o = SimpleNamespace(**options)
    if study == "splits":
        return (
            o.network in ("lenet", "resnet18") and number(o.devices, 2, 8)
            and number(o.microbatches, 1, 10**4) and number(o.rounds, 1, 1000)
            and isinstance(o.cuts, dict) and set(o.cuts) <= {"1f1b", "interleaved"}
            and all(isinstance(cut, str) and cut and all(
                layer.isdecimal() for layer in cut.split(",")) for cut in o.cuts.values())
        )  # fmt: skip
    if study == "scaling":
        return (
            o.network in ("lenet", "resnet18") and numbers(o.devices, 1, 64, 1)
            and some(o.stores, ("device", "ring")) and some(o.kinds, ("weak", "strong"))
            and (o.splits == [] or some(o.splits, ("layers",))) and number(o.rounds, 1, 1000)
        )  # fmt: skip
    if study == "learning-rate":
        return (
            numbers(o.devices, 1, 64, 2) and number(o.batch_size, 1, 2**31)
            and isinstance(o.rates, list) and o.rates and all(map(real, o.rates))
            and sorted({*o.rates}) == o.rates and number(o.epochs, 2, 1000)
            and number(o.seeds, 1, 1000)
        )  # fmt: skip
    return (
        isinstance(o.panels, dict) and set(o.panels) == {"digits"}
        and isinstance(o.panels["digits"], dict)
        and set(o.panels["digits"]) == {"sizes", "target"}
        and numbers(o.panels["digits"]["sizes"], 1, 2**20, 2)
        and real(o.panels["digits"]["target"]) and o.panels["digits"]["target"] <= 1
        and number(o.seeds, 1, 1000) and number(o.tuning_seeds, 1, 1000)
        and (o.gpus is None or number(o.gpus, 1, 2**31))
    )  # fmt: skip


@pytest.mark.parametrize("study", OPTIONS)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_options_go_on_if_they_could_be_asked_for_and_else_a_line_says_so(study, data):
    options = OPTIONS[study]
    path = data.draw(st.sampled_from(list(places(options))))
    how = data.draw(st.sampled_from(["replaced", "gone", "more"]))
    changed = damaged(options, path, how, data.draw(ODD))
    with pytest.MonkeyPatch.context() as monkeypatch:
        found, status, said = gone_on(monkeypatch, study, written(study, changed))
    if could_be(study, changed):
        assert (status, said) == (0, "") and [plain(each) for each in found] == [changed]
        return
    assert found == [] and status != 0
    [line] = said.splitlines()
    assert ("study.json" in line and "new folder" in line) or "folder of a study" in line


@pytest.mark.parametrize("study", OPTIONS)
def test_its_own_options_and_no_empty_ones_go_on(study, monkeypatch):
    found, status, _ = gone_on(monkeypatch, study, written(study, OPTIONS[study]))
    assert status == 0 and [plain(each) for each in found] == [OPTIONS[study]]
    found, status, said = gone_on(monkeypatch, study, written(study, {}))
    assert found == [] and status != 0 and "study.json is damaged: put a copy" in said


@given(st.integers(0, 400), st.sampled_from([b"", b"\x00", b"\xff", b"[", b'"', b"9" * 5000]))
@settings(max_examples=20, deadline=None)
def test_so_it_is_wherever_the_file_is_cut(place, more):
    text = written("splits", OPTIONS["splits"])
    cut = text.encode()[:place] + more
    with pytest.MonkeyPatch.context() as monkeypatch:
        found, status, said = gone_on(monkeypatch, "splits", cut.decode("latin-1"))
    assert (found == []) == (status != 0) and len(said.splitlines()) == (status != 0)


@pytest.mark.parametrize("head", [{"study": "x\ny"}, {"gluonlab": 3}, {"study": ["a"]}])
def test_names_that_are_none_are_not_repeated(head, monkeypatch):
    found, status, said = gone_on(monkeypatch, "splits", written("splits", {}, **head))
    assert found == [] and status != 0 and len(said.splitlines()) == 1
