"""Schedules that a command shows instead of measuring: as text, or in a new file that it draws."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from gluonlab.config.values import whole
from gluonlab.errors import ConfigError
from gluonlab.files.whole import check_new, new_file


class Drawing(NamedTuple):
    """What makes each form of a drawing; ``page`` takes the language."""

    text: Callable[[], str]
    picture: Callable[[], str]
    page: Callable[[str], str]


def drawn(drawing: Drawing, out: Optional[str], language: Optional[str]) -> str:
    """What to print: the text, or where the file is that --out names.

    That is one picture if its name ends in .svg, else a page to step through. Raises ConfigError
    for a ``language`` without a page, OutputError for a file that exists or cannot be written.
    """
    path = None if out is None else Path(out)
    is_page = path is not None and path.suffix.lower() != ".svg"
    if language is not None and not is_page:
        raise ConfigError(
            "--language is for a page: give --out FILE.html for one, or leave it out; "
            "texts and pictures are English"
        )
    if path is None:
        return drawing.text()
    check_new("--out", path)
    content = drawing.page(language or "en") if is_page else drawing.picture()
    with new_file("--out", path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return f"written to {path}: open it in a browser"


def number_of_devices(spec: str) -> int:
    """How many devices --devices names; a plain number, or cpu*N, needs none to exist."""
    from gluonlab.devices import MOST_CPU_DEVICES, devices

    number = re.fullmatch(r"\s*(?:cpu\s*\*)?\s*([+-]?[0-9]+)\s*", spec.lower())
    if number:
        return int(whole(1, MOST_CPU_DEVICES)("--devices", number[1]))
    return len(devices(spec))
