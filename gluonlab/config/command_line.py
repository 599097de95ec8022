"""Click options for the fields of `TrainConfig`.

`gluonlab.config.train_config` declares the options themselves: names, help texts and checks.
"""

from __future__ import annotations

import dataclasses
import re
from types import MappingProxyType
from typing import Any, Callable, Collection, Dict, List, Mapping, Tuple

import click

from gluonlab.config.option_checks import check_flag
from gluonlab.config.renamed_settings import opposite_option
from gluonlab.config.train_config import MUTUALLY_EXCLUSIVE, TrainConfig, option_name

# Keys of a click context's ``meta``: the settings of the settings file, and the names of flags that
# the command line turns off.
FILE_SETTINGS_KEY, DISABLED_FLAGS_KEY = "gluonlab.from_file", "gluonlab.turned_off"
# name of a setting -> the settings that may not be given together with it
EXCLUDED_SETTINGS = {name: {a, b} - {name} for a, b, _ in MUTUALLY_EXCLUSIVE for name in (a, b)}

DEFAULT_PATTERN = re.compile(r"(?<=[([]default: )[^()\]]*(?=[)\]]$)")  # the default at the end of a help text
SHORT_OPTIONS = {"batch_size": ("-b",), "workers": ("-j",)}


class SettingOption(click.Option):
    """An option that sets a field of TrainConfig, listed under ``heading`` in --help.

    If the command line does not set the option, its value is read from the settings file, if any.
    """

    def __init__(self, *names: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.heading = heading

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: List[str]
    ) -> Tuple[Any, List[str]]:
        """Return the option's value from the command line, or else from the settings file."""
        value, rest = super().handle_parse_result(ctx, opts, args)
        file_settings = ctx.meta.get(FILE_SETTINGS_KEY, {})
        named = {*opts, *ctx.meta.get(DISABLED_FLAGS_KEY, ())}
        if self.name in file_settings and not named & {self.name, *EXCLUDED_SETTINGS.get(self.name, ())}:
            value = ctx.params[self.name] = file_settings[self.name]
        return value, rest


def add_config_options(
    function: Callable[..., None],
    without: Collection[str] = (),
    helps: Mapping[str, str] = MappingProxyType({}),
    without_group: str = "",
    from_run: Collection[str] = (),
) -> Callable[..., None]:
    """Add an option for every field of TrainConfig to a command.

    An option that the user omits has the value None. ``without`` and ``without_group``:
    fields, and a group of fields such as ``output``, for which no options are added. ``helps``:
    field -> its help text in this command, if it differs from the usual one. ``from_run``: fields
    whose default in this command is the value in an existing run.
    """
    for field in reversed(dataclasses.fields(TrainConfig)):
        name, metadata, attributes = option_name(field.name), field.metadata, {}
        short = SHORT_OPTIONS.get(field.name, ())
        if metadata["group"] == without_group or field.name in without:
            continue
        help = helps.get(field.name, metadata["help"])
        if field.default is False:
            attributes["is_flag"] = True
        elif metadata["check"] is check_flag:
            name = f"{name}/{opposite_option(name)}"
        else:
            attributes["metavar"] = metadata["metavar"]
            # The default is part of the help text, because click's own format is different.
            help += "" if field.default is None else f"  [default: {field.default}]"
        if field.name in from_run and field.name not in helps:
            help = DEFAULT_PATTERN.sub("the run's value", help)
        function = click.option(
            name, *short, field.name, cls=SettingOption, heading=metadata["group"].capitalize(),
            default=None, help=help, **attributes,
        )(function)  # fmt: skip
    return function


def given_settings(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}
