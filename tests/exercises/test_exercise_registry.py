"""check(): every answer gets a verdict in both languages in time; a wrong id is a short error."""

import json
import linecache
import signal
import threading
import time

import mxnet as mx
import pytest

from gluonlab.errors import ExerciseError
from gluonlab.exercises import Wrong, check, exercise
from gluonlab.exercises.exercise_registry import EXERCISES, PASSED, RAISED, TOO_SLOW, UNWRITTEN, WRONG
from gluonlab.exercises.languages import LANGUAGE_VARIABLE


@pytest.fixture(params=["en", "ja"])
def language(request, monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, request.param)
    return request.param


@pytest.fixture(autouse=True)
def check_double(monkeypatch):
    """Exercise 99-1: a function that doubles a number. Messages are in English."""
    monkeypatch.setenv(LANGUAGE_VARIABLE, "en")
    monkeypatch.setitem(EXERCISES, "99-1", None)

    @exercise("99-1", seconds=600)  # a busy machine may take long
    def checker(answer):
        """Twice the number."""
        for number in (1, 2):
            got = answer(number)
            if got != 2 * number:
                raise Wrong(en=f"twice {number} is not `{got}`", ja=f"{number} の 2 倍は `{got}` ではありません")

    return checker


def right(number):
    return 2 * number


def run_cell(source):
    """Execute code like a notebook's cell, with readable lines, and return its last definition."""
    name, names = f"/tmp/cell_{abs(hash(source))}.py", {}
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), names)
    return list(names.values())[-1]


# --- what a verdict says


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (right, PASSED, {"en": "Exercise 99-1: correct", "ja": "演習 99-1: 正解です"}),
        (lambda number: 2, WRONG, {"en": "Exercise 99-1: not right yet\ntwice 2 is not `2`",
                                   "ja": "演習 99-1: まだ正しくありません\n2 の 2 倍は `2` ではありません"}),
    ],
)  # fmt: skip
def test_a_verdict_is_true_if_the_answer_is_right_and_has_the_first_counterexample(answer, status, message, language):
    verdict = check("99-1", answer)
    assert (bool(verdict), verdict.status, repr(verdict)) == (status == PASSED, status, message[language])


def test_the_box_of_a_notebook_escapes_what_it_shows():
    box = check("99-1", lambda number: "<script>&")._repr_html_()
    assert "<code>&lt;script&gt;&amp;</code>" in box and "<script" not in box


BODY, ELLIPSIS = (
    {"en": "write the body of `answer`", "ja": "`answer` の中身"},
    {"en": "in place of `...`", "ja": "`...`"},
)


@pytest.mark.parametrize(
    ("stub", "advice"),
    [
        ("def answer(number):\n    '''Twice.'''\n    raise NotImplementedError", BODY),
        ("def answer(number):\n    '''Twice.'''\n    x = 1\n    raise NotImplementedError('write it')", BODY),
        ("def answer(number):\n    '''Twice.'''", BODY),
        ("def answer(number):\n    ...", BODY),
        ("def answer(number):\n    '''Twice.'''\n    pass", BODY),
        ("answer = ...", ELLIPSIS),
        ("def helper(x):\n    raise NotImplementedError\ndef answer(x):\n    return helper(x)", {"en": "`helper`",
                                                                                             "ja": "`helper`"}),
    ],
)  # fmt: skip
def test_a_stub_is_unwritten_and_says_what_to_do(stub, advice, language):
    verdict = check("99-1", run_cell(stub))
    assert verdict.status == UNWRITTEN and advice[language] in repr(verdict)
    assert ("`answer`" in repr(verdict)) == (advice is BODY)


@pytest.mark.parametrize("body", ["return 3", "number + 1", "x = ..."])
def test_a_body_that_does_anything_is_not_unwritten(body):
    assert check("99-1", run_cell(f"def answer(number):\n    {body}")).status == WRONG


