"""Program that writes docs/options.md, the options of all commands.

.venv/bin/python tools/options_page.py
"""

import importlib
import re
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this gluonlab

from gluonlab.cli import run_commands  # noqa: E402
from gluonlab.config.renamed_settings import RENAMED_OPTIONS  # noqa: E402

PAGE = ROOT / "docs" / "options.md"
HEAD = """# Options

This page lists all options of all commands, as `--help-all` prints them. If a
[settings file](running.md#settings-in-a-file) turns on a flag such as `--flip`, the opposite flag,
such as `--no-flip`, turns it off again on the command line.

<!-- made by tools/options_page.py; a test compares -->
"""
RENAMED_HEAD = [
    "These names of version 0.2.0 still work for one release, with a warning. Commands that share an option with",
    "`gluonlab run` accept the old name of this option.",
]
RUN_COMMANDS = ["resume", "evaluate", "find-lr", "find-batch-size", "compare", "list"]
MODULES = [
    "run",
    *RUN_COMMANDS,
    "predict",
    "data",
    "launch",
    "report",
    "doctor",
    "study",
    "allreduce",
    "bench",
    "exercises",
    "labs",
    "scratch",
]


def module_commands(name):
    """Return (words, command) for the command of a module, or for each of its subcommands."""
    if name in RUN_COMMANDS:
        return [(f"gluonlab {name}", run_commands.COMMANDS[name])]
    try:
        module = importlib.import_module(f"gluonlab.{name}.__main__")
    except ModuleNotFoundError:
        module = importlib.import_module(f"gluonlab.{name}")
    words = f"gluonlab {name}"
    if hasattr(module, "COMMANDS"):
        return [(f"{words} {subcommand}", command) for subcommand, command in module.COMMANDS.items()]
    return [(words, module.main)]


def escape_cell(text):
    return re.sub(r"\s+", " ", text or "").strip().replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def format_command(words, command, level):
    """Return the lines about a command: its purpose, and a table for each heading of its help."""
    context = click.Context(command)
    arguments = [
        param.metavar or (param.name or "").upper() for param in command.params if isinstance(param, click.Argument)
    ]
    summary = re.sub(r"\s+", " ", (command.help or "").split("\n\n")[0]).strip()
    lines = [f"{'#' * level} {words}", "", summary, ""]
    if arguments:
        lines += [f"`{words} {' '.join(arguments)}`", ""]
    headings = {}
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None and isinstance(param, click.Option):
            headings.setdefault(getattr(param, "heading", "Options"), []).append(record)
    for heading in sorted(headings, key=lambda title: title == "Options"):  # "Options" comes last
        lines += [f"| {heading.lower()} | |", "|---|---|"]
        for names, text in headings[heading]:
            shown = names.replace("|", "\\|")
            lines.append(f"| `{shown}` | {escape_cell(text)} |")
        lines.append("")
    return lines


def list_renamed(words, command):
    """Return rows (command, old form, current form) of the old option names of a command."""
    options = {name for param in command.params for name in param.opts}
    rows = {old: new for old, new in command.renamed.items() if new.split()[0] in options}
    rows.update({old: moved.usage for old, moved in command.moved.items()})
    if words != "gluonlab run":
        rows = {old: new for old, new in rows.items() if RENAMED_OPTIONS.get(old) != new}
    return [(words, old, new) for old, new in sorted(rows.items())]


def format_renamed(rows):
    """Return the lines of a table of old option names; ``rows``: (command, old form, current form)."""
    lines = ["## Renamed options", "", *RENAMED_HEAD, ""]
    lines += ["| command | old | current |", "|---|---|---|"]
    ignore = {old: f" <!-- codespell:ignore {old.split()[-1]} -->" for _, old, _ in rows if "ised" in old}
    return lines + [f"| `{words}` | `{old}`{ignore.get(old, '')} | `{new}` |" for words, old, new in rows]


def make_page():
    lines, renamed = [HEAD], []
    for name in MODULES:
        commands = module_commands(name)
        level = 2
        if len(commands) > 1:
            lines += [f"## gluonlab {name}", ""]
            level = 3
        for words, command in commands:
            lines += format_command(words, command, level)
            if name not in RUN_COMMANDS:  # they accept the old names of run
                renamed += list_renamed(words, command)
    lines += format_renamed(renamed)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
