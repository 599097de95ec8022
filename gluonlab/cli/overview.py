"""What --help prints: all of a command's options or, of one that has many, the most used.

Then it fits a terminal of 80 columns and 24 lines, and --help-all prints the rest.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

import click

OTHERS, OPTION_WIDTH = "Options", 24
LINES = 23  # of a terminal of 24: the shell's next line takes one
ASKED = "gluonlab.help_all"  # key of a click context's ``meta``
# where what an option does ends, and its details begin
_DETAILS = re.compile(r"; |  \[| \(default")


class HelpAll(click.Option):
    """The option --help-all, which --help lists where it leaves options out."""

    def __init__(self, hidden: bool) -> None:
        super().__init__(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
            hidden=hidden, help="Show all options and exit.",
        )  # fmt: skip

    def get_help_record(self, ctx: click.Context) -> Optional[Tuple[str, str]]:
        """None where all options are shown already."""
        return None if ASKED in ctx.meta else super().get_help_record(ctx)


def _show_all(ctx: click.Context, param: click.Parameter, wanted: Optional[bool]) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[ASKED] = True
        click.echo(ctx.get_help())
        ctx.exit()


def is_overview(most_used: Sequence[str], ctx: click.Context) -> bool:
    """Whether --help prints the most used options only, if there are such."""
    return bool(most_used) and ASKED not in ctx.meta


def write_overview(
    command: click.Command, most_used: Sequence[str], ctx: click.Context, to: click.HelpFormatter
) -> None:
    """The command's usage, its summary, and what each of the most used options does."""
    command.format_usage(ctx, to)
    to.write_paragraph()
    with to.indentation():
        to.write_text(" ".join((command.help or "").partition("\n\n")[0].split()))
    params = [each for each in command.get_params(ctx) if not isinstance(each, HelpAll)]
    records = {each.opts[0]: each.get_help_record(ctx) for each in params}
    chosen = [records[name] for name in most_used]
    with to.section("Options used most"):
        to.write_dl([(record[0], _short(record[1])) for record in chosen if record], OPTION_WIDTH)
    count = sum(record is not None and bool(record[1]) for record in records.values())
    to.write_paragraph()
    to.write_text(f"{ctx.command_path} --help-all explains all {count} options{_groups(command)}.")


def write_options(command: click.Command, ctx: click.Context, to: click.HelpFormatter) -> None:
    """All options below their headings: each Option's ``heading``, if it has one."""
    headings: Dict[str, List[Tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and record[1]:  # what has no help stands in the usage
            headings.setdefault(getattr(param, "heading", OTHERS), []).append(record)
    headings[OTHERS] = headings.pop(OTHERS)  # below those with a heading of their own
    for heading, records in headings.items():
        with to.section(heading):
            to.write_dl(records, OPTION_WIDTH)


def _short(help: str) -> str:
    return _DETAILS.split(help)[0]


def _groups(command: click.Command) -> str:
    """The headings of --help-all, in words."""
    found = dict.fromkeys(getattr(each, "heading", None) for each in command.params)
    names = [name.lower() for name in found if name is not None]
    return f": {', '.join(names)}, and others" if len(names) > 1 else ""
