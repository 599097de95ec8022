"""The checkers of lab 06: memory, microbatches, devices."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np
from mxnet import gluon

from gluonlab.exercises.arrays import cpus
from gluonlab.exercises.exercise import Wrong, exercise, returned
from gluonlab.exercises.microbatches import check_parts, wrong_update
from gluonlab.exercises.rounds import Rounds, check_rounds
from gluonlab.exercises.softmax_regression import (
    make_net,
    make_trainer,
    on_host,
    some_batches,
    some_values,
    values_of,
)

Shape = Tuple[int, ...]
NUMBER = (int, float, np.number)


# --- 06-1


@exercise("06-1")
def training_bytes(answer: Callable[..., int]) -> None:
    """How many bytes training needs: parameters, gradients, optimizer state, activations."""
    cases: List[Tuple[List[Shape], List[int], int, int]] = [
        ([(3,)], [], 1, 0),
        ([(3,)], [], 1, 2),
        ([(2, 3)], [5], 1, 0),
    ]
    cases += [([(2, 3)], [5], 4, 0), ([(2, 3), (2,)], [5, 1], 4, 1)]
    random = np.random.RandomState(6)
    for _ in range(8):
        shapes = [
            tuple(random.randint(1, 9, random.randint(1, 5)).tolist())
            for _ in range(random.randint(1, 5))
        ]
        outputs = random.randint(1, 999, random.randint(1, 6)).tolist()
        cases.append((shapes, outputs, int(random.randint(1, 512)), int(random.randint(0, 3))))
    for case in cases:
        _check_bytes(answer, *case)


def _check_bytes(
    answer: Callable[..., Any], shapes: List[Shape], outputs: List[int], images: int, states: int
) -> None:
    given = answer(list(shapes), list(outputs), images, states)
    numbers, kept = sum(math.prod(shape) for shape in shapes), sum(outputs)
    want = 4 * (numbers * (2 + states) + images * kept)
    if not isinstance(given, NUMBER):
        call = f"training_bytes({shapes}, {outputs}, images={images}, states={states})"
        raise returned(given, call, en="a number", ja="数値")
    if given == want:
        return
    looks: Dict[Any, Tuple[str, str]] = {
        want // 4: (
            "those are numbers, and a float32 has 4 bytes",
            "それは数値の個数です。float32 は 1 個 4 バイトです",
        ),
        4 * (numbers * (1 + states) + images * kept): (
            "as if there were no gradients",
            "勾配が入っていないようです",
        ),
        4 * (numbers * 2 + images * kept): (
            "as if the optimizer kept nothing",
            "オプティマイザの状態が入っていないようです",
        ),
        4 * (numbers * (2 + states) + kept): (
            "as if only one image were in flight",
            "画像 1 枚分の活性値しか数えていないようです",
        ),
        4 * images * (numbers * (2 + states) + kept): (
            "as if every image had parameters of its own",
            "画像 1 枚ごとにパラメータがあるかのような値です",
        ),
        4 * (numbers * (2 + states)): (
            "as if no activations were kept for backward",
            "逆伝播のために残す活性値が入っていません",
        ),
        4 * (sum(map(sum, shapes)) * (2 + states) + images * kept): (
            "a shape's numbers are multiplied, not added",
            "形状の各次元は足すのではなく掛けます",
        ),
    }
    en, ja = looks.get(given, ("", ""))
    raise Wrong(
        en=(
            f"training_bytes({shapes}, {outputs}, images={images}, states={states}) "
            f"is {given!r}, expected {want}"
        )
        + (f": {en}" if en else ""),
        ja=(
            f"training_bytes({shapes}, {outputs}, images={images}, states={states}) "
            f"は {given!r} でしたが、正しくは {want} です"
        )
        + (f" ({ja})" if ja else ""),
    )


# --- 06-2


@exercise("06-2")
def accumulate(answer: Callable[..., Any]) -> None:
    """One update from several microbatches, the same as that of the whole batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [
        ((4,), 1),
        ((4,), 2),
        ((4, 4), 2),
        ((7,), 3),
        ((7, 5, 9), 3),
        ((3,), 3),
        ((11, 2, 8), 2),
    ]
    for sizes, parts in cases:
        _check_accumulate(answer, sizes, parts)


def _check_accumulate(answer: Callable[..., Any], sizes: Sequence[int], parts: int) -> None:
    [ctx] = cpus(1)
    values, batches = some_values(), some_batches(sizes)
    net = make_net(values, [ctx], "add")
    trainer, seen = make_trainer(net), []
    net.register_forward_pre_hook(lambda block, inputs: seen.append(len(inputs[0])))
    for number, (batch, size) in enumerate(zip(batches, sizes)):
        del seen[:]
        images, labels = on_host(batch)
        answer(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, images, labels, parts)
        got, want = values_of(net, ctx), values.train(batches[: number + 1])
        if not got.near(want):
            raise wrong_update(got, values, batches[: number + 1], parts)
        check_parts(seen, size, parts)


# --- 06-3


