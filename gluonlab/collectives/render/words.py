"""The words of an allreduce's pages and pictures in each language (`gluonlab.drawing.words`)."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Sequence

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.drawing.words import read_words

Forms = Sequence[str]  # for one thing, and for any other number of them


class Words(NamedTuple):
    """All words of one language."""

    page: Mapping[str, str]
    shown: Mapping[str, str]
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
WORDS: Dict[str, Words] = {
    language: Words(**{"descriptions": _DESCRIPTIONS, **words})
    for language, words in read_words(Path(__file__).parent / "template" / "words.json").items()
}
ENGLISH, JAPANESE = WORDS["en"], WORDS["ja"]
