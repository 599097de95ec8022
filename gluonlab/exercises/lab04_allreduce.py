"""The exercises of lab 04: schedules of collectives, their errors and their costs.

04-1: a reduce-scatter. 04-2: errors in schedules. 04-3 and 04-4: costs. 04-5: a ring allreduce by
hand. 04-6: a fast allreduce for the p3.16xlarge.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple
from typing import Counter as Counts

from gluonlab.collectives.algorithms import ALGORITHMS, double_tree, halving_doubling, ring
from gluonlab.collectives.cost_model import estimate_cost, find_best_order
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import Topology, make_topology
from gluonlab.collectives.schedule import ALLREDUCE, OPS, REDUCE_SCATTER, Schedule, Transfer
from gluonlab.collectives.synthesis import precomputed_schedules
from gluonlab.collectives.topology import switch
from gluonlab.collectives.verify_schedule import verify
from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise_registry import AnswerCost, case_integers, case_rng, exercise, extra_cases
from gluonlab.exercises.explain_wrong_answers import (
    NO_TEXT,
    CaseText,
    Mistake,
    TextPair,
    check_faults,
    count_in_english,
    counterexample,
    is_integer,
    is_same_number,
    matches_formula,
    pick_explanation,
    run_cases,
    wrong_result_texts,
)
from gluonlab.exercises.guesses import ChoiceForm, DictForm, NumberForm, register_guess
from gluonlab.exercises.schedule_answers import (
    COST_TOLERANCE,
    Puzzle,
    check_proof,
    check_step_rules,
    describe_costliest_step,
    describe_total_cost,
    format_microseconds,
    read_steps,
)

# --- 04-1: the steps of a reduce-scatter


MODULO_HINT = (": is a `% world_size` missing?", "。`% world_size` を忘れていませんか")


@exercise("04-1")
def check_reduce_scatter(answer: Callable[[int], Sequence[Sequence[Transfer]]]) -> None:
    """Write the steps of a reduce-scatter that gives rank r the sum of chunk r."""
    random_sizes = extra_cases(3, lambda random: int(random.randint(6, 13)))
    for world_size in [2, 3, 4, 5, 8, 1, *random_sizes]:
        call = f"reduce_scatter({world_size})"
        steps = read_steps(answer(world_size), call)
        check_step_rules(call, world_size, world_size, steps, MODULO_HINT)
        owner = tuple(range(world_size))
        check_proof(call, Schedule("yours", REDUCE_SCATTER, world_size, world_size, owner, steps))
        count, needed = sum(map(len, steps)), world_size * (world_size - 1)
        if count > needed:
            raise CaseText(call, call).counterexample(
                f"the sums are right, but your schedule makes {count} transfers instead of {needed}: each chunk needs "
                f"only {count_in_english(world_size - 1, 'addition')}",
                f"結果は正しいですが、転送が {count} 回あります。"
                f"チャンクごとに加算は {world_size - 1} 回なので {needed} 回で済みます",
            )


# --- 04-2: the wrong transfer of a broken schedule


TransferIndex = Tuple[int, int]  # (step, transfer in the step), both counted from 0


def _replace_transfer(name: str, schedule: Schedule, spot: TransferIndex, **changes: Any) -> Schedule:
    """Return a copy of the schedule in which ``changes`` replace fields of one transfer.

    ``name``: the name of the copy. ``spot``: the step of the transfer, and its index in the step.
    """
    steps = [list(step) for step in schedule.steps]
    steps[spot[0]][spot[1]] = steps[spot[0]][spot[1]]._replace(**changes)
    return replace(schedule, name=name, steps=tuple(map(tuple, steps)))


BROKEN: Dict[str, Schedule] = {
    "A": _replace_transfer("A", ring(4), (1, 1), op="copy"),
    "B": _replace_transfer("B", double_tree(4), (0, 1), chunk=1),
    "C": _replace_transfer("C", halving_doubling(4), (1, 0), dst=3),
}


@exercise("04-2")
def check_wrong_transfers(answer: Mapping[str, TransferIndex]) -> None:
    """Find the wrong transfer in each of three broken schedules."""
    import numpy as np

    for name, schedule in BROKEN.items():
        if not isinstance(answer, Mapping) or name not in answer:
            raise counterexample(
                f"there is no answer for schedule {name}: write a dictionary with the keys {', '.join(BROKEN)}",
                f"スケジュール {name} の答えがありません。キーが {', '.join(BROKEN)} の辞書にしてください",
            )
        spot, case = answer[name], CaseText(name, name)
        spot = tuple(spot) if isinstance(spot, (list, np.ndarray)) else spot
        if not _is_transfer_index(schedule, spot):
            last = len(schedule.steps) - 1
            raise case.counterexample(
                f"{spot!r} is not the position of a transfer: write (step, transfer), two numbers that start at 0; "
                f"the last step is {last}",
                f"{spot!r} という場所はありません。(ステップ, 転送) の組で、"
                f"ステップは 0 から {last}、どちらも 0 から数えます",
            )
        ranks = range(schedule.world_size)
        others = product(ranks, ranks, range(schedule.chunks), OPS)
        changed = (_replace_transfer(name, schedule, spot, **Transfer(*one)._asdict()) for one in others)
        if all(map(_find_proof_failure, changed)):
            transfer = schedule.steps[spot[0]][spot[1]]
            raise case.counterexample(
                f"no other transfer in place of `{transfer}` makes the schedule correct",
                f"`{transfer}` を何に置き換えても、スケジュールは正しくなりません",
                pick_explanation(
                    (_find_proof_failure(schedule) == spot,
                     "that is where `verify` noticed the error: the chunk that is sent there was already wrong, so "
                         "look at earlier steps",
                     "そこは `verify` が誤りを見つけた場所です。送られる中身がすでに間違っているので、"
                     "さかのぼってください"),
                ),
            )  # fmt: skip


def _is_transfer_index(schedule: Schedule, spot: Any) -> bool:
    """Return whether ``spot`` is a pair (step, index in the step) that exists in the schedule."""
    pair = isinstance(spot, tuple) and len(spot) == 2
    if not pair or not all(is_integer(n) for n in spot):
        return False
    step, transfer = spot
    return step in range(len(schedule.steps)) and transfer in range(len(schedule.steps[step]))


def _find_proof_failure(schedule: Schedule) -> Optional[TransferIndex]:
    """Return (step, index in the step) of the transfer that `verify` rejects, or None."""
    try:
        verify(schedule)
    except ScheduleError as error:
        return (error.step, error.transfer)  # type: ignore[return-value]
    return None


# --- 04-3 and 04-4: the numbers on the busiest link, and the fastest allreduce


LENET = [180, 20, 25_000, 50, 102_400, 128, 1_280, 10]
BUSIEST_LINK_CASES: List[Tuple[List[int], List[int], int]] = [  # sizes, owners, devices
    ([2, 2, 2, 2], [0, 1, 2, 3], 4),  # each mistake leads to a different number in this case
    ([4, 2], [0, 1], 4),
    ([4], [0], 2),
    ([5], [0], 1),
    (LENET, [0] * 8, 2),
    (LENET, [0, 1] * 4, 4),
]


@exercise("04-3")
def check_busiest_link(answer: Callable[[Sequence[int], Sequence[int], int], int]) -> None:
    """Count the numbers that pass the busiest link if each parameter is summed by its owner."""
    rng, cases = case_integers(4), list(BUSIEST_LINK_CASES)
    for _ in range(30):
        sizes = rng.randint(1, 100, rng.randint(1, 9))
        devices = rng.randint(1, 9)
        cases.append((sizes, rng.randint(0, devices, len(sizes)), devices))

    def expected_size(sizes: Sequence[int], owners: Sequence[int], k: int) -> int:
        return 2 * (k - 1) * max(_owner_loads(sizes, owners, k))

    def describe(sizes: Sequence[int], owners: Sequence[int], k: int, got: Any, want: int) -> TextPair:
        return wrong_result_texts(f"busiest_link({sizes}, {owners}, {k})", got, want)

    run_cases(answer, cases, expected_size).check_results(is_same_number, LINK_MISTAKES, describe)


def _owner_loads(sizes: Sequence[int], owners: Sequence[int], devices: int) -> List[int]:
    """Return how many numbers each device sums, which is the total size of its parameters."""
    loads = [0] * devices
    for size, owner in zip(sizes, owners):
        loads[owner] += size
    return loads


def _matches_load_formula(formula: Callable[[List[int], int], float]) -> Callable[..., bool]:
    """Return a predicate that tests whether the result is ``formula(loads, devices)``."""
    return matches_formula(lambda sizes, owners, k: formula(_owner_loads(sizes, owners, k), k))


LINK_MISTAKES: List[Mistake] = [
    (_matches_load_formula(lambda loads, k: 2 * k * max(loads)), "an owner's own gradients do not pass its link",
     "担当デバイス自身の勾配はリンクを通りません"),
    (_matches_load_formula(lambda loads, k: (k - 1) * max(loads)),
     "that counts one direction only: the sums go back over the same link",
     "これは片道分です。合計も同じリンクを通って戻ります"),
    (_matches_load_formula(lambda loads, k: 2 * (k - 1) * sum(loads)),
     "that is the traffic of all links together: return the busiest link's",
     "これは全リンクの合計です"),
    (_matches_load_formula(lambda loads, k: 2 * (k - 1) * sum(loads) / k),
     "that is the mean of all links: return the busiest link's, at the device that owns most",
     "これは全リンクの平均です。最も混むのは、担当分が最も多いデバイスのリンクです"),
    (_matches_load_formula(lambda loads, k: 2 * max(loads)),
     "count all other devices: each sends its gradients to the owner and gets the sums back",
     "ほかの全デバイスから届き、全デバイスに戻ります"),
    (matches_formula(lambda sizes, owners, k: 2 * (k - 1) * max(sizes)),
     "all parameters of an owner pass its link, not only the largest one",
     "担当デバイスのリンクには、最大のパラメータだけでなく担当するすべてのパラメータが通ります"),
    (_matches_load_formula(lambda loads, k: max((k - 1) * load + sum(loads) - load for load in loads)),
     "that adds both directions while the gradients come in: add the gradients that come in and the sums that go out",
     "合計が出ていくのは勾配が届いた後です。その間、逆方向に流れる量はもっと少なくなります"),
]  # fmt: skip


# Each case is a function that creates a topology, and the allreduce sizes to try, in bytes.
TOPOLOGY_CASES: List[Tuple[Callable[[], Topology], List[float]]] = [
    (lambda: switch(4, 10e-6, 10e9), [1e3, 1e8]),
    (lambda: make_topology("p3.16xlarge"), [1e8, 1e3]),
    (lambda: make_topology("p3.8xlarge"), [1e6]),
    (lambda: make_topology("g4dn.12xlarge"), [1e7]),
    (lambda: make_topology("pcie", 4), [1e8]),
]


def _random_topology_case(random: Any) -> Tuple[Callable[[], Topology], List[float]]:
    make, _ = TOPOLOGY_CASES[int(random.randint(len(TOPOLOGY_CASES)))]
    return make, [float(10 ** random.uniform(3, 8))]


@exercise("04-4")
def check_fastest(answer: Callable[[Topology, float], Schedule]) -> None:
    """Find the fastest allreduce on a topology, for a size."""
    cases = [*TOPOLOGY_CASES, *extra_cases(4, _random_topology_case)]
    for topology, size in ((make(), size) for make, sizes in cases for size in sizes):
        got, ranks = answer(topology, size), topology.world_size
        call_text = f"fastest({topology.name}, {size:,.0f})"
        if not isinstance(got, Schedule) or got.world_size != ranks:
            raise counterexample(
                f"{call_text} returned {got!r:.80}: return a Schedule for {ranks} ranks, such as `ring({ranks})`",
                f"{call_text} の戻り値は {got!r:.80} でした。`ring({ranks})` のような "
                f"{ranks} ランクの Schedule を返してください",
            )
        try:
            verify(got)  # an incomplete schedule may be cheaper than all correct schedules
        except ScheduleError as error:
            raise counterexample(
                f"{call_text} returned a schedule that is not a correct allreduce: {error}",
                f"{call_text} の戻り値は正しい allreduce ではありません: {error}",
            ) from None
        known = [algorithm(ranks) for algorithm in ALGORITHMS.values()]
        choices = [(one.name, one) for one in known]
        order = topology.ring_order()
        choices += [(f"{one.name} placed on the ring", one.placed(order)) for one in known]
        seconds = [estimate_cost(one, topology, size).seconds for _, one in choices]
        cost_s, least_s = estimate_cost(got, topology, size).seconds, min(seconds)
        name, best = choices[seconds.index(least_s)]
        call = "`schedule.placed(topology.ring_order())`"
        cost_texts = (f"{cost_s * 1e6:,.1f} us", f"{least_s * 1e6:,.1f} us")
        placing_hint = f": place it, {call}", f"。{call} で配置してください"
        hint = placing_hint if got.name == best.name else NO_TEXT
        check_faults(
            (got.collective != ALLREDUCE,
             f"{call_text} returned a {got.collective}: return an allreduce, as the functions in `ALGORITHMS` do",
             f"{call_text} の戻り値は {got.collective} です。`ALGORITHMS` の関数が作るような allreduce "
             "を返してください"),
            (cost_s > least_s * 1.000001,
             f"{call_text} returned {got.name}, {cost_texts[0]}; {name} takes {cost_texts[1]}{hint[0]}",
             f"{call_text} の戻り値は {got.name} ({cost_texts[0]}) でした。{name} なら {cost_texts[1]} です{hint[1]}"),
        )  # fmt: skip


# --- 04-5: a ring allreduce by hand: check its sums, and the numbers sent on each link


class LinkCounter:
    """The function ``send(piece, src, dst)`` that an answer calls to copy between devices.

    ``elements[src, dst]``: the number of elements that were sent from device src to device dst.
    """

    def __init__(self, ctxs: List[Any]) -> None:
        self.ctxs = ctxs
        self.elements: Counts[Tuple[int, int]] = Counter()

    def __call__(self, piece: Any, src: int, dst: int) -> Any:
        """Return a copy on device ``dst`` of ``piece``, an array on device ``src``."""
        last, there = len(self.ctxs) - 1, all(one in range(len(self.ctxs)) for one in (src, dst))
        CaseText(*[f"send(piece, {src}, {dst})"] * 2).check_faults(
            (not there, f"devices go from 0 to {last}: is a `% len(arrays)` missing?",
             f"デバイスは 0 から {last} までです。`% len(arrays)` を忘れていませんか"),
            (there and piece.context != self.ctxs[src], f"the piece is on {piece.context}, not on device {src}",
             f"送ろうとした配列は {piece.context} にあり、デバイス {src} にはありません"),
        )  # fmt: skip
        self.elements[src, dst] += piece.size
        return piece.copyto(self.ctxs[dst])


@exercise("04-5")
def check_ring_allreduce(answer: Callable[[List[Any], LinkCounter], Any]) -> None:
    """Write a ring allreduce: sum in place, and let each device send only to its right neighbor."""
    from mxnet import nd  # imported here, because 04-6 also runs in a browser

    from gluonlab.exercises.array_tracking import cpu_devices

    sizes = ((2, 2), (2, 4), (3, 3), (2, 5), (3, 7), (4, 4), (4, 10), (1, 3), (4, 1001))
    for seed, (devices, count) in enumerate(sizes):
        ctxs, rng = cpu_devices(devices), case_rng(seed)
        # small whole numbers, so that their sum is exact
        initial = [rng.randint(-9, 10, count).astype("float32") for _ in ctxs]
        arrays, links = ([nd.array(part, ctx=ctx) for part, ctx in zip(initial, ctxs)], LinkCounter(ctxs))
        answer(list(arrays), links)
        case = CaseText(
            f"{count_in_english(devices, 'device')}, {count_in_english(count, 'number')} each",
            f"{devices} 台、各 {count} 個",
        )
        _check_sums(case, initial, [array.asnumpy() for array in arrays])
        _check_ring_links(case, links, devices, count)


def _check_sums(case: CaseText, initial: List[Any], final: List[Any]) -> None:
    """Raise Wrong unless each device's ``final`` array is the sum of all ``initial`` arrays."""
    import numpy as np

    total, n = np.sum(initial, axis=0), len(final)
    for device, values in enumerate(final):
        wrong_indices = np.flatnonzero(values != total)
        if not len(wrong_indices):
            continue
        index = int(wrong_indices[0])
        partial_sums = [sum(part[index] for part in initial[:partial_sums]) for partial_sums in range(2, n)]
        explanation = pick_explanation(
            (index >= len(total) // n * n,
             f"{len(total)} is not a multiple of {n}, so the last numbers are not in any chunk",
             f"{len(total)} は {n} で割り切れず、最後の数がどのチャンクにも入っていません"),
            (values[index] in partial_sums, "that is the sum of only some devices", "一部のデバイスだけの合計です"),
            (np.array_equal(values, initial[device]), "nothing was written to it", "何も書き込まれていません"),
        )  # fmt: skip
        raise case.counterexample(
            f"element {index} of the array on device {device} is {values[index]:g}, expected {total[index]:g}",
            f"デバイス {device} の {index} 番目は {values[index]:g} でしたが、正しくは {total[index]:g} です",
            explanation,
        )


