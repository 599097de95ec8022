"""Somebody who takes the scheduler's port as soon as there is a scheduler, which is to listen there
when it has loaded MXNet, or Horovod.
"""

import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def occupy_scheduler_ports(folder, times, reuses=True):
    """The ports that it takes, of launchers in ``folder``, ``times`` at most; one that it does not
    get is None. ``reuses``: whether it asks with SO_REUSEADDR, as servers do.
    """
    taken, open_sockets, seen, done = [], [], set(), threading.Event()

    def take():
        while not done.is_set():
            for pid, port in _scheduler_ports(folder):
                if pid not in seen and len(taken) < times:
                    seen.add(pid)
                    mine = socket.socket()
                    open_sockets.append(mine)
                    mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
                    try:
                        mine.bind(("", port))
                        mine.listen()
                        taken.append(port)
                    except OSError:
                        taken.append(None)
            time.sleep(0.005)

    taking = threading.Thread(target=take)
    taking.start()
    try:
        yield taken
    finally:
        done.set()
        taking.join()
        for each in open_sockets:
            each.close()


def _scheduler_ports(folder):
    """(pid, port) of those that a launcher in ``folder`` has started."""
    for place in Path("/proc").iterdir():
        with suppress(OSError, ValueError, KeyError):
            if place.name.isdigit() and Path(os.readlink(place / "cwd")) == folder:
                text = (place / "environ").read_text()
                environ = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
                words = (place / "cmdline").read_text().split("\0")
                if environ.get("DMLC_ROLE") == "scheduler":
                    yield int(place.name), int(environ["DMLC_PS_ROOT_PORT"])
                elif "rendezvous" in words:
                    yield int(place.name), int(words[words.index("rendezvous") + 2])
