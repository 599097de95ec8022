"""The words of drawings in each language, from files of JSON.

What is in {braces} is filled in by the page's script, by its template, or by the scene.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Mapping, TypeVar

from gluonlab.errors import ConfigError, unknown

FRAME = Path(__file__).parent / "template" / "words.json"
_T = TypeVar("_T")


def load_words(path: Path) -> Dict[str, Any]:
    """{language: words} from a file."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_words(scene: Path) -> Dict[str, Dict[str, Any]]:
    """{language: words} from a scene's file, with those of the page's frame.

    ``page``: what the template shows; ``keyboard`` is HTML. ``shown``: what the script writes into
    the page, step by step. Whatever else there is belongs to the scene.
    """
    frame, own = load_words(FRAME), load_words(scene)
    both = ("page", "shown")
    return {
        language: {**words, **{part: {**frame[language][part], **words[part]} for part in both}}
        for language, words in own.items()
    }


def in_language(words: Mapping[str, _T], language: str) -> _T:
    """Raises ConfigError, with the choices, for a language that the drawings do not speak."""
    if language not in words:
        raise ConfigError(unknown("language", language, words))
    return words[language]


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} {noun}{'s' * (count != 1)}"
