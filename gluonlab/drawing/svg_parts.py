"""Building blocks of SVG pictures. All lengths are in px."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Iterable
from xml.etree.ElementTree import Element, SubElement


def new_document(title: str, sentences: Iterable[str], style: str) -> Element:
    """Create an SVG picture that has only a background.

    ``title``, ``sentences``: the texts for screen readers. ``style``: CSS rules.
    """
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    root.set("aria-labelledby", "title desc")
    SubElement(root, "title", id="title").text = title
    SubElement(root, "desc", id="desc").text = " ".join(filter(None, sentences))
    SubElement(root, "style").text = " ".join(style.split())
    SubElement(root, "rect", {"class": "paper", "width": "100%", "height": "100%"})
    return root


def finish_document(root: Element, width: float, height: float) -> str:
    """Set the picture's width and height, and return the picture as SVG text."""
    size = {"width": f"{width:g}", "height": f"{height:g}"}
    root.attrib.update(viewBox=f"0 0 {width:g} {height:g}", **size)
    return ElementTree.tostring(root, encoding="unicode")


def add_text(parent: Element, x: float, y: float, words: str, kind: str = "") -> None:
    """Add a text with the CSS class ``kind``, unless the text is empty."""
    if words:
        element = SubElement(parent, "text", x=f"{x:g}", y=f"{y:g}")
        element.text = words
        if kind:
            element.set("class", kind)


def add_group(parent: Element, x: float, y: float) -> Element:
    """Add a group whose origin is at (x, y)."""
    return SubElement(parent, "g", transform=f"translate({x:g} {y:g})")
