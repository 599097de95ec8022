"""The words of a timeline's picture in each language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Sequence


class Words(NamedTuple):
    """All words of one language.

    ``columns``: of the sentences; ``letter``: px, so many as a letter of a name takes.
    """

    steps: Sequence[str]  # of one step, and of several
    drawn: str
    host_only: str
    host: str
    beside: str
    comma: str
    colon: str
    names: Mapping[str, str]
    columns: int
    letter: float


WORDS: Dict[str, Words] = {
    language: Words(**words)
    for language, words in json.loads(
        (Path(__file__).parent / "template" / "words.json").read_text(encoding="utf-8")
    ).items()
}
