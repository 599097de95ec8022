"""Handles the signals that end a process: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

This module solves three problems:

- A signal must not interrupt a training step or the writing of a file. `StopRequest` records the
  signal, and training stops after the step.
- The main thread may be blocked in C code forever, such as in an operator that never ends. Python's
  handlers run only after C code has returned, so Ctrl-C has no effect. With `exit_if_stuck`,
  another signal from the user ends the process.
- A signal during the import of an extension module breaks the import. C code often drops the
  handler's exception or turns it into an ImportError, after which the module cannot be imported
  again. `delay_signals_in_imports` delays the handlers until the import has ended.
"""

from __future__ import annotations

import _thread
import importlib.machinery
import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, Iterator, List, Optional, Type

from gluonlab.host.startup_errors import exit_immediately, is_command_starting

if TYPE_CHECKING:
    import asyncio


class Terminated(KeyboardInterrupt):
    """Exception raised by SIGTERM."""


class HungUp(Terminated):
    """Exception raised by SIGHUP, which the system sends when a terminal is closed."""


EXCEPTION_BY_SIGNAL: Dict[int, Type[KeyboardInterrupt]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
    signal.SIGHUP: HungUp,
}


def signal_for_exception(interrupt: Type[BaseException]) -> signal.Signals:
    """Return the signal whose handler raises ``interrupt``; SIGINT for other exceptions."""
    kinds = ((kind, number) for number, kind in EXCEPTION_BY_SIGNAL.items())
    return signal.Signals(next((n for kind, n in kinds if kind is interrupt), signal.SIGINT))


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Make signals in the with block end the process immediately, even while C code is waiting.

    Python's handlers do not run, so use this context manager only before starting work that must be
    completed. Ignored signals stay ignored. Outside the main thread, the block has no effect.
    """
    handlers: Dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in EXCEPTION_BY_SIGNAL:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                handlers[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        _restore_handlers(handlers)


RESEND_DELAY_S = 0.01
_delayed: List[int] = []  # signals that arrived within a block of `delayed_signals`


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay signals that arrive in the with block until shortly after the block.

    Signals without a Python handler are not delayed. The block has no effect outside the main
    thread, or inside another `delayed_signals` block.
    """
    handlers: Dict[int, Any] = {}
    is_main = threading.current_thread() is threading.main_thread()
    # While a command is starting, a signal ends it immediately.
    for number in EXCEPTION_BY_SIGNAL if is_main and not is_command_starting() else ():
        handler = signal.getsignal(number)
        if callable(handler) and handler not in (_delay_signal, exit_immediately):
            handlers[number] = signal.signal(number, _delay_signal)
    try:
        yield
    finally:
        _restore_handlers({n: h for n, h in handlers.items() if signal.getsignal(n) is _delay_signal})
        if handlers and _delayed:
            # A handler called here would still raise its exception within the import statement. So
            # another thread sends the signals again, after the statement.
            _thread.start_new_thread(_resend_signals, (threading.get_ident(), list(_delayed)))
            _delayed.clear()


def _delay_signal(number: int, frame: object) -> None:
    note_handler_call()
    if number not in _delayed:
        _delayed.append(number)


def _resend_signals(thread: int, numbers: List[int]) -> None:
    """Send signals to a thread as soon as it imports none of EXTENSION_PACKAGES."""
    time.sleep(RESEND_DELAY_S)
    while _is_importing_extensions(sys._current_frames().get(thread)):
        time.sleep(RESEND_DELAY_S)
    for number in numbers:
        signal.pthread_kill(thread, number)


