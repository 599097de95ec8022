"""04-3 and 04-4: how busy the busiest link is, and which allreduce is fastest."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.check import check as prove
from gluonlab.collectives.cost import price
from gluonlab.collectives.links import switch
from gluonlab.collectives.schedule import ALLREDUCE, Schedule
from gluonlab.collectives.topology import Topology, make_topology
from gluonlab.errors import ScheduleError
from gluonlab.exercises.cases import draws, more
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.shared.counterexamples import gave, looks_like, wrong
from gluonlab.exercises.shared.diagnosis import (
    Mistake,
    by,
    explains,
    results,
    same_number,
)

LENET = [180, 20, 25_000, 50, 102_400, 128, 1_280, 10]
OWNED: List[Tuple[List[int], List[int], int]] = [  # sizes, owners, devices
    ([2, 2, 2, 2], [0, 1, 2, 3], 4),  # with four devices, mistakes give different numbers
    ([4, 2], [0, 1], 4),
    ([4], [0], 2),
    ([5], [0], 1),
    (LENET, [0] * 8, 2),
    (LENET, [0, 1] * 4, 4),
]


@exercise("04-3")
def busiest_link(answer: Callable[[Sequence[int], Sequence[int], int], int]) -> None:
    """How many numbers pass the busiest link when each parameter is summed by its owner."""
    rng, cases = draws(4), list(OWNED)
    for _ in range(30):
        sizes = rng.randint(1, 100, rng.randint(1, 9)).tolist()
        devices = int(rng.randint(1, 9))
        cases.append((sizes, rng.randint(0, devices, len(sizes)).tolist(), devices))
    found = results(
        lambda sizes, owners, k: answer(list(sizes), list(owners), k),
        cases,
        lambda sizes, owners, k: 2 * (k - 1) * max(_loads(sizes, owners, k)),
    )
    mistaken = found.wrong(same_number)
    if mistaken:
        (sizes, owners, devices), got, want = mistaken[0]
        call = f"busiest_link({sizes}, {owners}, {devices})"
        raise gave(call, got, want, explains(found, same_number, *OF_LINKS))


def _loads(sizes: Sequence[int], owners: Sequence[int], devices: int) -> List[int]:
    """How many numbers each device sums."""
    loads = [0] * devices
    for size, owner in zip(sizes, owners):
        loads[owner] += size
    return loads


def _by_loads(formula: Callable[[List[int], int], float]) -> Callable[..., bool]:
    return by(lambda sizes, owners, k: formula(_loads(sizes, owners, k), k))


OF_LINKS: List[Mistake] = [
    (_by_loads(lambda loads, k: 2 * k * max(loads)),
     "what an owner has itself does not pass its link",
     "担当デバイス自身の勾配はリンクを通りません"),
    (_by_loads(lambda loads, k: (k - 1) * max(loads)),
     "that is one direction; the sums go back over the same link",
     "これは片道分です。合計も同じリンクを通って戻ります"),
    (_by_loads(lambda loads, k: 2 * (k - 1) * sum(loads)),
     "that is what passes all links together", "これは全リンクの合計です"),
    (_by_loads(lambda loads, k: 2 * (k - 1) * sum(loads) / k),
     "that is the mean of all links; the busiest is that of the device that owns most",
     "これは全リンクの平均です。最も混むのは、担当分が最も多いデバイスのリンクです"),
    (_by_loads(lambda loads, k: 2 * max(loads)),
     "it comes from each of the other devices, and goes back to each of them",
     "ほかの全デバイスから届き、全デバイスに戻ります"),
    (by(lambda sizes, owners, k: 2 * (k - 1) * max(sizes)),
     "an owner has all of its parameters on its link, not only its largest one",
     "担当デバイスのリンクには、最大のパラメータだけでなく担当するすべてのパラメータが通ります"),
    (_by_loads(lambda loads, k: max((k - 1) * load + sum(loads) - load for load in loads)),
     "the sums go out when the gradients have come in; meanwhile the other direction was less "
     "busy",
     "合計が出ていくのは勾配が届いた後です。その間、逆方向に流れる量はもっと少なくなります"),
]  # fmt: skip


PLACES: List[Tuple[Callable[[], Topology], List[float]]] = [  # with sizes in bytes
    (lambda: switch(4, 10e-6, 10e9), [1e3, 1e8]),
    (lambda: make_topology("p3.16xlarge"), [1e8, 1e3]),
    (lambda: make_topology("p3.8xlarge"), [1e6]),
    (lambda: make_topology("g4dn.12xlarge"), [1e7]),
    (lambda: make_topology("pcie", 4), [1e8]),
]


def _any_place(random: Any) -> Callable[[], Topology]:
    make, _ = PLACES[int(random.randint(len(PLACES)))]
    return make


@exercise("04-4")
def fastest(answer: Callable[[Topology, float], Schedule]) -> None:
    """The allreduce with the smallest price on a topology, for a size."""
    others = more(4, lambda random: (_any_place(random), [float(10 ** random.uniform(3, 8))]))
    places = [*PLACES, *others]
    for topology, size in ((make(), size) for make, sizes in places for size in sizes):
        got, ranks = answer(topology, size), topology.world_size
        what = f"fastest({topology.name}, {size:,.0f})"
        if not isinstance(got, Schedule) or got.world_size != ranks:
            raise wrong(
                f"{what} returned {got!r:.80}: return a Schedule for {ranks} ranks, "
                f"such as `ring({ranks})`",
                f"{what} の戻り値は {got!r:.80} でした。`ring({ranks})` のような "
                f"{ranks} ランクの Schedule を返してください",
            )
        _check_allreduce(what, got)
        order = topology.ring_order()
        known = [algorithm(ranks) for algorithm in ALGORITHMS.values()]
        choices = [(one.name, one) for one in known]
        choices += [(f"{one.name} placed on the ring", one.placed(order)) for one in known]
        seconds = [price(one, topology, size).seconds for _, one in choices]
        mine, least = price(got, topology, size).seconds, min(seconds)
        name, best = choices[seconds.index(least)]
        if mine > least * 1.000001:
            call = "`schedule.placed(topology.ring_order())`"
            times = (f"{mine * 1e6:,.1f} us", f"{least * 1e6:,.1f} us")
            raise wrong(
                f"{what} returned {got.name}, {times[0]}; {name} takes {times[1]}",
                f"{what} の戻り値は {got.name} ({times[0]}) でした。{name} なら {times[1]} です",
                looks_like(
                    (got.name == best.name, f"place it, {call}", f"{call} で配置してください")
                ),
            )


def _check_allreduce(what: str, schedule: Schedule) -> None:
    """Raise Wrong for a schedule that is cheap because it leaves something out."""
    try:
        prove(schedule)
    except ScheduleError as error:
        raise Wrong(
            en=f"{what} returned a schedule that is not a right allreduce: {error}",
            ja=f"{what} の戻り値は正しい allreduce ではありません: {error}",
        ) from None
    if schedule.collective != ALLREDUCE:
        raise wrong(
            f"{what} returned a {schedule.collective}: "
            "an allreduce is asked for, as the functions in `ALGORITHMS` make it",
            f"{what} の戻り値は {schedule.collective} です。"
            "`ALGORITHMS` の関数が作るような allreduce を返してください",
        )
