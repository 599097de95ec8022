"""Before a command begins: Ctrl-C in its imports, and modules that a file hides, end it without a
traceback.

Imports nothing that Python has not loaded when it starts, for its own imports can be interrupted.
"""

import _signal  # type: ignore[import-not-found]  # signal itself imports enum first
import os
import sys

from gluonlab.host import hiding


def quiet_start() -> None:
    """Handle SIGINT and errors from now on, only if Python is starting a command of gluonlab.

    `gluonlab.cli.command` takes over.
    """
    name = sys.argv[0].rpartition("/")[2] if sys.argv else ""
    if name == "-m":  # Python looks for the module
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
        name = next((word.partition(".")[0] for word in words[1:] if word[:1] != "-"), "")
    if name != "gluonlab":
        return
    sys.excepthook = hiding.excepthook
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        try:
            _signal.signal(_signal.SIGINT, _end)
        except ValueError:  # not in the main thread
            return
        # whoever has started this command may have had it wait: `lifetime.begin_as_part`
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGINT])


def _end(number: int, frame: object) -> None:
    try:
        os.write(2, b"interrupted: nothing was written\n")
    except OSError:  # nobody reads it
        pass
    end_at_once(number, frame)


def end_at_once(number: int, frame: object) -> None:
    """A handler for what comes while nothing is open: as shells count, without Python's end."""
    os._exit(128 + number)


def started_quietly() -> bool:
    """Whether `quiet_start` has found a command, which has not begun yet."""
    return _signal.getsignal(_signal.SIGINT) is _end
