"""A signal ends a training between two steps, and an import once it is done, without traceback."""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.commands import file_names
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, Defaults
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest, delayed_signals
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

QUICK = {"model": "mlp", "epochs": 3, "out": "run"}


class Signalled(Reporter):
    """Gets the signals during the step of this number; ``after``: steps that came later."""

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
    """Handlers that raise, as those of a command do, and are put back in any case."""

    def end(number, frame):
        raise EXCEPTION_BY_SIGNAL[number]

    before = {number: signal.signal(number, end) for number in EXCEPTION_BY_SIGNAL}
    yield end
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", EXCEPTION_BY_SIGNAL)
def test_a_signal_ends_a_training_after_its_step_and_handlers_are_put_back(empty_cwd, handled, number):
    reporter = Signalled(15, number)
    with pytest.raises(EXCEPTION_BY_SIGNAL[number], match="run holds every epoch that was finished, 1 of 3"):
        train(TrainConfig(**QUICK, global_batch_size=128), reporter=reporter)
    assert reporter.after == 0
    assert [signal.getsignal(each) for each in EXCEPTION_BY_SIGNAL] == [handled] * 3
    assert file_names(Path("run")) == ["checkpoints", "config.json", "curves.png", "metrics.jsonl", PARAMETERS]
    assert [line["kind"] for line in read_metrics(Path("run"))].count("epoch") == 1


def test_a_second_ctrl_c_ends_at_once(empty_cwd, handled):
    class Twice(Signalled):
        def step_done(self, images, known):
            super().step_done(images, known)
            assert self.step > 0, "the step went on"

    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**QUICK), reporter=Twice(2, signal.SIGTERM, signal.SIGINT))


def test_signals_that_shells_and_terminals_send_twice_do_not_break_a_step(empty_cwd, handled):
    reporter = Signalled(2, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)
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
        train(TrainConfig(**QUICK, global_batch_size=128), reporter=Signalled(15, signal.SIGTERM))
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
    with pytest.raises(EXCEPTION_BY_SIGNAL[signal.SIGTERM], match="no epoch was finished"):
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
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(INTERRUPTS.format(nth=nth, number=int(number)))
    ended = python("-m", "gluonlab.run", "--model", "mlp", "--epochs", "9", path=[str(own)])
    how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert (ended.returncode, ended.stdout) == (128 + number, "")
    assert ended.stderr.split("\n", 1)[-1 if ended.stderr[0] == "\n" else 0].strip() == (f"{how}: nothing was written")


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
    done = python("-c", CHILD.format(imports=IMPORTS, signal="SIGINT", before=""))
    said = "".join("sent\n" * (len(each) - 1) + DELIVERED for each in IMPORTS.values())
    assert (done.stdout, done.stderr, done.returncode) == (said, "", 0)


PILLOW = {"from PIL import Image": ["PIL._imaging"]}


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_so_does_any_signal_that_has_a_handler(python, number):
    before = f"signal.signal(signal.{number}, signal.default_int_handler)"
    code = CHILD.format(imports=PILLOW, signal=number, before=before)
    assert python("-c", code).stdout == DELIVERED


@pytest.mark.parametrize(("before", "status"), [("", -signal.SIGTERM), ("ignored", 0)])
def test_without_a_handler_of_python_a_signal_keeps_its_effect(python, before, status):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if before else ""
    code = CHILD.format(imports=PILLOW, signal="SIGTERM", before=ignore)
    done = python("-c", code.replace("time.sleep(0.001)", "raise KeyboardInterrupt"))
    assert done.returncode == status and done.stdout == (DELIVERED if before else "")


@pytest.mark.parametrize(
    ("arguments", "inner"),
    [
        ("bench allreduce --synthesise p3.16xlarge", "ortools.sat.python.cp_model_helper"),
        ("run", "mxnet.ndarray.register"),
        ("run --epochs 1", "matplotlib.ft2font"),
    ],
)
def test_a_command_that_is_interrupted_in_an_import_ends_with_one_line(python, arguments, inner):
    code = f"""
import sys
import gluonlab
from gluonlab.__main__ import main
import signal

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {inner!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["gluonlab", *{arguments.split()!r}]
main()
"""
    done = python("-c", code)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr and "interrupted" in done.stderr.splitlines()[-1]


def test_a_block_gives_handlers_back_and_delivers_each_signal_once():
    came = []
    arrived = threading.Event()

    def note(number, frame):
        came.append(number)
        arrived.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        with delayed_signals():
            with delayed_signals():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            assert came == []
        assert signal.getsignal(signal.SIGINT) is note
        assert arrived.wait(600)
        assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_the_import_itself_installs_stays():
    before = signal.getsignal(signal.SIGINT)

    def new(number, frame):
        """The handler of a library."""

    try:
        with delayed_signals():
            signal.signal(signal.SIGINT, new)
        assert signal.getsignal(signal.SIGINT) is new
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_imports_without_touching_handlers():
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter():
        with delayed_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before] and signal.getsignal(signal.SIGINT) is before


VARIABLE = "OPENBLAS_THREAD_TIMEOUT"


@pytest.mark.parametrize(
    ("exported", "while_it_loads", "later"),
    [({}, "20", "None"), ({VARIABLE: "26"}, "26", "26")],
    ids=["nothing", "by the user"],
)
def test_numpy_loads_with_what_the_user_says_or_else_with_threads_that_sleep_soon(
    python, tmp_path, exported, while_it_loads, later
):
    say = f"import os; print(os.environ.get({VARIABLE!r}))\n"
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(say)
    found = python("-c", f"import gluonlab, numpy; {say}", path=[str(tmp_path)], **exported).stdout
    assert found.split() == [while_it_loads, later]
