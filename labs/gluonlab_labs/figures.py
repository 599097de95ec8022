"""Check the labs' pictures, and make one SVG per language from an SVG with both languages."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Iterator, List, Tuple

from gluonlab_labs.faults import Faults
from gluonlab_labs.source import LANGUAGES

SVG = "http://www.w3.org/2000/svg"
WIDTH = 720
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"

ElementTree.register_namespace("", SVG)


def svg_in_language(path: Path, language: str) -> str:
    """Return the picture without the texts of the other language, as one <svg> element."""
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    for parent in list(root.iter()):
        for child in list(parent):
            if _element_language(child) not in ("", language):
                _remove_element(parent, child)
    return ElementTree.tostring(root, encoding="unicode").rstrip() + "\n"


def check_figure(path: Path, faults: Faults) -> None:
    """Add to ``faults`` what prevents a picture from standing in a page with others."""
    try:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    except ElementTree.ParseError as error:
        faults.add(error.position[0], f"is not valid XML ({error.msg if hasattr(error, 'msg') else error}): fix it")
        return
    box = root.get("viewBox", "").split()
    if root.tag != f"{{{SVG}}}svg" or len(box) != 4 or box[2] != str(WIDTH):
        faults.add(
            1, f'is not a picture of width {WIDTH}: write <svg xmlns="{SVG}" viewBox="0 0 {WIDTH} HEIGHT" role="img">'
        )
    if root.get("role") != "img":
        faults.add(1, 'has no role="img": add it, so that screen readers treat it as one image')
    for text in [*_find_forbidden_content(root), *_find_untranslated(root)]:
        faults.add(1, text)


def prefix_svg_ids(svg: str, prefix: str) -> str:
    """Prefix the ids of a picture, so that a page may contain several pictures, or one twice."""
    ids = "|".join(map(re.escape, re.findall(r'\bid="([^"]+)"', svg)))
    if not ids:
        return svg
    svg = re.sub(rf'\bid="({ids})"', rf'id="{prefix}\1"', svg)
    return re.sub(rf'(url\(|href=")#({ids})(\)|")', rf"\1#{prefix}\2\3", svg)


def _find_forbidden_content(root: ElementTree.Element) -> Iterator[str]:
    for element in root.iter():
        name = str(element.tag).replace(f"{{{SVG}}}", "")
        if name in ("script", "style", "foreignObject", "image", "a"):
            yield (
                f"has a <{name}>, which may refer to something outside the figure: use only shapes, texts and their "
                "attributes"
            )
        for attribute, value in element.attrib.items():
            if attribute.startswith("on") or (attribute.endswith("href") and not value.startswith("#")):
                reference = f'{attribute.split("}")[-1]}="{value[:30]}"'
                yield f"has {reference} in <{name}>: refer only to parts of the same figure"


def _find_untranslated(root: ElementTree.Element) -> Iterator[str]:
    counts = Counter(_element_language(element) for element in root.iter())
    for language in set(counts) - {"", *LANGUAGES}:
        yield f'has a text in the language {language!r}: use lang="en" or lang="ja"'
    if counts["en"] != counts["ja"]:
        yield (
            f'has {counts["en"]} texts with lang="en" and {counts["ja"]} with lang="ja": write each text in both '
            "languages"
        )
    for element in root.iter(f"{{{SVG}}}text"):
        words = "".join(element.itertext())
        if re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", words) and not _has_language(root, element):
            yield (f'shows {words!r} in both languages: add lang="ja", and write an English text with lang="en"')


def _has_language(root: ElementTree.Element, wanted: ElementTree.Element) -> bool:
    """Return whether the element, or an element around it, has a language."""
    trail: List[Tuple[ElementTree.Element, bool]] = [(root, bool(_element_language(root)))]
    while trail:
        element, known = trail.pop()
        if element is wanted:
            return known or any(_element_language(part) for part in element.iter())
        trail += [(child, known or bool(_element_language(child))) for child in element]
    return False


def _element_language(element: ElementTree.Element) -> str:
    return element.get("lang") or element.get(_XML_LANG) or ""


def _remove_element(parent: ElementTree.Element, child: ElementTree.Element) -> None:
    """Remove an element, but keep the text after it, which XML counts as part of it."""
    children = list(parent)
    previous_index = children.index(child) - 1
    if child.tail:
        if previous_index >= 0:
            children[previous_index].tail = (children[previous_index].tail or "") + child.tail
        else:
            parent.text = (parent.text or "") + child.tail
    parent.remove(child)
