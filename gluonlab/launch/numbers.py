"""Numbers and words that options of the launcher take: a mistake is one line."""

from __future__ import annotations

import re
import shlex
from typing import List

from gluonlab.config.values import as_number
from gluonlab.errors import ConfigError
from gluonlab.launch.hosts import MOST


def whole(name: str, text: str, most: int = MOST, least: int = 1) -> int:
    """A whole number. Raises ConfigError, as all here."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ConfigError(f"{name} {text}: give a whole number, {least} to {most}")
    return int(text)


def real(name: str, text: str, unit: str, least: float, most: float) -> float:
    """A number of seconds, or whatever the ``unit`` is."""
    number = as_number(text)
    if not least <= number <= most:
        raise ConfigError(f"{name} {text}: give {unit}, {least:g} to {most:.0f}")
    return number


def split_words(name: str, text: str) -> List[str]:
    """The words of a command, as a shell would cut it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name} {text}: {error}") from None
    if not words:
        raise ConfigError(f"{name} names no command: leave it out, or write one, such as ssh -p 22")
    return words
