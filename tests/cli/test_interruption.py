"""A signal ends a command at any time, also while Python runs code that cannot raise."""

import ctypes
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest

from gluonlab.cli.command import command
from gluonlab.errors import GluonlabError
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL

SIGNALS = pytest.mark.parametrize(
    ("sign", "status", "message"),
    [
        (signal.SIGINT, 130, "interrupted: all is kept"),
        (signal.SIGTERM, 143, "ended by SIGTERM: all is kept"),
        (signal.SIGHUP, 129, "ended by SIGHUP: all is kept"),
    ],
)


def call_in_del(send):
    class Sender:
        def __del__(self):
            send()

    Sender()


def call_in_weakref_callback(send):
    class Freed:
        pass

    freed = Freed()
    reference = weakref.ref(freed, lambda _: send())
    del freed
    assert reference() is None


def call_from_c(send):
    ctypes.CFUNCTYPE(None)(send)()


@pytest.mark.parametrize(
    ("call", "times"),
    [(lambda send: send(), 1)]
    + [(call, times) for call in (call_in_del, call_in_weakref_callback, call_from_c) for times in (1, 3)],
)
@SIGNALS
def test_a_signal_is_not_lost(capfd, call, sign, status, message, times):
    sent, hook = [], sys.unraisablehook

    def send():
        if len(sent) < times:  # swallowed as often as that
            sent.append(sign)
            os.kill(os.getpid(), sign)

    @command("works", interrupted="all is kept")
    def works():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            call(send)
        raise AssertionError("the signal was lost")

    with pytest.raises(SystemExit) as end:
        works([])
    # click goes to a new line after ^C
    assert (end.value.code, capfd.readouterr().err) == (status, f"\n{message}\n")
    assert sys.unraisablehook is hook
    assert [signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGHUP)] == [signal.SIG_DFL] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_errors_that_cannot_be_raised_reach_the_hook(capfd, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    @command("works")
    def works():
        call_in_del(lambda: 1 / 0)
        raise GluonlabError("the end")

    with pytest.raises(SystemExit):
        works([])
    assert [error.exc_type for error in unraisable] == [ZeroDivisionError]
    assert capfd.readouterr().err == "error: the end\n"


def test_a_handler_of_the_caller_is_left_alone():
    def handler(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, handler)
    try:

        @command("works")
        def works():
            assert signal.getsignal(signal.SIGTERM) is handler

        with pytest.raises(SystemExit) as end:
            works([])
        assert end.value.code == 0
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_while_handlers_are_restored_leaves_none_behind(capfd, monkeypatch, sign):
    """As when Ctrl-C is held down."""
    set_handler, armed, sent = signal.signal, [], []

    def send_before(number, handler):
        if armed and signal.getsignal(sign) not in (signal.SIG_DFL, signal.default_int_handler):
            sent.append(number)
            os.kill(os.getpid(), sign)
        return set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", send_before)
    handlers = {number: signal.getsignal(number) for number in EXCEPTION_BY_SIGNAL}

    @command("works", interrupted="all is kept")
    def works():
        armed.append(True)
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        works([])
    assert sent and end.value.code == 128 + sign
    how = "interrupted" if sign == signal.SIGINT else "ended by SIGTERM"
    assert capfd.readouterr().err.strip() == f"{how}: all is kept"
    assert {number: signal.getsignal(number) for number in EXCEPTION_BY_SIGNAL} == handlers


@pytest.mark.parametrize("command", ["gluonlab.run", "gluonlab.launch.worker"])
def test_ctrl_c_while_python_starts_waits_for_gluonlab(command):
    code = f"""
import os, signal, sys
from gluonlab.host.child_processes import prepare_command_process
prepare_command_process()
os.kill(os.getpid(), signal.SIGINT)
os.execv(sys.executable, [sys.executable, "-m", {command!r}])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "interrupted: nothing was written\n")
