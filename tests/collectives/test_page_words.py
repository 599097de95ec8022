"""The words of the page that draws allreduces: contributions, and what the page says in English."""

import re

import pytest
from support.drawn_pages import Texts, embedded, strings
from support.japanese import english_words

from gluonlab.collectives.render import as_page, draw
from gluonlab.collectives.render.scene import JAPANESE, in_few_words, in_words
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.errors import ConfigError

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
