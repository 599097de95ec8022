"""The exercises of lab 08: many processes."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from functools import partial
from itertools import combinations
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.exercises.checkers import Wrong, draws, exercise, message_of, place_of
from gluonlab.exercises.counterexamples import (
    NUMBERS,
    CaseText,
    Mistake,
    Pair,
    by,
    check_number,
    explains,
    in_english,
    is_not,
    results,
    returned,
    wrong,
)
from gluonlab.exercises.guesses import a_number, each_of, guess, one_of
from gluonlab.exercises.simulated_distributed import (
    Distributed,
    Hang,
    Images,
    Program,
    RankOutcome,
    Ranks,
    Unequal,
    some_images,
)
from gluonlab.host.launcher_environment import lsf_local_rank_and_size, read_lsf_hosts

# --- 08-1: which images each rank trains on in an epoch


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
        several = isinstance(given, Iterable) and not isinstance(given, str)
        own = list(given) if several else [given]
        if not several or not all(isinstance(one, (int, np.integer)) for one in own):
            en, ja = "a list of the images' numbers, as integers", "画像の番号 (整数) のリスト"
            raise returned(given, call, en, ja)
        if isinstance(given, (set, frozenset)):
            en, ja = "a list: a set has no order", "リスト (集合には順序がありません) "
            raise returned(given, call, en, ja)
        shards.append([int(one) for one in own])
    return shards


def _check_images(
    answer: Callable[..., Any], size: int, world_size: int, seed: int, epoch: int
) -> None:
    """Every image comes, and all ranks have equally many."""
    more, each = (seed, epoch), -(-size // world_size)
    shards = _shards(answer, size, world_size, *more)
    case = CaseText(
        f"{in_english(size, 'image')}, {in_english(world_size, 'rank')}, seed {seed}, "
        f"epoch {epoch}",
        f"画像 {size} 枚、{world_size} ランク、シード {seed}、エポック {epoch}",
    )
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
    case = CaseText(
        f"{size} images, {world_size} ranks, seed {seed}",
        f"画像 {size} 枚、{world_size} ランク、シード {seed}",
    )
    steps = {(b - a) % size for a, b in zip(first[0], first[0][1:])}
    case.check(
        (len(steps) == 1,
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
            (all(shard == sorted(shard) for shard in [*first, *second]),
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


def _neighbours_again(first: Shards, second: Shards) -> float:
    """The part of the images that follow each other in ``second`` and did in ``first``."""
    before, after = (
        [frozenset(pair) for shard in shards for pair in zip(shard, shard[1:])]
        for shards in (first, second)
    )
    return sum(pair in set(before) for pair in after) / max(len(after), 1)


def _line(numbers: Sequence[Any], between: str = ", ") -> str:
    return between.join(map(str, numbers))


# --- 08-2: a program for many processes, after one on a slide, with six faults


STILL = CaseText("a fault is left", "まだ直っていません")


@exercise("08-2")
def main(answer: Program) -> None:
    """A program whose processes share the images, shuffle them, and speak with one voice."""
    randint = draws(82).randint
    cases = [(16, 2, 3), (21, 4, 2), (int(randint(24, 60)), int(randint(2, 6)), 3)]
    for size, world_size, epochs in cases:
        dist, test_set = Distributed(), some_images(9, 1)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                answer(dist, some_images(size, 0), test_set, world_size, epochs)
            except Exception as error:  # whatever a student's code raises
                raise _stopped(dist, error) from None
        case = CaseText(
            f"{STILL.en}: {world_size} processes, {size} images, {epochs} epochs",
            f"{STILL.ja}: {world_size} プロセス、画像 {size} 枚、{epochs} エポック",
        )
        _check_group(case, dist, world_size)
        _check_trained_images(case, dist, size, epochs)
        _check_model(case, dist)
        _check_voices(case, dist, test_set, epochs)


def _stopped(dist: Distributed, error: Exception) -> Wrong:
    """The error of the first rank that raised one, and the line of the program."""
    ranks = [rank for rank, each in enumerate(dist.outcomes) if each.error is not None]
    others = [rank for rank in ranks if not isinstance(dist.outcomes[rank].error, Hang)]
    en, ja = "", ""
    if others:
        error, rank = dist.outcomes[others[0]].error, others[0]  # type: ignore[assignment]
        en, ja = f"rank {rank}: ", f"ランク {rank}: "
    place = place_of(error, main)
    if isinstance(error, Hang):
        said_ja = (
            f"ランク {error.rank} が、すでに終わったランク {error.ended} を待っています。"
            "実際のプロセスなら永久に待ちます"
        )
        return STILL.wrong(f"{error}: real processes would wait for ever", said_ja)
    line = f"\nin line {place.line} of its cell: `{place.source}`" if place else ""
    line_ja = f"\nセルの {place.line} 行目: `{place.source}`" if place else ""
    return STILL.wrong(f"{en}{message_of(error)}{line}", f"{ja}{message_of(error)}{line_ja}")


def _check_group(case: CaseText, dist: Distributed, world_size: int) -> None:
    """There are as many processes as there should be, and each has said which one it is."""
    count = len(dist.notes)
    joined = [notes.joined for notes in dist.notes]
    wrong = [rank for rank, each in enumerate(joined) if each != [(rank, world_size)]]
    first = wrong[0] if wrong else 0
    given = _line(joined[first]) if wrong and joined[first] else "-"
    case.check(
        (count != world_size,
         f"processes that were started: {count}", f"起動されたプロセスは {count} 個です"),
        (wrong,
         f"rank {first} joins the group with (rank, world_size) = {given}, expected once, with "
         f"({first}, {world_size})",
         f"ランク {first} がグループに参加するときの (rank, world_size) が {given} です。"
         f"({first}, {world_size}) で 1 回のはずです"),
    )  # fmt: skip


def _check_trained_images(case: CaseText, dist: Distributed, size: int, epochs: int) -> None:
    """In each epoch all ranks together train on all images, each epoch in another order."""
    for rank, notes in enumerate(dist.notes):
        case.check(
            (len(notes.orders) != epochs,
             f"rank {rank} goes through its images {len(notes.orders)} times",
             f"ランク {rank} が自分の画像で学習した回数は {len(notes.orders)} 回です"),
        )  # fmt: skip
    share = -(-size // len(dist.notes))
    for epoch in range(epochs):
        orders = [notes.orders[epoch] for notes in dist.notes]
        missing = sorted(set(range(size)) - {image for order in orders for image in order})
        odd = next((rank for rank, order in enumerate(orders) if len(order) != share), None)
        told = [notes.epochs[epoch] for notes in dist.notes]
        other = next((rank for rank, each in enumerate(told) if each != told[0]), None)
        twin = orders.index(orders[0], 1) if orders[0] in orders[1:] else None
        case.check(
            (missing and other is not None and None not in told,
             f"in epoch {epoch} the sampler of rank 0 has been told epoch {told[0]}, that of rank "
             f"{other} epoch {told[other or 0]}: they draw different permutations, and image "
             f"{missing[:1] and missing[0]} is in no rank's share",
             f"エポック {epoch} で、ランク 0 のサンプラーのエポックは {told[0]}、"
             f"ランク {other} では {told[other or 0]} です。並べ替えが食い違い、"
             f"画像 {missing[:1] and missing[0]} がどのランクの担当にもなりません"),
            (missing and twin is not None,
             f"in epoch {epoch} ranks 0 and {twin} train on the same images",
             f"エポック {epoch} でランク 0 と {twin} が同じ画像を使っています"),
            (missing,
             f"in epoch {epoch} no rank trains on image {missing[:1] and missing[0]}",
             f"エポック {epoch} で画像 {missing[:1] and missing[0]} を使うランクがありません"),
            (odd is not None,
             f"in epoch {epoch} rank {odd} trains on {len(orders[odd or 0])} images, expected "
             f"its share, {share}",
             f"エポック {epoch} でランク {odd} が {len(orders[odd or 0])} 枚を使っています。"
             f"担当分の {share} 枚のはずです"),
        )  # fmt: skip
    own = dist.notes[0].orders
    for a, b in combinations(range(epochs), 2):
        case.check(
            (own[a] == own[b],
             f"rank 0 has the images {_line(own[a][:4])}, ... in epoch {a}, and in epoch {b} the "
             "same ones in the same order",
             f"ランク 0 の画像はエポック {a} で {_line(own[a][:4])}, … で、"
             f"エポック {b} でも同じ画像が同じ順序です"),
        )  # fmt: skip


def _check_model(case: CaseText, dist: Distributed) -> None:
    """All ranks have the same weights in the end, and they have moved."""
    weights = [notes.weight for notes in dist.notes]
    first = weights[0]
    apart = next(
        (rank for rank, each in enumerate(weights) if each is None or (each != first).any()), None
    )
    case.check(
        (first is None, "no rank has updated a model", "モデルを更新したランクがありません"),
        (apart is not None,
         f"ranks 0 and {apart} have different weights in the end: their replicas have drifted "
         "apart",
         f"最後にランク 0 と {apart} の重みが違います。レプリカがずれてしまいました"),
    )  # fmt: skip
    sums, updates = dist.notes[0].sums, dist.notes[0].updates
    case.check(
        (sums != updates,
         f"rank 0 computes {sums} gradients and makes {updates} updates, expected one after each",
         f"ランク 0 が勾配を {sums} 回計算し、更新を {updates} 回行っています。"
         "勾配 1 回につき更新 1 回のはずです"),
    )  # fmt: skip


def _check_voices(case: CaseText, dist: Distributed, test_set: Images, epochs: int) -> None:
    """Rank 0 alone evaluates and prints, once an epoch, by the test images."""
    evaluations = [len(notes.evaluated) for notes in dist.notes]
    lines = [len(notes.lines) for notes in dist.notes]
    others = any(not np.array_equal(images.xs, test_set.xs) for images in dist.notes[0].evaluated)
    case.check(
        (not evaluations[0] and any(evaluations),
         f"rank {_first(evaluations)} evaluates, expected rank 0",
         f"評価しているのがランク {_first(evaluations)} です。ランク 0 のはずです"),
        (any(evaluations[1:]),
         f"the same test images are evaluated by {sum(map(bool, evaluations))} ranks",
         f"同じテスト画像を {sum(map(bool, evaluations))} 個のランクが評価しています"),
        (others,
         "rank 0 evaluates on other images than those of `test_set`",
         "ランク 0 が `test_set` ではない画像で評価しています"),
        (not lines[0] and any(lines),
         f"rank {_first(lines)} prints, expected rank 0",
         f"表示しているのがランク {_first(lines)} です。ランク 0 のはずです"),
        (any(lines[1:]),
         f"{sum(lines)} lines are printed, by {sum(map(bool, lines))} ranks, expected {epochs}",
         f"{sum(map(bool, lines))} 個のランクが合わせて {sum(lines)} 行を表示しています。"
         f"{epochs} 行のはずです"),
        (evaluations[0] != epochs,
         f"rank 0 evaluates {evaluations[0]} times, expected once an epoch",
         f"ランク 0 の評価が {evaluations[0]} 回です。エポックごとに 1 回のはずです"),
        (lines[0] != epochs,
         f"rank 0 prints {lines[0]} lines with `dist.log`, expected one an epoch",
         f"ランク 0 が `dist.log` で表示した行が {lines[0]} 行です。エポックごとに 1 行のはずです"),
    )  # fmt: skip


def _first(counts: List[int]) -> int:
    """The first rank whose count is not 0; 0: there is none."""
    return next((rank for rank, count in enumerate(counts) if count), 0)


# --- 08-3: the accuracy over all ranks, some of whose images are padding


Shard = Tuple[List[int], List[int]]  # the images of a rank, and whether each is right


class RankImages(NamedTuple):
    """What the ranks have. ``right``: of each of the ``size`` images."""

    shards: List[Shard]
    size: int
    right: List[int]

    @property
    def accuracy(self) -> float:
        """The one of all images."""
        return sum(self.right) / self.size

    @property
    def text(self) -> CaseText:
        """In words."""
        return CaseText(
            "; ".join(f"images {images}, right {right}" for images, right in self.shards),
            "、".join(f"画像 {images} 正解 {right}" for images, right in self.shards),
        )


@exercise("08-3")
def global_accuracy(answer: Callable[..., float]) -> None:
    """The accuracy over all images, each counted once, on every rank."""
    cases = [
        _of([[0, 1], [2, 3]], [1, 1, 0, 1]),
        _of([[0, 1, 2], [3]], [0, 1, 0, 1]),
        _of([[0, 3, 1], [1, 4, 0], [2, 0, 3]], [1, 0, 1, 1, 0]),
        _of([[0], [1], []], [1, 0]),
        _of([[2, 0], [1, 2]], [0, 1, 1]),
    ]
    random = draws(83)
    for _ in range(5):
        world_size, each = int(random.randint(2, 5)), int(random.randint(2, 6))
        size = int(world_size * each - random.randint(1, world_size))
        order = np.resize(random.permutation(size), world_size * each)
        right = random.randint(0, 2, size).tolist()
        cases.append(_of([order[rank::world_size].tolist() for rank in range(world_size)], right))
    found = results(
        lambda case: _values(answer, case),
        [(case,) for case in cases],
        lambda case: [case.accuracy] * len(case.shards),
    )
    if isinstance(found.error, Wrong):  # the ranks' sums do not meet
        raise found.error
    mistaken = found.wrong(_all_same)
    if mistaken:
        (case,), got, _ = mistaken[0]
        rank = next(rank for rank, each in enumerate(got) if not _same(each, case.accuracy))
        raise case.text.wrong(
            f"rank {rank} has {got[rank]:.4g}, expected {case.accuracy:.4g}",
            f"ランク {rank} の答えは {got[rank]:.4g} でしたが、正しくは {case.accuracy:.4g} です",
            explains(mistaken, _all_same, *OF_ACCURACIES),
        )


def _of(images: List[List[int]], right: List[int]) -> RankImages:
    return RankImages([(own, [right[one] for one in own]) for own in images], len(right), right)


def _same(got: Any, want: float) -> bool:
    return isinstance(got, NUMBERS) and bool(abs(got - want) < 1e-6)


def _all_same(got: Sequence[Any], want: Sequence[float]) -> bool:
    return all(map(_same, got, want))


def _values(answer: Callable[..., float], case: RankImages) -> List[Any]:
    """What each rank returns; what is summed must come from all of them."""
    group = Ranks(len(case.shards))

    def of_rank(rank: int) -> Any:
        images, right = case.shards[rank]
        value = answer(list(images), list(right), case.size, group.allreduce)
        return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value

    outcomes = group.run(of_rank)
    _raise_first(outcomes, case)
    values = [outcome.value for outcome in outcomes]
    for value in values:
        check_number(value, "global_accuracy(...)")
    return values


def _raise_first(outcomes: List[RankOutcome], case: RankImages) -> None:
    """Raise what a rank has raised; Wrong where the ranks' sums do not meet."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    for error in errors:
        if not isinstance(error, (Hang, Unequal)):
            raise error
    for error in errors:
        if isinstance(error, Hang):
            raise case.text.wrong(
                f"rank {error.rank} waits in `allreduce` for rank {error.ended}, which "
                "has ended: every rank must make the same calls",
                f"ランク {error.rank} が `allreduce` で、すでに終わった"
                f"ランク {error.ended} を待っています。どのランクも同じ回数呼ぶ必要があります",
            )
        raise case.text.wrong(
            f"`allreduce` sums arrays of one shape, and was given {error}",
            f"`allreduce` に渡す配列は全ランクで同じ形状でなければなりません ({error})",
        )


