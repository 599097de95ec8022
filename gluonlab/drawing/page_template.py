"""Pages that need no other file and no network, and the frame of those that play schedules.

A kind of scene is a package with a folder ``template``: scene.html (the legend), scene.css,
scene.js (the picture; page.js says what it must offer) and words.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = "gluonlab.drawing"  # has head.html


def environment(*packages: str, trim_blocks: bool = False) -> "Environment":
    """Templates of these packages, the first that has one of a name; text is escaped.

    A page begins with ``head.html``, which says that it loads nothing. It has two switches:
    ``scripts``, whether its own run, and ``scheme``, ``light dark`` if it has a dark form.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader  # not for --help

    loaders = [PackageLoader(package, "template") for package in dict.fromkeys((*packages, HERE))]
    return Environment(loader=ChoiceLoader(loaders), autoescape=True, trim_blocks=trim_blocks)


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
    ``page`` and ``shown`` are those of `gluonlab.drawing.translations.read_words`.
    """
    templates = environment(HERE, scene)
    # Small, in whatever script; the filter tojson also escapes <, >, & and '.
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return templates.get_template("page.html").render(
        start=schedules[start],
        data={"schedules": schedules, "start": start, "shown": words.shown},
        choices=choices,
        words=words.page,
        shown=words.shown,
        language=language,
    )
