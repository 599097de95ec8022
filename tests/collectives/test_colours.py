"""The drawn picture and page can be read: their colours have the contrast that WCAG 2.1 asks
for.
"""

import re

from support.drawn_pages import contrast, themes

from gluonlab import drawing
from gluonlab.collectives import render
from gluonlab.collectives.render.svg import STYLE


def test_the_colours_of_the_picture_have_contrast():
    """4.5 on paper, 3 on the cells that they stand in (WCAG 2.1, 1.4.3 and 1.4.11)."""
    meaning = [
        re.search(rf"{selector} {{[^}}]*?(#\w{{6}})", STYLE)[1]
        for selector in ("text", ".quiet", ".held", ".new")
    ]
    assert all(contrast(colour, "#ffffff") >= 4.5 for colour in meaning)
    assert all(contrast(colour, cell) >= 3 for colour in meaning for cell in ("#f3f5f9", "#dff3e7"))


def test_the_colours_of_the_page_have_contrast_in_the_light_and_in_the_dark():
    for theme in themes(drawing, render):
        assert (
            min(
                contrast(theme[text], theme[on])
                for text in ("ink", "quiet")
                for on in ("paper", "card")
            )
            >= 4.5
        )
        assert (
            min(
                contrast(theme[mark], theme[on])
                for mark in ("held", "new", "wrong")
                for on in ("cell", "whole")
            )
            >= 3
        )
        assert (
            min(contrast(theme[line], theme["card"]) for line in ("whole-edge", "copy", "accent"))
            >= 3
        )
        assert contrast(theme["on-accent"], theme["accent"]) >= 4.5
