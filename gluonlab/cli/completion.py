"""What a shell asks while a person types: which commands and options may come next.

The shell's script, which `gluonlab completion bash` prints, calls ``gluonlab`` with what has been
typed in the environment. The words before the cursor then go the way that they always go, through
`dispatch` to a Command, and who would read the next one answers instead.
"""

from __future__ import annotations

import os
import sys
from typing import List, Mapping, NamedTuple, Optional

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from gluonlab.errors import ConfigError, unknown

PROGRAM = "gluonlab"
VARIABLE = "_GLUONLAB_COMPLETE"  # bash_complete, for one
SHELLS = ("bash", "zsh", "fish")


class Question(NamedTuple):
    """The words before the cursor, the one at it, and how this shell wants to be answered."""

    words: List[str]
    begun: str
    shell: ShellComplete

    def answer(self, found: List[CompletionItem]) -> None:
        """Say what may come next, or that it is a file's name; and end."""
        found = found or [CompletionItem(self.begun, type="file")]
        print("\n".join(map(self.shell.format_completion, found)), flush=True)
        sys.exit(0)


_asked: Optional[Question] = None


def listen() -> Optional[Question]:
    """The shell's question, if there is one: `asked` knows it from now on."""
    global _asked
    shell, _, instruction = os.environ.get(VARIABLE, "").partition("_")
    if shell in SHELLS and instruction == "complete":
        complete = _of(shell)
        _asked = Question(*complete.get_completion_args(), complete)
    return _asked


def asked() -> Optional[Question]:
    """The shell's question."""
    return _asked


def of_names(question: Question, names: Mapping[str, str]) -> None:
    """Answer with those names, each with its summary, that begin so."""
    begun = [name for name in names if name.startswith(question.begun)]
    question.answer([CompletionItem(name, help=names[name]) for name in begun])


def of_command(question: Question, command: click.Command, words: List[str]) -> None:
    """Answer with the command's options."""
    complete = ShellComplete(command, {}, PROGRAM, VARIABLE)
    question.answer(complete.get_completions(words, question.begun))


def script(shell: str) -> str:
    """What makes a shell ask. Raises ConfigError."""
    if shell not in SHELLS:
        raise ConfigError(unknown("shell", shell, SHELLS))
    return _of(shell).source()


def _of(shell: str) -> ShellComplete:
    made = get_completion_class(shell)
    assert made is not None  # click has these three since it completes at all
    return made(click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
