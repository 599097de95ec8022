"""Translates old names of options, and names that other tools use, to the current names.

A command lists its old names in a table (`renamed` of `gluonlab.cli.command.command`). Each key is
an old form of an option, and its value is the form that replaces it:

- ``"--patience": "--timeout"`` renames an option and keeps its value;
- ``"--split channels": "--strategy tensor"`` also renames one value, and has priority over ``--split``;
- ``"--export": "--export mxnet"`` adds the value that is now required, if the option has no value.

A warning names the current form. Synonyms from other tools (`SYNONYMS`) are translated silently.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

import click

from gluonlab.cli.output_streams import print_error
from gluonlab.config.option_hints import SYNONYMS

SEPARATOR = "--"  # the words after it belong to another command


def warn_renamed(old: str, new: str) -> None:
    """Print one line on standard error: ``warning: --patience is now --timeout``."""
    print_error(f"warning: {old} is now {new}")


def translate_values(option: str, text: str, renamed: Mapping[str, str]) -> str:
    """Return a comma-separated list with current names; print a warning for each old name."""
    names = [name.strip() for name in text.split(",")]
    for name in renamed.keys() & names:
        warn_renamed(f"{option} {name}".strip(), renamed[name])
    return ",".join(renamed.get(name, name) for name in names) if renamed.keys() & names else text


def current_words(
    words: Sequence[str], params: Sequence[click.Parameter], renamed: Mapping[str, str]
) -> Tuple[List[str], Dict[str, str]]:
    """Replace old names; return the command line, and {old form: current form} of replaced options.

    Values of options, and all words after ``--``, stay as they are. ``params``: the options and
    arguments of the command; entries of ``renamed`` for other options are ignored.
    """
    options = [param for param in params if isinstance(param, click.Option)]
    names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    names_with_value = {name for option in options if not option.is_flag for name in option.opts}
    renamed = {old: new for old, new in renamed.items() if new.partition(" ")[0] in names}
    synonyms = {synonym: name for synonym, name in SYNONYMS.items() if name in names and synonym not in names}
    result: List[str] = []
    replaced: Dict[str, str] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == SEPARATOR:
            return [*result, word, *remaining], replaced
        name, equals, value = word.partition("=")
        if not equals and remaining and not remaining[0].startswith("-"):
            value = remaining[0]
        old = f"{name} {value}" if f"{name} {value}" in renamed else name
        new = renamed.get(old, synonyms.get(old, old))
        if old == name and value and new.startswith(f"{name} "):
            new = name  # the form without a value has changed, and this option has one
        elif old in renamed:
            replaced[old] = new
        new_name, _, new_value = new.partition(" ")
        if new_value:
            result += [new_name, new_value]
            if old != name and not equals:
                remaining.pop(0)
        elif equals:  # click reads -n=2 as the value "=2"
            result += [f"{name}={value}"] if new_name == name else [new_name, value]
        else:
            result.append(new_name)
            if new_name in names_with_value and remaining:
                result.append(remaining.pop(0))
    return result, replaced
