"""04-6: an allreduce for the p3.16xlarge that costs less than the best of the eight algorithms."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, Callable, List, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.cost import best_order, price
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis import stored
from gluonlab.collectives.topology import make_topology
from gluonlab.exercises.exercise import Score, exercise
from gluonlab.exercises.shared.counterexamples import Case
from gluonlab.exercises.shared.played import microseconds
from gluonlab.exercises.shared.puzzle import ROUNDING, Puzzle, costliest, in_words

BEAT_THE_EIGHT = Puzzle("beat_the_eight()", make_topology("p3.16xlarge"), 1e8)


@lru_cache(maxsize=None)
def best_of_the_eight() -> Tuple[str, float]:
    """The cheapest of the eight algorithms there, each placed in its best order, and its price."""
    topology, size = BEAT_THE_EIGHT.topology, BEAT_THE_EIGHT.size_bytes
    made = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
    placed = [one.placed(best_order(one, topology)) for one in made]
    seconds, name = min((price(one, topology, size).seconds, one.name) for one in placed)
    return name, seconds


def floor_s() -> float:
    """Below which no schedule can be priced there."""
    return floor_of(BEAT_THE_EIGHT.topology).seconds(BEAT_THE_EIGHT.size_bytes)


@exercise("04-6")
def beat_the_eight(answer: Callable[[], Any]) -> Score:
    """An allreduce for the p3.16xlarge that is cheaper than the best of the eight algorithms."""
    schedule = BEAT_THE_EIGHT.proved(answer)
    cost, (name, best_s) = BEAT_THE_EIGHT.price(schedule), best_of_the_eight()
    (en, ja), (why, why_ja) = in_words(cost), costliest(cost)
    call = BEAT_THE_EIGHT.call
    Case(call, call).check(
        (cost.seconds >= best_s * (1 - ROUNDING),
         f"proved, but it costs {en}, and {name}, placed, takes {microseconds(best_s)}: "
         f"it must be less{why}",
         f"正しいことは証明されましたが、{ja}かかります。配置した {name} なら "
         f"{microseconds(best_s)} です。それより短くしてください{why_ja}"),
    )  # fmt: skip
    floor_us, best_us = microseconds(floor_s()), microseconds(best_s)
    times, ours = f"{cost.seconds / floor_s():.3f}", _is_ours(schedule)
    not_in_en = "; gluonlab's own solver has found it, and so it does not count in a leaderboard"
    not_in_ja = "。ただし、gluonlab のソルバーが見つけたものなので、順位表には載りません"
    return Score(
        None if ours else round(cost.seconds * 1e6, 3),
        en=f"{en}, {times} times the floor of {floor_us}; the best of the eight, {name}, takes "
        f"{best_us}{not_in_en * ours}",
        ja=f"{ja}で、下限 {floor_us} の {times} 倍です。8 つのうち最も速い {name} は "
        f"{best_us} です{not_in_ja * ours}",
    )


def _is_ours(schedule: Schedule) -> bool:
    """Whether it is one of those that are stored with gluonlab, whatever its chunks are called."""
    own = _without_chunks(schedule)
    return any(own == _without_chunks(one) for one in stored.choices(BEAT_THE_EIGHT.topology))


def _without_chunks(schedule: Schedule) -> "List[Counter[Tuple[int, int, str]]]":
    """How often each rank sends to each other in each step, and what for."""
    return [Counter((t.src, t.dst, t.op) for t in step) for step in schedule.steps]