def _by_ranks(formula: Callable[[RankImages], List[float]]) -> Callable[..., bool]:
    """Whether the ranks' values are those of a formula."""

    def gives(case: RankImages, got: List[Any]) -> bool:
        with np.errstate(all="ignore"):
            want = formula(case)
        return all((np.isnan(a) and np.isnan(b)) or _same(a, b) for a, b in zip(got, want))

    return gives


def _means(case: RankImages) -> List[Any]:
    """Of each rank; NaN of one without images."""
    return [np.mean(right) if right else np.nan for _, right in case.shards]


def _in_all(case: RankImages) -> List[int]:
    """Whether each image of each rank is right, those of padding included."""
    return [one for _, right in case.shards for one in right]


def _everywhere(value: Callable[[RankImages], Any]) -> Callable[..., bool]:
    """A mistake by which all ranks have one value."""
    return _by_ranks(lambda case: [value(case)] * len(case.shards))


OF_ACCURACIES: List[Mistake] = [
    (_by_ranks(_means),
     "that is the accuracy of the rank's own images",
     "それはそのランク自身の画像だけの正解率です"),
    (_everywhere(lambda case: np.mean(_in_all(case))),
     "padding counts twice", "パディングの画像が 2 回数えられています"),
    (_everywhere(lambda case: sum(_in_all(case)) / case.size),
     "the right answers of padding count twice", "パディングの正解が 2 回数えられています"),
    *((_everywhere(mean_of),
       "a mean of the ranks' means: images of a rank with few of them count more",
       "ランクごとの平均の平均なので、枚数の少ないランクの画像が重く数えられます")
      for mean_of in (lambda case: np.mean(_means(case)),
                      lambda case: np.mean(np.nan_to_num(_means(case))))),
    (_everywhere(lambda case: 100 * case.accuracy),
     "that is in percent; the accuracy is a number from 0 to 1",
     "これは百分率です。正解率は 0 から 1 までの数です"),
    (_everywhere(lambda case: np.nansum(_means(case))),
     "the ranks' accuracies are added up", "ランクごとの正解率を足しただけです"),
]  # fmt: skip


