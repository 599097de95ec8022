"""A signal ends a training between two steps, and an import once it is done, without traceback."""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.commands import file_names
from support.processes import write_package
from support.run_files import read_metrics
from support.waiting import wait_until

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, Defaults
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest, delayed_signals
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

QUICK = {"model": "mlp", "epochs": 3, "out": "run"}


class SignalReporter(Reporter):
    """Sends signals to this process during a step; ``after``: the number of later steps."""

    def __init__(self, step, *numbers):
        self.step, self.numbers, self.after = step, numbers, -1

    def step_done(self, images, known):
        self.step -= 1
        self.after += self.step < 0
        if not self.step:
            self.after = 0
            for number in self.numbers:
                os.kill(os.getpid(), number)
                sum(range(100))  # a handler runs between two instructions


@pytest.fixture
def handled():
    """Install handlers that raise, like a command's, during the test; return the handler."""

    def end(number, frame):
        raise EXCEPTION_BY_SIGNAL[number]

    before = {number: signal.signal(number, end) for number in EXCEPTION_BY_SIGNAL}
    yield end
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", EXCEPTION_BY_SIGNAL)
def test_a_signal_ends_a_training_after_its_step_and_handlers_are_put_back(empty_cwd, handled, number):
    reporter = SignalReporter(15, number)
    with pytest.raises(
        EXCEPTION_BY_SIGNAL[number],
        match=r"run contains the finished epochs \(1 of 3\); to resume: gluonlab resume run",
    ):
        train(TrainConfig(**QUICK, global_batch_size=128), reporter=reporter)
    assert reporter.after == 0
    assert [signal.getsignal(each) for each in EXCEPTION_BY_SIGNAL] == [handled] * 3
    assert file_names(Path("run")) == ["checkpoints", "config.json", "curves.png", "metrics.jsonl", PARAMETERS]
    assert [line["kind"] for line in read_metrics(Path("run"))].count("epoch") == 1


def test_a_second_ctrl_c_ends_at_once(empty_cwd, handled):
    class Twice(SignalReporter):
        def step_done(self, images, known):
            super().step_done(images, known)
            assert self.step > 0, "the step went on"

    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**QUICK), reporter=Twice(2, signal.SIGTERM, signal.SIGINT))


def test_signals_that_shells_and_terminals_send_twice_do_not_break_a_step(empty_cwd, handled):
    reporter = SignalReporter(2, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)
    with pytest.raises(EXCEPTION_BY_SIGNAL[signal.SIGHUP]):
        train(TrainConfig(**QUICK), reporter=reporter)
    assert reporter.after == 0


def test_a_handler_of_the_caller_is_called_when_the_folder_is_whole(empty_cwd, handled):
    seen = []

    def leave(number, frame):
        seen.append(file_names(Path("run")))
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, leave)
    with pytest.raises(SystemExit, match="7"):
        train(TrainConfig(**QUICK, global_batch_size=128), reporter=SignalReporter(15, signal.SIGTERM))
    assert seen == [["checkpoints", "config.json", "curves.png", "metrics.jsonl", PARAMETERS]]


def test_an_evaluation_ends_between_two_batches(empty_cwd, handled):
    asked = []

    class Sends:
        """A split that is no array: its batches are made when they are asked for."""

        image_shape = (1, 8, 8)

        def __len__(self):
            return 100

        def batch(self, indices):
            asked.append(len(indices))
            if len(asked) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return np.zeros((len(indices), 1, 8, 8), np.uint8), np.zeros(len(indices), np.int32)

    train_split = ArraySplit(np.zeros((20, 1, 8, 8), np.uint8), np.arange(20, dtype=np.int32) % 2)
    defaults = Defaults("mlp", batch_size=10, epochs=1, optimizer="sgd", lr=0.1)
    dataset = Dataset("made-up", train_split, Sends(), ("a", "b"), defaults)
    config = TrainConfig(**QUICK, prefetch=0, threads=1, global_batch_size=10)
    with pytest.raises(EXCEPTION_BY_SIGNAL[signal.SIGTERM], match="no epoch is finished; run contains"):
        train(config, reporter=Reporter(), dataset=dataset)
    assert len(asked) == 3


def test_what_is_ignored_stays_ignored_as_nohup_means_it(handled):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert request.number is None


INTERRUPTS = """
import os, signal, sys

class Counts:
    left = None
    def find_spec(self, name, path=None, target=None):
        if name.startswith("gluonlab.cli") or name.startswith("gluonlab.engine"):
            self.left = {nth} if self.left is None else self.left
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Counts())
"""


@pytest.mark.parametrize(
    ("nth", "number"),
    [(2, signal.SIGINT), *(
        pytest.param(nth, number, marks=pytest.mark.long)
        for nth in (1, 7, 20, 50, 90, 130, 200, 300, 500, 600)
        for number in (signal.SIGINT, signal.SIGTERM)
        if number == signal.SIGINT or nth > 130  # before the command begins it is Python's
    )],
)  # fmt: skip
def test_an_interrupt_at_an_import_is_one_line_and_no_traceback(python, tmp_path, nth, number):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(INTERRUPTS.format(nth=nth, number=int(number)))
    result = python("-m", "gluonlab.run", "--model", "mlp", "--epochs", "9", path=[str(tmp_path / "own")])
    how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert (result.returncode, result.stdout) == (128 + number, "")
    assert result.stderr.lstrip("\n").splitlines()[0].strip() == f"{how}: nothing was written"


