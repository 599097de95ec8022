"""The signals that end a process: what they raise, and how work that must be whole takes them."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Type


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
    stays as it is.
    """

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self._came = self._again = False  # to this process: a signal, a second Ctrl-C
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "EndRequest":
        if threading.current_thread() is threading.main_thread():
            for number in RAISED:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: object) -> None:
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

    def answer(self) -> None:
        """Raise what the signal raises, if one has come."""
        if self.number is not None:
            raise RAISED[self.number]

    def __exit__(self, kind: Any, error: "BaseException | None", trace: Any) -> None:
        _give_back(self._before)
        if self.number not in self._before:
            return
        try:
            signal.raise_signal(self.number)  # the default action ends the process here
            time.sleep(0)  # older Pythons call the handler only now
        except KeyboardInterrupt:
            if not isinstance(error, KeyboardInterrupt):
                raise  # else the one that is under way says more
