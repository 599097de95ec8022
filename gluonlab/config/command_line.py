"""Click options made of the fields of `TrainConfig`.

`gluonlab.config.train_config` declares the options themselves: names, help texts and checks.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Collection, Dict, List, Mapping, Tuple

import click

from gluonlab.config.option_types import flag
from gluonlab.config.train_config import TOGETHER, TrainConfig, option_name

# keys of a click context's ``meta``: a file's settings, and flags that the command line turns off
FROM_FILE, TURNED_OFF = "gluonlab.from_file", "gluonlab.turned_off"
# a setting -> those that it excludes
RIVALS = {one: {a, b} - {one} for a, b, _ in TOGETHER for one in (a, b)}


class Setting(click.Option):
    """An option that sets a field of TrainConfig; ``heading``: where --help shows it.

    What is not on the command line is taken from the settings of a file, if there is one.
    """

    def __init__(self, *names: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.heading = heading

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: List[str]
    ) -> Tuple[Any, List[str]]:
        """Take the value of the command line, or else of the file."""
        value, rest = super().handle_parse_result(ctx, opts, args)
        held = ctx.meta.get(FROM_FILE, {})
        spoken = {*opts, *ctx.meta.get(TURNED_OFF, ())}
        if self.name in held and not spoken & {self.name, *RIVALS.get(self.name, ())}:
            value = ctx.params[self.name] = held[self.name]
        return value, rest


def config_options(
    function: Callable[..., None], without: Collection[str] = ()
) -> Callable[..., None]:
    """Give a command an option for every field of TrainConfig; its value is None if not given.

    ``without``: groups of fields, such as ``output``, that the command has no use for.
    """
    for field in reversed(dataclasses.fields(TrainConfig)):
        name, about, attributes = option_name(field.name), field.metadata, {}
        if about["group"] in without:
            continue
        help = about["help"]
        if field.default is False:
            attributes["is_flag"] = True
        elif about["check"] is flag:
            name = f"{name}/{opposite(name)}"
        else:
            attributes["metavar"] = about["metavar"]
            if about["alone"] is not None:
                attributes.update(is_flag=False, flag_value=about["alone"])
            # click would add brackets of its own
            help += "" if field.default is None else f"  [default: {field.default}]"
        function = click.option(
            name, field.name, cls=Setting, heading=about["group"].capitalize(), default=None,
            help=help, **attributes,
        )(function)  # fmt: skip
    return function


def opposite(name: str) -> str:
    """The option that turns off what a recipe turns on: ``--flip`` -> ``--no-flip``, and back."""
    return f"--{name[len('--no-') :]}" if name.startswith("--no-") else f"--no-{name[len('--') :]}"


def given(options: Dict[str, Any]) -> Dict[str, Any]:
    """The settings that are given, of all ``options`` that click hands over."""
    return {name: value for name, value in options.items() if value is not None}
