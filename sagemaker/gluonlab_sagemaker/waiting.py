"""Polling of the status of a notebook or a job, with a line of progress."""

from __future__ import annotations

import sys
import time
from typing import Callable, Iterable, Iterator, Optional

from gluonlab_sagemaker.errors import FailedError

GetStatus = Callable[[], Optional[str]]


class Waiter:
    """A poller that gets a status every ``interval_s`` seconds, and fails after ``timeout_s``.

    In a dry run, whose statuses are made up, ``prints_progress`` is false.
    """

    def __init__(
        self,
        interval_s: float = 10,
        timeout_s: float = 3600,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        prints_progress: bool = True,
    ) -> None:
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._sleep, self._clock, self._prints_progress = sleep, clock, prints_progress

    def wait_until(self, name: str, end_statuses: Iterable[Optional[str]], get_status: GetStatus) -> Optional[str]:
        """Poll the status of ``name`` until it is one of ``end_statuses``, and return it.

        The status None means that the resource does not exist.
        """
        final = set(end_statuses)
        return next(status for status in self.poll(name, get_status) if status in final)

    def poll(self, name: str, get_status: GetStatus) -> Iterator[Optional[str]]:
        """Yield the status of ``name`` again and again, with a pause and a line of progress."""
        # A terminal shows one line with the time, rewritten at each poll; a file gets a new line
        # only when the status changes.
        start, last_line, is_terminal = self._clock(), "", sys.stderr.isatty()
        try:
            while True:
                status = get_status()
                yield status
                elapsed_s = self._clock() - start
                if elapsed_s > self._timeout_s:
                    minutes = f"{self._timeout_s / 60:g} minutes"
                    raise FailedError(
                        f"{name} is still {status} after {minutes}: wait longer with `wait`, or stop it with `stop`"
                    )
                line = f"{name}: {status}" + (
                    f", {int(elapsed_s) // 60}:{int(elapsed_s) % 60:02d}" if is_terminal else ""
                )
                if self._prints_progress and line != last_line:
                    print(
                        f"\r{line:<70}" if is_terminal else line,
                        end="" if is_terminal else "\n",
                        file=sys.stderr,
                        flush=True,
                    )
                last_line = line if self._prints_progress else ""
                self._sleep(self._interval_s)
        finally:
            if last_line and is_terminal:
                print(file=sys.stderr)
