"""02-5: the accuracy on all test images, computed by all devices."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Callable, List, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import (
    NUMBERS,
    Case,
    in_english,
    looks_like,
    wrong,
)
from gluonlab.exercises.shared.watch import Seen, check_devices, watch

CLASSES = 5


class Evaluation(NamedTuple):
    """One call of the answer: its result, the right one, and what each device did for it."""

    case: Case
    got: Any
    right: int
    images: int
    rows: "Counter[mx.Context]"
    times: List[int]  # how often each image was computed
    of_batches: float  # the mean of the batches' accuracies
    share: int  # the most images that a device computes when every batch is split
    waits: int  # how often Python waited between the first batch and the last
    seen: Seen


@exercise("02-5")
def accuracy_on_all_devices(answer: Callable[..., Any]) -> None:
    """The accuracy over all devices: every image once, and no waiting in between."""
    cases = [(4, 1, 4), (4, 2, 4), (8, 2, 4), (7, 2, 4), (6, 2, 4), (5, 4, 4), (9, 4, 8)]
    evaluations = []
    for count, devices, batch in [*cases, (3, 4, 16), (24, 3, 4)]:
        evaluations.append(_evaluate(answer, count, devices, batch))
    for evaluation in evaluations:
        _check_fraction(evaluation, evaluations)
    for case, *_, rows, _, _, share, waits, seen in evaluations:
        busiest = max(rows, key=lambda ctx: rows[ctx])
        case.check(
            (rows[busiest] > share,
             f"the result is right, but {busiest} computed {rows[busiest]} of the "
             f"images, {share} are its share: split every batch over all devices",
             f"結果は正しいのですが、{busiest} が {rows[busiest]} 枚を計算しました。"
             f"担当分は {share} 枚です。すべてのバッチを全デバイスに分割してください"),
            (waits,
             f"the result is right, but Python waited {waits} times before the last "
             "shard was queued: let each device count, and ask for the counts at the end",
             "結果は正しいのですが、最後のシャードをキューに入れるまでに Python が "
             f"{waits} 回待ちました。各デバイスに数えさせ、結果は最後に読み出してください"),
        )  # fmt: skip
        check_devices(Seen(mixed=seen.mixed))


def _evaluate(answer: Callable[..., Any], count: int, devices: int, batch: int) -> Evaluation:
    """The answer's accuracy of a network that reads its guess off the image."""
    random = draws(count)
    labels = random.randint(0, CLASSES, count)
    guesses = np.where(random.rand(count) < 0.6, labels, (labels + 1) % CLASSES)
    guesses[-1] = labels[-1]  # or else nobody would notice that the last batch is missing
    images = np.zeros((count, 1, 2, 3), dtype=np.float32)
    images.reshape(count, 6)[np.arange(count), guesses] = 1
    images.reshape(count, 6)[:, CLASSES] = np.arange(count)  # the image's number, unseen by the net
    replicas = [[nd.array(np.eye(6, CLASSES), ctx=ctx)] for ctx in cpus(devices)]
    rows: "Counter[mx.Context]" = Counter()
    computed: List[nd.NDArray] = []
    waits: List[int] = []  # so far, at each call of the network

    def net(x: nd.NDArray, params: Sequence[nd.NDArray]) -> nd.NDArray:
        if x.context != params[0].context:
            raise wrong(
                f"`net` got images on {x.context} with the replica on {params[0].context}: "
                "both must be on the same device",
                f"`net` に {x.context} の画像と {params[0].context} のレプリカが渡されました。"
                "同じデバイスのものを渡してください",
            )
        rows[x.context] += len(x)
        computed.append(x)
        waits.append(seen.waits)
        return nd.dot(x.flatten(), params[0])

    with watch() as seen:
        got = answer(net, replicas, nd.array(images), nd.array(labels), batch)
        got = float(got.asscalar()) if isinstance(got, nd.NDArray) else got
    case = Case(
        f"{count} images in batches of {batch} on {in_english(devices, 'device')}",
        f"{count} 枚、バッチ {batch}、{devices} 台",
    )
    share = sum(-(-min(batch, count - begin) // devices) for begin in range(0, count, batch))
    seen_numbers = Counter(
        int(number) for x in computed for number in x.asnumpy().reshape(len(x), 6)[:, CLASSES]
    )
    times = [seen_numbers[number] for number in range(count)]
    same = guesses == labels
    of_batches = np.mean([same[begin : begin + batch].mean() for begin in range(0, count, batch)])
    between, right = waits[-1] - waits[0] if waits else 0, int(same.sum())
    return Evaluation(case, got, right, count, rows, times, float(of_batches), share, between, seen)


def _check_fraction(one: Evaluation, evaluations: Sequence[Evaluation]) -> None:
    if _is(one.got, one.right / one.images):
        return
    (en, ja), right, count, times = one.case, one.right, one.images, one.times
    missing = [number for number, often in enumerate(times) if often == 0]
    twice = [number for number, often in enumerate(times) if often > 1]
    wrong_ones = [each for each in evaluations if not _is(each.got, each.right / each.images)]
    by_batches = len(wrong_ones) > 1 and all(_is(each.got, each.of_batches) for each in wrong_ones)
    why = looks_like(
        (not isinstance(one.got, NUMBERS), "return a number", "数値を返してください"),
        (missing,
         f"only {count - len(missing)} images were computed, and not number {_span(missing)}",
         f"{count - len(missing)} 枚しか計算していません。{_span(missing)} 番が抜けています"),
        (twice, f"number {_span(twice)} of the images was computed more than once",
         f"{_span(twice)} 番を 2 回以上計算しています"),
        (_is(one.got, right),
         "that is how many are right, not the fraction", "これは割合ではなく正解数です"),
        (by_batches,
         "that is the mean of the batches' accuracies, in which an image of a small batch counts "
         "more. Add up what is right over all batches and devices, then divide by the number of "
         "images",
         "これはバッチごとの正解率の平均で、小さいバッチの画像の寄与が大きくなっています。"
         "全バッチ、全デバイスの正解数を合計してから全体の枚数で割ってください"),
        (True,
         "each image was computed once. Add up what is right over all batches and devices, then "
         "divide by the number of images",
         "どの画像も 1 回ずつ計算されています。全バッチ、全デバイスの正解数を合計してから"
         "全体の枚数で割ってください"),
    )  # fmt: skip
    raise wrong(
        f"{en}, {right} of them right: got {one.got!r}, expected {right / count:.4g}",
        f"{ja}、正解は {right} 枚: {one.got!r} になりました。正しくは {right / count:.4g} です",
        why,
    )


def _is(got: Any, want: float) -> bool:
    return isinstance(got, NUMBERS) and math.isclose(float(got), want, abs_tol=1e-5)


def _span(numbers: Sequence[int]) -> str:
    """``4``, ``4-6``, ``1, 3, 5``: images by their numbers."""
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    if len(numbers) > 1 and last - first + 1 == len(numbers):
        return f"{first}-{last}"
    return ", ".join(map(str, numbers))
