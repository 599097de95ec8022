"""The words of pages and pictures in each language, from ``template/words.json``.

What is in {braces} is filled in by the script, by the template, or by `scene`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Sequence

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.errors import ConfigError, unknown

Forms = Sequence[str]  # for one thing, and for any other number of them


class Words(NamedTuple):
    """All words of one language."""

    page: Mapping[str, str]  # what the template shows; ``keyboard`` is HTML
    shown: Mapping[str, str]  # what the script writes into the page, step by step
    # what `scene` makes of a schedule
    comma: str
    sizes: Sequence[Forms]  # ranks, chunks, steps, transfers
    chunks: Forms  # in a message
    contributions: Forms
    last: str  # between the last two of several
    times: str  # a rank, and how often it is in the sum
    nothing: str
    descriptions: Mapping[str, str]  # of the algorithms


# in English the first line of each algorithm's docstring
_DESCRIPTIONS = {
    name: (algorithm.__doc__ or "").strip().partition("\n")[0]
    for name, algorithm in ALGORITHMS.items()
}
_FILE = Path(__file__).parent / "template" / "words.json"
WORDS: Dict[str, Words] = {
    language: Words(**{"descriptions": _DESCRIPTIONS, **words})
    for language, words in json.loads(_FILE.read_text(encoding="utf-8")).items()
}
ENGLISH, JAPANESE = WORDS["en"], WORDS["ja"]


def words_of(language: str) -> Words:
    """Raises ConfigError, with the choices, for a language that the page does not speak."""
    if language not in WORDS:
        raise ConfigError(unknown("language", language, WORDS))
    return WORDS[language]
