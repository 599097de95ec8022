"""Renders schedules as one interactive HTML page, built from the files in template/."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS, Groups, make_schedule
from gluonlab.collectives.render import schedule_scene as scene
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.verify_schedule import Contributions, simulate_contributions
from gluonlab.drawing.page_template import render_page
from gluonlab.drawing.translations import select_language
from gluonlab.errors import ScheduleError

WORLD_SIZES = range(1, 9)
_SCENE = "gluonlab.collectives.render"
_CHOICES = {"algorithm": "name", "world-size": "world_size"}


def as_page(schedules: Iterable[Schedule], start: Tuple[str, int] = ("ring", 4), *, language: str = "en") -> str:
    """Return an HTML page that shows ``schedules`` step by step.

    The page starts with the schedule that has the name and world size of ``start``. In the page,
    the attribute ``data-contributions`` of a device's chunk lists the contributions in this chunk,
    which come from `verify_schedule.simulate_contributions`. Raises ScheduleError for a schedule
    that is too large to draw, for two schedules with the same name and world size, and for an
    unknown ``start``. Raises ConfigError for an unknown ``language``.
    """
    words = select_language(scene.WORDS, language)
    listed = list(schedules)
    identities = [(schedule.name, schedule.world_size) for schedule in listed]
    for identity, schedule in zip(identities, listed):
        scene.check_drawable(schedule)
        if identities.count(identity) > 1:
            raise ScheduleError(f"two schedules for {identity[1]} ranks are named {identity[0]}: use different names")
    if start not in identities:
        names = ", ".join(f"{name} for {world_size}" for name, world_size in identities)
        choices = f"choose {names}" if names else "the list of schedules is empty"
        raise ScheduleError(f"no schedule for {start[1]} ranks is named {start[0]}: {choices}")
    data = [_page_data(schedule, words) for schedule in listed]
    return render_page(_SCENE, _CHOICES, data, identities.index(start), words, language)


def draw(
    name: str, world_size: int, *, chunks: Optional[int] = None, groups: Optional[Groups] = None, language: str = "en"
) -> str:
    """Return an HTML page of all algorithms for 1 to 8 ranks, which first shows ``name``.

    A schedule with ``chunks`` or ``groups`` replaces the default schedule of ``name``. Raises
    ScheduleError for arguments that `make_schedule` rejects, and for schedules that are too large
    to draw. Raises ConfigError for an unknown language.
    """
    chosen = make_schedule(name, world_size, chunks=chunks, groups=groups)
    scene.check_drawable(chosen)
    schedules = {(other, n): make(n) for other, make in ALGORITHMS.items() for n in WORLD_SIZES}
    schedules[name, world_size] = chosen
    return as_page(schedules.values(), (name, world_size), language=language)


def _page_data(schedule: Schedule, words: scene.ScheduleTexts) -> Dict[str, Any]:
    """Return the data that template/scene.js draws.

    Each distinct tuple of contributions is written once, and referenced by its index in
    ``vectors``.
    """
    vectors: Dict[Contributions, int] = {}
    state_indices = [
        [vectors.setdefault(contributions, len(vectors)) for row in state for contributions in row]
        for state in simulate_contributions(schedule)
    ]
    complete = [scene.complete_contributions(schedule, chunk) for chunk in range(schedule.chunks)]
    complete_indices = [vectors.setdefault(whole, len(vectors)) for whole in complete]
    steps = [
        {
            "buses": [(b.chunk, int(b.add), b.hub, b.lane, b.others) for b in scene.bundle_transfers(step)],
            "sends": [line.replace("->", "\N{RIGHTWARDS ARROW}") for line in scene.describe_step(step, words)],
        }
        for step in schedule.steps
    ]
    return {
        "name": schedule.name,
        "world_size": schedule.world_size,
        "chunks": schedule.chunks,
        "lanes": scene.lane_count(schedule),
        "size": scene.describe_size(schedule, words),
        "description": scene.algorithm_description(schedule, words),
        "vectors": list(vectors),
        "words": [scene.describe_contributions(contributions, words) for contributions in vectors],
        "few_words": [scene.list_contributors(contributions, words) for contributions in vectors],
        "goal": complete_indices,
        "states": state_indices,
        "steps": steps,
    }
