"""The animated picture of the README: what it shows, how it moves, and that it is up to date."""

import re
import xml.etree.ElementTree as ElementTree

import ring_animation

SVG = "{http://www.w3.org/2000/svg}"


def find_all(kind):
    """Return the elements of the committed picture that have a CSS class."""
    root = ElementTree.fromstring(ring_animation.PICTURE.read_text(encoding="utf-8"))
    return [element for element in root.iter() if kind in element.get("class", "").split()]


def test_the_committed_picture_is_what_the_program_makes():
    """If this fails, run .venv/bin/python tools/ring_animation.py."""
    assert ring_animation.PICTURE.read_text(encoding="utf-8") == ring_animation.make_picture()


def test_it_is_small_and_has_a_title():
    text = ring_animation.PICTURE.read_text(encoding="utf-8")
    assert len(text) < 60_000
    title = ElementTree.fromstring(text).find(f"{SVG}title")
    assert title.text == "A ring allreduce on four ranks, step by step"


def test_every_transfer_moves_and_every_chunk_is_complete_at_the_end():
    assert len(find_all("move")) == 6 * 4  # 6 steps, 4 transfers each
    assert len(find_all("whole")) == 4 * 4  # 4 ranks, 4 chunks each
    bars = [element for rank in range(4) for element in find_all(f"r{rank}") if "late" in element.get("class")]
    assert len(bars) == 4 * 4 * 3  # each chunk receives the bars of the other ranks


def test_it_moves_only_for_readers_who_do_not_mind_and_has_dark_colors():
    style = find_style()
    still, _, moving = style.partition("@media (prefers-reduced-motion: no-preference)")
    assert "animation" not in still and "infinite" in moving
    assert "prefers-color-scheme: dark" in still
    assert re.search(r"\.last \{ opacity: 1 \}", still)  # without animation, the caption of the result


def find_style():
    root = ElementTree.fromstring(ring_animation.PICTURE.read_text(encoding="utf-8"))
    return root.find(f"{SVG}style").text
