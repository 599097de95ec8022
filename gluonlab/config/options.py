"""The command line options of TrainConfig: made of its fields, under the headings of its groups."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Collection, Dict

import click

from gluonlab.config.groups import option_name
from gluonlab.config.train_config import TrainConfig
from gluonlab.config.values import flag


class Setting(click.Option):
    """An option that sets a field of TrainConfig; ``heading``: where --help shows it."""

    def __init__(self, *names: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.heading = heading


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
    """The settings that stand on the command line, of all ``options`` that click hands over."""
    return {name: value for name, value in options.items() if value is not None}
