"""The signals that end a process: what they raise, and how work that must be whole takes them."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    Optional,
    Type,
)

from gluonlab.host import stuck
from gluonlab.host.start import end_at_once, started_quietly

if TYPE_CHECKING:
    import asyncio


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends whatever goes on as Ctrl-C does."""


class HungUp(Terminated):
    """SIGHUP, which comes when a terminal is closed, and ends whatever goes on as SIGTERM does."""


RAISED: Dict[int, Type[KeyboardInterrupt]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
    signal.SIGHUP: HungUp,
}


def number_of(interrupt: Type[BaseException]) -> signal.Signals:
    """The signal that raises it."""
    kinds = ((kind, number) for number, kind in RAISED.items())
    return signal.Signals(next((n for kind, n in kinds if kind is interrupt), signal.SIGINT))


@contextmanager
def ended_on_the_spot() -> Iterator[None]:
    """Within the block these signals end the process at once, even where C waits for others.

    For a block before which nothing was begun that must be whole: Python's handlers run only when C
    has returned. A signal that is ignored stays so, and outside the main thread all stays as it is.
    """
    before: Dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in RAISED:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                before[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        _give_back(before)


SEND_AFTER = 0.01  # seconds: long enough for an import statement to end, too
_delayed: List[int] = []  # signals that came within a block of `delayed_signals`


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Let signals that come within this block reach their handlers soon after it.

    For what must not be interrupted in the middle. Signals without a handler in Python keep their
    effect: they end the process or are ignored. Outside the main thread, which alone runs handlers,
    and within another such block, nothing changes.
    """
    before: Dict[int, Any] = {}
    is_main = threading.current_thread() is threading.main_thread()
    for number in RAISED if is_main and not started_quietly() else ():  # quietly: ends at once
        handler = signal.getsignal(number)
        if callable(handler) and handler not in (_delay, end_at_once):
            before[number] = signal.signal(number, _delay)
    try:
        yield
    finally:
        _give_back({n: h for n, h in before.items() if signal.getsignal(n) is _delay})
        if before and _delayed:
            # an exception here would still be within the import statement
            _thread.start_new_thread(_send, (threading.get_ident(), list(_delayed)))
            _delayed.clear()


def signals_are_delayed() -> bool:
    """Whether this is within a block of `delayed_signals` already."""
    return signal.getsignal(signal.SIGINT) is _delay


def _delay(number: int, frame: object) -> None:
    stuck.handled()
    if number not in _delayed:
        _delayed.append(number)


def _send(thread: int, numbers: List[int]) -> None:
    time.sleep(SEND_AFTER)
    for number in numbers:
        signal.pthread_kill(thread, number)


def _give_back(handlers: Dict[int, Any]) -> None:
    """Set all of them, though one raises while others are still to be set.

    SIGINT's is the last: it alone comes many times, from a key that is held down.
    """
    late: Optional[KeyboardInterrupt] = None
    left = sorted(handlers.items(), key=lambda item: item[0] != signal.SIGINT)
    while left:
        try:
            while left:
                signal.signal(*left[-1])
                left.pop()
        except KeyboardInterrupt as error:
            late = error
    if late is not None:
        raise late


class EndRequest:
    """``with EndRequest() as request``: within the block a signal asks to end, and does not break.

    ``request.number`` is None until the first of RAISED has come. The block calls `answer` where it
    can end. A second Ctrl-C raises KeyboardInterrupt at once, and further ones nothing. When the
    block has ended, the signal goes on to whoever would have had it without the block. A signal
    that is ignored stays so, and outside the main thread, the only one that signals reach, all
    stays as it is. ``left``: of a block in which MXNet works, what is left of it by then: see
    `gluonlab.host.stuck.ends_if_stuck`.
    """

    def __init__(self, left: Optional[Callable[[], str]] = None) -> None:
        self.number: Optional[int] = None
        self._stuck: ContextManager[None] = (
            nullcontext() if left is None else stuck.ends_if_stuck(left)
        )
        self._came = self._again = False  # to this process: a signal, a second Ctrl-C
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "EndRequest":
        if threading.current_thread() is threading.main_thread():
            for number in RAISED:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                    self._before[number] = signal.signal(number, self._note)
        self._stuck.__enter__()
        return self

    def _note(self, number: int, frame: object) -> None:
        stuck.handled()
        if not self._came:
            self._came, self.number = True, self.number or number
        elif number == signal.SIGINT and not self._again:
            # others come twice by themselves, from shell and terminal; a third one would end what
            # the second has begun
            self._again = True
            raise KeyboardInterrupt

    def take(self, number: int) -> None:
        """End by this signal, which may have come to another process of the same group."""
        self.number = number

    def pass_to(self, take: Callable[[int], Any], loop: asyncio.AbstractEventLoop) -> None:
        """Have asyncio's loop call ``take`` with the number of each signal.

        A signal that came before is passed on as well. An exception from a handler would end the
        loop wherever it is.
        """
        for number in self._before:
            loop.add_signal_handler(number, take, number)
        came, self.number = self.number, None
        if came is not None:
            take(came)

    def answer(self) -> None:
        """Raise what the signal raises, if one has come."""
        if self.number is not None:
            raise RAISED[self.number]

    def __exit__(self, kind: Any, error: "BaseException | None", trace: Any) -> None:
        self._stuck.__exit__(None, None, None)
        _give_back(self._before)
        if self.number not in self._before:
            return
        try:
            signal.raise_signal(self.number)  # the default action ends the process here
            time.sleep(0)  # older Pythons call the handler only now
        except KeyboardInterrupt:
            if not isinstance(error, KeyboardInterrupt):
                raise  # else the one that is under way says more
