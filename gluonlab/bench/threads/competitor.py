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
    """``count`` processes that keep a core busy each until the block ends; gives their ids."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid()), str(MOST_S)]
    with ExitStack() as stack:
        pids = []
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            stack.enter_context(process)  # its pipe is closed
            stack.callback(process.wait)
            stack.callback(process.kill)  # the first of the three
            assert process.stdout is not None
            process.stdout.readline()  # it has started
            pids.append(process.pid)
        yield pids
