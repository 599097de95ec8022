"""The page that draws schedules, as a file: complete, small, readable, in two languages."""

import re
from itertools import product

import pytest
from support.drawn_pages import (
    PageTexts,
    check_self_contained,
    contrast_ratio,
    embedded_data,
    english_words,
    string_values,
    theme_colors,
)

from gluonlab import drawing
from gluonlab.collectives import render
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.render import as_page, draw
from gluonlab.collectives.render.schedule_scene import JAPANESE, describe_contributions, list_contributors
from gluonlab.collectives.render.schedule_svg import STYLE
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.errors import ScheduleError

EVERY = [(name, ranks) for name in ALGORITHMS for ranks in range(1, 9)]


def test_the_page_is_one_small_file_with_every_algorithm_that_may_not_load_anything():
    page = draw("ring", 4)
    check_self_contained(page)
    assert [(schedule["name"], schedule["world_size"]) for schedule in embedded_data(page)["schedules"]] == EVERY


@pytest.mark.parametrize(
    ("name", "ranks", "options", "size"),
    [
        ("ring", 12, {}, "12 ranks, 12 chunks, 22 steps, 264 transfers"),
        ("tree", 8, {"chunks": 3}, "8 ranks, 3 chunks, 10 steps, 42 transfers"),
        ("hierarchical", 6, {"groups": ((0, 1), (2, 3), (4, 5))}, "6 ranks, 2 chunks, 4 steps, 20 transfers"),
    ],
)
def test_the_requested_schedule_is_shown_first(name, ranks, options, size):
    data = embedded_data(draw(name, ranks, **options))
    first = data["schedules"][data["start"]]
    assert (first["name"], first["world_size"], first["size"]) == (name, ranks, f"allreduce, {size}")
    schedules = [(schedule["name"], schedule["world_size"]) for schedule in data["schedules"]]
    assert sorted(schedules) == sorted({*EVERY, (name, ranks)})


TWICE = Schedule("twice", "allreduce", 2, 1, (0,), 2 * ((Transfer(1, 0, 0, "add"),),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: draw("rign", 4), r"unknown algorithm 'rign': .* \(did you mean 'ring'"),
        (lambda: draw("ring", 0), "ring for world_size=0"),
        (lambda: draw("ring", 64), "64 ranks and 64 chunks is too large to draw: choose up to 16"),
        (lambda: as_page([TWICE]), "no schedule for 4 ranks is named ring: choose twice for 2"),
        (lambda: as_page([]), "no schedule for 4 ranks is named ring: the list of schedules is empty"),
        (lambda: as_page([TWICE, TWICE]), "two schedules for 2 ranks are named twice"),
    ],
)
def test_schedules_that_cannot_be_shown_are_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()


def test_a_japanese_page_of_a_users_schedule_has_no_english_text():
    page = as_page([TWICE], ("twice", 2), language="ja")
    words = " ".join(PageTexts(page).texts + string_values(embedded_data(page)))
    assert english_words(re.sub("{[a-z]+}", "", words)) == {"twice"}


def test_contributions_in_japanese():
    assert describe_contributions((0, 1, 0), JAPANESE) == "ランク 1 の寄与"
    assert describe_contributions((1, 1, 0, 2), JAPANESE) == "ランク 0, 1, 3 (2 回) の寄与"
    assert describe_contributions((0, 0), JAPANESE) == list_contributors((0, 0), JAPANESE) == "なし"


def test_the_colors_of_the_picture_have_contrast():
    for selector in ("text", ".quiet", ".held", ".new"):
        color = re.search(rf"{selector} {{[^}}]*?(#\w{{6}})", STYLE)[1]
        assert contrast_ratio(color, "#ffffff") >= 4.5
        assert min(contrast_ratio(color, cell) for cell in ("#f3f5f9", "#dff3e7")) >= 3


def test_the_colors_of_the_page_have_contrast_in_both_themes():
    pairs = [
        (("ink", "quiet"), ("paper", "card"), 4.5),
        (("held", "new", "wrong"), ("cell", "whole"), 3),
        (("whole-edge", "copy", "accent"), ("card",), 3),
        (("on-accent",), ("accent",), 4.5),
    ]
    for theme in theme_colors(drawing, render):
        for marks, grounds, least in pairs:
            for mark, ground in product(marks, grounds):
                assert contrast_ratio(theme[mark], theme[ground]) >= least, (mark, ground)
