"""The words of a pipeline's pages and pictures in each language (`gluonlab.drawing.words`)."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Sequence

from gluonlab.drawing.words import read_words
from gluonlab.parallel.pipeline.schedule import SCHEDULES

Forms = Sequence[str]  # for one thing, and for any other number of them


class Words(NamedTuple):
    """All words of one language."""

    page: Mapping[str, str]
    shown: Mapping[str, str]
    # what `scene` makes of a schedule
    comma: str
    sizes: Sequence[Forms]  # devices, stages, microbatches
    bubble: str
    descriptions: Mapping[str, str]  # of the schedules


# in English the first line of each schedule's docstring
_DESCRIPTIONS = {
    name: (make.__doc__ or "").strip().partition("\n")[0] for name, make in SCHEDULES.items()
}
WORDS: Dict[str, Words] = {
    language: Words(**{"descriptions": _DESCRIPTIONS, **words})
    for language, words in read_words(Path(__file__).parent / "template" / "words.json").items()
}
ENGLISH, JAPANESE = WORDS["en"], WORDS["ja"]
