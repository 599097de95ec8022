"""05-1 and 05-2: what a chain of layers sends over its cuts, and where to cut it."""

from __future__ import annotations

import itertools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab05.lists import by_list, drawn, fault, listed, shown
from gluonlab.exercises.shared.counterexamples import Case, in_english, returned, wrong
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results
from gluonlab.parallel.stages.partition import least_largest

BYTES = 4  # of a float32

Costs = List[float]


@exercise("05-1")
def sent_bytes(answer: Callable[[List[int], List[int], int], Sequence[int]]) -> None:
    """The bytes that each device sends in a step of a network that is cut between its layers."""
    cases: List[Tuple[List[int], List[int], int]] = [
        ([3, 5], [1], 1),
        ([7, 5, 2, 4], [1, 3], 1),
        ([7, 5, 2, 4], [1, 3], 6),
        ([3380, 800, 128, 10], [2], 64),
        ([3380, 800, 128, 10], [], 64),
    ]
    random = draws(51)
    for _ in range(10):
        layers = int(random.randint(2, 10))
        places = random.permutation(np.arange(1, layers))[: random.randint(1, layers)]
        cuts = sorted(int(place) for place in places)
        cases.append((drawn(random, layers, 1, 900), cuts, int(random.randint(2, 129))))
    found = results(
        lambda outputs, cuts, images: listed(answer(list(outputs), list(cuts), images)),
        cases,
        _sent,
    )
    fails = fault(found, lambda o, c, n: f"sent_bytes({o}, {c}, {n})", OF_BYTES)
    if fails:
        raise fails


def _boundaries(outputs: Sequence[int], cuts: Sequence[int], beyond: int = 0) -> List[int]:
    """The numbers at each stage's edges: before the first, between two, and behind the last."""
    inside = [outputs[cut - 1 + beyond] for cut in cuts]
    return [0, *inside, 0]


def _sent(outputs: Sequence[int], cuts: Sequence[int], images: int) -> List[int]:
    return list(_times(BYTES * images, _boundaries(outputs, cuts)))


def _times(each: float, edges: Sequence[float]) -> Any:
    """What goes on to the next stage, and what goes back to the one before."""
    return [each * (before + after) for before, after in zip(edges, edges[1:])]


def _stages(outputs: Sequence[int], cuts: Sequence[int]) -> List[Sequence[int]]:
    bounds = [0, *cuts, len(outputs)]
    return [outputs[begin:end] for begin, end in zip(bounds, bounds[1:])]


def _forward_only(outputs: Sequence[int], cuts: Sequence[int], images: int) -> List[int]:
    return [BYTES * images * after for after in _boundaries(outputs, cuts)[1:]]


def _last_too(outputs: Sequence[int], cuts: Sequence[int], images: int) -> List[int]:
    edges = [*_boundaries(outputs, cuts)[:-1], outputs[-1]]
    return list(_times(BYTES * images, edges))


def _own_back(outputs: Sequence[int], cuts: Sequence[int], images: int) -> List[int]:
    """The gradient of what a stage itself puts out, in place of that of what it received."""
    own = [BYTES * images * stage[-1] for stage in _stages(outputs, cuts)]
    return [size * ((n < len(cuts)) + (n > 0)) for n, size in enumerate(own)]


def _all_layers(outputs: Sequence[int], cuts: Sequence[int], images: int) -> List[int]:
    return [BYTES * images * sum(stage) for stage in _stages(outputs, cuts)]


