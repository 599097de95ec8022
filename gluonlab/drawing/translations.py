"""Texts of drawings in each language, from JSON files.

A text may contain {placeholders}, which the code that draws fills in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Mapping, TypeVar

from gluonlab.errors import ConfigError, unknown

# texts that all pages of `gluonlab.drawing.page_template` share
SHARED_TEXTS = Path(__file__).parent / "template" / "words.json"
_T = TypeVar("_T")


def load_words(path: Path) -> Dict[str, Any]:
    """Read {language: texts} from a file."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_scene_words(scene: Path) -> Dict[str, Dict[str, Any]]:
    """Read {language: texts} from a scene's file, together with the texts that all pages share.

    The keys of the texts of a language:

    - ``page``: texts for the HTML template. The text ``keyboard`` is HTML.
    - ``shown``: texts that the page's script shows while it steps through a schedule.
    - All other keys: texts for the scene.
    """
    frame, scene_words = load_words(SHARED_TEXTS), load_words(scene)
    shared_parts = ("page", "shown")
    return {
        language: {**words, **{part: {**frame[language][part], **words[part]} for part in shared_parts}}
        for language, words in scene_words.items()
    }


def select_language(words: Mapping[str, _T], language: str) -> _T:
    """Return the texts of a language. Raises ConfigError for an unknown language."""
    if language not in words:
        raise ConfigError(unknown("language", language, words))
    return words[language]


def pluralize(count: int, noun: str) -> str:
    """Return the count with its noun, such as "1 step" or "2 steps"."""
    return f"{count} {noun}{'s' * (count != 1)}"
