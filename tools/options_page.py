"""docs/options.md: all options of all commands, as --help has them.

.venv/bin/python tools/options_page.py
"""

import importlib
import re
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this gluonlab

PAGE = ROOT / "docs" / "options.md"
HEAD = """# Options

All options of all commands, as `--help-all` prints them. An option with two names, such as
`--flip` and `--no-flip`, may be turned off again on a command line after a file of
[settings](running.md#settings-in-a-file).

<!-- made by tools/options_page.py; a test compares -->
"""
MODULES = [
    "run", "predict", "data", "launch", "report", "doctor", "study", "bench", "exercises", "labs",
    "scratch",
]  # fmt: skip


def commands_of(name):
    """(words, command) of a module: its own, or those below it."""
    try:
        module = importlib.import_module(f"gluonlab.{name}.__main__")
    except ModuleNotFoundError:
        module = importlib.import_module(f"gluonlab.{name}")
    words = f"python -m gluonlab.{name}"
    if hasattr(module, "COMMANDS"):
        return [(f"{words} {each}", command) for each, command in module.COMMANDS.items()]
    return [(words, module.main)]


def cell(text):
    return (
        re.sub(r"\s+", " ", text or "")
        .strip()
        .replace("|", "\\|")
        .replace("*", "\\*")
        .replace("<", "&lt;")
    )


def section(words, command, level):
    """A command: what it does, and its options in a table for each heading of --help."""
    context = click.Context(command)
    arguments = [
        param.metavar or (param.name or "").upper()
        for param in command.params
        if isinstance(param, click.Argument)
    ]
    said = re.sub(r"\s+", " ", (command.help or "").split("\n\n")[0]).strip()
    lines = [f"{'#' * level} {words}", "", said, ""]
    if arguments:
        lines += [f"`{words} {' '.join(arguments)}`", ""]
    headings = {}
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None and isinstance(param, click.Option):
            headings.setdefault(getattr(param, "heading", "Options"), []).append(record)
    for heading in sorted(headings, key=lambda each: each == "Options"):  # those below the others
        lines += [f"| {heading.lower()} | |", "|---|---|"]
        for names, text in headings[heading]:
            shown = names.replace("|", "\\|")
            lines.append(f"| `{shown}` | {cell(text)} |")
        lines.append("")
    return lines


def made():
    lines = [HEAD]
    for name in MODULES:
        found = commands_of(name)
        level = 2
        if len(found) > 1:
            lines += [f"## python -m gluonlab.{name}", ""]
            level = 3
        for words, command in found:
            lines += section(words, command, level)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(made(), encoding="utf-8")