# --- a student's exception


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        ("import json\ndef answer(number):\n    text = '{'\n    return json.loads(text)",
         ["JSONDecodeError: Expecting property name", "4", "`return json.loads(text)`"]),
        ("def half(number):\n    return number / 0\ndef answer(number):\n    return half(number)",
         ["`return number / 0`"]),  # the line where it happened
        # operators that mxnet makes of text have no line of their own
        *((f"import mxnet as mx\ndef answer(number):\n    return {call}", ["`answer`", "3", f"`return {call}`"])
          for call in ("mx.nd.dot(0, 0)", "mx.nd.sum(mx.nd.ones(3), axis='x')")),
        ("import mxnet as mx\ndef answer(number):\n    return mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((4, 5)))",
         ["MXNetError"]),
        # a library that lacks something is no stub
        ("import numpy as np\ndef answer(number):\n    return np.lib.stride_tricks.NotHere", ["NotHere"]),
        ("def answer(number):\n    exit()", ["SystemExit"]),
    ],
)  # fmt: skip
def test_an_exception_names_its_type_its_message_and_the_line_of_the_student(cell, texts):
    verdict = check("99-1", run_cell(cell))
    assert verdict.status == RAISED
    assert [text for text in texts if text not in repr(verdict)] == []
    assert not any(noise in repr(verdict) for noise in ("Traceback", "Stack trace", "gluonlab"))


def test_an_error_that_mxnet_reports_later_belongs_to_the_check():
    """The rate is refused only when the engine gets to it, after the function has returned."""

    def answer(number):
        mx.nd.random.poisson(lam=-1.0, shape=(4,))
        return 2 * number

    assert check("99-1", answer).status == RAISED
    assert check("99-1", right).status == PASSED  # and not to the next one


@pytest.mark.parametrize("answer", [None, 3, "text", [1]])
def test_an_answer_of_the_wrong_kind_is_shown(answer):
    verdict = check("99-1", answer)
    assert verdict.status == RAISED and repr(answer) in repr(verdict)


def test_ctrl_c_is_raised():
    def answer(number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("99-1", answer)


# --- time


def test_an_endless_loop_is_stopped_even_if_it_catches_everything(language, check_double, monkeypatch):
    def answer(number):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass

    monkeypatch.setitem(EXERCISES, "99-1", None)
    exercise("99-1", seconds=0.2)(check_double)
    verdict = check("99-1", answer)
    assert verdict.status == TOO_SLOW and {"en": "0.2 s", "ja": "0.2 秒"}[language] in repr(verdict)


def test_the_alarm_of_a_check_is_removed():
    def handle_alarm(number, frame):
        raise AssertionError("the alarm of a check came after it")

    previous = signal.signal(signal.SIGALRM, handle_alarm)
    try:
        assert check("99-1", right)
        assert signal.getsignal(signal.SIGALRM) is handle_alarm
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_a_check_works_outside_of_the_main_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(check("99-1", right)))
    thread.start()
    thread.join()
    assert verdicts[0]


# --- ids, and the record


@pytest.mark.parametrize("id", ["99-2", "99", "", "../x", 3, None, check])
def test_an_unknown_id_is_one_line_with_the_choices(id):
    with pytest.raises(ExerciseError) as raised:
        check(id, 3)
    message = str(raised.value)
    assert repr(id) in message and "choose" in message and "99-1" in message and "\n" not in message


def test_ipython_shows_a_wrong_id_as_one_line():
    with pytest.raises(ExerciseError) as raised:
        check("99-11", 3)
    [line] = raised.value._render_traceback_()
    assert line == f"error: {raised.value}" and "(did you mean '99-1'?)" in line


@pytest.mark.parametrize("id", ["1-1", "99-0", "99-01", "99", "x"])
def test_a_checker_is_registered_under_an_id_of_the_right_form(id):
    with pytest.raises(ExerciseError, match="is not a valid id for an exercise"):
        exercise(id)(print)


def test_every_verdict_is_added_to_the_file_of_grades(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONLAB_GRADES", str(tmp_path / "grades"))
    for answer in (..., lambda number: 1, right):
        check("99-1", answer)
    lines = [json.loads(line) for line in (tmp_path / "grades").read_text(encoding="utf-8").splitlines()]
    assert [(line["exercise"], line["status"]) for line in lines] == [
        ("99-1", status) for status in (UNWRITTEN, WRONG, PASSED)
    ]


@pytest.mark.parametrize("module", ["lab01_devices", "lab02_data_parallelism", "lab1_x", "sums"])
def test_the_module_of_a_lab_has_only_its_own_exercises(module, monkeypatch):
    monkeypatch.setitem(EXERCISES, "01-9", None)

    def checker(answer):
        """Any."""

    checker.__module__ = f"gluonlab.exercises.{module}"
    if module in ("lab01_devices", "sums"):
        assert exercise("01-9")(checker) is checker
    else:
        with pytest.raises(ExerciseError, match=f"is not a valid id for an exercise of gluonlab.exercises.{module}"):
            exercise("01-9")(checker)
        assert EXERCISES["01-9"] is None
