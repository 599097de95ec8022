"""The page that draws schedules, as a file: complete, small, readable, in two languages."""

import re

import pytest
from support.browser import INSTALL, missing
from support.drawn_pages import (
    Texts,
    contrast,
    embedded,
    english_words,
    is_one_small_file_that_loads_nothing,
    strings,
    themes,
)

from gluonlab import drawing
from gluonlab.collectives import render
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.render import as_page, draw
from gluonlab.collectives.render.scene import JAPANESE, in_few_words, in_words
from gluonlab.collectives.render.svg import STYLE
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.errors import ConfigError, ScheduleError

EVERY = [(name, ranks) for name in ALGORITHMS for ranks in range(1, 9)]


@pytest.fixture(scope="module")
def everything():
    return draw("ring", 4)


def test_the_page_is_one_small_file_that_may_not_load_anything(everything):
    is_one_small_file_that_loads_nothing(everything)


def test_it_offers_every_algorithm_for_1_to_8_ranks(everything):
    assert [
        (shown["name"], shown["world_size"]) for shown in embedded(everything)["schedules"]
    ] == EVERY


@pytest.mark.parametrize(
    ("asked", "given", "size"),
    [
        (("ring", 12), {}, "allreduce, 12 ranks, 12 chunks, 22 steps, 264 transfers"),
        (("tree", 8), {"chunks": 3}, "allreduce, 8 ranks, 3 chunks, 10 steps, 42 transfers"),
        (
            ("hierarchical", 6),
            {"groups": ((0, 1), (2, 3), (4, 5))},
            "allreduce, 6 ranks, 2 chunks, 4 steps, 20 transfers",
        ),
    ],
)
def test_what_was_asked_for_is_shown_first(asked, given, size):
    data = embedded(draw(*asked, **given))
    first = data["schedules"][data["start"]]
    assert (first["name"], first["world_size"], first["size"]) == (*asked, size)
    assert sorted({*EVERY, asked}) == sorted(
        (shown["name"], shown["world_size"]) for shown in data["schedules"]
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: draw("rign", 4), r"unknown algorithm 'rign': .* \(did you mean 'ring'"),
        (lambda: draw("ring", 0), "ring for a world of 0 ranks"),
        (
            lambda: draw("ring", 64),
            "ring with 64 ranks and 64 chunks is too large to draw: choose up to 16 ranks",
        ),
        (
            lambda: as_page([ALGORITHMS["ring"](2)]),
            "no schedule is ring for 4 ranks: choose ring for 2",
        ),
        (lambda: as_page([]), "no schedule is ring for 4 ranks: there is none"),
        (
            lambda: as_page([ALGORITHMS["star"](4), ALGORITHMS["star"](4, chunks=2)]),
            "two schedules are star for 4 ranks",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()


def test_without_a_browser_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert missing() == f"no Chromium and no chromedriver here: {INSTALL}"


# --- The words of the page that draws allreduces: contributions, and what the page says in English


TWICE = Schedule(
    "twice", "allreduce", 2, 1, (0,), ((Transfer(1, 0, 0, "add"),), (Transfer(1, 0, 0, "add"),))
)


def test_no_english_is_left_on_a_japanese_page_of_a_schedule_of_ones_own():
    page = as_page([TWICE], ("twice", 2), language="ja")
    words = " ".join(Texts(page).texts + strings(embedded(page)))
    assert english_words(re.sub("{[a-z]+}", "", words)) == {"twice"}


def test_a_page_of_ones_own_schedules_speaks_no_other_language():
    with pytest.raises(ConfigError, match="choose en, ja"):
        as_page([TWICE], ("twice", 2), language="de")


def test_contributions_in_japanese():
    assert in_words((0, 1, 0), JAPANESE) == "ランク 1 の寄与"
    assert in_words((1, 1, 0, 2), JAPANESE) == "ランク 0, 1, 3 (2 回) の寄与"
    assert in_words((0, 0), JAPANESE) == in_few_words((0, 0), JAPANESE) == "なし"


def test_the_english_page_says_what_it_said():
    shown = Texts(draw("ring", 4))
    assert shown.texts[:3] == [
        "ring, step by step",
        "ring",
        "allreduce, 4 ranks, 4 chunks, 6 steps, 24 transfers",
    ]
    assert shown.texts[3].startswith(
        "Chunks travel twice around a ring of neighbours: to be summed,"
    )
    assert {
        "Algorithm",
        "Ranks",
        "slow",
        "Play",
        "Next step",
        "came with the step",
        "= copied over",
    } <= set(shown.texts)
    assert "Keys: ← → step, space plays and pauses, Home and End jump." in " ".join(shown.texts)


# --- The drawn picture and page can be read: their colours have the contrast that WCAG 2.1 asks


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
