"""check(): every answer gets a verdict in both languages in time; a wrong id is a short error."""

import json
import signal
import threading
import time

import pytest

from gluonlab.errors import ExerciseError
from gluonlab.exercises import Verdict, Wrong, check, exercise
from gluonlab.exercises.exercise_registry import EXERCISES, PASSED, RAISED, TOO_SLOW, UNWRITTEN, WRONG
from gluonlab.exercises.languages import LANGUAGE_VARIABLE


@pytest.fixture(params=["en", "ja"], autouse=True)
def spoken(request, monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, request.param)
    return request.param


@pytest.fixture(autouse=True)
def double(monkeypatch):
    """Exercise 99-1: a function that doubles a number."""
    monkeypatch.setitem(EXERCISES, "99-1", None)

    @exercise("99-1", seconds=600)  # a busy machine may take long
    def checker(answer):
        """Twice the number."""
        for number in (1, 2):
            got = answer(number)
            if got != 2 * number:
                raise Wrong(en=f"twice {number} is not `{got}`", ja=f"{number} の 2 倍は `{got}` ではありません")

    return checker


def written_in_a_cell(source):
    """Execute code like a notebook's cell, with readable lines, and return its last definition."""
    import linecache

    name, names = f"/tmp/cell_{abs(hash(source))}.py", {}
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), names)
    return list(names.values())[-1]


# --- what a verdict says


def test_a_right_answer_passes_and_is_true(spoken):
    verdict = check("99-1", lambda number: 2 * number)
    assert isinstance(verdict, Verdict)
    assert verdict
    assert verdict.status == PASSED
    assert repr(verdict) == {"en": "Exercise 99-1: correct", "ja": "演習 99-1: 正解です"}[spoken]


def test_a_wrong_answer_gets_the_first_counterexample(spoken):
    verdict = check("99-1", lambda number: 2)
    assert not verdict
    assert verdict.status == WRONG
    said = {
        "en": "Exercise 99-1: not right yet\ntwice 2 is not `2`",
        "ja": "演習 99-1: まだ正しくありません\n2 の 2 倍は `2` ではありません",
    }
    assert repr(verdict) == said[spoken]


def test_the_box_of_a_notebook_escapes_what_it_shows():
    shown = check("99-1", lambda number: "<script>&")._repr_html_()
    assert "<code>&lt;script&gt;&amp;</code>" in shown
    assert "<script" not in shown


@pytest.mark.parametrize(
    "stub",
    [
        "def answer(number):\n    '''Twice.'''\n    raise NotImplementedError",
        ("def answer(number):\n    '''Twice.'''\n    x = 1\n    raise NotImplementedError('write it')"),
        "def answer(number):\n    '''Twice.'''",
        "def answer(number):\n    ...",
        "def answer(number):\n    '''Twice.'''\n    pass",
        "answer = ...",
    ],
)
def test_a_stub_is_unwritten_and_says_what_to_do(stub, spoken):
    verdict = check("99-1", written_in_a_cell(stub))
    assert verdict.status == UNWRITTEN
    assert {"en": ("write the body of `answer`", "in place of `...`"), "ja": ("`answer` の中身", "`...`")}[spoken][
        stub.endswith("= ...")
    ] in repr(verdict)


@pytest.mark.parametrize(
    "written",
    ["def answer(number):\n    return 3", "def answer(number):\n    number + 1", "def answer(number):\n    x = ..."],
)
def test_what_has_been_written_is_not_unwritten(written):
    assert check("99-1", written_in_a_cell(written)).status == WRONG


def test_another_stub_that_it_calls_is_named():
    verdict = check(
        "99-1",
        written_in_a_cell("def allreduce(x):\n    raise NotImplementedError\ndef answer(x):\n    return allreduce(x)"),
    )
    assert verdict.status == UNWRITTEN
    assert "`allreduce`" in repr(verdict)
    assert "`answer`" not in repr(verdict)


def test_a_library_that_lacks_something_is_no_stub():
    import numpy as np

    def lacking(number):
        return np.random.RandomState(0).get_state(legacy=None) if number < 0 else np.lib.stride_tricks.NotHere

    assert check("99-1", lacking).status == RAISED


# --- a student's exception


def test_an_exception_names_its_type_its_message_and_the_line_of_the_student():
    verdict = check(
        "99-1", written_in_a_cell("import json\ndef answer(number):\n    text = '{'\n    return json.loads(text)")
    )
    assert verdict.status == RAISED
    assert "JSONDecodeError: Expecting property name" in repr(verdict)
    assert "4" in repr(verdict)
    assert "`return json.loads(text)`" in repr(verdict)
    assert "Traceback" not in repr(verdict)
    assert "gluonlab" not in repr(verdict)


def test_the_line_is_that_of_the_function_where_it_happened():
    cell = "def half(number):\n    return number / 0\ndef answer(number):\n    return half(number)"
    assert "`return number / 0`" in repr(check("99-1", written_in_a_cell(cell)))


