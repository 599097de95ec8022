"""Runs an unreliable module in a child process, and reads the JSON output of the module.

The module may crash or hang without affecting this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Set

from gluonlab.errors import GluonlabError
from gluonlab.host.child_processes import signal_group

# The child gets the module search path of this process.
_RUN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__')"
)

_running: "Set[subprocess.Popen[bytes]]" = set()


@dataclass(frozen=True)
class ProcessOutcome:
    """The outcome of a child process.

    Attributes:
        answers: The JSON objects that the process printed, in order.
        failure: Text about how the process failed, or "" if it succeeded.
        last_line: The last line that the process wrote to stderr.
    """

    answers: List[Dict[str, Any]]
    failure: str
    last_line: str

    def all_answers(self, key: str) -> List[Dict[str, Any]]:
        """Return the answers with this key, in order."""
        return [answer for answer in self.answers if key in answer]

    def first_answer(self, key: str) -> Optional[Dict[str, Any]]:
        """Return the first answer with this key."""
        return next(iter(self.all_answers(key)), None)

    def last_answer(self, key: str) -> Optional[Dict[str, Any]]:
        """Return the last answer with this key."""
        return next(reversed(self.all_answers(key)), None)


def run_isolated(
    module: str, *arguments: str, timeout_s: float, environ: Optional[Mapping[str, str]] = None
) -> ProcessOutcome:
    """Run ``python -m module arguments`` for at most ``timeout_s``, and return the outcome.

    ``environ``: the environment of the child process; by default this process's environment.
    """
    command = [sys.executable, "-c", _RUN, json.dumps(sys.path), module, *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ if environ is None else environ),
        start_new_session=True,  # so that its own children can be killed too
    ) as child:
        failure = ""
        _running.add(child)
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            failure = f"was still running after {timeout_s:g} s"
            signal_group(child.pid, signal.SIGKILL)
            out, err = child.communicate()
        finally:
            _running.discard(child)
    failure = failure or _describe_status(child.returncode)
    last_line = err.decode("utf-8", "replace").strip().split("\n")[-1]
    answers = _parse_answers(out.decode("utf-8", "replace"))
    return ProcessOutcome(answers, failure, " ".join(last_line.split()))


def kill_all() -> None:
    """Kill all processes that `run_isolated` has started.

    The processes run in separate sessions, so Ctrl-C in a terminal does not stop them.
    """
    for child in list(_running):
        signal_group(child.pid, signal.SIGKILL)


def send_answer(**answer: Any) -> None:
    """Print the answer as one line of JSON, without buffering. Call this in the child process."""
    print(json.dumps(answer), flush=True)


def error_message(error: BaseException) -> str:
    """Return an error's message, preceded by the error's type unless it is a GluonlabError."""
    return str(error) if isinstance(error, GluonlabError) else f"{type(error).__name__}: {error}"


def _parse_answers(out: str) -> List[Dict[str, Any]]:
    """Return only the lines that are JSON objects, since libraries may have printed other lines."""
    answers = []
    for line in out.split("\n"):
        try:
            answers.append(json.loads(line))
        except ValueError:
            continue
    return [answer for answer in answers if isinstance(answer, dict)]


def _describe_status(status: int) -> str:
    """Return text about how a process with this exit status failed.

    The text is "" for 0. A negative status means that a signal killed the process.
    """
    if status >= 0:
        return f"exited with status {status}" if status else ""
    try:
        return f"crashed ({signal.Signals(-status).name})"
    except ValueError:
        return f"crashed (signal {-status})"
