"""08-1: which images each rank trains on in an epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Iterable, List

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import Case, returned

MANY = 20  # images: two permutations of so many do not agree by chance
Shards = List[List[int]]


@exercise("08-1")
def shard_of_epoch(answer: Callable[[int, int, int, int, int], List[int]]) -> None:
    """The images of each rank: all of them, equally many each, another order in each epoch."""
    cases = [(8, 2, 0, 0), (10, 4, 0, 0), (7, 3, 0, 1), (9, 1, 0, 0), (2, 5, 0, 0), (1, 3, 2, 0)]
    randint = draws(81).randint
    for _ in range(8):
        size, world_size = int(randint(1, 60)), int(randint(1, 9))
        cases.append((size, world_size, int(randint(0, 1000)), int(randint(0, 50))))
    for case in cases:
        _check_images(answer, *case)
    for world_size in (2, 3):
        _check_epochs(answer, MANY + int(randint(0, 9)), world_size, int(randint(0, 1000)))


def _shards(answer: Callable[..., Any], size: int, world_size: int, *more: int) -> Shards:
    """What the answer gives for each rank, as lists of whole numbers."""
    shards = []
    for rank in range(world_size):
        given = answer(size, world_size, rank, *more)
        call = f"shard_of_epoch{(size, world_size, rank, *more)}"
        numbers = given if isinstance(given, Iterable) and not isinstance(given, str) else None
        own = None if numbers is None else list(numbers)
        if own is None or not all(isinstance(one, (int, np.integer)) for one in own):
            raise returned(
                given,
                call,
                "a list of the images' numbers, as integers",
                "画像の番号 (整数) のリスト",
            )
        if isinstance(given, (set, frozenset)):
            raise returned(
                given, call, "a list: a set has no order", "リスト (集合には順序がありません) "
            )
        shards.append([int(one) for one in own])
    return shards


def _check_images(
    answer: Callable[..., Any], size: int, world_size: int, seed: int, epoch: int
) -> None:
    """Every image comes, and all ranks have equally many."""
    more = seed, epoch
    shards = _shards(answer, size, world_size, *more)
    case = _case(size, world_size, *more)
    each = -(-size // world_size)
    counts = Counter(image for shard in shards for image in shard)
    lengths = [len(shard) for shard in shards]
    outside = [image for image in counts if not 0 <= image < size]
    missing = [image for image in range(size) if image not in counts]
    case.check(
        (outside,
         f"there is no image {outside[:1] and outside[0]}: they go from 0 to {size - 1}",
         f"画像 {outside[:1] and outside[0]} はありません。番号は 0 から {size - 1} までです"),
        (len(set(lengths)) > 1,
         f"the ranks have {_line(lengths)} images: with unequal numbers one rank makes a step "
         "for which the others do not come, and waits for ever",
         f"枚数がランクごとに {_line(lengths, '、')} です。枚数が違うと、"
         "ほかのランクが来ないステップができ、そこで永久に待つことになります"),
        (lengths[0] < each,
         f"each rank has {lengths[0]} images, so {len(missing)} of {size} are trained on by none: "
         f"{each} each are needed",
         f"各ランクが {lengths[0]} 枚なので、{size} 枚のうち {len(missing)} 枚は"
         f"どのランクも使いません。{each} 枚ずつ必要です"),
        (lengths[0] > each,
         f"each rank has {lengths[0]} images, and {each} are enough",
         f"各ランクが {lengths[0]} 枚ですが、{each} 枚で足ります"),
        (_shards(answer, size, world_size, *more) != shards,
         "a second call gave other images: every process draws for itself, so the order must "
         "follow from `seed` and `epoch` alone",
         "2 回目の呼び出しで別の画像になりました。プロセスはそれぞれ自分で乱数を引くので、"
         "順序は `seed` と `epoch` だけから決まらなければなりません"),
        (missing,
         f"image {missing[:1] and missing[0]} is in no rank's shard, and some are in several",
         f"画像 {missing[:1] and missing[0]} がどのランクにもなく、"
         "複数のランクにある画像があります"),
    )  # fmt: skip


def _check_epochs(answer: Callable[..., Any], size: int, world_size: int, seed: int) -> None:
    """Another permutation in each epoch, and for each seed; it is cut after it was drawn."""
    first, *later = (_shards(answer, size, world_size, seed, epoch) for epoch in (0, 1, 2))
    other = _shards(answer, size, world_size, seed + 7, 0)
    case = Case(
        f"{size} images, {world_size} ranks, seed {seed}",
        f"画像 {size} 枚、{world_size} ランク、シード {seed}",
    )
    case.check(
        (_evenly_spaced(first[0], size),
         f"rank 0 has {_line(first[0][:4])}, ... in epoch 0: that is no random order",
         f"エポック 0 でランク 0 の画像は {_line(first[0][:4])}, … で、"
         "ランダムな順序ではありません"),
    )  # fmt: skip
    for epoch, second in enumerate(later, 1):
        same_images = all(set(a) == set(b) for a, b in zip(first, second))
        again = _neighbours_again(first, second)
        case.check(
            (first == second,
             f"epochs 0 and {epoch} have the same order",
             f"エポック 0 と {epoch} の順序が同じです"),
            (same_images,
             f"rank 0 has the same images in epochs 0 and {epoch}, in another order: it never "
             "sees those of the other ranks",
             f"ランク 0 の画像がエポック 0 と {epoch} で同じで、順序だけが違います。"
             "ほかのランクの画像を使うことがありません"),
            (_ascending(first) and _ascending(second),
             f"rank 0 has {_line(second[0][:4])}, ... in epoch {epoch}: its images always come in "
             "ascending order, so they are chosen at random, and not shuffled",
             f"エポック {epoch} でランク 0 の画像は {_line(second[0][:4])}, … です。"
             "どのエポックでも番号の小さい順なので、選び方はランダムでも、順序はランダムではありません"),
            (again > 1 / 2,
             f"of the images that follow each other on a rank in epoch {epoch}, {again:.0%} did so "
             "in epoch 0, too: it is the same permutation, handed to other ranks or begun at "
             "another place",
             f"エポック {epoch} で続けて出てくる画像の組のうち {again:.0%} は、エポック 0 でも"
             "続いていました。同じ並べ替えを別のランクに渡したか、"
             "始める位置をずらしただけです"),
        )  # fmt: skip
    case.check(
        (first == other,
         f"with seed {seed + 7} the order is the same",
         f"シード {seed + 7} でも同じ順序です"),
    )  # fmt: skip


def _ascending(shards: Shards) -> bool:
    return all(shard == sorted(shard) for shard in shards)


def _neighbours_again(first: Shards, second: Shards) -> float:
    """The part of the images that follow each other in ``second`` and did in ``first``."""
    before, after = (
        [frozenset(pair) for shard in shards for pair in zip(shard, shard[1:])]
        for shards in (first, second)
    )
    return sum(pair in set(before) for pair in after) / max(len(after), 1)


def _evenly_spaced(shard: List[int], size: int) -> bool:
    return len({(b - a) % size for a, b in zip(shard, shard[1:])}) == 1


def _case(size: int, world_size: int, seed: int, epoch: int) -> Case:
    ranks = f"{world_size} rank" + "s" * (world_size > 1)
    images = f"{size} image" + "s" * (size > 1)
    return Case(
        f"{images}, {ranks}, seed {seed}, epoch {epoch}",
        f"画像 {size} 枚、{world_size} ランク、シード {seed}、エポック {epoch}",
    )


def _line(numbers: List[int], between: str = ", ") -> str:
    return between.join(map(str, numbers))