@pytest.mark.parametrize("call", ["mx.nd.dot(0, 0)", "mx.nd.sum(mx.nd.ones(3), axis='x')"])
def test_the_line_is_the_students_and_none_of_an_operator_that_mxnet_makes_of_text(call):
    cell = f"import mxnet as mx\ndef answer(number):\n    return {call}"
    said = repr(check("99-1", written_in_a_cell(cell)))
    assert "`answer`" in said and "3" in said and f"`return {call}`" in said


def test_mxnets_message_comes_without_its_own_traceback():
    import mxnet as mx

    def answer(number):
        return mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((4, 5)))

    verdict = check("99-1", answer)
    assert verdict.status == RAISED
    assert "MXNetError" in repr(verdict)
    assert "Stack trace" not in repr(verdict)
    assert "Traceback" not in repr(verdict)


def test_an_error_that_mxnet_tells_later_belongs_to_the_check(double):
    """The index is out of range only when the engine gets to it, after the function has
    returned.
    """
    import mxnet as mx

    def answer(number):
        mx.nd.random.poisson(lam=-1.0, shape=(4,))
        return 2 * number

    assert check("99-1", answer).status == RAISED
    assert check("99-1", lambda number: 2 * number).status == PASSED  # and not to the next one


@pytest.mark.parametrize("answer", [None, 3, "text", [1]])
def test_an_answer_of_the_wrong_kind_is_shown(answer):
    verdict = check("99-1", answer)
    assert verdict.status == RAISED
    assert repr(answer) in repr(verdict)


def test_leaving_python_is_an_error_like_any_other():
    assert check("99-1", lambda number: exit()).status == RAISED


def test_ctrl_c_is_nobodys_verdict():
    def answer(number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("99-1", answer)


# --- time


def test_a_loop_without_end_is_stopped_even_where_it_catches_everything(spoken, double, monkeypatch):
    """Check that the alarm ends an answer that would run forever."""

    def answer(number):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass

    monkeypatch.setitem(EXERCISES, "99-1", None)
    exercise("99-1", seconds=0.2)(double)
    verdict = check("99-1", answer)
    assert verdict.status == TOO_SLOW
    assert {"en": "0.2 s", "ja": "0.2 秒"}[spoken] in repr(verdict)


def test_nothing_of_the_alarm_is_left_behind():
    def mine(number, frame):
        raise AssertionError("the alarm of a check came after it")

    before = signal.signal(signal.SIGALRM, mine)
    try:
        assert check("99-1", lambda number: 2 * number)
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_check_works_outside_of_the_main_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(check("99-1", lambda number: 2 * number)))
    thread.start()
    thread.join()
    assert verdicts[0]


# --- ids, and the record


@pytest.mark.parametrize("id", ["99-2", "99", "", "../x", 3, None, check])
def test_an_id_that_is_none_is_one_line_with_the_choices(id):
    with pytest.raises(ExerciseError) as raised:
        check(id, 3)
    assert repr(id) in str(raised.value)
    assert "choose" in str(raised.value)
    assert "99-1" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_ipython_shows_a_wrong_id_as_one_line():
    with pytest.raises(ExerciseError) as raised:
        check("99-11", 3)
    [line] = raised.value._render_traceback_()
    assert line == f"error: {raised.value}"
    assert "(did you mean '99-1'?)" in line


@pytest.mark.parametrize("id", ["1-1", "99-0", "99-01", "99", "x"])
def test_a_checker_is_registered_under_an_id_of_the_right_form(id):
    with pytest.raises(ExerciseError, match="names no exercise"):
        exercise(id)(print)


def test_every_verdict_is_added_to_the_file_of_grades(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONLAB_GRADES", str(tmp_path / "grades"))
    check("99-1", ...)
    check("99-1", lambda number: 1)
    check("99-1", lambda number: 2 * number)
    lines = [json.loads(line) for line in (tmp_path / "grades").read_text(encoding="utf-8").splitlines()]
    assert [(line["exercise"], line["status"]) for line in lines] == [
        ("99-1", UNWRITTEN),
        ("99-1", WRONG),
        ("99-1", PASSED),
    ]


@pytest.mark.parametrize(("module", "fits"), [("lab98", True), ("lab97", False), ("lab9", False), ("sums", True)])
def test_the_module_of_a_lab_holds_its_exercises_alone(module, fits, monkeypatch):
    monkeypatch.delitem(EXERCISES, "98-1", raising=False)

    def checker(answer):
        """Any."""

    checker.__module__ = f"gluonlab.exercises.{module}"
    if fits:
        assert exercise("98-1")(checker) is checker
        del EXERCISES["98-1"]
    else:
        with pytest.raises(ExerciseError, match=f"names no exercise of gluonlab.exercises.{module}"):
            exercise("98-1")(checker)
    assert "98-1" not in EXERCISES
