"""Turns the definition of an algorithm into a function that checks arguments."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import Any, Callable, Iterable, Optional, Sequence, Tuple

from gluonlab.collectives.schedule import Schedule, Transfer, is_whole, then
from gluonlab.errors import ScheduleError

Groups = Sequence[Sequence[int]]
Algorithm = Callable[..., Schedule]
Definition = Tuple[
    Sequence[int], Iterable[Sequence[Transfer]]
]  # the owner of each chunk, and steps


def defines(name: str, collective: str) -> Callable[[Callable[..., Definition]], Algorithm]:
    """A decorator: ``f(world_size, *, chunks=None, groups=None)`` from a definition.

    The function returns a Schedule. A definition gets the number of ranks, and ``chunks`` and
    ``groups`` if it has arguments of these names; without them they are refused. Steps in which
    nothing happens, as with one rank, are left out.
    """

    def decorate(definition: Callable[..., Definition]) -> Algorithm:
        options = set(signature(definition).parameters) - {"world_size"}

        @wraps(definition)
        def algorithm(
            world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None
        ) -> Schedule:
            if not is_whole(world_size):
                raise ScheduleError(
                    f"{name} for a world of {world_size!r} ranks: there must be at least 1"
                )
            if chunks is not None and "chunks" not in options:
                raise ScheduleError(
                    f"{name} cuts the buffer itself: chunks={chunks!r} is for star, sharded, tree, "
                    "double_tree, hierarchical"
                )
            if groups is not None and "groups" not in options:
                raise ScheduleError(
                    f"{name} knows no groups: groups={groups!r} is for hierarchical"
                )
            given = {"chunks": chunks, "groups": groups}
            owner, steps = definition(world_size, **{option: given[option] for option in options})
            nonempty = tuple(tuple(step) for step in steps if step)
            return Schedule(name, collective, world_size, len(owner), tuple(owner), nonempty)

        del algorithm.__wrapped__  # type: ignore[attr-defined]  # its signature is that of all
        return algorithm

    return decorate


def takes(algorithm: Algorithm, **options: Any) -> bool:
    """Whether an algorithm has a use for ``chunks=2``, or for ``groups=((0,), (1,))``."""
    try:
        algorithm(2, **options)
    except ScheduleError:
        return False
    return True


def in_halves(reduce_scatter: Schedule, all_gather: Schedule) -> Definition:
    """An allreduce made of a reduce-scatter and then an all-gather."""
    both = then("", reduce_scatter, all_gather)
    return both.owner, both.steps


def chunk_count(name: str, given: Optional[int], default: int, at_least: int = 1) -> int:
    """How many chunks the algorithm ``name`` is to have. Raises ScheduleError for too few."""
    chunks = default if given is None else given
    if not is_whole(chunks, at_least):
        raise ScheduleError(
            f"{name} with chunks={chunks!r}: a whole number from {at_least} on is possible"
        )
    return chunks
