"""Signals end a process whose main thread C never gives back, and none that comes back."""

import itertools
import re
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from support.processes import clean_environment

pytestmark = pytest.mark.cpu_only("nothing is computed on a device")
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
LONG = "1e6"  # seconds

# Its main thread waits in C for a lock, which another thread opens when standard input is closed.
# glibc writes 2 into a lock once somebody waits for it.
IN_C = """
import ctypes, os, sys, threading
from gluonlab.cli.command import interrupt_on_signals
from gluonlab.host import signals
from gluonlab.host.signals import StopRequest

signals.PATIENCE_S, signals.INSIST_AFTER_S = map(float, sys.argv[1:])
libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)

def opens():
    while lock.raw[0] != 2:
        os.sched_yield()
    print("in C", flush=True)
    sys.stdin.read()
    libc.pthread_mutex_unlock(lock)

libc.pthread_mutex_lock(lock)
threading.Thread(target=opens, daemon=True).start()
try:
    with interrupt_on_signals(), StopRequest(lambda: "RUN holds 2 of 3 epochs") as request:
        libc.pthread_mutex_lock(lock)
        request.raise_if_requested()
except KeyboardInterrupt as error:
    sys.exit(f"in order after {type(error).__name__}")
"""


def start(*words):
    child = subprocess.Popen(
        [sys.executable, "-c", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=clean_environment(),
    )  # fmt: skip
    assert "in C\n" in child.stdout  # read up to this line
    return child


def send_until_exit(child, first, *others):
    """Return the exit status of a child that gets signals until it exits; two at once would be one."""
    numbers = itertools.chain([first], itertools.cycle(others))
    while child.poll() is None:
        child.send_signal(next(numbers))
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.3)
    return child.returncode


@pytest.mark.parametrize(
    "numbers, apart, how, status",
    [
        ((INT, INT), LONG, "interrupted", 130),
        ((TERM, TERM), "-1", "ended by SIGTERM", 143),
        pytest.param((TERM, INT, INT), LONG, "ended by SIGTERM", 143, marks=pytest.mark.long),
        pytest.param((INT, TERM), "-1", "interrupted", 130, marks=pytest.mark.long),
    ],
)
def test_whoever_insists_ends_a_process_that_c_keeps(numbers, apart, how, status):
    with start(IN_C, "0.1", apart) as child:
        ended = send_until_exit(child, *numbers)
        said = child.stdout.read()
    assert ended == status
    *hints, last = said.splitlines()
    assert last == f"{how}: MXNet does not respond; RUN holds 2 of 3 epochs"
    assert all(hint.startswith("waiting for the end of the current step") for hint in hints)


@pytest.mark.parametrize(
    "numbers, patience, apart, raised",
    [
        ((INT,), "0", "0", "KeyboardInterrupt"),  # one never ends it, however long that takes
        ((HUP, HUP, TERM), "0", LONG, "HungUp"),  # as shells and terminals send them
        ((INT, INT, INT), LONG, LONG, "KeyboardInterrupt"),  # it comes back in time
    ],
)
def test_what_comes_back_ends_in_order(numbers, patience, apart, raised):
    with start(IN_C, patience, apart) as child:
        for number in numbers:
            child.send_signal(number)
        child.stdin.close()
        said = child.stdout.read()
        assert child.wait() == 1
    assert said.splitlines()[-1] == f"in order after {raised}"


IN_AN_OPERATOR = """
import sys
import threading
import time
import gluonlab
import mxnet as mx
from gluonlab import TrainConfig, train
from gluonlab.host import signals
from mxnet.gluon import nn

signals.PATIENCE_S = 0.2

class Never(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        main, places = threading.main_thread().ident, [None]
        while len(places) < 1000:  # until the main thread stays where it waits for this
            frame = sys._current_frames()[main]
            place = id(frame), frame.f_lasti
            places = [*places, place] if place == places[-1] else [place]
            time.sleep(0)
        print("in C", flush=True)
        threading.Event().wait()

@mx.operator.register("never")
class Property(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Never()

class Net(nn.HybridBlock):
    ends = False

    def __init__(self, classes):
        super().__init__()
        self.scores = nn.Dense(classes)

    def hybrid_forward(self, F, x):
        return self.scores(x if self.ends else F.Custom(x, op_type="never"))

"""
TRAINING = """
train(TrainConfig(gpus=1, epochs=1, out="RUN"), net=Net)
"""
AFTERWARDS = f"""
from gluonlab import load_run
from gluonlab.training.evaluate_run import evaluate_run

Net.ends = True{TRAINING}Net.ends = False
"""
NO_EPOCH = r"; no epoch is finished; .*RUN contains the steps of the first epoch.*"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (TRAINING, NO_EPOCH),
        pytest.param(f"{AFTERWARDS}evaluate_run('RUN', net=Net)", "", marks=pytest.mark.long),
        pytest.param(f"{AFTERWARDS}load_run('RUN', net=Net).mistakes()", "", marks=pytest.mark.long),
    ],
    ids=["training", "evaluate_run", "mistakes"],
)
def test_ctrl_c_ends_a_command_that_an_operator_holds_up(empty_cwd, code, message):
    with start(IN_AN_OPERATOR + code) as child:
        status = send_until_exit(child, INT, INT)  # until the operator is waited for, a handler runs
        last = child.stdout.read().splitlines()[-1]
    assert status == 130 and re.fullmatch(f"interrupted: MXNet does not respond{message}", last), last
