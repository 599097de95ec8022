"""Errors: one tree, exit statuses, and messages for names that do not exist."""

import doctest
import inspect
import re
import string
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.examples import examples
from support.processes import write_package

from gluonlab import errors

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == "gluonlab.errors"]
RAISED = [cls for cls in CLASSES if issubclass(cls, errors.GluonlabError)]


def test_every_error_has_one_common_base():
    assert [cls for cls in CLASSES if cls not in RAISED] == [errors.GluonlabWarning]


@pytest.mark.parametrize("cls", RAISED)
def test_usage_errors_end_with_2_and_run_errors_with_1(cls):
    assert cls.exit_status == (2 if issubclass(cls, errors.UsageError) else 1)
    assert not (issubclass(cls, errors.UsageError) and issubclass(cls, errors.RunError))


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    """Read from the drawing: how deep each name stands below which other."""
    above, drawn = [], {}
    for line in errors.__doc__.splitlines():
        drawing = re.match(r"    ((?:│   |    )*(?:[├└]── )?)(\w+Error|MissingMXNet)\b", line)
        if drawing:
            del above[len(drawing[1]) // 4 :]
            drawn[drawing[2]] = above[-1] if above else None
            above.append(drawing[2])
    real = {cls.__name__: cls.__bases__[0].__name__ for cls in RAISED}
    assert drawn == {**real, "GluonlabError": None}


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.DataError, ValueError),
        (errors.OutputError, OSError),
        (errors.DivergedError, RuntimeError),
        (errors.MissingMXNet, ImportError),
    ],
)
def test_whoever_catches_the_builtin_error_catches_ours(cls, builtin):
    with pytest.raises(builtin):
        raise cls("one line")


NAMES = st.text(string.ascii_lowercase, min_size=4, max_size=12)


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.data())
def test_a_name_with_a_slip_is_answered_with_all_choices_and_a_guess(names, data):
    name = data.draw(st.sampled_from(names))
    position = data.draw(st.integers(0, len(name) - 1))
    slip = data.draw(st.sampled_from([name[:position] + name[position + 1 :], name.upper()]))
    assume(slip not in names)
    message = errors.unknown("kvstore", slip, iter(names))
    listed, guess = re.fullmatch(r"unknown kvstore '\w+': choose (.*) \(did you mean '(\w+)'\?\)", message).groups()
    assert listed.split(", ") == sorted(names)
    assert guess in names


@examples(40)
@given(st.lists(NAMES, min_size=errors.MAX_LISTED_NAMES + 1, max_size=60, unique=True), st.data())
def test_of_many_names_the_guess_says_enough(names, data):
    slip = data.draw(st.sampled_from(names)).upper()
    message = errors.unknown("kvstore", slip, names)
    [guess] = re.fullmatch(r"unknown kvstore '\w+': did you mean '(\w+)'\?", message).groups()
    assert guess in names


def test_a_name_like_no_other_is_not_guessed():
    assert errors.unknown("model", "zzz", ["mlp"]) == "unknown model 'zzz': choose mlp"


def test_the_examples_are_true():
    assert doctest.testmod(errors).failed == 0
    assert doctest.testmod(errors).attempted == 3


USER = """
import contextlib

@contextlib.contextmanager
def around():
    yield warn("beware")

def led():
    with around():
        pass
"""


def test_a_warning_names_the_users_own_line():
    """The line is neither in this package nor in a library between."""
    ours = {"warn": errors.warn}
    exec(compile(USER, f"{errors.PACKAGE}some/module.py", "exec"), ours)
    with pytest.warns(errors.GluonlabWarning, match="^beware$") as said:
        ours["led"]()  # this one
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[said[0].lineno - 1]
    assert said[0].filename == __file__ and line.endswith("# this one")


def test_a_warning_of_an_import_names_the_line_that_imports(tmp_path, python):
    (tmp_path / "mine.py").write_text("import gluonlab\n\nimport mxnet\n")
    site = write_package(tmp_path / "site", "mxnet", "")  # which has not begun when the warning comes
    ran = python("mine.py", path=[site], MXNET_CPU_WORKER_NTHREADS="3")
    assert f"{tmp_path / 'mine.py'}:3: GluonlabWarning: MXNET_CPU_WORKER" in ran.stderr


def test_what_mxnet_says_is_the_same_whenever_it_says_it():
    at_noon = "Error in operator fc: [12:00:00] ../src/op.cc:7: Check failed: 2 == 3\nStack trace:\n"
    assert errors.error_text(RuntimeError(at_noon)) == errors.error_text(
        RuntimeError(at_noon.replace("12:00:00", "23:59:59"))
    )
    assert errors.error_text(RuntimeError(at_noon)).endswith("../src/op.cc:7: Check failed: 2 == 3")
