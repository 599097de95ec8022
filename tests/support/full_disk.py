"""A simulated full disk: a limit on the size of the files of this process."""

import resource
import signal
import sys
from contextlib import contextmanager


@contextmanager
def limit_file_size(size):
    """Make writes beyond ``size`` bytes of a file raise OSError, as on a full disk."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # importlib would write truncated bytecode
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)
        signal.signal(signal.SIGXFSZ, handler)
