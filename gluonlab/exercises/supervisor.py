"""The process between the grader and a notebook: it ends all that the notebook has started.

It starts a command in a session of its own, within bounds, and writes ``{"ended": ..}`` as the last
line of its output: what the command used too much of, or nothing. Processes whose parents have
ended become its own children (prctl(2), PR_SET_CHILD_SUBREAPER), whatever they have done to their
session; so none is left when it ends. It ends early when its input is closed, as it is when the
grader has ended, and then removes the notebook's folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterable, List, Sequence

from gluonlab.exercises.bounds import TICK_S, Bounds, Process, Watch, descendants
from gluonlab.files.whole import remove_folder

ENDED, ABANDONED = "ended", "the grader has ended"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_SWEEPS = 2000  # of what still runs; a notebook may start processes while others are ended


def main(arguments: Sequence[str]) -> None:
    """``BOUNDS FOLDER COMMAND...``: run the command; the first is the JSON of a `Bounds`."""
    bounds, folder = Bounds(**json.loads(arguments[0])), Path(arguments[1])
    _control(PR_SET_CHILD_SUBREAPER, 1)
    with suppress(OSError):  # where memory ends, the kernel is to end these and not the grader
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_FSIZE, _lowered(resource.RLIMIT_FSIZE, bounds.file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    child = subprocess.Popen(arguments[2:], stdin=subprocess.DEVNULL, start_new_session=True)
    excess = ""
    try:
        excess = _wait(child, Watch(bounds, folder))
    finally:
        _end_all(child)
        if excess == ABANDONED:
            remove_folder(folder)
        print(json.dumps({ENDED: excess}), flush=True)


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _lowered(limit: int, most: int) -> "tuple[int, int]":
    _, hard = resource.getrlimit(limit)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    return most, most


def _wait(child: "subprocess.Popen[bytes]", watch: Watch) -> str:
    """Wait until the command ends; what it used too much of, or nothing."""
    while child.poll() is None:
        processes = descendants(os.getpid())
        _bury(process for process in processes if process.pid != child.pid)
        excess = watch.excess(processes)
        if excess:
            return excess
        # closed when the grader has ended; nothing is ever written to it
        if select.select([0], [], [], TICK_S)[0]:
            return ABANDONED
    return ""


def _bury(processes: Iterable[Process]) -> None:
    """Take note of children that have ended, which are zombies until then."""
    for process in processes:
        if process.state == "Z" and process.parent == os.getpid():
            with suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)


def _end_all(child: "subprocess.Popen[bytes]") -> None:
    """Kill the command and all its descendants, group by group: a whole one cannot fork away."""
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for _ in range(MOST_SWEEPS):
        left: List[Process] = descendants(os.getpid())
        if not left:
            return
        _bury(left)
        own = {process.pid for process in left}
        for process in left:
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            if process.group in own:
                with suppress(OSError):
                    os.killpg(process.group, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1:])
