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


def test_errors_have_one_base_and_exit_status_2_for_usage_errors_and_1_for_run_errors():
    assert [cls for cls in CLASSES if cls not in RAISED] == [errors.GluonlabWarning]
    for cls in RAISED:
        assert cls.exit_status == (2 if issubclass(cls, errors.UsageError) else 1)
        assert not (issubclass(cls, errors.UsageError) and issubclass(cls, errors.RunError))


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    above, parents = [], {}
    for line in errors.__doc__.splitlines():
        drawing = re.match(r"    ((?:│   |    )*(?:[├└]── )?)(\w+Error|MissingMXNet)\b", line)
        if drawing:
            del above[len(drawing[1]) // 4 :]
            parents[drawing[2]] = above[-1] if above else None
            above.append(drawing[2])
    real = {cls.__name__: cls.__bases__[0].__name__ for cls in RAISED}
    assert parents == {**real, "GluonlabError": None}


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
def test_an_error_is_also_a_builtin_error(cls, builtin):
    assert issubclass(cls, builtin)


NAMES = st.text(string.ascii_lowercase, min_size=4, max_size=12)


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.data())
def test_a_misspelled_name_is_answered_with_all_choices_and_a_guess(names, data):
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
def test_of_many_names_only_the_guess_is_given(names, data):
    slip = data.draw(st.sampled_from(names)).upper()
    message = errors.unknown("kvstore", slip, names)
    [guess] = re.fullmatch(r"unknown kvstore '\w+': did you mean '(\w+)'\?", message).groups()
    assert guess in names


def test_a_name_like_no_other_is_not_guessed_and_the_examples_are_true():
    assert errors.unknown("model", "zzz", ["mlp"]) == "unknown model 'zzz': choose mlp"
    assert doctest.testmod(errors) == (0, 3)


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
    module = {"warn": errors.warn}
    exec(compile(USER, f"{errors.PACKAGE}some/module.py", "exec"), module)
    with pytest.warns(errors.GluonlabWarning, match="^beware$") as warnings:
        module["led"]()  # this one
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[warnings[0].lineno - 1]
    assert warnings[0].filename == __file__ and line.endswith("# this one")


def test_a_warning_of_an_import_names_the_line_that_imports(tmp_path, python):
    (tmp_path / "mine.py").write_text("import gluonlab\n\nimport mxnet\n")
    site = write_package(tmp_path / "site", "mxnet", "")  # which has not begun when the warning comes
    ran = python("mine.py", path=[site], MXNET_CPU_WORKER_NTHREADS="3")
    assert f"{tmp_path / 'mine.py'}:3: GluonlabWarning: MXNET_CPU_WORKER" in ran.stderr


def test_messages_of_mxnet_do_not_depend_on_the_time():
    noon = "Error in operator fc: [12:00:00] ../src/op.cc:7: Check failed: 2 == 3\nStack trace:\n"
    message = errors.error_text(RuntimeError(noon))
    assert message == errors.error_text(RuntimeError(noon.replace("12:00:00", "23:59:59")))
    assert message.endswith("../src/op.cc:7: Check failed: 2 == 3")