# --- 08-4: how stale each push to an asynchronous parameter server is


Event = Tuple[int, str, str]  # worker, "pull" or "push", key
PULL, PUSH = "pull", "push"


@exercise("08-4")
def staleness(answer: Callable[[List[Event]], List[int]]) -> None:
    """How many updates of other workers each push meets that its worker has not seen."""
    cases: List[List[Event]] = [
        [(0, PULL, "w"), (0, PUSH, "w")],
        [(0, PULL, "w"), (1, PULL, "w"), (0, PUSH, "w"), (1, PUSH, "w")],
        [(0, PULL, "w"), (0, PUSH, "w"), (0, PUSH, "w")],
        [(0, PULL, "w"), (0, PULL, "b"), (1, PULL, "b"), (1, PUSH, "b"), (0, PUSH, "w"),
         (0, PUSH, "b")],
        [(1, PUSH, "w"), (1, PUSH, "w"), (0, PUSH, "w")],
        [(0, PULL, "w"), (1, PUSH, "w"), (0, PULL, "b"), (0, PUSH, "w")],
        [(2, PUSH, "b"), (0, PULL, "w"), (0, PUSH, "b"), (1, PUSH, "b"), (1, PULL, "w"),
         (2, PUSH, "b")],
        [(0, PULL, "w"), (1, PUSH, "w"), (2, PUSH, "w"), (0, PUSH, "w"), (1, PUSH, "w"),
         (0, PUSH, "w"), (2, PULL, "w"), (2, PUSH, "w")],
    ]  # fmt: skip
    random = draws(84)
    for _ in range(8):
        workers, keys = int(random.randint(2, 5)), ["w", "b", "v"][: random.randint(1, 4)]
        events: List[Event] = []
        for _ in range(int(random.randint(8, 24))):
            worker, what = int(random.randint(workers)), [PULL, PUSH][random.randint(2)]
            events.append((worker, what, keys[random.randint(len(keys))]))
        cases.append(events)

    def said(events: List[Event], got: Any, want: List[int]) -> Pair:
        call = f"staleness({events})"
        if not isinstance(got, list):
            raise returned(got, call, "a list with a number for each push", "push ごとの数のリスト")
        if len(got) != len(want):
            why = (
                f"pushes: {len(want)}, numbers: {len(got)}",
                f"push は {len(want)} 回ですが、数が {len(got)} 個あります",
            )
            raise wrong(*is_not(call, got, want), why)
        return is_not(call, got, want)

    found = results(lambda case: _as_list(answer(case)), [(case,) for case in cases], _count)
    found.compare(_same_list, OF_STALENESS, said)


