"""Until something has a status: asked again and again, with a line that says so."""

from __future__ import annotations

import sys
import time
from typing import Callable, Iterable, Iterator, Optional

from gluonlab_sagemaker.errors import FailedError

Ask = Callable[[], Optional[str]]


class Waiter:
    """Polls every ``every_s`` seconds, for at most ``longest_s``, and prints the status."""

    def __init__(
        self,
        every_s: float = 10,
        longest_s: float = 3600,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_s, self._longest_s, self._sleep, self._clock = every_s, longest_s, sleep, clock

    def until(self, what: str, ends: Iterable[Optional[str]], ask: Ask) -> Optional[str]:
        """Ask until the answer is one of ``ends``, which is returned.

        ``what``: for the line. None stands for gone.
        """
        wanted = set(ends)
        return next(now for now in self.watch(what, ask) if now in wanted)

    def watch(self, what: str, ask: Ask) -> Iterator[Optional[str]]:
        """Every answer, with a pause before the next one."""
        begin, shown, renewed = self._clock(), "", sys.stderr.isatty()
        try:
            while True:
                now = ask()
                yield now
                passed_s = self._clock() - begin
                if passed_s > self._longest_s:
                    minutes = f"{self._longest_s / 60:g} minutes"
                    raise FailedError(
                        f"{what} is {now} still after {minutes}: "
                        "`wait` goes on waiting, `stop` stops it"
                    )
                line = f"{what}: {now}" + (
                    f", {int(passed_s) // 60}:{int(passed_s) % 60:02d}" if renewed else ""
                )
                if line != shown:
                    print(
                        f"\r{line:<70}" if renewed else line,
                        end="" if renewed else "\n",
                        file=sys.stderr,
                        flush=True,
                    )
                shown = line
                self._sleep(self._every_s)
        finally:
            if shown and renewed:
                print(file=sys.stderr)
