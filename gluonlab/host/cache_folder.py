"""Finds the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/gluonlab`` or ``~/.cache/gluonlab``, whether it exists or not.

    A relative XDG_CACHE_HOME is ignored, as the XDG base directory specification requires.

    Raises:
        RuntimeError: there is no home folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "gluonlab"
