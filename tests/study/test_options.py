"""Options of studies: mistakes on the command line, and a damaged study.json, are one line."""

import copy
import functools
import json

import pytest
from support.commands import read_error_line

import gluonlab
from gluonlab.study import __main__ as command
from gluonlab.study.__main__ import main
from gluonlab.study.study_report import to_plain_values

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
    "strategies": {"network": "lenet", "devices": 2, "microbatches": 8, "rounds": 5,
               "cuts": {"1f1b": "2,4"}},
}  # fmt: skip


@pytest.mark.cpu_only("mistakes are found before anything is computed")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("batch-size --panels digit", "did you mean 'digits'?"),
        ("batch-size --batch-sizes 16", "--batch-sizes 16: pass at least two batch sizes"),
        ("batch-size --batch-sizes 16,x", "--batch-sizes x: must be a whole number"),
        ("batch-size --quick --batch-sizes 16,2000", "--batch-sizes 2000: digits has only 1,437 training images"),
        ("batch-size --target 0", "--target 0: must be a number greater than 0 and less than 1"),
        ("batch-size --target 2", "--target 2: must be a number greater than 0 and less than 1"),
        ("batch-size --language de", "unknown language 'de'"),
        ("batch-size --resume x --seeds 2", "omit --seeds"),
        ("batch-size --resume x", "x/study.json cannot be read"),
        ("learning-rate --device-counts 2", "--device-counts 2: pass at least two numbers of devices"),
        ("learning-rate --device-counts 1,x", "--device-counts x: must be a whole number"),
        ("learning-rate --epochs 1", "--epochs 1: must be a whole number"),
        ("learning-rate --seeds 0", "--seeds 0: must be a whole number"),
        ("scaling --model lenot", "did you mean 'lenet'?"),
        ("scaling --kvstores rong", "unknown kvstore 'rong'"),
        ("scaling --strategies none,layers", "unknown --strategies 'none'"),
        ("scaling --strategies layerss", "unknown --strategies 'layerss'"),
        ("scaling --device-counts x", "--device-counts x: must be a whole number"),
        ("scaling --rounds 0", "--rounds 0: must be a whole number"),
        ("strategies --model lenot", "did you mean 'lenet'?"),
        ("strategies --num-devices 9", "--num-devices 9: must be a whole number from 2 to 8"),
        ("strategies --microbatches x", "--microbatches x: must be a whole number"),
        ("strategies --rounds 0", "--rounds 0: must be a whole number"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(words, message, study, empty_cwd):
    assert message in read_error_line(study(*words.split()), empty_cwd)


@pytest.fixture
def resumed(ended, tmp_path, monkeypatch):
    """``resumed(study, text)``: the options with which this study.json resumes, or the error line."""
    found = []
    monkeypatch.setattr(command, "_run_study", lambda study, options, *_: found.append(options))

    def resume(name, text):
        del found[:]
        (tmp_path / "study.json").write_text(text, encoding="utf-8")
        status, out, message = ended(main, name, "--resume", str(tmp_path))
        assert (status != 0, out, len(message.splitlines())) == (not found, "", not found)
        return to_plain_values(found[0]) if found else message

    return resume


def study_json(name, options, **head):
    about = {"format": 1, "gluonlab": gluonlab.__version__, "study": name, "options": options}
    return json.dumps({**about, **head})


def replace_at(options, path, value):
    """A copy of the options with ``value`` at ``path``; ``...`` deletes the key."""
    result = copy.deepcopy(options)
    *outer, last = path
    parent = functools.reduce(dict.get, outer, result)
    if value is ...:
        del parent[last]
    else:
        parent[last] = value
    return result


SIZES, TARGET = ("panels", "digits", "sizes"), ("panels", "digits", "target")
# What options cannot be: by study and place, values that the command would not have study_json.
IMPOSSIBLE = {
    "batch-size": {
        ("panels",): [{}, None, {"no": {"sizes": [1, 2], "target": 0.5}}],
        ("panels", "digits"): [3, {"sizes": [1, 2]}],
        SIZES: [[2], [8, 2], [2, 2], [0, 2], [2, 2**20 + 1], [2, 2.5], [True, 2], "2,8"],
        TARGET: [0.0, 1.5, 1, None], ("seeds",): [0, 1001, "3"], ("tuning_seeds",): [0, 1001],
        ("gpus",): [0, 1.5],
    },
    "learning-rate": {
        ("devices",): [[1], [2, 1], [1, 65], [0, 1]], ("batch_size",): [0, True],
        ("rates",): [[], [0.0], [0.02, 0.01], [1], [float("inf")]], ("epochs",): [1, 1001],
        ("seeds",): [0, 1001],
    },
    "scaling": {
        ("network",): ["mlp", None], ("devices",): [[], [1, 1], [65]], ("stores",): [[], ["rong"]],
        ("splits",): [["layers", "layers"], ["rows"], None], ("kinds",): [[], ["weak", "weak"]],
        ("rounds",): [0, 1001],
    },
    "strategies": {
        ("network",): ["mlpp", []], ("devices",): [1, 9], ("microbatches",): [0, 129],
        ("rounds",): [0, 1001], ("cuts",): [None, {"gpipe": "2"}, {"1f1b": "2,"}, {"1f1b": 2}],
    },
}  # fmt: skip
POSSIBLE = {
    "batch-size": {SIZES: [[1, 2**20]], TARGET: [1.0], ("seeds",): [1, 1000], ("gpus",): [1]},
    "learning-rate": {("devices",): [[1, 64]], ("rates",): [[0.01]], ("epochs",): [2, 1000]},
    "scaling": {("splits",): [[]], ("devices",): [[64]], ("stores",): [["auto"]]},
    "strategies": {("devices",): [8], ("microbatches",): [128], ("cuts",): [{}, {"1f1b": "2"}]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_study_goes_on_with_options_that_it_could_have_written_and_no_others(name, resumed):
    options = OPTIONS[name]
    assert resumed(name, study_json(name, options)) == options
    for path, values in POSSIBLE[name].items():
        for value in values:
            whole = replace_at(options, path, value)
            assert resumed(name, study_json(name, whole)) == whole
    damaged = [replace_at(options, path, each) for path, values in IMPOSSIBLE[name].items() for each in (*values, ...)]
    for each in [{}, {**options, "another": 1}, *damaged]:
        assert "study.json is damaged: replace it with a copy" in str(resumed(name, study_json(name, each))), each


def test_a_folder_of_an_earlier_version_with_the_studys_old_name_is_resumed(resumed):
    options = OPTIONS["strategies"]
    assert resumed("strategies", study_json("splits", options)) == options


@pytest.mark.parametrize("head", [{"study": "x\ny"}, {"gluonlab": 3}, {"study": ["a"]}])
def test_names_that_are_none_are_not_repeated(head, resumed):
    assert isinstance(resumed("strategies", study_json("strategies", {}, **head)), str)


@pytest.mark.parametrize("more", ["", "\x00", "\xff", "[", '"', "9" * 5000], ids=repr)
def test_a_file_that_is_cut_anywhere_is_one_line(more, resumed):
    text = study_json("strategies", OPTIONS["strategies"])
    for place in range(0, len(text), 7):
        assert isinstance(resumed("strategies", text[:place] + more), str)
