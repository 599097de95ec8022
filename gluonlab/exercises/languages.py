"""The language of a lab's messages, which is that of its notebook."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Iterator, Mapping, Optional

from gluonlab.errors import ExerciseError, unknown

LANGUAGES = ("en", "ja")
LANGUAGE_VARIABLE = "GLUONLAB_LANGUAGE"

Texts = Mapping[str, str]  # language -> text


def language(name: Optional[str] = None) -> str:
    """Choose the language for the rest of this process, or ask which one it is.

    Without a choice it is the first of these that says one of LANGUAGES:

    =======================  ======================================================================
    ``GLUONLAB_LANGUAGE``    of the environment
    the notebook             its metadata, else its folder (Jupyter and VS Code name it)
    the current folder       ``labs/ja`` is Japanese
    the locale               ``LC_ALL``, ``LC_MESSAGES``, ``LANG``
    otherwise                English
    =======================  ======================================================================

    Raises ExerciseError for a language that the labs do not have.
    """
    if name is not None:
        # processes that this one starts speak it, too
        os.environ[LANGUAGE_VARIABLE] = _check_language(name, "language")
    chosen = os.environ.get(LANGUAGE_VARIABLE)
    if chosen:
        return _check_language(chosen, LANGUAGE_VARIABLE)
    return next((found for found in _language_candidates() if found in LANGUAGES), "en")


def choose_text(*, en: str, ja: str) -> str:
    """The one of two texts that is in the current language."""
    return {"en": en, "ja": ja}[language()]


def _check_language(name: str, kind: str) -> str:
    if name not in LANGUAGES:
        raise ExerciseError(unknown(kind, name, LANGUAGES))
    return name


def _language_candidates() -> Iterator[Optional[str]]:
    """The language by each place of the table, the most certain first."""
    notebook = _notebook_path()
    if notebook:
        yield _metadata_language(notebook)
        yield notebook.parent.name
    try:
        yield Path.cwd().name
    except FileNotFoundError:  # somebody removed it
        pass
    yield next(
        filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))), ""
    )[:2]


def _notebook_path() -> Optional[Path]:
    """The file of the notebook that this kernel runs, if the front end passes it on."""
    told = os.environ.get("JPY_SESSION_NAME", "")
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    told = getattr(shell, "user_ns", {}).get("__vsc_ipynb_file__") or told
    return Path(told) if str(told).endswith(".ipynb") else None


def _metadata_language(notebook: Path) -> Optional[str]:
    try:
        metadata = json.loads(notebook.read_text(encoding="utf-8"))["metadata"]
        return str(metadata["gluonlab"]["language"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
