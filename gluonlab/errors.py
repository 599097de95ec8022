"""Exceptions and warnings of gluonlab, and helpers for their messages.

::

    GluonlabError
    ├── UsageError              the request is impossible: exit status 2
    │   ├── ConfigError         a value of TrainConfig or of an option
    │   ├── DeviceError         devices that do not exist here
    │   ├── DataError           a data set that is missing, unknown or damaged
    │   ├── ModelError          an unknown network, or one that cannot be used as requested
    │   ├── KVStoreError        an unknown or unavailable kvstore
    │   ├── ScheduleError       an invalid schedule, or an algorithm that cannot create one
    │   ├── OutputError         a file or folder that cannot be written
    │   └── ExerciseError       an unknown exercise or language, or an unreadable submission
    └── RunError                a failure at run time: exit status 1
        ├── EngineError         MXNet cannot be loaded or set up
        │   └── MissingMXNet    MXNet is not installed (also an ImportError)
        ├── DownloadError       a data set that cannot be downloaded
        ├── NotebookError       a notebook that did not run to its end
        ├── NoMemoryError       no memory, file descriptor or thread is left
        ├── CallbackError       the user's own callback, loss or metric failed
        └── DivergedError       the loss is no longer a number
            └── DriftError      replicas have different parameters

A message contains the value, the possible values, and the fix, on one line. In the code, messages
name settings as options, such as ``--batch-size 0``. A command prints them in this form. In Python,
messages name arguments, such as ``batch_size=0`` (`format_for_python`).
"""

from __future__ import annotations

import re
import sys
import warnings
from contextlib import contextmanager
from types import FrameType
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from gluonlab.renamed import get_renamed

# Option -> (argument of TrainConfig, whether the option has a value). `gluonlab.config` fills it.
ARGUMENT_BY_OPTION: Dict[str, Tuple[str, bool]] = {}
_is_command_running = False  # whether messages are printed by a command
_OPTION_AND_VALUE = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)(?: (\S+))?")
# Words that follow an option in messages, and that are not its value.
_NO_VALUES = frozenset(
    [
        "accepts",
        "added",
        "all",
        "alone",
        "already",
        "also",
        "and",
        "are",
        "as",
        "asks",
        "at",
        "because",
        "before",
        "belong",
        "belongs",
        "but",
        "by",
        "can",
        "cannot",
        "changes",
        "chooses",
        "contradict",
        "counts",
        "cuts",
        "decides",
        "differ",
        "differs",
        "does",
        "fails",
        "files",
        "finds",
        "for",
        "from",
        "gives",
        "goes",
        "had",
        "has",
        "have",
        "if",
        "in",
        "instead",
        "is",
        "its",
        "keep",
        "lets",
        "looks",
        "makes",
        "may",
        "measures",
        "monitors",
        "must",
        "names",
        "needs",
        "of",
        "on",
        "only",
        "or",
        "out",
        "plans",
        "reads",
        "requires",
        "runs",
        "says",
        "sets",
        "spreads",
        "splits",
        "stands",
        "supports",
        "takes",
        "than",
        "that",
        "the",
        "them",
        "this",
        "to",
        "together",
        "twice",
        "was",
        "were",
        "which",
        "whose",
        "with",
        "without",
        "works",
        "would",
        "write",
        "writes",
        "wrote",
        "yourself",
    ]
)


@contextmanager
def name_options() -> Iterator[None]:
    """In a with block, which runs a command, make error messages name options, not arguments."""
    global _is_command_running
    before, _is_command_running = _is_command_running, True
    try:
        yield
    finally:
        _is_command_running = before


def format_message(message: str) -> str:
    """Return the message with option names if a command is running, else with argument names."""
    return message if _is_command_running else format_for_python(message)


def format_for_python(message: str) -> str:
    """Return a message with arguments of TrainConfig instead of options.

    ``--batch-size 0: use ...`` becomes ``batch_size=0: use ...``.
    """

    def name_argument(match: "re.Match[str]") -> str:
        """Return ``batch_size=0`` for ``--batch-size 0``, and True or False for a flag."""
        option, word = match[1], match[2]
        rest = "" if word is None else f" {word}"
        if option not in ARGUMENT_BY_OPTION:
            return match[0]
        name, has_value = ARGUMENT_BY_OPTION[option]
        if not has_value:
            is_opposite = option.replace("-", "_") != f"__{name}"
            return f"{name}={not is_opposite}{rest}"
        is_value = word is not None and (
            re.match(r"-[.0-9]", word) is not None
            or (word[0] not in "'\"(-`" and word.strip(".,;:)") not in _NO_VALUES)
        )
        return f"{name}={word}" if is_value else f"{name}{rest}"

    return _OPTION_AND_VALUE.sub(name_argument, message)


class GluonlabError(Exception):
    """Base class of all errors that are not bugs. ``exit_status``: a command's exit status."""

    exit_status = 1

    def __str__(self) -> str:
        return format_message(super().__str__())


class UsageError(GluonlabError):
    """Base class of the errors that the user can avoid by a different choice."""

    exit_status = 2


class ConfigError(UsageError, ValueError):
    """A setting has an invalid value, or two settings contradict each other."""


