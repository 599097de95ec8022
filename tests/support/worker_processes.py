"""The state of other processes, which may change during the calls."""

import os
import re
from contextlib import suppress
from pathlib import Path


def has_exited(pid):
    """Return whether a process has exited; its parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def socket_inodes(pid):
    """Return the inodes of the sockets of a process; none if it has exited."""
    inodes = set()
    with suppress(OSError):  # the process has exited
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # the process has closed this descriptor
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
    return inodes


def handles_signal(pid, number):
    """Return whether a process has a handler for a signal."""
    [caught] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) & 1 << (number - 1))
