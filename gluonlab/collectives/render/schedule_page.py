"""Schedules of an allreduce as one HTML page to step through; its scene is in template/."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS, Groups, make_schedule
from gluonlab.collectives.render.schedule_scene import (
    WORDS,
    ScheduleTexts,
    buses,
    description,
    drawable,
    goal,
    in_few_words,
    in_words,
    lanes,
    sends,
    size,
)
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.verify_schedule import Contributions, states
from gluonlab.drawing.page_template import render_page
from gluonlab.drawing.translations import select_language
from gluonlab.errors import ScheduleError

WORLD_SIZES = range(1, 9)
_SCENE = "gluonlab.collectives.render"
_CHOICES = {"algorithm": "name", "world-size": "world_size"}


def as_page(
    schedules: Iterable[Schedule], start: Tuple[str, int] = ("ring", 4), *, language: str = "en"
) -> str:
    """An HTML page that shows ``schedules`` step by step.

    It begins with the one that has the name and world size of ``start``. Every device's chunks
    carry what they hold as ``data-contributions``, as `check.states` computes it. Raises
    ScheduleError for a schedule that is too large to draw, for two of one name and world size, and
    for a ``start`` that is not there; ConfigError for a ``language`` that is not in `words.WORDS`.
    """
    words = select_language(WORDS, language)
    chosen = list(schedules)
    places = [(schedule.name, schedule.world_size) for schedule in chosen]
    for place, schedule in zip(places, chosen):
        drawable(schedule)
        if places.count(place) > 1:
            raise ScheduleError(
                f"two schedules are {place[0]} for {place[1]} ranks: give each a name of its own"
            )
    if start not in places:
        names = ", ".join(f"{name} for {world_size}" for name, world_size in places)
        choices = f"choose {names}" if names else "there is none"
        raise ScheduleError(f"no schedule is {start[0]} for {start[1]} ranks: {choices}")
    data = [_as_data(schedule, words) for schedule in chosen]
    return render_page(_SCENE, _CHOICES, data, places.index(start), words, language)


def draw(
    name: str,
    world_size: int,
    *,
    chunks: Optional[int] = None,
    groups: Optional[Groups] = None,
    language: str = "en",
) -> str:
    """The page of all algorithms for 1 to 8 ranks, which begins with this one.

    It replaces the same algorithm with other chunks. Raises ScheduleError for what `make_schedule`
    refuses, and for more than can be drawn; ConfigError for an unknown language.
    """
    chosen = make_schedule(name, world_size, chunks=chunks, groups=groups)
    drawable(chosen)
    shown = {(other, n): make(n) for other, make in ALGORITHMS.items() for n in WORLD_SIZES}
    shown[name, world_size] = chosen
    return as_page(shown.values(), (name, world_size), language=language)


def _as_data(schedule: Schedule, words: ScheduleTexts) -> Dict[str, Any]:
    """What template/scene.js draws.

    Contributions are written once each, and named by their place in ``vectors``.
    """
    vectors: Dict[Contributions, int] = {}
    kept = [
        [vectors.setdefault(held, len(vectors)) for row in state for held in row]
        for state in states(schedule)
    ]
    wholes = [goal(schedule, chunk) for chunk in range(schedule.chunks)]
    goals = [vectors.setdefault(whole, len(vectors)) for whole in wholes]
    steps = [
        {
            "buses": [(b.chunk, int(b.add), b.hub, b.lane, b.others) for b in buses(step)],
            "sends": [line.replace("->", "\N{RIGHTWARDS ARROW}") for line in sends(step, words)],
        }
        for step in schedule.steps
    ]
    return {
        "name": schedule.name,
        "world_size": schedule.world_size,
        "chunks": schedule.chunks,
        "lanes": lanes(schedule),
        "size": size(schedule, words),
        "description": description(schedule, words),
        "vectors": list(vectors),
        "words": [in_words(held, words) for held in vectors],
        "few_words": [in_few_words(held, words) for held in vectors],
        "goal": goals,
        "states": kept,
        "steps": steps,
    }