def _is_importing_extensions(frame: Optional[FrameType]) -> bool:
    """Return whether a frame, or one of its callers, imports a module in EXTENSION_PACKAGES."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            name = frame.f_locals.get("name")
            if isinstance(name, str) and name.partition(".")[0] in EXTENSION_PACKAGES:
                return True
        frame = frame.f_back
    return False


def _restore_handlers(handlers: Dict[int, Any]) -> None:
    """Restore all handlers, even if a handler raises KeyboardInterrupt in the meantime.

    SIGINT's handler is restored last, because only SIGINT may arrive many times, while Ctrl-C is
    held down.
    """
    interrupt: Optional[KeyboardInterrupt] = None
    remaining = sorted(handlers.items(), key=lambda item: item[0] != signal.SIGINT)
    while remaining:
        try:
            while remaining:
                signal.signal(*remaining[-1])
                remaining.pop()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class StopRequest:
    """Context manager that records signals instead of interrupting its block.

    - ``number`` is the first signal in EXCEPTION_BY_SIGNAL that has arrived, or None if none has.
    - The block calls `raise_if_requested` at points where it can stop.
    - The first Ctrl-C after the recorded signal raises KeyboardInterrupt immediately. Further
      signals have no effect.
    - After the block, the signal is delivered to the previous handler.
    - Ignored signals stay ignored. Outside the main thread the block has no effect.

    Args:
        describe_files: as in `exit_if_stuck`; pass this argument only for blocks that call MXNet,
            which may hang
    """

    def __init__(self, describe_files: Optional[Callable[[], str]] = None) -> None:
        self.number: Optional[int] = None
        self._stuck = nullcontext() if describe_files is None else exit_if_stuck(describe_files)
        self._has_signal = self._has_second_interrupt = False  # whether a signal and a second Ctrl-C have arrived
        self._previous_handlers: Dict[int, Any] = {}  # by signal

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in EXCEPTION_BY_SIGNAL:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                    self._previous_handlers[number] = signal.signal(number, self._record_signal)
        self._stuck.__enter__()
        return self

    def _record_signal(self, number: int, frame: object) -> None:
        """Record the first signal. Raise KeyboardInterrupt for the first Ctrl-C after that."""
        note_handler_call()
        if not self._has_signal:
            self._has_signal, self.number = True, self.number or number
        elif number == signal.SIGINT and not self._has_second_interrupt:
            # Shell and terminal may send other signals twice. A third Ctrl-C would interrupt the
            # clean-up after the second.
            self._has_second_interrupt = True
            raise KeyboardInterrupt

    def set_signal(self, number: int) -> None:
        """Set the recorded signal, for example to a signal that another process has received."""
        self.number = number

    def call_on_signals(self, on_signal: Callable[[int], Any], loop: asyncio.AbstractEventLoop) -> None:
        """Make asyncio's ``loop`` call ``on_signal`` with the number of each signal.

        A signal that has already been recorded is forwarded immediately. Python's own handlers are
        not used, because their exceptions could interrupt the loop at any point.
        """
        for number in self._previous_handlers:
            loop.add_signal_handler(number, on_signal, number)
        earlier, self.number = self.number, None
        if earlier is not None:
            on_signal(earlier)

    def raise_if_requested(self) -> None:
        """Raise the exception of the recorded signal, if there is one."""
        if self.number is not None:
            raise EXCEPTION_BY_SIGNAL[self.number]

    def __exit__(self, kind: Any, error: "BaseException | None", trace: Any) -> None:
        self._stuck.__exit__(None, None, None)
        _restore_handlers(self._previous_handlers)
        if self.number not in self._previous_handlers:
            return
        try:
            signal.raise_signal(self.number)  # the default action ends the process here
            time.sleep(0)  # older Pythons call the handler only now
        except KeyboardInterrupt:
            if not isinstance(error, KeyboardInterrupt):
                raise  # otherwise the block's own KeyboardInterrupt has more information


# --- A main thread that is blocked in C code
#
# When a signal arrives, Python's C handler writes its number into a pipe (`signal.set_wakeup_fd`),
# and a thread reads the pipe. Python's handlers write HANDLED into the pipe when they run. If the
# user insists and no handler runs for PATIENCE_S, the thread prints a line and ends the process.
#
# A single signal requests an orderly end after the current step, even if the step takes long. A
# user insists by a second Ctrl-C, or by another signal INSIST_AFTER_S after the first. An earlier
# signal does not count, because shells and terminals may send the same signal twice.

PATIENCE_S = 10.0
PROMPT_PATIENCE_S = 60.0  # at a Python prompt, where the user would lose all computed values
INSIST_AFTER_S = 2.0
HANDLED, FINISHED = 0, 255  # values in the pipe that are not signal numbers

TextFunction = Callable[[], str]


@contextmanager
def exit_if_stuck(describe_files: TextFunction = str, until_exit: bool = False) -> Iterator[None]:
    """Make signals end the process if the main thread is stuck in C code in the with block.

    Outside the main thread, the block has no effect, because Python runs handlers only in the main
    thread.

    Args:
        describe_files: function that returns text about the files that remain. The text is printed
            when the process is ended. If blocks are nested, only the innermost block's text is
            printed.
        until_exit: whether to keep watching after the block until Python has exited, because MXNet
            may also hang at exit
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_outer = not _watches
    watch = _SignalWatcher() if is_outer else _watches[0]
    previous_handler = signal.getsignal(signal.SIGINT)
    if is_outer:
        _watches.append(watch)
        if previous_handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, _raise_interrupt)
    watch.text_functions.append(describe_files)
    try:
        yield
    finally:
        if not until_exit:
            watch.text_functions.pop()
        if is_outer and not until_exit:
            _watches.clear()
            watch.end()
            if previous_handler is signal.default_int_handler:
                signal.signal(signal.SIGINT, previous_handler)


