"""10-1 to 10-8: each is proved, priced, and compared with its optimum."""

from __future__ import annotations

from typing import Any, Callable

from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab10.puzzles import PUZZLES

Answer = Callable[[], Any]


def _check(id: str, answer: Answer) -> None:
    PUZZLES[id].check_optimum(PUZZLES[id].proved(answer))


@exercise("10-1")
def tell_everybody(answer: Answer) -> None:
    """A broadcast to eight devices behind a switch, in the fewest messages in turn."""
    _check("10-1", answer)


@exercise("10-2")
def down_the_line(answer: Answer) -> None:
    """A broadcast of a long array along a line of five devices."""
    _check("10-2", answer)


@exercise("10-3")
def gather(answer: Answer) -> None:
    """An all-gather of five devices with one port each."""
    _check("10-3", answer)


@exercise("10-4")
def both_ways_round(answer: Answer) -> None:
    """A reduce-scatter on a ring of six devices whose links work both ways."""
    _check("10-4", answer)


@exercise("10-5")
def three_in_a_row(answer: Answer) -> None:
    """An allreduce of three devices on a line, with both directions of each link in use."""
    _check("10-5", answer)


@exercise("10-6")
def around_the_slow_wire(answer: Answer) -> None:
    """An allreduce of four devices of which two have a slow wire between them."""
    _check("10-6", answer)


@exercise("10-7")
def two_hosts(answer: Answer) -> None:
    """An allreduce over two hosts of four devices with one network port each."""
    _check("10-7", answer)


@exercise("10-8")
def the_cube(answer: Answer) -> None:
    """An allreduce on a cube that keeps all of its wires busy to the end."""
    _check("10-8", answer)