def _check_ring_links(case: CaseText, links: LinkCounter, devices: int, count: int) -> None:
    """Raise Wrong unless each device sends as much as in a ring, and only to the next device."""
    min_sent, max_sent = (2 * (devices - 1) * each for each in (count // devices, -(-count // devices)))
    sent = [0] * devices
    for (src, _), elements in links.elements.items():
        sent[src] += elements
    offsets = {(dst - src) % devices for src, dst in links.elements}
    pairs = ", ".join(f"{src} -> {dst}" for src, dst in sorted(links.elements))
    needed = 2 * (devices - 1) * count
    case.check_faults(
        (sum(sent) < needed,
         f"the sums are right, but only {sum(sent)} numbers went through `send`, and an allreduce needs {needed}: "
             "devices must not read the arrays of other devices directly",
         f"合計は正しいですが、`send` を通ったのは {sum(sent)} 個だけです。allreduce には {needed} 個の転送が必要です。"
         "ほかのデバイスの配列を直接読んではいけません"),
        (max(sent) > max_sent,
         f"the sums are right, but device {sent.index(max(sent))} sent {max(sent)} numbers, in a ring at most "
             f"{max_sent}: send one chunk in each step, not the whole array",
         f"合計は正しいですが、デバイス {sent.index(max(sent))} が {max(sent)} 個送りました。リングなら多くても "
         f"{max_sent} 個です。各ステップで送るのは 1 チャンクだけです"),
        (devices > 2 and offsets == {devices - 1},
         "the sums are right, but the ring runs in the wrong direction: device i must send to i + 1, but your "
             "device i sends to i - 1",
         "合計は正しいですが、リングが逆回りです。デバイス i は i + 1 に送ります。ここでは i - 1 に送っています"),
        (offsets - {1} or min(sent) < min_sent,
         f"the sums are right, but that is not a ring: {pairs}: each device sends to the next one only",
         f"合計は正しいですが、リングではありません ({pairs})。各デバイスが送る相手は次のデバイスだけです"),
    )  # fmt: skip


# --- 04-6: an allreduce for the p3.16xlarge that is faster than the best of the eight algorithms


BEAT_THE_EIGHT = Puzzle("beat_the_eight()", make_topology("p3.16xlarge"), 1e8)


@lru_cache(maxsize=None)
def cheapest_algorithm() -> Tuple[str, float]:
    """Return the name and seconds of gluonlab's fastest allreduce algorithm on the p3.16xlarge.

    For each algorithm, the ranks are assigned to the devices in the best order.
    """
    topology, size = BEAT_THE_EIGHT.topology, BEAT_THE_EIGHT.size_bytes
    algorithms = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
    placed_algorithms = [schedule.placed(find_best_order(schedule, topology)) for schedule in algorithms]
    seconds, name = min(
        (estimate_cost(schedule, topology, size).seconds, schedule.name) for schedule in placed_algorithms
    )
    return name, seconds


def lower_bound_s() -> float:
    """Return a lower bound, in seconds, on the time of any schedule for this exercise."""
    return find_lower_bound(BEAT_THE_EIGHT.topology).seconds(BEAT_THE_EIGHT.size_bytes)


@exercise("04-6")
def check_beat_the_eight(answer: Callable[[], Any]) -> AnswerCost:
    """Write an allreduce for the p3.16xlarge that is faster than all eight algorithms."""
    schedule = BEAT_THE_EIGHT.read_proved_schedule(answer)
    cost, (name, best_s) = BEAT_THE_EIGHT.estimate_cost(schedule), cheapest_algorithm()
    (en, ja), (why, why_ja) = describe_total_cost(cost), describe_costliest_step(cost)
    call = BEAT_THE_EIGHT.call
    CaseText(call, call).check_faults(
        (cost.seconds >= best_s * (1 - COST_TOLERANCE),
         f"the schedule is correct, but it takes {en}: it must be faster than `{name}` with placed ranks, which takes "
             f"{format_microseconds(best_s)}{why}",
         f"正しいことは証明されましたが、{ja}かかります。配置した {name} なら {format_microseconds(best_s)} です。"
         f"それより短くしてください{why_ja}"),
    )  # fmt: skip
    floor_us, best_us = format_microseconds(lower_bound_s()), format_microseconds(best_s)
    ratio, is_precomputed = f"{cost.seconds / lower_bound_s():.3f}", _is_stored_schedule(schedule)
    not_in_en = "; it does not count in a leaderboard, because gluonlab's own solver found this schedule"
    not_in_ja = "。ただし、gluonlab のソルバーが見つけたものなので、順位表には載りません"
    return AnswerCost(
        None if is_precomputed else round(cost.seconds * 1e6, 3),
        en=f"{en}, {ratio} times the lower bound of {floor_us}; the best of the eight, {name}, takes "
        f"{best_us}{not_in_en * is_precomputed}",
        ja=f"{ja}で、下限 {floor_us} の {ratio} 倍です。8 つのうち最も速い {name} は "
        f"{best_us} です{not_in_ja * is_precomputed}",
    )


def _is_stored_schedule(schedule: Schedule) -> bool:
    """Return whether gluonlab contains this schedule, possibly with its chunks in another order."""
    transfers = _count_transfers(schedule)
    return any(
        transfers == _count_transfers(stored)
        for stored in precomputed_schedules.choose_schedules(BEAT_THE_EIGHT.topology)
    )


def _count_transfers(schedule: Schedule) -> "List[Counter[Tuple[int, int, str]]]":
    """Return, for each step, the number of transfers with the same (src, dst, op)."""
    return [Counter((t.src, t.dst, t.op) for t in step) for step in schedule.steps]


# --- The guesses


# fmt: off
register_guess("04-a", DictForm(NumberForm(0, example=2.5, within=0.001), "ring: steps", "ring: sends", "star: sends"),
    "with 4 ranks, how many steps are needed, and how many arrays does the busiest rank send?",
    "4 ランク: 何ステップか。最も忙しいランクが送るのは配列何個分か")
register_guess("04-b", NumberForm(0, example=3, factor=1.01),
    "with 8 ranks, how many times as many bytes pass through the busiest port in star as in ring?",
    "8 ランク: star で最も忙しいポートを通るバイト数は ring の何倍か")
register_guess("04-c", DictForm(ChoiceForm(*ALGORITHMS), "1 KB", "100 MB"),
    "which algorithm is the fastest on a p3.16xlarge?", "p3.16xlarge で最も速いのはどのアルゴリズムか")
register_guess("04-d", NumberForm(0, example=20, factor=1.1),
    "what busbw in GB/s does the fastest schedule reach for 1 GB on a p3.16xlarge?",
    "p3.16xlarge で 1 GB: 見積もりが最も小さいスケジュールの busbw は何 GB/s か")
register_guess("04-e", NumberForm(0, example=3, factor=1.3),
    "how many times as long as ring does star take for 4 MiB on this machine?",
    "このマシンで 4 MiB: star の時間は ring の何倍か")
register_guess("04-f", DictForm(NumberForm(0, 1, example=0.5, within=0.15), "15", "1"),
    "after what fraction of backward is the last layer's gradient ready with bulks of 15 and 1?",
    "まとまりが演算 15 個と 1 個のとき: 最後の層の勾配は逆伝播の何割でそろうか")
