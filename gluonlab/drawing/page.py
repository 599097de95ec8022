"""Schedules as one HTML page to step through, in a frame that is the same for all of their kinds.

A kind of scene is a package with a folder ``template``: scene.html (the legend), scene.css,
scene.js (the picture; page.js says what it must offer) and words.json. The page itself needs no
other file and no network.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

from jinja2 import Environment

from gluonlab.drawing.templates import HERE, environment


def render(
    scene: str,
    choices: Mapping[str, str],
    schedules: Sequence[Mapping[str, Any]],
    start: int,
    words: Any,
    language: str,
) -> str:
    """The page of ``schedules``, which begins with number ``start`` of them.

    ``scene``: the package's name. ``choices``: the id of each field in which a person chooses, and
    the key of a schedule whose value is chosen there; the first key is ``name``. A schedule also
    has ``size`` and ``description``, in words; the rest is for scene.js. ``words``: its attributes
    ``page`` and ``shown`` are those of `gluonlab.drawing.words.read_words`.
    """
    data: Dict[str, Any] = {"schedules": schedules, "start": start, "shown": words.shown}
    return (
        _environment(scene)
        .get_template("page.html")
        .render(
            start=schedules[start],
            data=data,
            choices=choices,
            words=words.page,
            shown=words.shown,
            language=language,
        )
    )


def _environment(scene: str) -> Environment:
    made = environment(HERE, scene)
    # Small, in whatever script; the filter tojson also escapes <, >, & and '.
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return made