def _as_list(given: Any) -> Any:
    """A list of what it has, numbers of numpy as Python's; else what was given."""
    if not isinstance(given, Iterable) or isinstance(given, (str, dict)):
        return given
    return [one.item() if isinstance(one, np.generic) else one for one in given]


def _same_list(got: Any, want: List[Any]) -> bool:
    return isinstance(got, list) and got == want


def _count(
    events: List[Event],
    updates_by_key: bool = True,
    pulls_by_key: bool = True,
    own: bool = False,
    begin: Tuple[str, ...] = (PULL,),
    workers: bool = False,
    unpulled: bool = True,
) -> List[int]:
    """Of each push: updates since its worker's last pull.

    ``updates_by_key``, ``pulls_by_key``: those of its key alone; ``own``: with the worker's own;
    ``begin``: since which events of the worker, () for the beginning; ``workers``: how many have
    made them; ``unpulled``: also of a worker that has not pulled yet.
    """
    pushes: List[Tuple[int, str]] = []  # so far
    since: Dict[Tuple[int, str], int] = {}  # how many there were then
    found = []
    for worker, what, key in events:
        place = worker, key if pulls_by_key else ""
        if what == PUSH:
            met = pushes[since.get(place, 0) :] if unpulled or place in since else []
            counted = [
                other
                for other, its in met
                if (own or other != worker) and (its == key or not updates_by_key)
            ]
            found.append(len(set(counted) if workers else counted))
            pushes.append((worker, key))
        if what in begin:
            since[place] = len(pushes)
    return found


