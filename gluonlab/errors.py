"""Every error that gluonlab raises on purpose.

::

    GluonlabError
    ├── UsageError              the request is impossible: exit status 2
    │   ├── ConfigError         a value of TrainConfig or of an option
    │   ├── DeviceError         devices that do not exist here
    │   ├── DataError           a data set that is missing, unknown or damaged
    │   ├── ModelError          an unknown network, or one that does not fit
    │   ├── KVStoreError        an unknown or unavailable kvstore
    │   ├── ScheduleError       a schedule that is wrong, or an algorithm that cannot make one
    │   ├── OutputError         a place that cannot be written
    │   └── ExerciseError       an exercise, a language or a submission that the labs do not have
    └── RunError                it went wrong while running: exit status 1
        ├── EngineError         MXNet cannot be loaded or set up
        │   └── MissingMXNet    ... because it is not installed (an ImportError, too)
        ├── DownloadError       a data set that cannot be fetched from where it should be
        ├── NotebookError       a notebook that did not run to its end
        ├── NoMemoryError       there is not enough memory, or no descriptor or thread is left
        ├── CallbackError       a callback, loss or metric of the user's own failed
        └── DivergedError       the loss is no longer a number
            └── DriftError      replicas hold different parameters

A message names the value, what is possible, and the remedy, on one line.
"""

from __future__ import annotations

import re
import sys
import warnings
from types import FrameType
from typing import Iterable, List, Optional, Sequence


class GluonlabError(Exception):
    """Base of all errors that are not bugs; ``exit_status`` is what a command ends with."""

    exit_status = 1


class UsageError(GluonlabError):
    """Base of the errors that another choice would cure."""

    exit_status = 2


class ConfigError(UsageError, ValueError):
    """A setting has an impossible value, or two settings contradict each other."""


class DeviceError(UsageError, ValueError):
    """The devices asked for do not exist on this machine, or cannot work together."""


class DataError(UsageError, ValueError):
    """A data set is unknown, missing or damaged."""


class ModelError(UsageError, ValueError):
    """A network is unknown, or does not fit its input."""


class KVStoreError(UsageError, ValueError):
    """A kvstore is unknown, or this MXNet was built without it."""


class ScheduleError(UsageError, ValueError):
    """A schedule does not do what it is for, or an algorithm cannot make one for these ranks.

    ``step`` and ``transfer``: the position of the first wrong transfer, when there is one. Of a
    pipeline's schedule, ``device`` and ``place`` are that of the first wrong instruction.
    """

    def __init__(
        self,
        message: str,
        step: Optional[int] = None,
        transfer: Optional[int] = None,
        *,
        device: Optional[int] = None,
        place: Optional[int] = None,
    ) -> None:
        super().__init__(message)
        self.step, self.transfer = step, transfer
        self.device, self.place = device, place


class OutputError(UsageError, OSError):
    """Results cannot be written where they were asked for."""


class ExerciseError(UsageError, ValueError):
    """The labs have no such exercise or language, or a submission cannot be read.

    A notebook shows it as one line.
    """

    def _render_traceback_(self) -> List[str]:
        return [f"error: {self}"]  # what IPython shows in place of a traceback


class RunError(GluonlabError, RuntimeError):
    """Base of the failures that show only at run time."""


class EngineError(RunError):
    """MXNet's engine cannot be loaded, or cannot be set up so that it works."""


class MissingMXNet(EngineError, ModuleNotFoundError):
    """MXNet is not installed; still an ImportError for those who only try the import."""

    def __init__(self, message: str) -> None:
        # RuntimeError, which comes first, takes no name
        ModuleNotFoundError.__init__(self, message, name="mxnet")


class DownloadError(RunError):
    """A file cannot be fetched, or is not what it should be.

    The message says which file to put where by hand, on ``lines`` of their own below the first.
    """

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__("\n  ".join([message, *lines]))
        self.message, self.lines = message, tuple(lines)


class NotebookError(RunError):
    """A notebook did not run to its end; the message says which cell, and why."""


class NoMemoryError(RunError):
    """Memory, file descriptors or threads are used up; the message names the limit and options."""


class CallbackError(RunError):
    """Code of the user's own, such as a callback or a metric, failed; the message names it."""


class DivergedError(RunError):
    """The loss or parameters are not finite, or the loss is larger than training recovers from.

    The message names the step where it began, or after which it was seen.
    """


class DriftError(DivergedError):
    """Replicas hold different parameters; the message names step, parameter and devices."""


class GluonlabWarning(UserWarning):
    """Something works, but otherwise than the user may think."""


PACKAGE = __file__[: -len("errors.py")]
IMPORTS = "<frozen importlib"  # Python's own frames, which warnings does not count


def warn(message: str) -> None:
    """Give a GluonlabWarning, which names the line of the user's own that led to it."""
    levels, ours = 0, 1
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        levels += not frame.f_code.co_filename.startswith(IMPORTS)
        if frame.f_code.co_filename.startswith(PACKAGE):
            ours = levels  # the outermost counts: between ours are those of contextlib and others
        frame = frame.f_back
    warnings.warn(message, GluonlabWarning, stacklevel=ours + 1)


FEW = 40  # names that a message lists beside a guess; of more, the guess says enough


def unknown(kind: str, given: object, choices: Iterable[str]) -> str:
    """The message for a name that no registry holds.

    >>> unknown("kvstore", "locl", ["local", "device"])
    "unknown kvstore 'locl': choose device, local (did you mean 'local'?)"
    """
    names = sorted(choices)
    import difflib  # only for a mistake

    close = difflib.get_close_matches(str(given).lower(), names, n=1)
    if close and len(names) > FEW:
        return f"unknown {kind} {given!r}: did you mean {close[0]!r}?"
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {kind} {given!r}: choose {', '.join(names)}{hint}"


MXNETS_TRACE = "Traceback (most recent call last):"  # before what MXNet says, with lines of its own
# MXNet's messages begin with the time, so that two of the same failure would differ
MXNETS_TIME = re.compile(r"\[\d\d:\d\d:\d\d\] ")
MOST_SAID = 500  # characters of somebody else's message


def said_by(error: BaseException) -> str:
    """What an error of somebody else's code says, on one line; empty if it says nothing.

    >>> said_by(ValueError("first\\n  second"))
    'first second'
    """
    text = str(error).strip()
    if text.startswith(MXNETS_TRACE):
        said = [line for line in text.splitlines()[1:] if not line.startswith(" ")]
        text = " ".join(said) or text
    text = MXNETS_TIME.sub("", text.split("\nStack trace")[0])
    return " ".join(text.split())[:MOST_SAID]


def kind_and_words(error: BaseException) -> str:
    """`said_by`, after the name of the error's class.

    >>> kind_and_words(KeyError()), kind_and_words(KeyError("a"))
    ('KeyError', "KeyError: 'a'")
    """
    kind, said = type(error).__name__, said_by(error)
    return said if said.startswith(f"{kind}: ") else f"{kind}: {said}" if said else kind
