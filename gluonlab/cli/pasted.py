"""Words of a command line that a word processor, or the habit of another tool, has changed.

A shell hands them over as they are, and click takes them for arguments: the option gpus with one
long dash, ``-gpus`` with one short dash, “ring” in curly quotes.
"""

from __future__ import annotations

import re
from typing import Collection, Iterator, Sequence

import click

from gluonlab.config.other_names import HERE, nearest
from gluonlab.errors import ConfigError

# hyphens of typesetters, en dash, em dash, bar, minus sign
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_LONG_DASH = re.compile(rf"[{_DASHES}][-{_DASHES}]?(?=[A-Za-z])")
_ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z0-9_-]*[A-Za-z][A-Za-z0-9_-]*")
_OPENING, _CLOSING = "\u201c\u201d\u201e\u201f\u2018\u201a\u00ab", "\u201c\u201d\u2019\u2018\u00bb"


def check_words(words: Sequence[str], params: Sequence[click.Parameter]) -> None:
    """Raise ConfigError for the first word that was surely meant otherwise, and say how."""
    names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
    options = [name for name in names if name.startswith("-")]
    for word in _not_values(words, params):
        check_dash(word, options)
    for at, word in enumerate(words):
        _check_quotes(word, words[at:])


def _not_values(words: Sequence[str], params: Sequence[click.Parameter]) -> Iterator[str]:
    """Those where an option or an argument may stand."""
    valued = {
        name
        for param in params
        if isinstance(param, click.Option) and not param.is_flag
        for name in param.opts
    }
    before = ""
    for word in words:
        if word == "--":
            return
        if before not in valued:
            yield word
        before = word


def check_dash(word: str, options: Collection[str]) -> None:
    """Raise ConfigError for one of ``options`` with another dash than two."""
    given = word.partition("=")[0]
    long = _LONG_DASH.match(given)
    if long is not None:
        meant, why = f"--{given[long.end() :]}", "begins with a long dash, as word processors write"
    elif _ONE_DASH.fullmatch(given) and (
        {f"-{given}"} & {*options, *HERE} or given[:2] not in options
    ):
        meant, why = f"-{given}", "has one dash"
    else:
        return
    name = nearest(meant, options)
    if name is not None:
        raise ConfigError(f"{given!r} {why}: did you mean {name!r}?")


def _check_quotes(word: str, rest: Sequence[str]) -> None:
    value = word.partition("=")[2] if word.startswith("--") else word
    closed = any(each[-1:] and each[-1] in _CLOSING for each in rest)
    if value[:1] and value[0] in _OPENING and closed and len(value) > 1:
        plain = value.strip(_OPENING + _CLOSING)
        raise ConfigError(
            f"{value!r} begins with a quote of a word processor: write it without, {plain!r}, or "
            "with straight quotes, which the shell takes away"
        )