# What is imported, and modules inside it, at whose import the signal comes; for extension modules
# this is in the middle of what C code has asked for.
NUMPY = "numpy.core.multiarray" if sys.version_info < (3, 12) else "numpy.linalg"
IMPORTS = {
    "import numpy": [NUMPY],
    "from PIL import Image": ["PIL._imaging"],
    "import simplejpeg": ["simplejpeg._jpeg"],
    "import matplotlib.pyplot": ["matplotlib.ft2font"],
    "import sklearn.datasets": ["sklearn.utils._openmp_helpers"],
    "import onnx": ["onnx.onnx_cpp2py_export"],
    "import onnxruntime": ["onnxruntime.capi.onnxruntime_pybind11_state"],
    "from ortools.sat.python import cp_model": ["ortools.sat.cp_model_pb2", "ortools.sat.python.cp_model_helper"],
    "import mxnet": ["mxnet.ndarray.register", "mxnet._ctypes.ndarray"],
}
# The child sends itself a signal when an inner module is looked for, and says when it came.
CHILD = """
import gluonlab
import signal, sys, time

class Interrupt:
    def __init__(self, inner):
        self.inner = inner

    def find_spec(self, name, path=None, target=None):
        if name == self.inner:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.{signal})
            time.sleep(0)
            print("sent")

{before}
for statement, several in {imports!r}.items():
    sys.meta_path[:0] = map(Interrupt, several)
    try:
        exec(statement)
    except BaseException as error:
        print(statement, "failed:", type(error).__name__, error)
    try:
        for _ in range(60_000):
            time.sleep(0.001)
        print(statement, "lost the signal")
    except KeyboardInterrupt:
        print("delivered", [each for each in several if each not in sys.modules])
    exec(statement)
    print("imported again")
"""
DELIVERED = "sent\ndelivered []\nimported again\n"


def test_ctrl_c_during_an_import_comes_after_it(python):
    """Once, though it comes twice within one."""
    result = python("-c", CHILD.format(imports=IMPORTS, signal="SIGINT", before=""))
    output = "".join("sent\n" * (len(inner) - 1) + DELIVERED for inner in IMPORTS.values())
    assert (result.stdout, result.stderr, result.returncode) == (output, "", 0)


@pytest.mark.parametrize(
    ("number", "handler", "status", "output"),
    [
        ("SIGTERM", "default_int_handler", 0, DELIVERED),
        ("SIGHUP", "default_int_handler", 0, DELIVERED),
        ("SIGTERM", "SIG_DFL", -signal.SIGTERM, ""),
        ("SIGTERM", "SIG_IGN", 0, DELIVERED),
    ],
)
def test_only_a_signal_with_a_handler_of_python_comes_later(python, number, handler, status, output):
    before = f"signal.signal(signal.{number}, signal.{handler})"
    code = CHILD.format(imports={"from PIL import Image": ["PIL._imaging"]}, signal=number, before=before)
    if handler != "default_int_handler":
        code = code.replace("time.sleep(0.001)", "raise KeyboardInterrupt")
    result = python("-c", code)
    assert (result.returncode, result.stdout) == (status, output)


@pytest.mark.parametrize(
    ("arguments", "inner"),
    [
        ("bench allreduce --synthesise p3.16xlarge", "ortools.sat.python.cp_model_helper"),
        ("run", "mxnet.ndarray.register"),
        ("run --epochs 1", "matplotlib.ft2font"),
    ],
)
def test_a_command_that_is_interrupted_in_an_import_ends_with_one_line(python, arguments, inner):
    before = f"from gluonlab.__main__ import main\nsys.meta_path.insert(0, Interrupt({inner!r}))"
    code = CHILD.format(imports={}, signal="SIGINT", before=before).replace('print("sent")', "pass")
    result = python("-c", f"{code}\nsys.argv = ['gluonlab', *{arguments.split()}]\nmain()")
    assert result.returncode == 130
    assert "Traceback" not in result.stderr and "interrupted" in result.stderr.splitlines()[-1]


@pytest.fixture
def interrupts():
    """Return the list of the SIGINTs that this process gets during the test."""
    received, before = [], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGINT, before)


def test_a_block_restores_handlers_and_delivers_each_signal_once(interrupts):
    handler = signal.getsignal(signal.SIGINT)
    with delayed_signals():
        with delayed_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert interrupts == []
    assert signal.getsignal(signal.SIGINT) is handler
    wait_until(lambda: interrupts)
    assert interrupts == [signal.SIGINT]


def test_a_handler_that_the_import_itself_installs_stays(interrupts):
    def handler(number, frame):
        """The handler of a library."""

    with delayed_signals():
        signal.signal(signal.SIGINT, handler)
    assert signal.getsignal(signal.SIGINT) is handler


def test_another_thread_imports_without_touching_handlers():
    before, handlers = signal.getsignal(signal.SIGINT), []

    def enter():
        with delayed_signals():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert [*handlers, signal.getsignal(signal.SIGINT)] == [before, before]


VARIABLE = "OPENBLAS_THREAD_TIMEOUT"


@pytest.mark.parametrize(
    ("exported", "while_it_loads", "later"),
    [({}, "20", "None"), ({VARIABLE: "26"}, "26", "26")],
    ids=["nothing", "by the user"],
)
def test_numpy_loads_with_what_the_user_says_or_else_with_threads_that_sleep_soon(
    python, tmp_path, exported, while_it_loads, later
):
    code = f"import os; print(os.environ.get({VARIABLE!r}))\n"
    path = [write_package(tmp_path, "numpy", code)]
    assert python("-c", f"import gluonlab, numpy; {code}", path=path, **exported).stdout.split() == [
        while_it_loads,
        later,
    ]
