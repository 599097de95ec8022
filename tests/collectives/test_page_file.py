"""The page that draws schedules, as a file: complete, small, and with what was asked for."""

import pytest
from support.browser import INSTALL, missing
from support.drawn_pages import embedded, is_one_small_file_that_loads_nothing

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.render import as_page, draw
from gluonlab.errors import ScheduleError

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
