"""Parts of SVG pictures; all lengths are px."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Iterable
from xml.etree.ElementTree import Element, SubElement


def document(title: str, described: Iterable[str], style: str) -> Element:
    """An empty picture on paper, complete in itself; ``described``: sentences about it."""
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    root.set("aria-labelledby", "title desc")
    SubElement(root, "title", id="title").text = title
    SubElement(root, "desc", id="desc").text = " ".join(filter(None, described))
    SubElement(root, "style").text = " ".join(style.split())
    SubElement(root, "rect", {"class": "paper", "width": "100%", "height": "100%"})
    return root


def finished(root: Element, width: float, height: float) -> str:
    """The picture, of this size, as text."""
    size = {"width": f"{width:g}", "height": f"{height:g}"}
    root.attrib.update(viewBox=f"0 0 {width:g} {height:g}", **size)
    return ElementTree.tostring(root, encoding="unicode")


def text(parent: Element, x: float, y: float, words: str, kind: str = "") -> None:
    """Words at a place, if there are any; ``kind``: their class."""
    if words:
        shown = SubElement(parent, "text", x=f"{x:g}", y=f"{y:g}")
        shown.text = words
        if kind:
            shown.set("class", kind)


def group(parent: Element, x: float, y: float) -> Element:
    """A group whose origin is there."""
    return SubElement(parent, "g", transform=f"translate({x:g} {y:g})")
