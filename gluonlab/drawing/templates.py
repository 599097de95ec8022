"""The templates of pages that need no other file and no network; all have one head."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader

HERE = "gluonlab.drawing"  # has head.html


def environment(*packages: str, trim_blocks: bool = False) -> Environment:
    """Templates of these packages, the first that has one of a name; text is escaped.

    A page begins with ``head.html``, which says that it loads nothing. It has two switches:
    ``scripts``, whether its own run, and ``scheme``, ``light dark`` if it has a dark form.
    """
    loaders = [PackageLoader(package, "template") for package in dict.fromkeys((*packages, HERE))]
    return Environment(loader=ChoiceLoader(loaders), autoescape=True, trim_blocks=trim_blocks)
