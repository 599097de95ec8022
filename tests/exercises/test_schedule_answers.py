"""Schedules as puzzles: their optima by other ways, their faults, and what a notebook shows."""

import math
from itertools import product

import pytest

from gluonlab.collectives.cost_model import ScheduleCost, StepCost
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.schedule import ALL_GATHER, ALLREDUCE, Schedule, Transfer
from gluonlab.collectives.verify_schedule import verify
from gluonlab.exercises.exercise_registry import Wrong
from gluonlab.exercises.lab04_allreduce import BEAT_THE_EIGHT
from gluonlab.exercises.lab10_schedule_puzzles import PUZZLES
from gluonlab.exercises.languages import LANGUAGE_VARIABLE
from gluonlab.exercises.schedule_answers import check_proof, describe_costliest_step


@pytest.fixture(autouse=True)
def english(monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, "en")


def micros(id):
    return PUZZLES[id].optimum_s * 1e6


def test_the_optima_are_those_of_their_closed_forms():
    steps = range(4, 100)
    assert micros("10-1") == math.log2(8)
    assert micros("10-2") == pytest.approx(min(t + 12 * t / (t - 3) for t in steps))
    assert micros("10-3") == pytest.approx(math.ceil(math.log2(5)) + 5 * 4 / 5)
    assert micros("10-4") == pytest.approx(3 * (1 + 6 / 6))
    assert micros("10-5") == pytest.approx(min(t + 9 * t / (t - 1) for t in range(2, 100)))
    assert micros("10-6") == pytest.approx(min(2 * (1 + 2 / 2), 3 + 2 * 3 * 2 / 10))
    assert micros("10-7") == pytest.approx(min(5 + 20 + 3, 2 * 5 + 20))
    assert micros("10-8") == pytest.approx(12 * 2 * 7 / 24)


@pytest.mark.parametrize("id", PUZZLES)
def test_no_optimum_is_below_the_floor_of_its_machine(id):
    """The floor knows a link for each pair, of which some machines lack many."""
    puzzle = PUZZLES[id]
    floor = find_lower_bound(puzzle.topology, puzzle.collective).seconds(puzzle.size_bytes)
    assert floor <= puzzle.optimum_s * (1 + 1e-9)


def test_no_two_steps_sum_three_devices_that_stand_in_a_line_in_less():
    """All schedules of one chunk and two steps on the line of 10-5, tried out."""
    puzzle = PUZZLES["10-5"]
    moves = [
        [(), (Transfer(src, dst, 0, "add"),), (Transfer(src, dst, 0, "copy"),)] for src, dst in sorted(puzzle.pairs)
    ]
    some = [sum(chosen, ()) for chosen in product(*moves)]
    right = 0
    for steps in product(some, repeat=2):
        schedule = Schedule("tried", ALLREDUCE, 3, 1, (0,), tuple(filter(None, steps)))
        try:
            verify(schedule)
        except ValueError:
            continue
        right += 1
        assert puzzle.estimate_cost(schedule).seconds == pytest.approx(20e-6)
    assert right == 1  # in and out


def make_star():
    return [[Transfer(r, 0, 0, "add") for r in range(1, 8)], [Transfer(0, r, 0, "copy") for r in range(1, 8)]]


def test_a_notebook_shows_the_proof_the_price_the_floor_and_the_page(tmp_path):
    played = BEAT_THE_EIGHT.play(make_star, str(tmp_path / "mine.html"))
    proof, estimate_cost, floor, written = repr(played).splitlines()
    assert proof.startswith("verified")
    assert "62,393.3 µs in 2 steps, for 100 MB" in estimate_cost
    assert "1,479.2 µs; the simulated time is 42.180 times that" in floor
    assert written.endswith("mine.html")
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == played.page
    assert "<iframe" in played._repr_html_() and "62,393.3" in played._repr_html_()


def test_a_wrong_schedule_is_played_below_its_first_fault():
    played = BEAT_THE_EIGHT.play(lambda: make_star()[:1])
    assert "no transfer ever writes chunk 0 of rank 1" in repr(played)
    assert "price" not in repr(played)
    assert played.page.startswith("<!doctype html>") and "<iframe" in played._repr_html_()


def test_what_breaks_a_rule_is_named_and_not_played():
    played = PUZZLES["10-2"].play(lambda: [[Transfer(0, 3, 0, "copy")]])
    assert repr(played).endswith("there is no link from 0 to 3")
    assert played.page is None and "<iframe" not in played._repr_html_()


@pytest.mark.parametrize(
    ("micros_of_steps", "text"),
    [
        ([], ""),
        ([2], "Step 0 takes longest, 2 µs: it waits for the link `link 0`"),
        ([2, 3, 1], "Step 1 takes longest, 3 µs: it waits for the link `link 1`"),
        ([1, 2, 2], "Step 1 takes longest, 2 µs: it waits for the link `link 1`"),
        ([1.5, 1.5], "Each step takes 1.5 µs; step 0 waits for the link `link 0`"),
        ([1.5, 1.5 + 1e-12], "Each step takes 1.5 µs; step 0 waits for the link `link 0`"),
    ],
)
def test_the_step_that_takes_longest_is_named_unless_all_take_as_long(micros_of_steps, text):
    steps = [StepCost(each * 0.75e-6, each * 0.25e-6, f"link {n}") for n, each in enumerate(micros_of_steps)]
    english, _ = describe_costliest_step(ScheduleCost("tried", "line", ALLREDUCE, 2, 1e6, tuple(steps)))
    assert english == (text and f". {text}")


def stub():
    raise NotImplementedError


def test_a_stub_is_said_to_be_unwritten_and_no_file_is_written(tmp_path):
    assert "not written yet" in repr(PUZZLES["10-1"].play(stub, str(tmp_path / "a.html")))
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_too_large_to_draw_still_has_its_price():
    def finely():
        return [
            [Transfer(r, 0, c, "add") for r in range(1, 8) for c in range(100)],
            [Transfer(0, r, c, "copy") for r in range(1, 8) for c in range(100)],
        ]

    played = BEAT_THE_EIGHT.play(finely)
    assert played.page is None
    assert "62,393.3 µs" in repr(played) and "too large to draw" in repr(played)


ANOTHER_ORDER = (
    (Transfer(1, 0, 0, "add"),),
    (Transfer(0, 1, 0, "copy"),),
    (Transfer(2, 0, 0, "add"), Transfer(3, 1, 0, "add")),
    (Transfer(3, 0, 0, "add"), Transfer(2, 1, 0, "add")),
    (Transfer(0, 2, 0, "copy"), Transfer(1, 3, 0, "copy")),
)
LOST = (
    (Transfer(0, 1, 0, "add"),),
    (Transfer(2, 1, 0, "copy"),),  # rank 0 still has its own
    (Transfer(0, 2, 0, "copy"), Transfer(0, 1, 0, "copy")),
)


@pytest.mark.parametrize(
    ("collective", "ranks", "steps", "message"),
    [
        (ALLREDUCE, 4, ANOTHER_ORDER, r"step 3, transfer 1, .* in another order"),
        (ALLREDUCE, 3, LOST, r"step 1, transfer 0, .* the contribution of rank 1 is lost"),
        (ALL_GATHER, 2, ((Transfer(1, 0, 0, "copy"),),), "owner, rank 0: rank 1 does not have it yet"),
    ],
)
def test_the_first_faulty_transfer_of_a_schedule_is_named(collective, ranks, steps, message):
    with pytest.raises(Wrong, match=message):
        check_proof("f()", Schedule("x", collective, ranks, 1, (0,), steps))
