"""A signal ends a command wherever Python is when it comes, in what cannot raise as well."""

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
    ("sign", "status", "said"),
    [
        (signal.SIGINT, 130, "interrupted: all is kept"),
        (signal.SIGTERM, 143, "ended by SIGTERM: all is kept"),
        (signal.SIGHUP, 129, "ended by SIGHUP: all is kept"),
    ],
)


def freed(send):
    """Free an object whose ``__del__`` gets the signal."""

    class Freed:
        def __del__(self):
            send()

    Freed()


def forgotten(send):
    """Free an object of which a weak reference has a callback."""

    class Forgotten:
        pass

    thing = Forgotten()
    reference = weakref.ref(thing, lambda _: send())
    del thing
    assert reference() is None


def called_back(send):
    """Let C call back into Python."""
    ctypes.CFUNCTYPE(None)(send)()


def plainly(send):
    send()


@pytest.mark.parametrize(
    ("where", "times"),
    [(plainly, 1)] + [(where, times) for where in (freed, forgotten, called_back) for times in (1, 3)],
)
@SIGNALS
def test_a_signal_is_not_lost(capfd, where, sign, status, said, times):
    sent, hook = [], sys.unraisablehook

    def send():
        if len(sent) < times:  # swallowed as often as that
            sent.append(sign)
            os.kill(os.getpid(), sign)

    @command("works", interrupted="all is kept")
    def works():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            where(send)
        raise AssertionError("the signal was lost")

    with pytest.raises(SystemExit) as end:
        works([])
    # click goes to a new line after ^C
    assert (end.value.code, capfd.readouterr().err) == (status, f"\n{said}\n")
    assert sys.unraisablehook is hook
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == [signal.SIG_DFL] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_errors_that_cannot_be_raised_are_said_as_ever(capfd, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    @command("works")
    def works():
        freed(lambda: 1 / 0)
        raise GluonlabError("the end")

    with pytest.raises(SystemExit):
        works([])
    assert [one.exc_type for one in said] == [ZeroDivisionError]
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
def test_signals_between_any_two_handlers_that_are_given_back_leave_none_behind(capfd, monkeypatch, sign):
    """As of Ctrl-C held down: the second one comes while the first has not ended all."""
    given, armed, sent = signal.signal, [], []

    def sending(number, handler):
        if armed and signal.getsignal(sign) not in (signal.SIG_DFL, signal.default_int_handler):
            sent.append(number)
            os.kill(os.getpid(), sign)
        return given(number, handler)

    monkeypatch.setattr(signal, "signal", sending)
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
    """It is sent before the command's Python has begun."""
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