def note_handler_call() -> None:
    """Record that a handler runs, which means that the main thread is not stuck.

    Each handler must call this function.
    """
    for watch in _watches:
        watch.write(HANDLED)


def _raise_interrupt(number: int, frame: object) -> None:
    note_handler_call()
    raise KeyboardInterrupt


class _SignalWatcher:
    """A thread that watches which signals arrive and whether their handlers run."""

    def __init__(self) -> None:
        self.text_functions: List[TextFunction] = []
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)  # signal.set_wakeup_fd requires this
        # the previous file descriptor, or -1
        self._previous_fd = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        self._signals: List[int] = []  # the signals that have arrived
        self._first_time = 0.0  # time of the first signal
        self._insisted = False
        self._due: Optional[float] = None  # time to print or exit, unless a handler runs before
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        with suppress(RuntimeError):  # out of memory or threads
            self._thread.start()

    def write(self, number: int) -> None:
        with suppress(OSError):  # the pipe is full
            os.write(self._writes, bytes([number]))

    def end(self) -> None:
        """Stop the thread, and restore the previous wakeup file descriptor."""
        current_fd = signal.set_wakeup_fd(self._previous_fd)
        if current_fd != self._writes:  # other code has replaced it in the meantime
            signal.set_wakeup_fd(current_fd)
        self.write(FINISHED)
        if self._thread.is_alive():
            self._thread.join()
        for end in (self._reads, self._writes):
            os.close(end)

    def _run(self) -> None:
        """Handle signals from the pipe until FINISHED arrives. Report or exit at time ``_due``."""
        while True:
            timeout = None if self._due is None else max(self._due - time.monotonic(), 0)
            if not select.select([self._reads], [], [], timeout)[0]:
                self._due = None
                self._report_or_exit()
                continue
            for number in os.read(self._reads, 4096):
                if number == FINISHED:
                    return
                if number == HANDLED:
                    self._due, self._insisted = None, False
                else:
                    self._handle_signal(number)

    def _handle_signal(self, number: int) -> None:
        """Record a signal.

        Set the time at which to print or exit, unless a Python handler runs first.
        """
        if self._previous_fd >= 0:  # pass it on to the previous reader
            with suppress(OSError):
                os.write(self._previous_fd, bytes([number]))
        if number not in EXCEPTION_BY_SIGNAL:
            return
        now = time.monotonic()
        self._signals.append(number)
        self._first_time = self._first_time or now
        insists = self._signals.count(signal.SIGINT) > 1 or now - self._first_time > INSIST_AFTER_S
        if self._due is None or insists > self._insisted:
            self._due = now + (PROMPT_PATIENCE_S if hasattr(sys, "ps1") else PATIENCE_S)
        self._insisted = self._insisted or insists

    def _report_or_exit(self) -> None:
        """End the process if the user has repeated the signal. Otherwise, print how to end it."""
        if not self._insisted:
            if self._signals[0] == signal.SIGINT:
                _print_line("waiting for the end of the current step: press Ctrl-C again to stop now")
            return
        number = signal.Signals(self._signals[0])
        cause = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        reason = "MXNet does not respond"
        with suppress(Exception):
            reason = "; ".join(filter(None, [reason, self.text_functions[-1]()]))
        _print_line(f"{cause}: {reason}")
        from gluonlab.host import out_of_memory  # importing gluonlab is cheap

        out_of_memory.exit_process(128 + number)


