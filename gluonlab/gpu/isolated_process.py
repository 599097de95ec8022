"""Checks that may crash or hang run in a process of their own, which answers in JSON lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Set

from gluonlab.errors import GluonlabError

# The child looks for modules where this process does, wherever that came from.
_RUN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__')"
)

_running: "Set[subprocess.Popen[bytes]]" = set()


@dataclass(frozen=True)
class ProcessExit:
    """The end of a child process.

    ``answers``: its JSON answers, in order. ``ended``: how it failed, in words; empty if it did
    not. ``said``: its last words on stderr.
    """

    answers: List[Dict[str, Any]]
    ended: str
    said: str

    def all(self, key: str) -> List[Dict[str, Any]]:
        """The answers that have this key, in order."""
        return [answer for answer in self.answers if key in answer]

    def answer(self, key: str) -> Optional[Dict[str, Any]]:
        """The first answer that has this key."""
        return next(iter(self.all(key)), None)

    def last(self, key: str) -> Optional[Dict[str, Any]]:
        """The last answer that has this key."""
        return next(reversed(self.all(key)), None)


def ask(
    module: str, *arguments: str, timeout_s: float, environ: Optional[Mapping[str, str]] = None
) -> ProcessExit:
    """Run ``python -m module`` to its end, or for ``timeout_s`` at most."""
    command = [sys.executable, "-c", _RUN, json.dumps(sys.path), module, *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ if environ is None else environ),
        start_new_session=True,  # so that it can be ended with all that it has started
    ) as child:
        late = False
        _running.add(child)
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            late = True
            _end(child)
            out, err = child.communicate()
        finally:
            _running.discard(child)
    ended = f"was still busy after {timeout_s:g} s" if late else _in_words(child.returncode)
    last = err.decode("utf-8", "replace").strip().split("\n")[-1]
    return ProcessExit(_answers(out.decode("utf-8", "replace")), ended, " ".join(last.split()))


def end_all() -> None:
    """End the processes that `ask` waits for: Ctrl-C in a terminal does not reach them."""
    for child in list(_running):
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # by itself, meanwhile
        pass


def tell(**answer: Any) -> None:
    """The child's end: one line of JSON, at once."""
    print(json.dumps(answer), flush=True)


def message_of(error: BaseException) -> str:
    """An error's own words if they are gluonlab's; else with its type."""
    return str(error) if isinstance(error, GluonlabError) else f"{type(error).__name__}: {error}"


def _answers(out: str) -> List[Dict[str, Any]]:
    """The lines that are JSON objects; a library may have printed others."""
    answers = []
    for line in out.split("\n"):
        try:
            answers.append(json.loads(line))
        except ValueError:
            continue
    return [answer for answer in answers if isinstance(answer, dict)]


def _in_words(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}" if status else ""
    try:
        return f"crashed ({signal.Signals(-status).name})"
    except ValueError:
        return f"crashed (signal {-status})"