OF_BYTES: List[Mistake] = [
    (by_list(_forward_only),
     "in backward, each device sends the gradient of what it received back over the same cut",
     "逆伝播では、各デバイスが受け取った活性値の勾配を同じ切れ目から送り返します"),
    (by_list(lambda o, c, n: _times(n, _boundaries(o, c))),
     "those are numbers, and a float32 has 4 bytes",
     "それは数値の個数です。float32 は 1 個 4 バイトです"),
    (by_list(lambda o, c, n: _times(BYTES, _boundaries(o, c))),
     "that is for one image, not for the batch", "これは画像 1 枚分です。バッチ全体の量を答えます"),
    (by_list(lambda o, c, n: _times(BYTES * n, _boundaries(o, c, 1))),
     "layer c begins the next stage: over the cut goes what layer c - 1 puts out",
     "層 c は次のステージの最初の層です。切れ目を通るのは層 c - 1 の出力です"),
    (by_list(lambda o, c, n: _times(2 * BYTES * n, _boundaries(o, c))),
     "that is twice as much: a number has 4 bytes, and what a device receives it does not send",
     "ちょうど 2 倍です。1 個は 4 バイトで、受け取る量は数えません"),
    (by_list(_own_back),
     "what goes back over a cut is the gradient of what a device received, not of what it puts out",
     "切れ目から送り返すのは受け取った値の勾配です。自分が出力した値の勾配ではありません"),
    (by_list(lambda o, c, n: [2 * sent for sent in _forward_only(o, c, n)]),
     "the gradient that goes back over a cut is sent by the device behind the cut",
     "切れ目を通って戻る勾配を送るのは、切れ目の後ろのデバイスです"),
    (by_list(_last_too),
     "the last device sends no activation on: it computes the loss itself",
     "最後のデバイスは活性値を送りません。損失は自分で計算します"),
    (by_list(_all_layers),
     "what passes between layers of one stage stays on its device",
     "同じステージの層どうしでやり取りする値は、デバイスの外に出ません"),
]  # fmt: skip


@exercise("05-2")
def balanced(answer: Callable[[Costs, int], Sequence[int]]) -> None:
    """Where to cut a chain of layers so that its most expensive stage is as cheap as can be."""
    cases: List[Tuple[Costs, int]] = [
        ([1, 1, 1, 1], 2),
        ([5, 1, 1, 1], 2),
        ([1, 1, 1, 5], 2),
        ([4, 3, 3, 4, 1, 3], 3),
        ([0.25, 0.5, 0.125, 0.25, 0.375], 3),
        ([2, 2, 2], 3),
        ([9, 1, 1, 1], 3),  # one layer decides, and yet there are to be three stages
        ([0, 0, 8, 0], 4),
        ([3, 0, 4], 1),
    ]
    random = draws(52)
    for number in range(14):
        layers = int(random.randint(4, 25))
        costs: Costs = [float(one) for one in drawn(random, layers, 0, 30)]
        if number % 2:
            costs = [round(one / 16, 4) for one in costs]
        cases.append((costs, int(random.randint(2, min(layers, 7)))))
    cases.append(([float(one) for one in drawn(random, 120, 1, 100)], 9))
    found = results(
        lambda costs, stages: listed(answer(list(costs), stages)),
        cases,
        lambda costs, stages: _largest(costs, _best(costs, stages)),
    )
    for (costs, stages), got, want in found:
        case = _case(costs, stages)
        _check_cuts(case, got, len(costs), stages)
        if _largest(costs, got) > want * (1 + 1e-9):
            raise _too_large(case, costs, got, _best(costs, stages), _why(found))
    found.end()


def _case(costs: Costs, stages: int) -> Case:
    call = f"balanced({shown(costs)}, {stages})"
    if len(costs) > 30:
        call = f"balanced of {len(costs)} layers, {stages}"
    return Case(call, call)


def _too_large(
    case: Case, costs: Costs, got: List[int], best: List[int], why: Tuple[str, str]
) -> Exception:
    largest, least = (shown([_largest(costs, cuts)])[1:-1] for cuts in (got, best))
    return wrong(
        f"{case.en} gave the cuts {shown(got)}, whose most expensive stage costs {largest}; "
        f"with {shown(best)} it costs {least}",
        f"{case.ja} の切れ目は {shown(got)} で、最大のステージのコストは {largest} です。"
        f"{shown(best)} なら {least} です",
        why,
    )