@exercise("06-3")
def part_weights(answer: Callable[[List[int]], Sequence[float]]) -> None:
    """By what the mean losses of unequal parts must be multiplied."""
    cases = [[4], [4, 4], [3, 1], [25, 25, 14]]
    random = np.random.RandomState(3)
    cases += [random.randint(1, 40, random.randint(2, 7)).tolist() for _ in range(6)]
    for sizes in cases:
        given = answer(list(sizes))
        if not isinstance(given, Iterable):
            raise returned(
                given,
                f"part_weights({sizes})",
                en="a list with a factor for each part",
                ja="部分ごとの係数のリスト",
            )
        got = [float(weight) for weight in given]
        want = [size / sum(sizes) for size in sizes]
        if len(got) == len(want) and np.allclose(got, want, rtol=1e-6):
            continue
        k = len(sizes)
        en, ja = "", ""
        if len(got) != k:
            en, ja = (
                f"one weight for each of {k} parts is wanted",
                f"{k} 個の部分それぞれに重みが 1 個要ります",
            )
        elif np.allclose(got, [1] * k):
            en, ja = (
                "the means are only added up, as in a loop without weights",
                "平均を足すだけになっています",
            )
        elif np.allclose(got, [1 / k] * k):
            share = Fraction(sizes[0], sizes[-1])
            en = f"so an image of the last part counts {share} times as much as one of the first"
            ja = f"最後の部分の画像 1 枚が、最初の部分の 1 枚の {share} 倍に数えられます"
        elif np.allclose(got, sizes):
            en, ja = (
                "that gives the sum of all losses, not their mean",
                "それでは平均ではなく損失の総和になります",
            )
        elif not math.isclose(sum(got), 1, rel_tol=1e-6):
            en, ja = (
                f"they add up to {sum(got):.4g}, not to 1",
                f"合計が 1 ではなく {sum(got):.4g} です",
            )
        raise Wrong(
            en=f"part_weights({sizes}) is {_short(got)}, expected {_short(want)}"
            + (f": {en}" if en else ""),
            ja=f"part_weights({sizes}) は {_short(got)} でしたが、正しくは {_short(want)} です"
            + (f"。{ja}" if ja else ""),
        )


def _short(weights: Sequence[float]) -> str:
    return "[" + ", ".join(f"{weight:.4g}" for weight in weights) + "]"


# --- 06-4


@exercise("06-4")
def machine_numbers(answer: Callable[[str, "str | None", int], List[int]]) -> None:
    """Which GPUs of the machine a process means by gpu:0, gpu:0,2 and gpu:*."""
    cases = [
        ("gpu:1", None, 4),
        ("gpu:0,2", None, 4),
        ("gpu:*", None, 4),
        ("gpu:*", "2,3", 4),
        ("gpu:0", "3,4,5,6,7", 8),
    ]
    cases += [
        ("gpu:1,2", "3,4,5,6,7", 8),
        ("gpu:*", "3,4,5,6,7", 8),
        ("gpu:*", "7,5", 8),
        ("gpu:1,0", "6,2,4", 8),
    ]
    random = np.random.RandomState(4)
    for _ in range(8):
        shown = random.permutation(8)[: random.randint(2, 8)].tolist()
        asked = random.permutation(len(shown))[: random.randint(1, len(shown) + 1)].tolist()
        cases.append(("gpu:" + ",".join(map(str, asked)), ",".join(map(str, shown)), 8))
    for spec, visible, count in cases:
        got = answer(spec, visible, count)
        if not isinstance(got, Iterable) or isinstance(got, str):
            raise returned(
                got,
                f"machine_numbers({spec!r}, {visible!r}, {count})",
                en="a list of numbers",
                ja="番号のリスト",
            )
        got = list(got)
        shown = (
            list(range(count))
            if visible is None
            else [int(number) for number in visible.split(",")]
        )
        names = spec.split(":")[1]
        asked = (
            list(range(len(shown))) if names == "*" else [int(name) for name in names.split(",")]
        )
        want = [shown[name] for name in asked]
        if got == want:
            continue
        en, ja = "", ""
        if [str(number) for number in got] == [str(number) for number in want]:
            en, ja = "numbers are wanted, not texts", "文字列ではなく数値が必要です"
        elif got == asked:
            en = (
                "those are the names inside the process; "
                "CUDA_VISIBLE_DEVICES gives them to other GPUs"
            )
            ja = (
                "それはプロセスの中での番号です。CUDA_VISIBLE_DEVICES によって別の GPU "
                "に割り当てられます"
            )
        elif got == list(range(count)):
            en, ja = (
                "the process sees only those that CUDA_VISIBLE_DEVICES names",
                "CUDA_VISIBLE_DEVICES にあるものしか見えません",
            )
        elif sorted(map(str, got)) == sorted(map(str, want)):
            en, ja = "in another order", "順番が違います"
        raise Wrong(
            en=f"machine_numbers({spec!r}, {visible!r}, {count}) is {got!r}, expected {want}"
            + (f": {en}" if en else ""),
            ja=(
                f"machine_numbers({spec!r}, {visible!r}, {count}) は {got!r} でしたが、"
                f"正しくは {want} です"
            )
            + (f"。{ja}" if ja else ""),
        )


