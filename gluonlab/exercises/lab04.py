"""The checkers of lab 04: schedules, what is wrong with some, how busy a link is, which allreduce
is fastest, and a ring.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from gluonlab.collectives.algorithms import ALGORITHMS, double_tree, halving_doubling, ring
from gluonlab.collectives.check import check as prove
from gluonlab.collectives.cost import price
from gluonlab.collectives.schedule import ALLREDUCE, OPS, Schedule, Transfer
from gluonlab.collectives.topology import Topology, make_topology, switch
from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.reduce_scatters import check_rules, check_sums
from gluonlab.exercises.ring_by_hand import Links, judge_ring

Place = Tuple[int, int]  # (step, transfer), both from 0

# --- 04-1


@exercise("04-1")
def reduce_scatter(answer: Callable[[int], Sequence[Sequence[Transfer]]]) -> None:
    """The steps of a reduce-scatter after which rank r has the sum of chunk r."""
    for world_size in (2, 3, 4, 5, 8, 1):
        given = answer(world_size)
        who = {"en": f"reduce_scatter({world_size})", "ja": f"reduce_scatter({world_size})"}
        try:
            steps = tuple(tuple(Transfer(*transfer) for transfer in step) for step in given)
        except TypeError:
            raise Wrong(
                en=f"{who['en']} returned {given!r}: return a list of steps, "
                "each a list of `Transfer(src, dst, chunk, op)`",
                ja=f"{who['ja']} の戻り値は {given!r} でした。"
                "`Transfer(src, dst, chunk, op)` のリスト (ステップ) のリストを返してください",
            ) from None
        for number, step in enumerate(steps):
            check_rules(who, world_size, number, step)
        check_sums(who, world_size, steps)
        count, enough = sum(map(len, steps)), world_size * (world_size - 1)
        if count > enough:
            raise Wrong(
                en=f"{who['en']}: right, but {count} transfers, where {enough} are enough: "
                f"each chunk needs {world_size - 1} additions",
                ja=f"{who['ja']}: 結果は正しいですが、転送が {count} 回あります。"
                f"チャンクごとに加算は {world_size - 1} 回なので {enough} 回で済みます",
            )


# --- 04-2


def _changed(name: str, schedule: Schedule, place: Place, **changes: Any) -> Schedule:
    steps = [list(step) for step in schedule.steps]
    steps[place[0]][place[1]] = steps[place[0]][place[1]]._replace(**changes)
    return replace(schedule, name=name, steps=tuple(map(tuple, steps)))


BROKEN: Dict[str, Schedule] = {
    "A": _changed("A", ring(4), (1, 1), op="copy"),
    "B": _changed("B", double_tree(4), (0, 1), chunk=1),
    "C": _changed("C", halving_doubling(4), (1, 0), dst=3),
}


@exercise("04-2")
def wrong_transfers(answer: Mapping[str, Place]) -> None:
    """Which transfer of three broken schedules is wrong."""
    for name, schedule in BROKEN.items():
        if not isinstance(answer, Mapping) or name not in answer:
            raise Wrong(
                en=f"there is no answer for schedule {name}: "
                f"give a dictionary with the keys {', '.join(BROKEN)}",
                ja=f"スケジュール {name} の答えがありません。"
                f"キーが {', '.join(BROKEN)} の辞書にしてください",
            )
        place = answer[name]
        place = tuple(place) if isinstance(place, (list, np.ndarray)) else place
        if not _is_place(schedule, place):
            steps = len(schedule.steps)
            raise Wrong(
                en=f"{name}: {place!r} is no place: give (step, transfer) "
                f"with a step from 0 to {steps - 1}, both counted from 0",
                ja=f"{name}: {place!r} という場所はありません。"
                f"(ステップ, 転送) の組で、ステップは 0 から {steps - 1}、"
                "どちらも 0 から数えます",
            )
        if not _mends(schedule, place):
            transfer = schedule.steps[place[0]][place[1]]
            fault = _told(schedule)
            hint = (
                "that is where `prove` noticed it: what is sent there was wrong already, so go back"
                if fault == place
                else ""
            )
            hint_ja = (
                (
                    "そこは `prove` が気づいた場所です。送られる中身がすでに間違っているので、"
                    "さかのぼってください"
                )
                if fault == place
                else ""
            )
            raise Wrong(
                en=f"{name}: whatever stands in the place of `{transfer}`, "
                f"the schedule stays wrong{': ' * bool(hint)}{hint}",
                ja=f"{name}: `{transfer}` を何に置き換えても、"
                f"スケジュールは正しくなりません{'。' * bool(hint)}{hint_ja}",
            )


def _is_place(schedule: Schedule, place: Any) -> bool:
    if (
        not isinstance(place, tuple)
        or len(place) != 2
        or not all(isinstance(part, (int, np.integer)) for part in place)
    ):
        return False
    step, transfer = place
    return step in range(len(schedule.steps)) and transfer in range(len(schedule.steps[step]))


def _mends(schedule: Schedule, place: Place) -> bool:
    """Whether some other transfer in this place makes the schedule right."""
    ranks = range(schedule.world_size)
    choices = product(ranks, ranks, range(schedule.chunks), OPS)
    return any(
        _is_right(_changed(schedule.name, schedule, place, **Transfer(*one)._asdict()))
        for one in choices
    )


def _is_right(schedule: Schedule) -> bool:
    return _told(schedule) is None


def _told(schedule: Schedule) -> "Place | None":
    """The place that the proof names; None if there is nothing to say."""
    try:
        prove(schedule)
    except ScheduleError as error:
        return (error.step, error.transfer)  # type: ignore[return-value]
    return None


# --- 04-3

LENET = [180, 20, 25_000, 50, 102_400, 128, 1_280, 10]
Owned = Tuple[List[int], List[int], int]  # sizes, owners, devices
OWNED: List[Owned] = [
    ([2, 2, 2, 2], [0, 1, 2, 3], 4),  # with four devices, mistakes give different numbers
    ([4, 2], [0, 1], 4),
    ([4], [0], 2),
    ([5], [0], 1),
    (LENET, [0] * 8, 2),
    (LENET, [0, 1] * 4, 4),
]


@exercise("04-3")
def busiest_link(answer: Callable[[Sequence[int], Sequence[int], int], int]) -> None:
    """How many numbers pass the busiest link one after the other, when each parameter is summed by
    its owner.
    """
    rng = np.random.RandomState(4)
    cases = list(OWNED)
    for _ in range(30):
        sizes, devices = (
            [int(size) for size in rng.randint(1, 100, rng.randint(1, 9))],
            int(rng.randint(1, 9)),
        )
        cases.append(
            (sizes, [int(owner) for owner in rng.randint(0, devices, len(sizes))], devices)
        )
    for sizes, owners, devices in cases:
        loads = [
            sum(size for size, owner in zip(sizes, owners) if owner == device)
            for device in range(devices)
        ]
        want, got = 2 * (devices - 1) * max(loads), answer(list(sizes), list(owners), devices)
        if isinstance(got, (int, float, np.number)) and got == want:
            continue
        en, ja = _fault_of_link(loads, got)
        call = f"busiest_link({sizes}, {owners}, {devices})"
        raise Wrong(
            en=f"{call} gave {got}, expected {want}{en}",
            ja=f"{call} の答えは {got} でしたが、正しくは {want} です{ja}",
        )


def _fault_of_link(loads: Sequence[int], got: Any) -> Tuple[str, str]:
    devices, total, most = len(loads), sum(loads), max(loads)
    if got is None:
        return ": the function returns nothing", "。関数が何も返していません"
    if got == 2 * devices * most:
        return (
            ": what an owner has itself does not pass its link",
            "。所有者自身の勾配はリンクを通りません",
        )
    if got == (devices - 1) * most:
        return (
            ": that is one way; the sums go back over the same link",
            "。これは片道分です。合計も同じリンクを通って戻ります",
        )
    if got == 2 * (devices - 1) * total:
        return ": that is what passes all links together", "。これは全リンクの合計です"
    if got == 2 * most:
        return (
            f": it comes from {devices - 1} other devices, and goes to as many",
            f"。ほかの {devices - 1} 台から届き、同じ台数に戻ります",
        )
    if got == max((devices - 1) * load + total - load for load in loads):
        return (
            (
                ": the sums go out when the gradients have come in; "
                "meanwhile the other direction had less to do"
            ),
            (
                "。合計が出ていくのは勾配が届いた後です。"
                "その間、逆方向に流れる量はもっと少なくなります"
            ),
        )
    return "", ""


# --- 04-4

PLACES: List[Tuple[Callable[[], Topology], float]] = [
    (lambda: switch(4, 10e-6, 10e9), 1e3),
    (lambda: switch(4, 10e-6, 10e9), 1e8),
    (lambda: make_topology("p3.16xlarge"), 1e8),
    (lambda: make_topology("p3.16xlarge"), 1e3),
    (lambda: make_topology("p3.8xlarge"), 1e6),
    (lambda: make_topology("g4dn.12xlarge"), 1e7),
    (lambda: make_topology("pcie", 4), 1e8),
]


@exercise("04-4")
def fastest(answer: Callable[[Topology, float], Schedule]) -> None:
    """The allreduce with the smallest price on a topology, for a size."""
    for make, size in PLACES:
        topology = make()
        got = answer(topology, size)
        what = f"fastest({topology.name}, {size:,.0f})"
        if not isinstance(got, Schedule) or got.world_size != topology.world_size:
            raise Wrong(
                en=f"{what} returned {got!r:.80}: return a Schedule for {topology.world_size} "
                f"ranks, such as `ring({topology.world_size})`",
                ja=f"{what} の戻り値は {got!r:.80} でした。`ring({topology.world_size})` のような "
                f"{topology.world_size} ランクの Schedule を返してください",
            )
        _check_allreduce(what, got)
        order = topology.ring_order()
        known = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
        choices = [(one.name, one) for one in known] + [
            (f"{one.name} placed on the ring", one.placed(order)) for one in known
        ]
        name, best = min(choices, key=lambda choice: price(choice[1], topology, size).seconds)
        mine, least = price(got, topology, size).seconds, price(best, topology, size).seconds
        if mine > least * 1.000001:
            placed = got.name == best.name
            en, ja = (
                ": place it, `schedule.placed(topology.ring_order())`",
                "。`schedule.placed(topology.ring_order())` で配置してください",
            )
            times = (f"{mine * 1e6:,.1f} us", f"{least * 1e6:,.1f} us")
            raise Wrong(
                en=f"{what} returned {got.name}, {times[0]}; {name} takes {times[1]}{en * placed}",
                ja=f"{what} の戻り値は {got.name} ({times[0]}) でした。"
                f"{name} なら {times[1]} です{ja * placed}",
            )


def _check_allreduce(what: str, schedule: Schedule) -> None:
    """Raise Wrong for a schedule that is cheap because it leaves something out."""
    try:
        prove(schedule)
    except ScheduleError as error:
        raise Wrong(
            en=f"{what} returned a schedule that is no right allreduce: {error}",
            ja=f"{what} の戻り値は正しい allreduce ではありません: {error}",
        ) from None
    if schedule.collective != ALLREDUCE:
        raise Wrong(
            en=f"{what} returned a {schedule.collective}: "
            "an allreduce is asked for, as the functions in `ALGORITHMS` make it",
            ja=f"{what} の戻り値は {schedule.collective} です。"
            "`ALGORITHMS` の関数が作るような allreduce を返してください",
        )


# --- 04-5


@exercise("04-5")
def ring_allreduce(answer: Callable[[List[Any], Links], Any]) -> None:
    """The arrays end with their sum, in place, and every device sends its share to its right
    neighbour only.
    """
    for seed, (devices, count) in enumerate(
        ((2, 2), (2, 4), (3, 3), (2, 5), (3, 7), (4, 4), (4, 10), (1, 3), (4, 1001))
    ):
        judge_ring(answer, devices, count, seed)
