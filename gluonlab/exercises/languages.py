"""Choose the language for a lab's messages: English or Japanese, as in the lab's notebook."""

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
    """Choose the language for the rest of this process, or return the current language.

    If no call has chosen a language, the first of these sources that names a language is used:

    =======================  ======================================================================
    ``GLUONLAB_LANGUAGE``    environment variable
    the notebook             its metadata, or its folder (if Jupyter or VS Code pass its path)
    the current folder       its name, as in ``labs/ja``
    the locale               ``LC_ALL``, ``LC_MESSAGES``, ``LANG``
    otherwise                English
    =======================  ======================================================================

    Args:
        name: the language, ``"en"`` or ``"ja"``. None keeps the current language.

    Returns:
        The language, ``"en"`` or ``"ja"``.

    Raises:
        ExerciseError: ``name`` or GLUONLAB_LANGUAGE is not one of LANGUAGES.
    """
    if name is not None:
        # an environment variable, so that child processes use the same language
        os.environ[LANGUAGE_VARIABLE] = _check_language(name, "language")
    chosen = os.environ.get(LANGUAGE_VARIABLE)
    if chosen:
        return _check_language(chosen, LANGUAGE_VARIABLE)
    return next((candidate for candidate in _language_candidates() if candidate in LANGUAGES), "en")


def choose_text(*, en: str, ja: str) -> str:
    """Return the text in the current language."""
    return {"en": en, "ja": ja}[language()]


def _check_language(name: str, kind: str) -> str:
    if name not in LANGUAGES:
        raise ExerciseError(unknown(kind, name, LANGUAGES))
    return name


def _language_candidates() -> Iterator[Optional[str]]:
    """Yield language names from the notebook, the folders and the locale, in order of priority."""
    notebook = _notebook_path()
    if notebook:
        yield _metadata_language(notebook)
        yield notebook.parent.name
    try:
        yield Path.cwd().name
    except FileNotFoundError:  # the folder was removed
        pass
    yield next(filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))), "")[:2]


def _notebook_path() -> Optional[Path]:
    """Return the notebook file that this kernel runs, if the front end passes its path."""
    path = os.environ.get("JPY_SESSION_NAME", "")
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    path = getattr(shell, "user_ns", {}).get("__vsc_ipynb_file__") or path
    return Path(path) if str(path).endswith(".ipynb") else None


def _metadata_language(notebook: Path) -> Optional[str]:
    """Return the language in the notebook's metadata, or None."""
    try:
        metadata = json.loads(notebook.read_text(encoding="utf-8"))["metadata"]
        return str(metadata["gluonlab"]["language"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
