"""What the commands of all studies share: where they write, and how they go on."""

from __future__ import annotations

import textwrap
from functools import wraps
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import click

from gluonlab.bench.harness.command import Option, option
from gluonlab.bench.harness.table import WIDTH
from gluonlab.drawing.words import in_language
from gluonlab.errors import ConfigError
from gluonlab.study.page import LANGUAGES
from gluonlab.study.sweep.folder import options_of

INTERRUPTED = "nothing was measured"  # before the first measurement, which says what is kept


class Asked(NamedTuple):
    """The options of all studies. ``resumed``: those of the study itself, read from its folder."""

    out: Optional[str]
    language: str
    quick: bool
    as_json: bool
    resumed: Any


def study(
    name: str, read: Callable[[Mapping[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``@study("x", read)`` adds the options of `Asked` to a command's function.

    It gets an Asked, and its own options by name, all None where it goes on with --resume: then
    ``read`` makes of the options in the folder what it goes by, and raises ValueError for others.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(
            out: Optional[str],
            resume: Optional[str],
            language: str,
            quick: bool,
            as_json: bool,
            **own: Any,
        ) -> None:
            in_language(dict.fromkeys(LANGUAGES), language)
            resumed = None
            if resume is not None:
                _check_alone({"--out": out, "--quick": quick or None, **_named(own)}, resume)
                resumed, out = options_of(Path(resume), name, read), resume
            function(Asked(out, language, quick, as_json, resumed), **own)

        shown: List[Option] = [
            click.option("--quick", is_flag=True, help="less of everything: at most 2 minutes "
                         "on two cores"),
            option("--out", "DIR", "folder of the study, a new one or one that goes on "
                   "(default: a new one below runs/)"),
            option("--resume", "DIR", "go on with the study there, with its own options"),
            option("--language", "NAME", "of figures and page, en or ja", "en"),
            click.option("--json", "as_json", is_flag=True,
                         help="print the result as JSON, and nothing else, on standard output"),
        ]  # fmt: skip
        decorated: Callable[..., None] = run
        for add in reversed(shown):
            decorated = add(decorated)
        return decorated

    return decorate


def in_terminal(sentences: Sequence[str]) -> str:
    """Sentences for a terminal of 80 columns; the last names a folder, which stays in one piece."""
    *told, where = sentences
    return "\n".join([*(textwrap.fill(each, WIDTH) for each in told), where])


def _named(own: Mapping[str, Any]) -> Dict[str, Any]:
    return {f"--{name.replace('_', '-')}": value for name, value in own.items()}


def _check_alone(others: Mapping[str, Any], resume: str) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ConfigError(f"--resume {resume} goes on with the options there: leave {given[0]} out")
