"""A signal during the import of an extension module is delivered, whole, after the import."""

import signal
import sys
import threading

import pytest

from gluonlab.host.signals import delayed_signals

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
    "from ortools.sat.python import cp_model": [
        "ortools.sat.cp_model_pb2", "ortools.sat.python.cp_model_helper",
    ],
    "import mxnet": ["mxnet.ndarray.register", "mxnet._ctypes.ndarray"],
}  # fmt: skip
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