def _counts(**how: Any) -> Callable[..., bool]:
    return lambda events, got: _same_list(got, _count(events, **how))


OF_STALENESS: List[Mistake] = [
    (_counts(own=True),
     "the worker's own updates are counted, too, but it has sent them itself",
     "自分の更新も数えています。自分の更新は古さには入りません"),
    (_counts(updates_by_key=False),
     "updates of other keys are counted", "ほかのキーの更新も数えています"),
    (_counts(pulls_by_key=False),
     "a pull of another key does not bring this one",
     "別のキーを pull しても、このキーは新しくなりません"),
    (_counts(updates_by_key=False, pulls_by_key=False),
     "updates of other keys are counted", "ほかのキーの更新も数えています"),
    (_counts(begin=(PUSH,)),
     "it is counted since the worker's last push: what it has pulled since then is new",
     "最後の push から数えています。その後に pull した分は古くありません"),
    (_counts(begin=(PULL, PUSH)),
     "a push brings no weight to its worker: only a pull does",
     "push しても新しい重みは届きません。届くのは pull したときだけです"),
    (_counts(workers=True),
     "that is how many other workers have pushed: every update counts",
     "push したワーカーの数ではなく、更新の回数を数えます"),
    (_counts(unpulled=False),
     "a worker that has not pulled yet has the initial weight, and has seen no update",
     "まだ pull していないワーカーが持つのは最初の重みで、どの更新も見ていません"),
    (_counts(begin=()),
     "it is counted from the beginning: a pull brings the newest weight",
     "最初から数えています。pull すれば最新の重みになります"),
    (_counts(updates_by_key=False, pulls_by_key=False, own=True),
     "the updates of all workers and keys are counted",
     "すべてのワーカーとキーの更新を数えています"),
]  # fmt: skip


# --- 08-5: at which step a killed run goes on


STEPS_AN_EPOCH = 5


