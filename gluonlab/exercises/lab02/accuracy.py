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
        _check_fraction(evaluations[-1])
    for case, *_, rows, share, waits, seen in evaluations:
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
    replicas = [[nd.array(np.eye(6, CLASSES), ctx=ctx)] for ctx in cpus(devices)]
    rows: "Counter[mx.Context]" = Counter()
    waits: List[int] = []  # so far, at each call of the network

    def net(x: nd.NDArray, params: Sequence[nd.NDArray]) -> nd.NDArray:
        if x.context != params[0].context:
            raise wrong(
                f"`net` got images on {x.context} with the replica on {params[0].context}: "
                "both must lie on the same device",
                f"`net` に {x.context} の画像と {params[0].context} のレプリカが渡されました。"
                "同じデバイスのものを渡してください",
            )
        rows[x.context] += len(x)
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
    between, right = waits[-1] - waits[0] if waits else 0, int((guesses == labels).sum())
    return Evaluation(case, got, right, count, rows, share, between, seen)


def _check_fraction(evaluation: Evaluation) -> None:
    (en, ja), got, right, count, computed, *_ = evaluation
    rows, is_number = sum(computed.values()), isinstance(got, NUMBERS)
    if is_number and math.isclose(float(got), right / count, abs_tol=1e-5):
        return
    why = looks_like(
        (not is_number, "return a number", "数値を返してください"),
        (rows < count, f"only {rows} images were computed, the last batch is missing",
         f"{rows} 枚しか計算していません。最後のバッチが抜けています"),
        (rows > count, f"{rows} images were computed, some twice",
         f"{rows} 枚を計算しています。2 回数えた画像があります"),
        (is_number and math.isclose(float(got), right, abs_tol=1e-5),
         "that is how many are right, not the fraction", "これは割合ではなく正解数です"),
        (True,
         "each image was computed once. Add up what is right over all batches and devices, then "
         "divide by the number of images; a mean of the batches' accuracies counts images of small "
         "batches more",
         "どの画像も 1 回ずつ計算されています。全バッチ、全デバイスの正解数を合計してから全体の"
         "枚数で割ってください。バッチごとの正解率を平均すると、"
         "小さいバッチの画像を重く数えてしまいます"),
    )  # fmt: skip
    raise wrong(
        f"{en}, {right} of them right: got {got!r}, expected {right / count:.4g}",
        f"{ja}、正解は {right} 枚: {got!r} になりました。正しくは {right / count:.4g} です",
        why,
    )
