"""A full disk, for which the process's own limit on the size of files stands in."""

import resource
import signal
import sys
from contextlib import contextmanager


@contextmanager
def limit_file_size(size):
    """No file grows beyond ``size`` bytes: what would is an error of the system, as on a full
    disk.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # importlib would leave cut files for what is imported now
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