class Killed(NamedTuple):
    """A run that was killed: its log, and its checkpoints, each with whether it is whole."""

    metrics: str
    checkpoints: Dict[int, bool]

    @property
    def steps(self) -> List[int]:
        """Those whose lines are whole."""
        lines = [json.loads(line) for line in self.metrics.splitlines() if line.endswith("}")]
        return [line["step"] for line in lines if line["kind"] == "step"]

    @property
    def last(self) -> int:
        """The last step whose line is whole; 0: none is."""
        return max(self.steps, default=0)

    def usable(self, last: int, whole: bool = True) -> List[int]:
        """The checkpoints up to a step that are ``whole``, in the order of the dictionary."""
        return [step for step, is_whole in self.checkpoints.items()
                if step <= last and (is_whole or not whole)]  # fmt: skip

    def best(self, whole: bool = True, logged: bool = True) -> int:
        """The newest checkpoint that is ``whole``, and whose lines are ``logged``; 0: none."""
        last = self.last if logged else max(self.checkpoints, default=0)
        return max(self.usable(last, whole), default=0)

    def restart(self) -> Tuple[int, int]:
        """The step that it goes on from, and how many steps are made again."""
        return self.best(), self.last - self.best()


@exercise("08-5")
def goes_on(answer: Callable[[str, Dict[int, bool]], Tuple[int, int]]) -> None:
    """The step that a killed run goes on from, and how many steps are made again."""
    cases = [
        _killed(12, {5: True, 10: True}),
        _killed(13, {5: True, 10: False}),
        _killed(9, {5: True, 10: True}),
        _killed(3, {}),
        _killed(10, {5: True, 10: True}),
        _killed(0, {}, cut='{"kind": "st'),
        _killed(7, {5: True}, cut='{"kind": "step", "step": 8, "lo'),
        _killed(14, {4: True, 8: False, 12: False}, resumed=4),
        _killed(13, {10: True, 5: True}),
        _killed(8, {4: True, 8: True}, cut='{"kind": "step", "step": 9, "lo'),
        _killed(9, {8: True, 6: True, 10: True, 2: True}),
    ]
    randint = draws(85).randint
    for _ in range(8):
        last, every = int(randint(4, 40)), int(randint(2, 8))
        checkpoints = {step: bool(randint(4)) for step in range(every, last + 2 * every, every)}
        cut = f'{{"kind": "step", "step": {last + 1}, "lo' if randint(2) else ""
        cases.append(_killed(last, checkpoints, cut, resumed=every if randint(2) else None))

    def said(metrics: str, checkpoints: Dict[int, bool], got: Any, want: Tuple[int, int]) -> Pair:
        if not isinstance(got, tuple) or len(got) != 2:
            en = "two numbers: the step it goes on from, and how many steps are made again"
            raise returned(got, "goes_on(...)", en, "2 つの数 (再開するステップと、やり直す回数) ")
        steps, en, ja = len(Killed(metrics, checkpoints).steps), "", ""
        if not metrics.endswith("\n") and metrics:
            en, ja = " and a line that is cut", "と途中で切れた 1 行"
        return (
            f"a log of {steps} steps{en}, checkpoints {checkpoints}: {got}, expected {want}",
            f"{steps} ステップのログ{ja}、チェックポイント {checkpoints}: "
            f"{got} でしたが、正しくは {want} です",
        )

    def right(metrics: str, checkpoints: Dict[int, bool]) -> Tuple[int, int]:
        return Killed(metrics, checkpoints).restart()

    found = results(lambda *case: _as_pair(answer(*case)), cases, right)
    found.compare(_same_pair, OF_RESTARTS, said)


def _killed(
    last: int, checkpoints: Dict[int, bool], cut: str = "", resumed: Optional[int] = None
) -> Killed:
    """A run that was killed after ``last`` steps, and had gone on once from ``resumed``."""
    lines: List[Dict[str, Any]] = []
    for step in range(1, last + 1):
        lines.append({"kind": "step", "step": step, "loss": round(2 / step, 4)})
        if step % STEPS_AN_EPOCH == 0:
            epoch = step // STEPS_AN_EPOCH
            lines.append({"kind": "epoch", "epoch": epoch, "step": step, "accuracy": 0.9})
        if step == resumed:
            lines.append({"kind": "event", "event": "resumed", "step": step})
    return Killed("".join(json.dumps(line) + "\n" for line in lines) + cut, checkpoints)


def _as_pair(given: Any) -> Any:
    values = given if isinstance(given, set) else _as_list(given)
    several = isinstance(values, list) and all(isinstance(one, NUMBERS) for one in values)
    return tuple(values) if several else given


def _same_pair(got: Any, want: Tuple[int, int]) -> bool:
    return isinstance(got, tuple) and got == want


def _by_killed(formula: Callable[[Killed], Tuple[int, int]]) -> Callable[..., bool]:
    return lambda *case, got: _same_pair(got, formula(Killed(*case)))


