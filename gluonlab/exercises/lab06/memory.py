"""06-1 and 06-6: the bytes that training needs, and the largest batch that fits."""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import (
    NUMBERS,
    is_not,
    looks_like,
    returned,
    wrong,
)
from gluonlab.exercises.shared.diagnosis import (
    Mistake,
    by,
    explains,
    results,
    same_number,
)

Shape = Tuple[int, ...]


@exercise("06-1")
def training_bytes(answer: Callable[..., int]) -> None:
    """How many bytes training needs: parameters, gradients, optimizer state, activations."""
    cases: List[Tuple[List[Shape], List[int], int, int]] = [([(3,)], [], 1, 0), ([(3,)], [], 1, 2)]
    cases += [([(2, 3)], [5], 1, 0), ([(2, 3)], [5], 4, 0), ([(2, 3), (2,)], [5, 1], 4, 1)]
    randint = draws(6).randint
    for _ in range(8):
        count = randint(1, 5)
        shapes = [tuple(randint(1, 9, randint(1, 5)).tolist()) for _ in range(count)]
        outputs = randint(1, 999, randint(1, 6)).tolist()
        cases.append((shapes, outputs, int(randint(1, 512)), int(randint(0, 3))))
    found = results(
        lambda shapes, outputs, *more: answer(list(shapes), list(outputs), *more),
        cases,
        lambda shapes, outputs, n, s: 4 * (_numbers(shapes) * (2 + s) + n * sum(outputs)),
    )
    mistaken = found.wrong(same_number)
    if not mistaken:
        return
    (shapes, outputs, images, states), got, want = mistaken[0]
    call = f"training_bytes({shapes}, {outputs}, images={images}, states={states})"
    if not isinstance(got, NUMBERS):
        raise returned(got, call, "a number", "数値")
    raise is_not(call, repr(got), want, explains(found, same_number, *OF_BYTES))


def _numbers(shapes: Sequence[Shape]) -> int:
    """How many numbers the parameters have."""
    return sum(math.prod(shape) for shape in shapes)


OF_BYTES: List[Mistake] = [
    (by(lambda shapes, kept, n, s: 4 * (sum(map(sum, shapes)) * (2 + s) + n * sum(kept))),
     "a shape's numbers are multiplied, not added",
     "形状の各次元は足すのではなく掛けます"),
    (by(lambda shapes, kept, n, s: 4 * _numbers(shapes) * (2 + s)),
     "as if no activations were kept for backward",
     "逆伝播のために残す活性値が入っていません"),
    (by(lambda shapes, kept, n, s: 4 * n * (_numbers(shapes) * (2 + s) + sum(kept))),
     "as if every image had parameters of its own",
     "画像 1 枚ごとにパラメータがあるかのような値です"),
    (by(lambda shapes, kept, n, s: 4 * (_numbers(shapes) * (2 + s) + sum(kept))),
     "as if only one image were in flight", "画像 1 枚分の活性値しか数えていないようです"),
    (by(lambda shapes, kept, n, s: 4 * (_numbers(shapes) * 2 + n * sum(kept))),
     "as if the optimizer kept nothing", "オプティマイザの状態が入っていないようです"),
    (by(lambda shapes, kept, n, s: 4 * (_numbers(shapes) * (1 + s) + n * sum(kept))),
     "as if there were no gradients", "勾配が入っていないようです"),
    (by(lambda shapes, kept, n, s: 4 * (_numbers(shapes) * (2 + s) + 2 * n * sum(kept))),
     "as if a gradient were kept beside every activation",
     "活性値ごとに勾配も残しているかのような値です"),
    (by(lambda shapes, kept, n, s: _numbers(shapes) * (2 + s) + n * sum(kept)),
     "those are numbers, and a float32 has 4 bytes",
     "それは数値の個数です。float32 は 1 個 4 バイトです"),
]  # fmt: skip


class Needs(NamedTuple):
    """Made-up memory: ``fixed`` bytes, and ``each`` for every started block of images."""

    fixed: int
    each: int
    block: int

    def of(self, images: int) -> int:
        """The bytes for so many images."""
        return self.fixed + self.each * -(-int(images) // self.block)

    def most(self, budget: int) -> int:
        """How many images fit."""
        return max(0, (budget - self.fixed) // self.each * self.block)


@exercise("06-6")
def largest_batch(answer: Callable[[Callable[[int], int], int, int], int]) -> None:
    """The largest batch that fits, asked for a few times only."""
    cases = [(10, 1, 15, 8), (10, 1, 10, 8), (10, 1, 18, 8), (10, 1, 1000, 8), (10, 5, 14, 8)]
    cases += [(10, 1, 21, 1), (0, 7, 6999, 10**6)]
    randint = draws(6).randint
    for _ in range(12):
        fixed, each, limit = int(randint(0, 1000)), int(randint(1, 50)), int(randint(1, 10**6))
        budget = int(fixed + each * randint(1, 2 * limit) + randint(0, each))
        cases.append((fixed, each, budget, limit))
    for fixed, each, budget, limit in cases:
        _check_largest(answer, Needs(fixed, each, 1), budget, limit)
    _check_largest(answer, Needs(10, 5, 8), 30, 64)
    _check_largest(answer, Needs(0, 3, 64), 299, 5000)
    _check_largest(answer, Needs(100, 7, 1000), 2200, 10**6)


def _check_largest(answer: Callable[..., Any], needs: Needs, budget: int, limit: int) -> None:
    asked: List[int] = []

    def memory(images: int) -> int:
        asked.append(images)
        return needs.of(images)

    got, want = answer(memory, budget, limit), min(limit, needs.most(budget))
    if not isinstance(got, NUMBERS):
        call = f"largest_batch(memory, {budget}, {limit})"
        raise returned(got, call, "a number of images", "画像の枚数")
    if got != want:
        fixed, each, block = needs
        unit, unit_ja = "image", "1 枚あたり"
        if block > 1:
            unit, unit_ja = f"{block} images or part of them", f"{block} 枚ごと (端数は切り上げ) に"
        whole = isinstance(got, (int, np.integer))
        raise wrong(
            f"with {fixed} bytes + {each} for each {unit}, "
            f"a budget of {budget} and a limit of {limit} images: {got!r}, expected {want}",
            f"必要量 {fixed} バイト + {unit_ja} {each}、予算 {budget}、"
            f"上限 {limit} 枚のとき {got!r} でしたが、正しくは {want} です",
            looks_like(
                (want == 0, "not even one image fits", "1 枚も入りません"),
                (whole and got > limit,
                 "there are no more images", "それより多くの画像はありません"),
                (whole and got > want, f"{got} need {needs.of(int(got)) if whole else 0}",
                 f"{got} 枚には {needs.of(int(got)) if whole else 0} 要ります"),
                (whole, f"{got + 1} would fit, too", f"{got + 1} 枚でも入ります"),
            ),
        )  # fmt: skip
    most = 2 * limit.bit_length() + 2
    if len(asked) > most:
        raise wrong(
            f"{want} is right, but with a limit of {limit:,} images `memory` was asked "
            f"{len(asked):,} times, expected at most {most}: halve the range with each question",
            f"{want} は正しいのですが、上限 {limit:,} 枚に対して `memory` を {len(asked):,} "
            f"回呼びました。{most} 回以内で済みます。1 回呼ぶごとに範囲を半分に絞ってください",
        )