# --- 06-5


@exercise("06-5")
def rounds(answer: Callable[[int, int, int], Rounds]) -> None:
    """Which images go through which device in which round."""
    cases = [
        (4, 1, 1),
        (4, 2, 1),
        (8, 2, 2),
        (6, 2, 3),
        (7, 2, 1),
        (7, 2, 2),
        (10, 3, 2),
        (3, 2, 2),
        (1, 2, 2),
        (5, 4, 3),
    ]
    random = np.random.RandomState(5)
    cases += [
        (int(random.randint(1, 200)), int(random.randint(1, 9)), int(random.randint(1, 9)))
        for _ in range(12)
    ]
    for images, devices, microbatches in cases:
        check_rounds(answer, images, devices, microbatches)


# --- 06-6


@exercise("06-6")
def largest_batch(answer: Callable[[Callable[[int], int], int, int], int]) -> None:
    """The largest batch that fits, asked for a few times only."""
    cases = [
        (10, 1, 15, 8),
        (10, 1, 10, 8),
        (10, 1, 18, 8),
        (10, 1, 1000, 8),
        (10, 5, 14, 8),
        (10, 1, 21, 1),
        (0, 7, 6999, 10**6),
    ]
    random = np.random.RandomState(6)
    for _ in range(12):
        fixed, each, limit = (
            int(random.randint(0, 1000)),
            int(random.randint(1, 50)),
            int(random.randint(1, 10**6)),
        )
        cases.append(
            (
                fixed,
                each,
                int(fixed + each * random.randint(1, 2 * limit) + random.randint(0, each)),
                limit,
            )
        )
    for fixed, each, budget, limit in cases:
        _check_largest(answer, Memory(fixed, each, 1), budget, limit)
    for fixed, each, budget, limit, block in [
        (10, 5, 30, 64, 8),
        (0, 3, 299, 5000, 64),
        (100, 7, 2200, 10**6, 1000),
    ]:
        _check_largest(answer, Memory(fixed, each, block), budget, limit)


class Memory(NamedTuple):
    """Made-up memory: ``fixed`` bytes, and ``each`` for every block of images that has been
    begun.
    """

    fixed: int
    each: int
    block: int

    def of(self, images: int) -> int:
        """The bytes for so many images."""
        return self.fixed + self.each * -(-int(images) // self.block)

    def most(self, budget: int) -> int:
        """How many images fit."""
        return max(0, (budget - self.fixed) // self.each * self.block)


def _check_largest(answer: Callable[..., Any], needs: Memory, budget: int, limit: int) -> None:
    asked: List[int] = []

    def memory(images: int) -> int:
        asked.append(images)
        return needs.of(images)

    got, want = answer(memory, budget, limit), min(limit, needs.most(budget))
    if not isinstance(got, NUMBER):
        raise returned(
            got,
            f"largest_batch(memory, {budget}, {limit})",
            en="a number of images",
            ja="画像の枚数",
        )
    fixed, each, block = needs
    unit, unit_ja = (
        ("image", "1 枚あたり")
        if block == 1
        else (f"{block} images or part of them", f"{block} 枚ごと (端数は切り上げ) に")
    )
    en = (
        f"with {fixed} bytes + {each} for each {unit}, "
        f"a budget of {budget} and a limit of {limit} images: {got!r}, expected {want}"
    )
    ja = (
        f"必要量 {fixed} バイト + {unit_ja} {each}、予算 {budget}、"
        f"上限 {limit} 枚のとき {got!r} でしたが、正しくは {want} です"
    )
    if got != want:
        if want == 0:
            en, ja = f"{en}: not even one image fits", f"{ja}。1 枚も入りません"
        elif isinstance(got, (int, np.integer)) and got > limit:
            en, ja = f"{en}: there are no more images", f"{ja}。それより多くの画像はありません"
        elif isinstance(got, (int, np.integer)) and got > want:
            en, ja = (
                f"{en}: {got} need {needs.of(int(got))}",
                f"{ja}。{got} 枚には {needs.of(int(got))} 要ります",
            )
        elif isinstance(got, (int, np.integer)):
            en, ja = f"{en}: {got + 1} would fit, too", f"{ja}。{got + 1} 枚でも入ります"
        raise Wrong(en=en, ja=ja)
    most = 2 * limit.bit_length() + 2
    if len(asked) > most:
        raise Wrong(
            en=f"{want} is right, but with a limit of {limit:,} images `memory` was asked "
            f"{len(asked):,} times, expected at most {most}: "
            "halve the range with each question",
            ja=f"{want} は正しいのですが、上限 {limit:,} 枚に対して `memory` を {len(asked):,} "
            f"回呼びました。多くても {most} 回で済みます。"
            "1 回呼ぶごとに範囲を半分に絞ってください",
        )
