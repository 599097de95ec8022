"""The exercises of lab 02: data parallelism by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.exercises.arrays import cpus, devices_in_words
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.landscapes import Landscape, check_rates, landscapes
from gluonlab.exercises.sums import check_devices, check_sums
from gluonlab.exercises.watch import Seen, watch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


def _vectors() -> List[List[Any]]:
    """What the devices hold, the simplest first: small whole numbers, so that every order of adding
    gives the same bits.
    """
    random = np.random.RandomState(0)
    cases: List[List[Any]] = [
        [[1], [2]],
        [[5, 7]],
        [[1, 10], [2, 20]],
        [[1], [2], [4]],
        [[1, 0], [0, 1], [2, 2], [-4, 8]],
    ]
    cases += [
        random.randint(-9, 10, (devices, *shape)).tolist()
        for devices, shape in ((2, (2, 3)), (3, (4,)), (5, (1, 2, 2)))
    ]
    return cases


@exercise("02-1")
def allreduce(answer: Callable[[List[nd.NDArray]], Any]) -> None:
    """The arrays of all devices end with their sum, in place."""
    for values in _vectors():
        held = [nd.array(value, ctx=ctx) for value, ctx in zip(values, cpus(len(values)))]
        given = list(held)
        with watch() as seen:
            returned = answer(given)
        check_sums(
            [[array] for array in held],
            [[np.array(value, dtype=np.float32)] for value in values],
            returned is not None or any(one is not other for one, other in zip(given, held)),
        )
        check_devices(seen)


@exercise("02-2")
def k_times_the_batch(answer: Callable[..., Any]) -> None:
    """Batch size, learning rate and steps for k devices."""
    random = np.random.RandomState(0)
    cases = [
        (1, 64, 0.1, 1280),
        (2, 64, 0.1, 1280),
        (2, 64, 0.1, 1437),
        (4, 256, 0.2, 60000),
        (8, 16, 0.05, 100),
    ]
    cases += [
        (
            int(random.randint(2, 17)),
            int(random.randint(1, 300)),
            0.01 * int(random.randint(1, 50)),
            60000,
        )
        for _ in range(5)
    ]
    for k, b, lr, images in cases:
        got = answer(k, b, lr, images)
        got = got.tolist() if isinstance(got, np.ndarray) else got
        en, ja = (
            f"{devices_in_words(k)} with {b} images each, lr {lr:g}, {images} images",
            f"{k} 台、1 台 {b} 枚、学習率 {lr:g}、{images} 枚",
        )
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            raise Wrong(
                en=f"{en}: it returned {got!r}: return three numbers, (global batch size, "
                "learning rate, steps)",
                ja=f"{ja}: {got!r} が返りました。(全体のバッチサイズ, 学習率, ステップ数) "
                "の 3 つの数を返してください",
            )
        batch, rate, steps = got
        if batch != k * b:
            raise Wrong(
                en=f"{en}: the global batch size is {batch}, expected {k * b}: "
                f"every device keeps its {b} images",
                ja=f"{ja}: 全体のバッチサイズが {batch} です。正しくは {k * b} です。"
                f"各デバイスの {b} 枚は変えません",
            )
        if not math.isclose(rate, k * lr, rel_tol=1e-6):
            why_en, why_ja = (
                "a batch k times as large goes with a rate k times as large",
                "バッチを k 倍にしたら学習率も k 倍にします",
            )
            if math.isclose(rate, lr / k):
                why_en, why_ja = (
                    "fewer steps must be longer, not shorter",
                    "ステップ数が減るので、1 回の更新は小さくではなく大きくします",
                )
            elif math.isclose(rate, math.sqrt(k) * lr):
                why_en, why_ja = (
                    "that is the square root rule; the linear one is asked for",
                    "これは平方根の規則です。線形スケーリング則を使ってください",
                )
            raise Wrong(
                en=f"{en}: the learning rate is {rate:g}, expected {k * lr:g}: {why_en}",
                ja=f"{ja}: 学習率が {rate:g} です。正しくは {k * lr:g} です。{why_ja}",
            )
        if steps != math.ceil(images / (k * b)) or int(steps) != steps:
            raise Wrong(
                en=f"{en}: {steps} steps per epoch, expected {math.ceil(images / (k * b))}: "
                f"batches of {k * b}, and the ragged one at the end is a step, too",
                ja=f"{ja}: 1 エポックが {steps} ステップです。"
                f"正しくは {math.ceil(images / (k * b))} です。"
                f"{k * b} 枚ずつのバッチで、最後の端数のあるバッチも 1 ステップです",
            )


@exercise("02-3")
def which_learning_rate(answer: Callable[..., Any]) -> None:
    """The best learning rate for each number of devices."""
    for landscape in landscapes():
        _choose(answer, landscape)


def _choose(answer: Callable[..., Any], landscape: Landscape) -> None:
    """What the answer chooses in this landscape, and how often it trains for that."""
    ks, b = landscape.ks, landscape.batch_per_device
    asked: "Counter[Tuple[int, float]]" = Counter()

    def accuracy_of(k: int, global_batch_size: int, lr: float) -> float:
        if global_batch_size != k * b:
            raise Wrong(
                en=f"on {devices_in_words(k)} a training with a global batch of "
                f"{global_batch_size} was asked for, expected {k * b}: "
                f"{b} images on each device",
                ja=f"{k} 台で全体のバッチサイズ {global_batch_size} の学習が行われました。"
                f"正しくは {k * b} (1 台あたり {b} 枚) です",
            )
        asked[k, lr] += 1
        return landscape.accuracy(global_batch_size, lr)

    check_rates(answer(accuracy_of, list(ks), b, list(landscape.rates)), landscape)
    for (k, lr), times in asked.items():
        if times > 1:
            raise Wrong(
                en=f"{devices_in_words(k)} with rate {lr:g} were trained {times} times: "
                "keep the accuracy, a training may be long",
                ja=f"{k} 台、学習率 {lr:g} の学習が {times} 回行われました。"
                "学習には何時間もかかることがあります。正解率を取っておいてください",
            )


@exercise("02-4")
def different_parameters_on_different_devices(
    answer: Callable[[List[List[nd.NDArray]]], Any],
) -> None:
    """An allreduce whose adding is spread over the devices."""
    random = np.random.RandomState(0)
    cases = [(2, [1]), (1, [2, 1]), (2, [1, 1]), (3, [2, 1, 3, 1]), (2, [6, 2, 5, 1, 4])]
    for devices, sizes in cases:
        _spread(
            answer,
            [
                [random.randint(-9, 10, size).astype(np.float32) for size in sizes]
                for _ in range(devices)
            ],
        )
    # weights and biases take turns, as in a network: every other parameter is large
    for devices, sizes in [
        (4, [16] * 12),
        (4, [160, 16] * 4),
        (3, [90, 9, 90, 9, 90, 9]),
        (4, [16, 320, 160, 160]),
    ]:
        values = [
            [random.randint(-9, 10, size).astype(np.float32) for size in sizes]
            for _ in range(devices)
        ]
        _check_balance(_spread(answer, values), devices, sizes)


def _spread(answer: Callable[[List[List[nd.NDArray]]], Any], values: "List[List[Floats]]") -> Seen:
    """What the answer does with these gradients, whose sums it must leave."""
    held = [
        [nd.array(value, ctx=ctx) for value in row] for row, ctx in zip(values, cpus(len(values)))
    ]
    given = [list(row) for row in held]
    with watch() as seen:
        returned = answer(given)
    new = returned is not None or any(
        one is not other for rows in zip(given, held) for one, other in zip(*rows)
    )
    check_sums(held, values, new)
    check_devices(seen)
    return seen


def _check_balance(seen: Seen, devices: int, sizes: List[int]) -> None:
    """Whether no device receives more than the busiest one if the largest parameters are given away
    first.
    """
    total, owned = sum(sizes), [0] * devices
    for size in sorted(sizes, reverse=True):
        owned[owned.index(min(owned))] += size
    fair = max(own * (devices - 1) + total - own for own in owned)
    received = dict.fromkeys(cpus(devices), 0)
    received.update(seen.received())
    busiest = max(received, key=lambda ctx: received[ctx])
    if received[busiest] <= 4 * fair * 1.001:
        return
    numbers = ", ".join(f"{ctx} {count // 4}" for ctx, count in received.items())
    if received[busiest] >= 4 * (devices - 1) * total:
        en, ja = (
            f"{busiest} collects everything, as in the star",
            f"星形と同じく {busiest} がすべてを集めています",
        )
    else:
        en, ja = (
            (
                f"{busiest} owns too much. Give away the largest parameters first, "
                "each to the device that owns least so far"
            ),
            (
                f"{busiest} の担当分が多すぎます。大きいパラメータから順に、"
                "担当分が最も少ないデバイスに割り当ててください"
            ),
        )
    raise Wrong(
        en=f"the sums are right. But with parameters of {sizes} numbers on {devices} devices "
        f"they received {numbers} numbers; {fair} at most are possible: {en}",
        ja=f"合計は正しいのですが、大きさが {sizes} のパラメータを {devices} 台で合計したとき、"
        f"各デバイスが受け取った数の個数は {numbers} でした。多くても {fair} 個で済みます。"
        f"{ja}",
    )


CLASSES = 5


class Evaluation(NamedTuple):
    """One call of the answer: in words, what came out and what should, how many images each device
    computed, what was seen.
    """

    en: str
    ja: str
    got: Any
    right: int
    images: int
    rows: "Counter[mx.Context]"
    share: int  # the most images that a device computes when every batch is split
    waits: int  # how often Python waited between the first batch and the last
    seen: Seen


@exercise("02-5")
def test_accuracy(answer: Callable[..., Any]) -> None:
    """The accuracy over all devices: every image once, and no waiting in between."""
    cases = [
        (4, 1, 4),
        (4, 2, 4),
        (8, 2, 4),
        (7, 2, 4),
        (6, 2, 4),
        (5, 4, 4),
        (9, 4, 8),
        (3, 4, 16),
        (24, 3, 4),
    ]
    evaluations = []
    for count, devices, batch in cases:
        evaluations.append(_evaluate(answer, count, devices, batch))
        _check_fraction(evaluations[-1])
    for en, ja, *_, rows, share, waits, seen in evaluations:
        busiest = max(rows, key=lambda ctx: rows[ctx])
        if rows[busiest] > share:
            raise Wrong(
                en=f"{en}: the result is right, but {busiest} computed {rows[busiest]} of the "
                f"images, {share} are its share: split every batch over all devices",
                ja=f"{ja}: 結果は正しいのですが、{busiest} が {rows[busiest]} 枚を計算しました。"
                f"担当分は {share} 枚です。すべてのバッチを全デバイスに分割してください",
            )
        if waits:
            raise Wrong(
                en=f"{en}: the result is right, but Python waited {waits} times before the last "
                "shard was queued: let each device count, and ask for the counts at the end",
                ja=f"{ja}: 結果は正しいのですが、最後のシャードをキューに入れるまでに Python が "
                f"{waits} 回待ちました。各デバイスに数えさせ、結果は最後に読み出してください",
            )
        check_devices(Seen(mixed=seen.mixed))


def _evaluate(answer: Callable[..., Any], count: int, devices: int, batch: int) -> Evaluation:
    """The answer's accuracy of a network that reads its guess off the image."""
    random = np.random.RandomState(count)
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
            raise Wrong(
                en=f"`net` got images on {x.context} with the replica on {params[0].context}: "
                "both must lie on the same device",
                ja=f"`net` に {x.context} の画像と {params[0].context} のレプリカが渡されました。"
                "同じデバイスのものを渡してください",
            )
        rows[x.context] += len(x)
        waits.append(seen.waits)
        return nd.dot(x.flatten(), params[0])

    with watch() as seen:
        got = answer(net, replicas, nd.array(images), nd.array(labels), batch)
        got = float(got.asscalar()) if isinstance(got, nd.NDArray) else got
    en, ja = (
        f"{count} images in batches of {batch} on {devices_in_words(devices)}",
        f"{count} 枚、バッチ {batch}、{devices} 台",
    )
    share = sum(-(-min(batch, count - begin) // devices) for begin in range(0, count, batch))
    between = waits[-1] - waits[0] if waits else 0
    return Evaluation(
        en, ja, got, int((guesses == labels).sum()), count, rows, share, between, seen
    )


def _check_fraction(evaluation: Evaluation) -> None:
    en, ja, got, right, count, computed, *_ = evaluation
    rows = sum(computed.values())
    if isinstance(got, (int, float, np.number)) and math.isclose(
        float(got), right / count, abs_tol=1e-5
    ):
        return
    why_en, why_ja = "", ""
    if not isinstance(got, (int, float, np.number)):
        why_en, why_ja = ": return a number", "。数値を返してください"
    elif rows < count:
        why_en, why_ja = (
            f": only {rows} images were computed, the last batch is missing",
            f"。{rows} 枚しか計算していません。最後のバッチが抜けています",
        )
    elif rows > count:
        why_en, why_ja = (
            f": {rows} images were computed, some twice",
            f"。{rows} 枚を計算しています。2 回数えた画像があります",
        )
    elif math.isclose(float(got), right, abs_tol=1e-5):
        why_en, why_ja = (
            ": that is how many are right, not the fraction",
            "。これは割合ではなく正解数です",
        )
    else:
        why_en, why_ja = (
            (
                ": each image was computed once. Add up what is right over all batches and "
                "devices, then divide by the number of images; "
                "a mean of the batches' accuracies counts images of small batches more"
            ),
            (
                "。どの画像も 1 回ずつ計算されています。全バッチ、"
                "全デバイスの正解数を合計してから全体の枚数で割ってください。"
                "バッチごとの正解率を平均すると、小さいバッチの画像を重く数えてしまいます"
            ),
        )
    raise Wrong(
        en=f"{en}, {right} of them right: got {got!r}, expected {right / count:.4g}{why_en}",
        ja=f"{ja}、正解は {right} 枚: {got!r} になりました。"
        f"正しくは {right / count:.4g} です{why_ja}",
    )
