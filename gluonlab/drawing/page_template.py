"""Self-contained HTML pages, and the template of pages that show a schedule step by step.

A scene defines the content of a page. A scene is a package with a folder ``template``, which
contains these files:

- scene.html: the legend,
- scene.css: the styles,
- scene.js: the code that draws the picture, with the interface that page.js describes,
- words.json: the texts in each language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = "gluonlab.drawing"  # contains head.html


def template_environment(*packages: str, trim_blocks: bool = False) -> "Environment":
    """Return a Jinja environment that searches these packages for templates, in this order.

    HTML in values is escaped. Each page starts with ``head.html``, which prevents the browser from
    loading other files. ``head.html`` has two variables: ``scripts`` determines whether the page's
    own scripts run, and ``scheme`` is ``light dark`` if the page has a dark variant.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader  # slow to import, and --help does not need it

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
    """Render an HTML page that steps through ``schedules`` and first shows ``schedules[start]``.

    Args:
        scene: Name of the scene's package.
        choices: Maps the ID of each selection field to a key. The dictionary of each schedule
            contains the field's value under this key. The first key is ``name``.
        schedules: The data of each schedule for scene.js, including the texts ``size`` and
            ``description``.
        start: Index of the schedule that is shown first.
        words: An object with attributes ``page`` and ``shown``: the texts of one language from
            `gluonlab.drawing.translations.read_scene_words`.
        language: Code of the language, such as ``en``.
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