class DeviceError(UsageError, ValueError):
    """The requested devices do not exist on this machine, or cannot work together."""


class DataError(UsageError, ValueError):
    """A data set is unknown, missing or damaged."""


class ModelError(UsageError, ValueError):
    """A network is unknown, or cannot be used as requested."""


class KVStoreError(UsageError, ValueError):
    """A kvstore is unknown, or this MXNet was built without it."""


class ScheduleError(UsageError, ValueError):
    """A schedule is not valid, or an algorithm cannot create one for these ranks.

    ``step`` and ``transfer``: the position of the first wrong transfer, if there is one. ``device``
    and ``place``: the position of the first wrong instruction in the schedule of a pipeline.
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
    """Results cannot be written to the requested file or folder."""


class ExerciseError(UsageError, ValueError):
    """An exercise or language does not exist, or a submission cannot be read.

    A notebook shows the error as one line, without a traceback.
    """

    def _render_traceback_(self) -> List[str]:
        return [f"error: {self}"]  # IPython shows this instead of a traceback


class RunError(GluonlabError, RuntimeError):
    """Base class of the failures at run time."""


class EngineError(RunError):
    """MXNet's engine cannot be loaded or set up."""


class MissingMXNet(EngineError, ModuleNotFoundError):
    """MXNet is not installed. Code that catches ImportError also catches this error."""

    def __init__(self, message: str) -> None:
        # RuntimeError, the first built-in base, has no parameter ``name``.
        ModuleNotFoundError.__init__(self, message, name="mxnet")


class DownloadError(RunError):
    """A file cannot be downloaded, or is damaged.

    ``lines``: lines to print below the message. They tell the user which file to copy by hand, and
    to which path.
    """

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__("\n  ".join([message, *lines]))
        self.message, self.lines = message, tuple(lines)


class NotebookError(RunError):
    """A notebook stopped before its end. The message contains the cell and the reason."""


class NoMemoryError(RunError):
    """Memory, file descriptors or threads are exhausted.

    The message contains the limit, and options that avoid the error.
    """


class CallbackError(RunError):
    """The user's own code, such as a callback or a metric, failed. The message names the code."""


class DivergedError(RunError):
    """The loss or parameters are not finite, or the loss is too large to recover from.

    The message contains the step in which the problem started, or after which it was detected.
    """


class DriftError(DivergedError):
    """Replicas have different parameters. The message names the step, parameter and devices."""


class GluonlabWarning(UserWarning):
    """A warning that something works, but differently than the user may expect."""


PACKAGE = __file__[: -len("errors.py")]
IMPORTS = "<frozen importlib"  # frames of Python's import system, which stacklevel does not count


def warn(message: str) -> None:
    """Show a GluonlabWarning, with the line of the user's code that called gluonlab."""
    message = format_message(message)
    levels, ours = 0, 1  # frames so far, and those up to gluonlab's outermost frame
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        levels += not frame.f_code.co_filename.startswith(IMPORTS)
        if frame.f_code.co_filename.startswith(PACKAGE):
            ours = levels  # no early end: other frames, such as contextlib's, may lie in between
        frame = frame.f_back
    warnings.warn(message, GluonlabWarning, stacklevel=ours + 1)


MAX_LISTED_NAMES = 40  # if there are more names, a message contains only the suggestion


def unknown(kind: str, given: object, choices: Iterable[str]) -> str:
    """Return the message for an unknown name, with a suggestion or the choices.

    >>> unknown("kvstore", "locl", ["local", "device"])
    "unknown kvstore 'locl': choose device, local (did you mean 'local'?)"
    """
    names = sorted(choices)
    import difflib  # here, because it is rarely needed

    close = difflib.get_close_matches(str(given).lower(), names, n=1)
    if close and len(names) > MAX_LISTED_NAMES:
        return f"unknown {kind} {given!r}: did you mean {close[0]!r}?"
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {kind} {given!r}: choose {', '.join(names)}{hint}"


MXNET_TRACE = "Traceback (most recent call last):"  # the first line of some messages of MXNet
# MXNet's messages begin with the time. It is removed, so that messages of one failure are equal.
MXNET_TIME = re.compile(r"\[\d\d:\d\d:\d\d\] ")
MAX_ERROR_TEXT = 500  # characters of another library's message


def error_text(error: BaseException) -> str:
    """Return the message of another library's error on one line; "" if the error has no message.

    >>> error_text(ValueError("first\\n  second"))
    'first second'
    """
    text = str(error).strip()
    if text.startswith(MXNET_TRACE):
        lines = [line for line in text.splitlines()[1:] if not line.startswith(" ")]
        text = " ".join(lines) or text
    text = MXNET_TIME.sub("", text.split("\nStack trace")[0])
    return " ".join(text.split())[:MAX_ERROR_TEXT]


def error_type_and_text(error: BaseException) -> str:
    """Return the name of the error's class, and the error's message.

    >>> error_type_and_text(KeyError()), error_type_and_text(KeyError("a"))
    ('KeyError', "KeyError: 'a'")
    """
    kind, message = type(error).__name__, error_text(error)
    return message if message.startswith(f"{kind}: ") else f"{kind}: {message}" if message else kind


def __getattr__(name: str) -> Any:
    return get_renamed(__name__, name)
