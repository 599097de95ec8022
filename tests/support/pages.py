"""Code blocks of the documents, and a check that their commands exist."""

import importlib
import re
import shlex
import subprocess
from dataclasses import fields
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple, Optional

from gluonlab.cli.run_commands import COMMANDS as RUN_COMMANDS
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import given_settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")])

# Programs that a page shows completely, and then starts.
SHOWN_PROGRAMS = {"train.py": ROOT / "docs" / "launch.md"}

# An HTML comment before a block: the reason not to run it, or the files that it needs.
MARK = r"(?:^<!-- (not run|made before): (.+?) -->\n)?"
BLOCK = re.compile(MARK + r"^```(\w*)\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    not_run: Optional[str]
    made_before: tuple


def read_blocks(page, language=None):
    """Return the blocks of a page in order, of all languages or of one."""
    blocks = []
    for mark, text, kind, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        not_run = text if mark == "not run" else None
        made_before = tuple(text.split(", ")) if mark == "made before" else ()
        if language in (None, kind):
            blocks.append(Block(kind, code, not_run, made_before))
    return blocks


def read_shown_program(name):
    """Return the program that a page shows under this name."""
    return next(block.code for block in read_blocks(SHOWN_PROGRAMS[name], "python"))


def block_commands(block):
    """Return the commands of a block, each as a line without its comment."""
    joined = re.sub(r"\\\n\s*", "", block.code)
    lines = (shlex.split(line, comments=True) for line in joined.splitlines())
    # NAME=value before a command sets its environment.
    commands = (list(dropwhile(lambda word: re.match(r"[A-Z_]+=", word), line)) for line in lines)
    return [shlex.join(words) for words in commands if words]


def check_command(words):
    """Raise an error for a command that does not exist, or for options that it does not take."""
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    name, rest = _split_module(words)
    if name is None:
        return
    try:
        module = importlib.import_module(f"{name}.__main__")
    except ModuleNotFoundError:
        module = importlib.import_module(name)
    command = module.main
    if name == "gluonlab.bench" and rest[:1] == ["allreduce"]:  # the former name of a group
        former = importlib.import_module("gluonlab.bench.allreduce.__main__")
        new_name, new_words = former.current_command(rest[1:])
        check_command(["gluonlab", "allreduce", new_name, *new_words])
        return
    if name == "gluonlab" and rest:
        command, rest = module.COMMANDS[rest[0]][1], rest[1:]
        if words[-len(rest) - 1] in RUN_COMMANDS:
            command = RUN_COMMANDS[words[-len(rest) - 1]]
        elif not hasattr(command, "make_context"):  # loaded when it is called
            check_command(["python", "-m", f"gluonlab.{words[-len(rest) - 1]}", *rest])
            return
    elif rest and rest[0] in getattr(module, "TOOLS", ()):
        command, rest = importlib.import_module(module.TOOLS[rest[0]]).main, rest[1:]
    elif hasattr(module, "COMMANDS"):
        command, rest = module.COMMANDS[rest[0]], rest[1:]
    if rest in (["--help"], ["-h"], ["--help-all"]):
        return
    for option, moved in getattr(command, "moved", {}).items():
        if option in rest:
            check_command(["gluonlab", moved.usage.split()[1], *moved.new_words(option, rest)])
            return
    options = command.make_context(name, list(rest)).params
    names = {field.name for field in fields(TrainConfig)}
    TrainConfig(**given_settings({name: options[name] for name in names & set(options)}))  # checks values
    behind = rest[rest.index("--") + 1 :] if "--" in rest else []
    if behind and behind[0].startswith("-"):  # otherwise a program of the user
        check_command(["python", "-m", "gluonlab.run", *behind])


def _split_module(words):
    """Split a command into its module, None if it is not of gluonlab, and its arguments."""
    words = [word for word in words if word != "srun"]
    if words[:2] == ["python", "-m"]:
        return words[2], words[3:]
    if words[0] == "gluonlab":
        return "gluonlab", words[1:]
    if words[0] == "python" and (ROOT / words[1] / "__main__.py").is_file():
        return f"{Path(words[1]).name}.{words[2]}", words[3:]
    if words[0] == "python" and words[1] not in SHOWN_PROGRAMS:
        assert (ROOT / words[1]).is_file(), words[1]
    return None, []
