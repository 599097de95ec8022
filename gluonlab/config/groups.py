"""The groups of TrainConfig's settings, which are the headings of --help."""

from __future__ import annotations

import dataclasses
from functools import wraps
from typing import Any, Optional, Sequence, Type, TypeVar

from gluonlab.config.other_names import nearest_name
from gluonlab.config.values import Check
from gluonlab.errors import ConfigError, unknown

T = TypeVar("T")


class Group:
    """Settings that belong together, under a heading of --help.

    Called, it makes a field of TrainConfig, with what its option on the command line needs to know.
    ``alone``: what the option means without a value; without, it must have one.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self,
        check: Check,
        help: str,
        *,
        default: Any = None,
        metavar: str = "N",
        alone: Optional[str] = None,
    ) -> Any:
        about = {"group": self.name, "check": check, "help": help, "metavar": metavar}
        about["alone"] = alone
        return dataclasses.field(default=default, metadata=about)


GROUPS = ("devices", "splitting", "data", "network", "batch", "optimiser", "summing", "output")
DEVICES, SPLITTING, DATA, NETWORK, BATCH, OPTIMISER, SUMMING, OUTPUT = map(Group, GROUPS)


def option_name(field_name: str) -> str:
    """The option that sets a field: ``batch_size`` -> ``--batch-size``."""
    return "--" + field_name.replace("_", "-")


# Arguments of `gluonlab.train` that are not settings.
TRAIN_ARGUMENTS = (
    "net",
    "loss",
    "metrics",
    "callbacks",
    "resume",
    "autoresume",
    "reporter",
    "group",
)


def unknown_setting(name: str, names: Sequence[str]) -> str:
    """Return the message for an unknown setting, with a hint for names that other libraries use."""
    meant = None if name in TRAIN_ARGUMENTS else nearest_name(name, names)
    if meant is not None:
        return f"unknown setting {name!r}: did you mean {meant!r}?"
    argument = nearest_name(name, TRAIN_ARGUMENTS)
    if argument is not None:
        how = f"train(TrainConfig(), {argument}=...)"
        return f"{name!r} is not a setting, give it to train: {how}"
    return unknown("setting", name, names)


def named_settings(cls: Type[T]) -> Type[T]:
    """Have a dataclass raise ConfigError, with the nearest name, for a setting that it has not."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    make = cls.__init__

    @wraps(make)
    def init(self: T, *args: Any, **settings: Any) -> None:
        for name in settings:
            if name not in names:
                raise ConfigError(unknown_setting(name, names))
        make(self, *args, **settings)

    cls.__init__ = init  # type: ignore[method-assign,assignment]
    return cls