def _with_the_cut_line(killed: Killed) -> Tuple[int, int]:
    last = killed.last + ("step" in killed.metrics.split("\n")[-1])
    start = max(killed.usable(last), default=0)
    return start, last - start


def _from(start: Callable[[Killed], int]) -> Callable[..., bool]:
    return _by_killed(lambda killed: (start(killed), killed.last - start(killed)))


OF_RESTARTS: List[Mistake] = [
    (_from(lambda killed: killed.best(whole=False, logged=False)),
     "the newest checkpoint is taken, though it may be damaged, or ahead of the log",
     "最新のチェックポイントを、壊れていないか、ログより先でないかを確かめずに使っています"),
    (_from(lambda killed: killed.best(whole=False)),
     "a damaged checkpoint is taken", "壊れたチェックポイントを使っています"),
    (_from(lambda killed: killed.best(logged=False)),
     "a checkpoint is taken that is ahead of the log",
     "ログより先のステップのチェックポイントを使っています"),
    (_by_killed(lambda killed: (killed.last, 0)),
     "what is logged is not saved: only a checkpoint has the weights",
     "ログにあっても保存されたわけではありません。重みはチェックポイントにしかありません"),
    (_by_killed(lambda killed: (killed.best() + 1, killed.last - killed.best())),
     "a checkpoint of step 5 has that step done: it is where the run goes on from",
     "ステップ 5 のチェックポイントには、そのステップの結果まで入っています。"
     "再開するのはそこからです"),
    (_by_killed(lambda killed: (killed.best(), max(0, killed.last - killed.best() - 1))),
     "the last logged step is made again, too",
     "ログの最後のステップもやり直します"),
    (_by_killed(lambda killed: killed.restart()[::-1]),
     "the two numbers are the other way round", "2 つの数の順序が逆です"),
    (_from(lambda killed: [0, *killed.usable(killed.last)][-1]),
     "that is the last one in the dictionary, which need not be the newest",
     "これは辞書の最後にあるものです。最も新しいとは限りません"),
    (_from(lambda killed: max(killed.usable(killed.last - 1), default=0)),
     "a checkpoint of the last logged step is not ahead of the log",
     "ログの最後のステップのチェックポイントは、ログより先ではありません"),
    (_by_killed(_with_the_cut_line),
     "the line that is cut counts as a step", "途中で切れた行を 1 ステップと数えています"),
    (_by_killed(lambda killed: (killed.best(), len(killed.metrics.splitlines()) - killed.best())),
     "lines are counted, and not every line is a step",
     "行数を数えていますが、すべての行がステップではありません"),
]  # fmt: skip


# --- 08-6: which host and which place there each rank of an LSF job has


Place = Tuple[str, int]
Hosts = List[Tuple[str, int]]


@exercise("08-6")
def places(answer: Callable[[str], List[Place]]) -> None:
    """The host of each rank of an LSF job, and its number there."""
    cases = ["gpu07 2", "gpu07 2 gpu03 2", "a 1 b 3 c 2", "a 2 b 1 a 2", "n12 4 n3 1 n12 1 n3 2"]
    cases += ["n1 10", "n2 3 n1 12"]
    random = draws(86)
    for _ in range(6):
        names = [f"gpu{number:02}" for number in random.permutation(20)[: random.randint(1, 5)]]
        again = [names[random.randint(len(names))] for _ in range(random.randint(0, 3))]
        cases.append(" ".join(f"{name} {random.randint(1, 5)}" for name in [*names, *again]))

    def said(text: str, got: Any, want: List[Place]) -> Pair:
        call = f"places({text!r})"
        if not isinstance(got, list) or not all(isinstance(one, tuple) for one in got):
            en = "a list with (host, local rank) of each rank"
            raise returned(got, call, en, "ランクごとの (ホスト, ローカルランク) のリスト")
        return is_not(call, got, want)

    given = [(text,) for text in cases]
    found = results(lambda text: _as_places(answer(text)), given, _right_places)
    found.compare(_same_list, OF_PLACES, said)


def _right_places(text: str) -> List[Place]:
    """As gluonlab itself finds them."""
    _, hosts = read_lsf_hosts({"LSB_MCPU_HOSTS": text})
    flat = [host.host for host in hosts for _ in range(host.slots)]
    return [(host, lsf_local_rank_and_size(rank, hosts)[0]) for rank, host in enumerate(flat)]


def _as_places(given: Any) -> Any:
    """Pairs as tuples; numbers of numpy as Python's."""
    if not isinstance(given, Iterable) or isinstance(given, (str, dict)):
        return given
    pairs = list(given)
    if not all(isinstance(pair, (tuple, list)) for pair in pairs):
        return given
    return [tuple(_as_list(pair)) for pair in pairs]


