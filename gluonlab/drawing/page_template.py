"""HTML pages that need no other file and no network, and the frame of pages that play schedules.

A kind of scene is a package with a folder ``template``: scene.html (the legend), scene.css,
scene.js (the picture, with the interface that page.js describes) and words.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = "gluonlab.drawing"  # contains head.html


def template_environment(*packages: str, trim_blocks: bool = False) -> "Environment":
    """Return the Jinja environment for templates of these packages, in this order, with escaping.

    A page starts with ``head.html``, which forbids loading anything. Its switches: ``scripts``,
    whether the page's own scripts run, and ``scheme``, ``light dark`` if it has a dark variant.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader  # not for --help

    loaders = [PackageLoader(package, "template") for package in dict.fromkeys((*packages, HERE))]
    return Environment(loader=ChoiceLoader(loaders), autoescape=True, trim_blocks=trim_blocks)


def render_page(
    scene: str,
    choices: Mapping[str, str],
    schedules: Sequence[Mapping[str, Any]],
    start: int,
    words: Any,
    language: str,
) -> str:
    """Render the page of ``schedules``, which starts with number ``start`` of them.

    Args:
        scene: Name of the scene's package.
        choices: By id of each selection field, the key of a schedule whose value is selected there;
            the first key is ``name``.
        schedules: Data for scene.js, with ``size`` and ``description`` as text.
        start: Index of the schedule that is shown first.
        words: Texts, whose attributes ``page`` and ``shown`` are those of
            `gluonlab.drawing.translations.read_scene_words`.
        language: The language.
    """
    templates = template_environment(HERE, scene)
    # Compact JSON in any script; the filter tojson also escapes <, >, & and '.
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return templates.get_template("page.html").render(
        start=schedules[start],
        data={"schedules": schedules, "start": start, "shown": words.shown},
        choices=choices,
        words=words.page,
        shown=words.shown,
        language=language,
    )
