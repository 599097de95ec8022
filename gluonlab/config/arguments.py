"""Hints for unknown keyword arguments, such as the names that other libraries use."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, Callable, Mapping, TypeVar, cast

from gluonlab.config.other_names import nearest_name
from gluonlab.errors import ConfigError, unknown

F = TypeVar("F", bound=Callable[..., Any])


def named_arguments(called: str, answers: Mapping[str, str]) -> Callable[[F], F]:
    """Make a function raise ConfigError with a hint for an unknown keyword argument.

    ``called``: the function's name in messages. ``answers``: hints for some unknown names.
    """

    def decorate(function: F) -> F:
        known = inspect.signature(function).parameters
        names = [name for name in known if name != "self"]

        @wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    raise ConfigError(_said(name))
            return function(*args, **given)

        def _said(name: str) -> str:
            if name in answers:
                return f"{called} has no argument {name!r}: {answers[name]}"
            meant = nearest_name(name, names)
            if meant is not None:
                return f"{called} has no argument {name!r}: did you mean {meant!r}?"
            return unknown(f"argument of {called}", name, names)

        return cast(F, checked)

    return decorate
