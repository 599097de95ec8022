"""Errors from a user's file that hides a module of the same name.

``python -m gluonlab.run`` searches the current folder first. A user's ``random.py`` or ``mxnet.py``
there hides the module that other code needs.

This module imports only what Python loads at its start, because other modules may be hidden.
"""

# ruff: noqa: PTH100, PTH119
from __future__ import annotations

import os
import sys
from _frozen_importlib_external import PathFinder  # type: ignore[import-not-found]


def explain_hidden(error: BaseException | None) -> str | None:
    """Return a line that names the hiding file behind an error; None if there is no such file."""
    try:
        return _explain(error)
    except OSError:  # the current folder has been removed
        return None


def _explain(error: BaseException | None) -> str | None:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        text, trace = str(error), error.__traceback__
        while trace is not None:  # the hiding file itself may have failed
            file = trace.tb_frame.f_code.co_filename
            name = os.path.basename(file).partition(".")[0]
            if hides(name, file):
                return line(name, file)
            trace = trace.tb_next
        for name, module in sorted(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            is_named = "." not in name and (f"'{name}'" in text or f"'{name}." in text)
            if is_named and hides(name, file):
                return line(name, file)
        error = error.__cause__ or error.__context__
    return None


def line(name: str, file: str) -> str:
    """Return the message: which file is imported as which module, and the fix."""
    found = os.path.join(*_place(file))
    return f"{found} is imported as {name}: it comes first in Python's path: rename it"


def hides(name: str, file: str) -> bool:
    """Whether a file in the start folder hides a module with this name."""
    folder, _ = _place(file)
    start = os.path.abspath(sys.path[0] if sys.path else "")
    if not file or folder not in (start, os.path.abspath("")):
        return False
    others = [each for each in sys.path if os.path.abspath(each) != folder]
    spec = PathFinder.find_spec(name, others)
    return spec is not None and spec.origin is not None


def _place(file: str) -> tuple[str, str]:
    """Return the folder in which Python found a module, and the module's file or folder there."""
    folder, own = os.path.split(os.path.abspath(file))
    return os.path.split(folder) if own == "__init__.py" else (folder, own)


def excepthook(kind, error, trace):  # type: ignore[no-untyped-def]
    """Print one line if an error comes from a hiding file before a command has started."""
    said = None if "--debug" in sys.argv else explain_hidden(error)
    if said is None:
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"error: {said}\n")
