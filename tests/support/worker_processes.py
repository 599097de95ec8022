"""What has become of a process, and what it holds: either may change while it is looked at."""

import os
import re
from contextlib import suppress
from pathlib import Path


def has_exited(pid):
    """Whether there is no such process, or only what its parent has not asked about yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def socket_inodes(pid):
    """The inodes of its sockets; none if it has ended."""
    inodes = set()
    with suppress(OSError):  # of the process
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # of one that it has closed meanwhile
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
    return inodes


def handles_signal(pid, number):
    """Whether it has a handler for this signal, of Python's or its own."""
    [caught] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) & 1 << (number - 1))