def _print_line(line: str) -> None:
    with suppress(OSError):  # standard error is closed
        os.write(2, f"{line}\n".encode(errors="replace"))


_watches: List[_SignalWatcher] = []  # at most one


# --- Imports of extension modules

# The packages with extension modules that gluonlab or MXNet imports. MXNet itself is imported by
# `gluonlab.engine.mxnet_setup`.
EXTENSION_PACKAGES = frozenset(
    {
        "PIL", "cv2", "cykooz", "cykooz_resizer", "google", "h5py", "horovod", "matplotlib",
        "numpy", "onnx", "onnxruntime", "ortools", "pandas", "scipy", "simplejpeg", "sklearn", "torch",
    }
)  # fmt: skip
# Base-2 logarithm of the cycles for which an idle thread of OpenBLAS spins before it sleeps. By
# default the thread spins for about 30 ms after the import and after each matrix product. So it
# takes a core from other computations, and doubles the processor time of drawing a plot. The value
# 20 (0.4 ms) covers the time from one matrix product to the next.
OPENBLAS_TIMEOUT, OPENBLAS_SPIN = "OPENBLAS_THREAD_TIMEOUT", "20"


@contextmanager
def _shorten_openblas_spin() -> Iterator[None]:
    """Make idle OpenBLAS threads sleep sooner. Import numpy inside the with block.

    OpenBLAS reads the environment variable OPENBLAS_THREAD_TIMEOUT when it is loaded. A value set
    by the user is kept. Child processes do not inherit the variable.
    """
    if OPENBLAS_TIMEOUT in os.environ:
        yield
        return
    os.environ[OPENBLAS_TIMEOUT] = OPENBLAS_SPIN
    try:
        yield
    finally:
        del os.environ[OPENBLAS_TIMEOUT]


class _DelayingFinder:
    """Finds modules in EXTENSION_PACKAGES, and delays signals while these modules are loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "importlib.machinery.ModuleSpec | None":
        """Return the spec of a module in EXTENSION_PACKAGES, with a loader that delays signals.

        Return None for other modules.
        """
        if name.partition(".")[0] not in EXTENSION_PACKAGES or (
            signal.getsignal(signal.SIGINT) is _delay_signal and name != "numpy"
        ):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            steps = [("create_module", delayed_signals), ("exec_module", delayed_signals)]
            if name == "numpy":
                steps.append(("exec_module", _shorten_openblas_spin))
            for step, block in steps:
                setattr(spec.loader, step, _wrap_in_context(block, getattr(spec.loader, step)))
        return spec


def _wrap_in_context(block: Callable[[], ContextManager[None]], step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls ``step`` within the context manager ``block()``."""

    def load(argument: Any) -> Any:
        with block():
            return step(argument)

    return load


def delay_signals_in_imports() -> None:
    """Delay signals while EXTENSION_PACKAGES are imported. Further calls have no effect."""
    if not any(isinstance(finder, _DelayingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DelayingFinder())