def _pairs(text: str) -> Hosts:
    words = text.split()
    return [(host, int(count)) for host, count in zip(words[::2], words[1::2])]


def _flat(text: str) -> List[str]:
    return [host for host, count in _pairs(text) for _ in range(count)]


def _numbered(hosts: Iterable[str]) -> List[Place]:
    """Each with its number among its like."""
    flat = list(hosts)
    return [(host, flat[:place].count(host)) for place, host in enumerate(flat)]


def _again_from_0(pairs: Iterable[Tuple[str, int]]) -> List[Place]:
    """Each entry of the list numbered by itself."""
    return [(host, n) for host, count in pairs for n in range(count)]


def _in_turns(text: str) -> List[Place]:
    """The first slot of each host, then the second of each, and so on."""
    numbered = _numbered(_flat(text))
    order = list(dict.fromkeys(_flat(text)))
    return sorted(numbered, key=lambda place: (place[1], order.index(place[0])))


def _merged(text: str) -> List[Place]:
    """All slots of a host, one after the other, where it comes first."""
    flat = _flat(text)
    return _numbered(host for name in dict.fromkeys(flat) for host in flat if host == name)


_by_hosts = partial(by, same=_same_list)


OF_PLACES: List[Mistake] = [
    (_by_hosts(lambda text: _again_from_0(_pairs(text))),
     "a host that comes again goes on counting: two ranks would have the same place, and GPU",
     "もう一度出てきたホストでは番号が続きます。"
     "そうしないと 2 つのランクが同じ番号、つまり同じ GPU になります"),
    (_by_hosts(lambda text: [(host, rank) for rank, host in enumerate(_flat(text))]),
     "that is the rank in the job: the local rank begins at 0 on each host",
     "それはジョブ全体でのランクです。ローカルランクはホストごとに 0 から始まります"),
    (_by_hosts(_in_turns),
     "slots are filled host by host, not in turns",
     "スロットはホストごとに埋まります。順番に 1 つずつではありません"),
    (_by_hosts(_merged),
     "ranks go through the list as it stands: a host that comes again has later ranks",
     "ランクは並んでいる順に付きます。もう一度出てきたホストには後のランクが付きます"),
    (_by_hosts(lambda text: _numbered(sorted(_flat(text)))),
     "the hosts are in the order of the list, not of their names",
     "ホストの順序は名前の順ではなく、並んでいる順です"),
    (_by_hosts(lambda text: [(host, n + 1) for host, n in _numbered(_flat(text))]),
     "local ranks are counted from 0", "ローカルランクは 0 から数えます"),
    (_by_hosts(lambda text: _again_from_0(dict(_pairs(text)).items())),
     "a host that comes again has more slots; they do not replace the first ones",
     "もう一度出てきたホストではスロットが増えます。前の分と置き換わるのではありません"),
    (_by_hosts(lambda text: _numbered(
        h for h, count in _pairs(text) for _ in range(int(str(count)[0])))),
     "a number of slots may have two digits", "スロット数は 2 桁のこともあります"),
    (_by_hosts(lambda text: [(host, count) for host, count in _pairs(text)]),
     "there is one place for each slot, not one for each host",
     "ホストごとではなく、スロットごとに 1 つ要ります"),
]  # fmt: skip


# --- The guesses


# fmt: off
guess("08-a", one_of("exactly 0", "rounding", "more"),
      "how much do the last losses of one process and of two differ?",
      "1 プロセスと 2 プロセスの最後の損失はどれくらい違うか")
guess("08-b", each_of(a_number(0, such_as=0.5, within=0.1), "copied", "lasting"),
      "how many times the parameters' bytes go from device to device in a step?",
      "1 ステップでデバイスの間を通るのは、パラメータのバイト数の何倍か")
guess("08-c", each_of(a_number(0, 1, such_as=0.1, within=0.04), "2 ranks", "8 ranks"),
      "each rank has a permutation of its own: what fraction of the images is used by none?",
      "ランクごとに並べ替えが違うとき、どのランクも使わない画像の割合")
guess("08-d", a_number(0, 1, such_as=0.1, within=0.08),
      "rank 0 alone evaluates: for what fraction of the time are the 7 others idle?",
      "ランク 0 だけが評価するとき、残りの 7 個が何もしない時間の割合")
guess("08-e", a_number(0, such_as=5, within=0.3),
      "how many updates by the other worker has a pushing worker not seen?",
      "push が届いたとき、まだ pull していない相手の更新は平均何回分か")
guess("08-f", one_of("the first step", "the last checkpoint", "the kill"),
      "where does the run resume after a worker was killed?",
      "ワーカーが強制終了された後、どこから再開されるか")
guess("08-g", a_number(0, such_as=25),
      "how many of its steps have a different loss than without the kill?",
      "中断しなかった場合と損失が違うステップの数")