def _check_cuts(case: Case, got: Any, layers: int, stages: int) -> None:
    """Raise Wrong for what is no way to cut a chain."""
    whole = isinstance(got, list) and all(
        isinstance(cut, (int, np.integer)) and not isinstance(cut, bool) for cut in got
    )
    if not whole:
        raise returned(
            got, case.en, "a list of layers' numbers: those with which stages begin, but the first",
            "最初以外の各ステージが始まる層の番号のリスト",
        )  # fmt: skip
    case.check(
        (len(got) != stages - 1,
         f"{in_english(len(got), 'cut')}, {got}, make{'s' * (len(got) == 1)} "
         f"{in_english(len(got) + 1, 'stage')}, expected {stages}",
         f"切れ目が {len(got)} 個 ({got}) なので、ステージは {len(got) + 1} 個です。"
         f"正しくは {stages} 個です"),
        (any(not 1 <= cut < layers for cut in got),
         f"the cuts {got}: layers are numbered from 0 to {layers - 1}, and no stage is empty",
         f"切れ目が {got} です。層の番号は 0 から {layers - 1} までで、"
         "空のステージは作れません"),
        (any(b <= a for a, b in zip(got, got[1:])),
         f"the cuts {got} must rise: each stage has one layer at least",
         f"切れ目 {got} は順に増えていなければなりません。どのステージにも層が 1 つは要ります"),
    )  # fmt: skip


def _largest(costs: Costs, cuts: Sequence[int]) -> float:
    bounds = [0, *cuts, len(costs)]
    return max(sum(costs[begin:end]) for begin, end in zip(bounds, bounds[1:]))


def _best(costs: Costs, stages: int) -> List[int]:
    totals = [0.0, *itertools.accumulate(costs)]
    return least_largest(lambda _, begin, end: totals[end] - totals[begin], len(costs), stages)


def _equal_numbers(costs: Costs, stages: int) -> List[int]:
    """As many layers in each stage, the larger ones first."""
    each, extra = divmod(len(costs), stages)
    return [number * each + min(number, extra) for number in range(1, stages)]


def _equal_numbers_floor(costs: Costs, stages: int) -> List[int]:
    return [number * len(costs) // stages for number in range(1, stages)]


def _greedy(costs: Costs, stages: int, over: bool = False) -> Optional[List[int]]:
    """Each stage is closed before, or when, it is more than an equal part."""
    cuts: List[int] = []
    part, total = sum(costs) / stages, 0.0
    for number, cost in enumerate(costs):
        full = total >= part if over else total + cost > part
        if number and full and len(cuts) < stages - 1 and number > ([0, *cuts])[-1]:
            cuts.append(number)
            total = 0.0
        total += cost
    return cuts if len(cuts) == stages - 1 else None


def _why(found: Sequence[Any]) -> Tuple[str, str]:
    """What explains all results that are not best."""

    def right(got: Any, want: float) -> bool:
        return bool(got[1] <= want * (1 + 1e-9))

    priced = [
        result._replace(got=(result.got, _largest(result.case[0], result.got)))
        for result in found
        if isinstance(result.got, list) and len(result.got) == result.case[1] - 1
    ]

    def cuts_by(formula: Callable[[Costs, int], Optional[List[int]]]) -> Callable[..., bool]:
        return lambda costs, stages, got: list(got[0]) == formula(costs, stages)

    return explains(
        priced,
        right,
        (cuts_by(_equal_numbers),
         "every stage has the same number of layers, whatever they cost",
         "コストを見ずに、層の数を均等にしています"),
        (cuts_by(_equal_numbers_floor),
         "every stage has the same number of layers, whatever they cost",
         "コストを見ずに、層の数を均等にしています"),
        (lambda costs, stages, got: right(
            (None, _largest(costs, [cut + 1 for cut in got[0]])),
            _largest(costs, _best(costs, stages))),
         "those are the last layers of stages: a cut is the layer with which the next one begins",
         "それはステージの最後の層です。切れ目は次のステージが始まる層の番号です"),
        (cuts_by(_greedy),
         "stages are filled one after the other, each up to an equal part of the sum: "
         "what does not fit piles up in the last one",
         "合計の均等割りを上限に、前から順に詰めています。入り切らない分が最後のステージにたまります"),
        (cuts_by(lambda costs, stages: _greedy(costs, stages, over=True)),
         "stages are filled one after the other until each has an equal part of the sum: "
         "the last layer that is put into a stage may cost far more than was missing",
         "合計の均等割りに達するまで、前から順に詰めています。"
         "最後に入れた層の分だけ、超過することがあります"),
    )  # fmt: skip
