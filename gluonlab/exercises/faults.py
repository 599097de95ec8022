"""A student's exception in words: its type, its message, and the line of their code."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from types import CodeType, TracebackType
from typing import Callable, List, NamedTuple, Optional

LONGEST = 400  # characters of an error's own message

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = tuple(
    {
        _PACKAGE,
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)
# MXNet's messages hold its C++ stack
_NOISE = re.compile(r'\s*(Traceback \(|Stack trace|File "|\[bt\])')


class Place(NamedTuple):
    """The line of the student's code that led to an error; ``last``: it raised the error itself."""

    code: CodeType
    line: int
    source: str
    last: bool


def place_of(error: BaseException, checker: Callable[..., object]) -> Optional[Place]:
    """The innermost line below ``checker`` that is not Python's, a library's or gluonlab's."""
    frames: List[TracebackType] = []
    step = error.__traceback__
    while step is not None:
        is_checker = step.tb_frame.f_code is getattr(checker, "__code__", None)
        frames = [] if is_checker else [*frames, step]
        step = step.tb_next
    for frame in reversed(frames):
        code = frame.tb_frame.f_code
        # MXNet makes its operators of text, which has no file
        if not code.co_filename.startswith((*_LIBRARIES, "<frozen", "<string>")):
            source = traceback.extract_tb(frame, limit=1)[0].line or ""
            return Place(code, frame.tb_lineno, source.strip(), frame is frames[-1])
    return None


def message_of(error: BaseException) -> str:
    """``ValueError: what it says``, short."""
    lines = [
        line.strip() for line in str(error).splitlines() if line.strip() and not _NOISE.match(line)
    ]
    name = type(error).__name__
    text = " ".join(lines)
    text = text[len(name) + 2 :] if text.startswith(f"{name}: ") else text
    text = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return f"{name}: {text}" if text else name
