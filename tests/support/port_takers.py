"""A thread that occupies the port of a scheduler before the scheduler listens on it."""

import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def occupy_scheduler_ports(folder, times, reuses=True):
    """Occupy the scheduler ports of launchers in ``folder``, ``times`` at most.

    Yield the list of ports, in which a failed attempt is None. ``reuses``: whether to set
    SO_REUSEADDR, as servers do.
    """
    ports, open_sockets, seen, done = [], [], set(), threading.Event()

    def occupy():
        while not done.is_set():
            for pid, port in _scheduler_ports(folder):
                if pid not in seen and len(ports) < times:
                    seen.add(pid)
                    listener = socket.socket()
                    open_sockets.append(listener)
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
                    try:
                        listener.bind(("", port))
                        listener.listen()
                        ports.append(port)
                    except OSError:
                        ports.append(None)
            time.sleep(0.005)

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        yield ports
    finally:
        done.set()
        thread.join()
        for listener in open_sockets:
            listener.close()


def _scheduler_ports(folder):
    """Yield (process id, port) of the schedulers of launchers in ``folder``."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, KeyError):
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")) == folder:
                text = (entry / "environ").read_text()
                environ = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
                words = (entry / "cmdline").read_text().split("\0")
                if environ.get("DMLC_ROLE") == "scheduler":
                    yield int(entry.name), int(environ["DMLC_PS_ROOT_PORT"])
                elif "rendezvous" in words:
                    yield int(entry.name), int(words[words.index("rendezvous") + 2])
