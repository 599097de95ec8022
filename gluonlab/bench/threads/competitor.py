"""Processes that compute beside what is measured, and end with the measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import Iterator, List

# longer than any round may take: it ends by itself then, or when its parent has gone
MOST_S = 120.0
_BUSY = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print(flush=True)
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(10**5):
        pass
"""


@contextmanager
def competing(count: int) -> Iterator[List[int]]:
    """So many processes, their ids given, keep a core busy each; they compute when this begins, and
    are gone after it.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_busy_process()) for _ in range(count)]


@contextmanager
def _busy_process() -> Iterator[int]:
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid()), str(MOST_S)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it has started
        yield process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
