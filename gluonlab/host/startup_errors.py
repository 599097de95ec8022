"""Prints one line, not a traceback, for errors while a command is starting.

This module handles three cases:

- Windows, on which gluonlab does not run.
- Ctrl-C before the command has installed its own handlers.
- A user's file that hides a module. ``gluonlab run`` searches the current folder first, so a file
  ``random.py`` or ``mxnet.py`` there is imported instead of the real module.

This module imports only modules that Python has already loaded, because Ctrl-C could interrupt
other imports, and other modules may be hidden.
"""

# ruff: noqa: PTH100, PTH119
from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself imports enum first
import os
import sys
from _frozen_importlib_external import PathFinder  # type: ignore[import-not-found]

WINDOWS_MESSAGE = "gluonlab does not run natively on Windows: install WSL 2 with wsl --install, and run gluonlab in WSL"


def check_system() -> None:
    """Raise ImportError on Windows, which lacks MXNet 1.9.1 and modules such as fcntl.

    If no caller handles the error, Python prints only the message.
    """
    if sys.platform not in ("win32", "cygwin"):
        return
    hook = sys.excepthook

    def print_message(kind, error, trace):  # type: ignore[no-untyped-def]
        if error.args == (WINDOWS_MESSAGE,) and sys.stderr is not None:
            sys.stderr.write(f"error: {WINDOWS_MESSAGE}\n")
        else:
            hook(kind, error, trace)

    sys.excepthook = print_message
    raise ImportError(WINDOWS_MESSAGE)


def install_start_handlers() -> None:
    """Print one line for Ctrl-C or a hidden module while a command of gluonlab is starting.

    `gluonlab.cli.command` later replaces these handlers.
    """
    name = sys.argv[0].rpartition("/")[2] if sys.argv else ""
    if name == "-m":  # Python is searching for the module
        name = next((word.partition(".")[0] for word in command_line()[1:] if word[:1] != "-"), "")
    if name != "gluonlab":
        return
    sys.excepthook = _print_hidden_module
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        try:
            _signal.signal(_signal.SIGINT, _exit_on_interrupt)
        except ValueError:  # not in the main thread
            return
        # The parent may have blocked SIGINT: `child_processes.prepare_command_process`.
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGINT])


def command_line() -> list[str]:
    """Return the words of this process's command line; [] if neither Linux nor Python stores it."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:  # not Linux
        return getattr(sys, "orig_argv", [])  # Python 3.10 and newer


def _exit_on_interrupt(number: int, frame: object) -> None:
    """Handle SIGINT: print that nothing was written, and exit."""
    try:
        os.write(2, b"interrupted: nothing was written\n")
    except OSError:  # standard error is closed
        pass
    exit_immediately(number, frame)


def exit_immediately(number: int, frame: object) -> None:
    """Exit immediately with status 128 + ``number``. Use this only if no files are open."""
    os._exit(128 + number)


def is_command_starting() -> bool:
    """Check if a command is still starting: SIGINT has the handler of `install_start_handlers`."""
    return _signal.getsignal(_signal.SIGINT) is _exit_on_interrupt


def explain_hidden_module(error: BaseException | None) -> str | None:
    """Return a message if the error is due to a user's file that hides a module, else None."""
    try:
        return _find_hiding_file(error)
    except OSError:  # the current folder has been removed
        return None


def _find_hiding_file(error: BaseException | None) -> str | None:
    """Return a message if ``error`` was caused by a file that hides a module; else None.

    A file is found if the error or one of its causes was raised in this file, or if the message
    names the hidden module.
    """
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        text, trace = str(error), error.__traceback__
        while trace is not None:  # the error may have been raised in the hiding file
            file = trace.tb_frame.f_code.co_filename
            name = os.path.basename(file).partition(".")[0]
            if hides_module(name, file):
                return hidden_module_message(name, file)
            trace = trace.tb_next
        for name, module in sorted(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            is_named = "." not in name and (f"'{name}'" in text or f"'{name}." in text)
            if is_named and hides_module(name, file):
                return hidden_module_message(name, file)
        error = error.__cause__ or error.__context__
    return None


def hidden_module_message(name: str, file: str) -> str:
    """Return the error message for a file that hides a module."""
    path = os.path.join(*_import_location(file))
    return f"{path} is imported as {name}, because it comes first in Python's path: rename it"


def hides_module(name: str, file: str) -> bool:
    """Check if ``file`` is in the folder that Python searches first, and hides module ``name``."""
    folder, _ = _import_location(file)
    start = os.path.abspath(sys.path[0] if sys.path else "")
    if not file or folder not in (start, os.path.abspath("")):
        return False
    other_paths = [path for path in sys.path if os.path.abspath(path) != folder]
    spec = PathFinder.find_spec(name, other_paths)
    return spec is not None and spec.origin is not None


def _import_location(file: str) -> tuple[str, str]:
    """Return the folder in which Python found a module, and the module's file or folder name.

    A package is a folder. The ``file`` of a package ends with ``__init__.py``.
    """
    folder, file_name = os.path.split(os.path.abspath(file))
    return os.path.split(folder) if file_name == "__init__.py" else (folder, file_name)


def _print_hidden_module(kind, error, trace):  # type: ignore[no-untyped-def]
    """Print one line if a file that hides a module caused the error, otherwise the traceback."""
    message = None if "--debug" in sys.argv else explain_hidden_module(error)
    if message is None:
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"error: {message}\n")
