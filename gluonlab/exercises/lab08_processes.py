"""The exercises of lab 08: training with several processes.

08-1: shards of an epoch. 08-2: a program with bugs. 08-3: the accuracy over all ranks. 08-4: stale
updates of a parameter server. 08-5: resuming a killed run. 08-6: the host of each rank of a job.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from functools import partial
from itertools import combinations
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.exercises.exercise_registry import Wrong, case_rng, exercise, find_error_location, format_error
from gluonlab.exercises.explain_wrong_answers import (
    CaseText,
    Mistake,
    TextPair,
    check_number,
    count_in_english,
    counterexample,
    find_mistake,
    formula_mistakes,
    is_number,
    matches_formula,
    run_cases,
    wrong_return,
    wrong_value_texts,
)
from gluonlab.exercises.guesses import ChoiceForm, DictForm, NumberForm, register_guess
from gluonlab.exercises.simulated_distributed import (
    Distributed,
    DistributedProgram,
    HangError,
    Images,
    RankGroup,
    RankOutcome,
    UnequalShapesError,
    some_images,
)
from gluonlab.host.launcher_environment import lsf_local_rank_and_size, read_lsf_hosts

# --- 08-1: the images on which each rank trains in an epoch


MANY_IMAGES = 20  # so many images that two random permutations are never equal by chance
Shards = List[List[int]]


@exercise("08-1")
def check_shard_of_epoch(answer: Callable[[int, int, int, int, int], List[int]]) -> None:
    """Choose the images of each rank: all images, equal numbers, a new order in each epoch."""
    cases = [(8, 2, 0, 0), (10, 4, 0, 0), (7, 3, 0, 1), (9, 1, 0, 0), (2, 5, 0, 0), (1, 3, 2, 0)]
    randint = case_rng(81).randint
    for _ in range(8):
        size, world_size = int(randint(1, 60)), int(randint(1, 9))
        cases.append((size, world_size, int(randint(0, 1000)), int(randint(0, 50))))
    for case in cases:
        _check_epoch_images(answer, *case)
    for world_size in (2, 3):
        _check_epoch_orders(answer, MANY_IMAGES + int(randint(0, 9)), world_size, int(randint(0, 1000)))


def _call_for_ranks(answer: Callable[..., Any], size: int, world_size: int, *more: int) -> Shards:
    """Call the answer for each rank, and return the image numbers of each rank.

    ``more``: the seed and the epoch. Raises Wrong unless each result is a list of integers.
    """
    shards = []
    for rank in range(world_size):
        returned = answer(size, world_size, rank, *more)
        call = f"shard_of_epoch{(size, world_size, rank, *more)}"
        is_collection = isinstance(returned, Iterable) and not isinstance(returned, str)
        images = list(returned) if is_collection else [returned]
        if not is_collection or not all(isinstance(image, (int, np.integer)) for image in images):
            en, ja = "a list of the images' numbers, as integers", "画像の番号 (整数) のリスト"
            raise wrong_return(returned, call, en, ja)
        if isinstance(returned, (set, frozenset)):
            raise wrong_return(returned, call, "a list: a set has no order", "リスト (集合には順序がありません) ")
        shards.append([int(image) for image in images])
    return shards


def _check_epoch_images(answer: Callable[..., Any], size: int, world_size: int, seed: int, epoch: int) -> None:
    """Check that every image is used, and that all ranks have the same number of images."""
    more, images_per_rank = (seed, epoch), -(-size // world_size)
    shards = _call_for_ranks(answer, size, world_size, *more)
    case = CaseText(
        f"{count_in_english(size, 'image')}, {count_in_english(world_size, 'rank')}, seed {seed}, epoch {epoch}",
        f"画像 {size} 枚、{world_size} ランク、シード {seed}、エポック {epoch}",
    )
    counts = Counter(image for shard in shards for image in shard)
    lengths = [len(shard) for shard in shards]
    unknown_images = [image for image in counts if not 0 <= image < size]
    missing = [image for image in range(size) if image not in counts]
    case.check_faults(
        (unknown_images,
         f"there is no image {unknown_images[:1] and unknown_images[0]}: images are numbered from 0 to {size - 1}",
         f"画像 {unknown_images[:1] and unknown_images[0]} はありません。番号は 0 から {size - 1} までです"),
        (len(set(lengths)) > 1,
         f"the ranks have {_join_values(lengths)} images: give all ranks the same number, because a rank with more "
             "images waits forever in its last step",
         f"枚数がランクごとに {_join_values(lengths, '、')} です。枚数が違うと、ほかのランクが来ないステップができ、"
         "そこで永久に待つことになります"),
        (lengths[0] < images_per_rank,
         f"each rank has {lengths[0]} images, so no rank trains on {len(missing)} of the {size}: each rank needs "
             f"{images_per_rank}",
         f"各ランクが {lengths[0]} 枚なので、{size} 枚のうち {len(missing)} 枚はどのランクも使いません。"
         f"{images_per_rank} 枚ずつ必要です"),
        (lengths[0] > images_per_rank, f"each rank has {lengths[0]} images, but {images_per_rank} are enough",
         f"各ランクが {lengths[0]} 枚ですが、{images_per_rank} 枚で足ります"),
        (_call_for_ranks(answer, size, world_size, *more) != shards,
         "a second call returned other images: each process draws on its own, so the order must depend only on "
             "`seed` and `epoch`",
         "2 回目の呼び出しで別の画像になりました。プロセスはそれぞれ自分で乱数を引くので、順序は `seed` と `epoch` "
         "だけから決まらなければなりません"),
        (missing, f"image {missing[:1] and missing[0]} is not in any shard, and other images are in several",
         f"画像 {missing[:1] and missing[0]} がどのランクにもなく、複数のランクにある画像があります"),
    )  # fmt: skip


def _check_epoch_orders(answer: Callable[..., Any], size: int, world_size: int, seed: int) -> None:
    """Check that each epoch and each seed has a different random order of all images."""
    first, *later = (_call_for_ranks(answer, size, world_size, seed, epoch) for epoch in (0, 1, 2))
    other = _call_for_ranks(answer, size, world_size, seed + 7, 0)
    case = CaseText(
        f"{size} images, {world_size} ranks, seed {seed}", f"画像 {size} 枚、{world_size} ランク、シード {seed}"
    )
    steps = {(b - a) % size for a, b in zip(first[0], first[0][1:])}
    case.check_faults(
        (len(steps) == 1, f"rank 0 has {_join_values(first[0][:4])}, ... in epoch 0: the order must be random",
         f"エポック 0 でランク 0 の画像は {_join_values(first[0][:4])}, … で、ランダムな順序ではありません"),
    )  # fmt: skip
    for epoch, other_epoch in enumerate(later, 1):
        same_images = all(set(a) == set(b) for a, b in zip(first, other_epoch))
        repeated_share = _repeated_neighbor_share(first, other_epoch)
        case.check_faults(
            (first == other_epoch, f"epochs 0 and {epoch} have the same order",
             f"エポック 0 と {epoch} の順序が同じです"),
            (same_images,
             f"rank 0 has the same images in epochs 0 and {epoch}, only in another order: it never sees the other "
                 "images",
             f"ランク 0 の画像がエポック 0 と {epoch} で同じで、順序だけが違います。"
             "ほかのランクの画像を使うことがありません"),
            (all(shard == sorted(shard) for shard in [*first, *other_epoch]),
             f"rank 0 has {_join_values(other_epoch[0][:4])}, ... in epoch {epoch}: its images are chosen at random, "
                 "but always in ascending order. Shuffle them as well",
             f"エポック {epoch} でランク 0 の画像は {_join_values(other_epoch[0][:4])}, … です。"
             "どのエポックでも番号の小さい順なので、選び方はランダムでも、順序はランダムではありません"),
            (repeated_share > 1 / 2,
             f"{repeated_share:.0%} of the images that follow each other on a rank in epoch {epoch} also did so in "
                 "epoch 0: use a new permutation, not a shifted one",
             f"エポック {epoch} で続けて出てくる画像の組のうち {repeated_share:.0%} は、エポック 0 でも続いていました。"
             "同じ並べ替えを別のランクに渡したか、始める位置をずらしただけです"),
        )  # fmt: skip
    case.check_faults(
        (first == other,
         f"with seed {seed + 7} the order is the same: it must depend on the seed",
         f"シード {seed + 7} でも同じ順序です"),
    )  # fmt: skip


def _repeated_neighbor_share(first: Shards, second: Shards) -> float:
    """Return which fraction of the neighbors in ``second`` are also neighbors in ``first``.

    Neighbors are two images with adjacent positions on a rank.
    """
    first_pairs, second_pairs = (
        [frozenset(pair) for shard in shards for pair in zip(shard, shard[1:])] for shards in (first, second)
    )
    return sum(pair in set(first_pairs) for pair in second_pairs) / max(len(second_pairs), 1)


def _join_values(numbers: Sequence[Any], between: str = ", ") -> str:
    return between.join(map(str, numbers))


# --- 08-2: a program for several processes, with six bugs


FAULT_REMAINS = CaseText("a bug is left", "まだ直っていません")


@exercise("08-2")
def check_distributed_program(answer: DistributedProgram) -> None:
    """Write a program whose processes share and shuffle the images, and report only once."""
    randint = case_rng(82).randint
    cases = [(16, 2, 3), (21, 4, 2), (int(randint(24, 60)), int(randint(2, 6)), 3)]
    for size, world_size, epochs in cases:
        dist, val_set = Distributed(), some_images(9, 1)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                answer(dist, some_images(size, 0), val_set, world_size, epochs)
            except Exception as error:  # a student's code may raise any exception
                raise _explain_error(dist, error) from None
        case = CaseText(
            f"{FAULT_REMAINS.en}: {world_size} processes, {size} images, {epochs} epochs",
            f"{FAULT_REMAINS.ja}: {world_size} プロセス、画像 {size} 枚、{epochs} エポック",
        )
        _check_process_group(case, dist, world_size)
        _check_trained_images(case, dist, size, epochs)
        _check_weights_and_updates(case, dist)
        _check_rank_zero(case, dist, val_set, epochs)


def _explain_error(dist: Distributed, error: Exception) -> Wrong:
    """Return the counterexample for a program that raises ``error``.

    The counterexample names the rank and the line if they are known.
    """
    ranks = [rank for rank, each in enumerate(dist.outcomes) if each.error is not None]
    failed_otherwise = [rank for rank in ranks if not isinstance(dist.outcomes[rank].error, HangError)]
    en, ja = "", ""
    if failed_otherwise:
        error, rank = dist.outcomes[failed_otherwise[0]].error, failed_otherwise[0]  # type: ignore[assignment]
        en, ja = f"rank {rank}: ", f"ランク {rank}: "
    location = find_error_location(error, check_distributed_program)
    if isinstance(error, HangError):
        said_ja = (
            f"ランク {error.rank} が、すでに終わったランク {error.ended_rank} を待っています。"
            "実際のプロセスなら永久に待ちます"
        )
        return FAULT_REMAINS.counterexample(f"{error}: real processes would wait forever", said_ja)
    line = f"\nin line {location.line} of its cell: `{location.source}`" if location else ""
    line_ja = f"\nセルの {location.line} 行目: `{location.source}`" if location else ""
    return FAULT_REMAINS.counterexample(f"{en}{format_error(error)}{line}", f"{ja}{format_error(error)}{line_ja}")


def _check_process_group(case: CaseText, dist: Distributed, world_size: int) -> None:
    """Check the number of processes, and that each process joins the group with its own rank."""
    count = len(dist.records)
    joins = [notes.joins for notes in dist.records]
    wrong_ranks = [rank for rank, each in enumerate(joins) if each != [(rank, world_size)]]
    first = wrong_ranks[0] if wrong_ranks else 0
    joined_as = _join_values(joins[first]) if wrong_ranks and joins[first] else "-"
    case.check_faults(
        (count != world_size, f"processes that were started: {count}", f"起動されたプロセスは {count} 個です"),
        (wrong_ranks,
         f"rank {first} joins the group with (rank, world_size) = {joined_as}, expected once, with ({first}, "
         f"{world_size})",
         f"ランク {first} がグループに参加するときの (rank, world_size) が {joined_as} です。({first}, {world_size}) "
         "で 1 回のはずです"),
    )  # fmt: skip


def _check_trained_images(case: CaseText, dist: Distributed, size: int, epochs: int) -> None:
    """Check that the ranks train on all images in each epoch, in a new order each time."""
    for rank, notes in enumerate(dist.records):
        case.check_faults(
            (len(notes.image_orders) != epochs, f"rank {rank} goes through its images {len(notes.image_orders)} times",
             f"ランク {rank} が自分の画像で学習した回数は {len(notes.image_orders)} 回です"),
        )  # fmt: skip
    share = -(-size // len(dist.records))
    for epoch in range(epochs):
        orders = [notes.image_orders[epoch] for notes in dist.records]
        missing = sorted(set(range(size)) - {image for order in orders for image in order})
        odd_rank = next((rank for rank, order in enumerate(orders) if len(order) != share), None)
        sampler_epochs = [notes.sampler_epochs[epoch] for notes in dist.records]
        other_rank = next((rank for rank, each in enumerate(sampler_epochs) if each != sampler_epochs[0]), None)
        same_as_rank_0 = orders.index(orders[0], 1) if orders[0] in orders[1:] else None
        case.check_faults(
            (missing and other_rank is not None and None not in sampler_epochs,
             f"in epoch {epoch} the sampler of rank 0 uses epoch {sampler_epochs[0]}, the sampler of rank "
                 f"{other_rank} epoch {sampler_epochs[other_rank or 0]}: they draw different permutations, so image "
                 f"{missing[:1] and missing[0]} is not in any shard",
             f"エポック {epoch} で、ランク 0 のサンプラーのエポックは {sampler_epochs[0]}、ランク {other_rank} では "
             f"{sampler_epochs[other_rank or 0]} です。並べ替えが食い違い、画像 {missing[:1] and missing[0]} "
             "がどのランクの担当にもなりません"),
            (missing and same_as_rank_0 is not None,
             f"in epoch {epoch} ranks 0 and {same_as_rank_0} train on the same images",
             f"エポック {epoch} でランク 0 と {same_as_rank_0} が同じ画像を使っています"),
            (missing, f"in epoch {epoch} no rank trains on image {missing[:1] and missing[0]}",
             f"エポック {epoch} で画像 {missing[:1] and missing[0]} を使うランクがありません"),
            (odd_rank is not None,
             f"in epoch {epoch} rank {odd_rank} trains on {len(orders[odd_rank or 0])} images, expected {share}",
             f"エポック {epoch} でランク {odd_rank} が {len(orders[odd_rank or 0])} 枚を使っています。担当分の {share} "
             "枚のはずです"),
        )  # fmt: skip
    rank_0_orders = dist.records[0].image_orders
    for a, b in combinations(range(epochs), 2):
        case.check_faults(
            (rank_0_orders[a] == rank_0_orders[b],
             f"rank 0 has the images {_join_values(rank_0_orders[a][:4])}, ... in epoch {a}, and in epoch {b} the same "
             "ones in the same order",
             f"ランク 0 の画像はエポック {a} で {_join_values(rank_0_orders[a][:4])}, … で、エポック {b} "
             "でも同じ画像が同じ順序です"),
        )  # fmt: skip


def _check_weights_and_updates(case: CaseText, dist: Distributed) -> None:
    """Check that all ranks have the same final weights, and update them once per gradient."""
    weights = [notes.weight for notes in dist.records]
    first = weights[0]
    different_rank = next((rank for rank, each in enumerate(weights) if each is None or (each != first).any()), None)
    case.check_faults(
        (first is None, "no rank updated its model", "モデルを更新したランクがありません"),
        (different_rank is not None,
         f"ranks 0 and {different_rank} have different weights at the end: their replicas have drifted apart",
         f"最後にランク 0 と {different_rank} の重みが違います。レプリカがずれてしまいました"),
    )  # fmt: skip
    sums, updates = dist.records[0].gradient_sums, dist.records[0].updates
    case.check_faults(
        (sums != updates,
         f"rank 0 computes {sums} gradients and makes {updates} updates, expected one update after each gradient",
         f"ランク 0 が勾配を {sums} 回計算し、更新を {updates} 回行っています。勾配 1 回につき更新 1 回のはずです"),
    )  # fmt: skip


def _check_rank_zero(case: CaseText, dist: Distributed, val_set: Images, epochs: int) -> None:
    """Check that only rank 0 evaluates the validation images and prints, once per epoch."""
    evaluations = [len(notes.evaluated_images) for notes in dist.records]
    lines = [len(notes.logged_lines) for notes in dist.records]
    wrong_images = any(not np.array_equal(images.xs, val_set.xs) for images in dist.records[0].evaluated_images)
    case.check_faults(
        (not evaluations[0] and any(evaluations), f"rank {_first_nonzero_rank(evaluations)} evaluates, expected rank 0",
         f"評価しているのがランク {_first_nonzero_rank(evaluations)} です。ランク 0 のはずです"),
        (any(evaluations[1:]), f"the same validation images are evaluated by {sum(map(bool, evaluations))} ranks",
         f"同じ検証画像を {sum(map(bool, evaluations))} 個のランクが評価しています"),
        (wrong_images, "rank 0 must evaluate on the images of `val_set`, not on others",
         "ランク 0 が `val_set` ではない画像で評価しています"),
        (not lines[0] and any(lines), f"rank {_first_nonzero_rank(lines)} prints, expected rank 0",
         f"表示しているのがランク {_first_nonzero_rank(lines)} です。ランク 0 のはずです"),
        (any(lines[1:]), f"{sum(lines)} lines are printed, by {sum(map(bool, lines))} ranks, expected {epochs}",
         f"{sum(map(bool, lines))} 個のランクが合わせて {sum(lines)} 行を表示しています。{epochs} 行のはずです"),
        (evaluations[0] != epochs, f"rank 0 evaluates {evaluations[0]} times, expected once per epoch",
         f"ランク 0 の評価が {evaluations[0]} 回です。エポックごとに 1 回のはずです"),
        (lines[0] != epochs, f"rank 0 prints {lines[0]} lines with `dist.log`, expected one per epoch",
         f"ランク 0 が `dist.log` で表示した行が {lines[0]} 行です。エポックごとに 1 行のはずです"),
    )  # fmt: skip


def _first_nonzero_rank(counts: List[int]) -> int:
    """Return the first rank whose count is not 0, or 0."""
    return next((rank for rank, count in enumerate(counts) if count), 0)


# --- 08-3: the accuracy over all ranks, if some images are repeated as padding


# The image numbers of a rank, and a list with 1 for each right and 0 for each wrong prediction.
Shard = Tuple[List[int], List[int]]


class RankImages(NamedTuple):
    """The images of all ranks, including padding.

    ``right``: 1 for each image with a right prediction, and 0 for the others. ``size``: the number
    of images without padding.
    """

    shards: List[Shard]
    size: int
    right: List[int]

    @property
    def accuracy(self) -> float:
        """The accuracy over all images, with each image counted once."""
        return sum(self.right) / self.size

    @property
    def case(self) -> CaseText:
        """The images and the right predictions of each shard, in English and Japanese."""
        return CaseText(
            "; ".join(f"images {images}, right {right}" for images, right in self.shards),
            "、".join(f"画像 {images} 正解 {right}" for images, right in self.shards),
        )


@exercise("08-3")
def check_global_accuracy(answer: Callable[..., float]) -> None:
    """Compute the accuracy over all images on every rank, with each image counted once."""
    cases = [
        _make_rank_images([[0, 1], [2, 3]], [1, 1, 0, 1]),
        _make_rank_images([[0, 1, 2], [3]], [0, 1, 0, 1]),
        _make_rank_images([[0, 3, 1], [1, 4, 0], [2, 0, 3]], [1, 0, 1, 1, 0]),
        _make_rank_images([[0], [1], []], [1, 0]),
        _make_rank_images([[2, 0], [1, 2]], [0, 1, 1]),
    ]
    random = case_rng(83)
    for _ in range(5):
        world_size, each = int(random.randint(2, 5)), int(random.randint(2, 6))
        size = int(world_size * each - random.randint(1, world_size))
        order = np.resize(random.permutation(size), world_size * each)
        right = random.randint(0, 2, size).tolist()
        cases.append(_make_rank_images([order[rank::world_size].tolist() for rank in range(world_size)], right))
    results = run_cases(
        lambda case: _run_ranks(answer, case),
        [(case,) for case in cases],
        lambda case: [case.accuracy] * len(case.shards),
    )
    if isinstance(results.error, Wrong):  # the ranks' calls of `allreduce` do not match
        raise results.error
    mistaken = results.find_wrong(_are_close)
    if mistaken:
        (case,), got, _ = mistaken[0]
        rank = next(rank for rank, each in enumerate(got) if not _is_close(each, case.accuracy))
        raise case.case.counterexample(
            f"the accuracy on rank {rank} is {got[rank]:.4g}, expected {case.accuracy:.4g}",
            f"ランク {rank} の答えは {got[rank]:.4g} でしたが、正しくは {case.accuracy:.4g} です",
            find_mistake(mistaken, _are_close, *ACCURACY_MISTAKES),
        )


def _make_rank_images(images: List[List[int]], right: List[int]) -> RankImages:
    return RankImages([(own, [right[one] for one in own]) for own in images], len(right), right)


def _is_close(got: Any, want: float) -> bool:
    return is_number(got) and bool(abs(got - want) < 1e-6)


def _are_close(got: Sequence[Any], want: Sequence[float]) -> bool:
    return all(map(_is_close, got, want))


def _run_ranks(answer: Callable[..., float], case: RankImages) -> List[Any]:
    """Run the answer on all ranks, and return their results. Raises a rank's error, if any."""
    group = RankGroup(len(case.shards))

    def call_answer(rank: int) -> Any:
        images, right = case.shards[rank]
        value = answer(list(images), list(right), case.size, group.allreduce)
        return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value

    outcomes = group.run(call_answer)
    _raise_first_error(outcomes, case)
    values = [outcome.value for outcome in outcomes]
    for value in values:
        check_number(value, "global_accuracy(...)")
    return values


def _raise_first_error(outcomes: List[RankOutcome], case: RankImages) -> None:
    """Raise the first error of a rank, if any.

    If the only errors are `allreduce` calls that do not match, raise Wrong.
    """
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    for error in errors:
        if not isinstance(error, (HangError, UnequalShapesError)):
            raise error
    for error in errors:
        if isinstance(error, HangError):
            raise case.case.counterexample(
                f"rank {error.rank} waits in `allreduce` for rank {error.ended_rank}, which has already returned: "
                "every rank must call `allreduce` the same number of times",
                f"ランク {error.rank} が `allreduce` で、すでに終わった"
                f"ランク {error.ended_rank} を待っています。どのランクも同じ回数呼ぶ必要があります",
            )
        raise case.case.counterexample(
            f"`allreduce` needs arrays of the same shape on all ranks, but got {error}",
            f"`allreduce` に渡す配列は全ランクで同じ形状でなければなりません ({error})",
        )


def _matches_ranks(formula: Callable[[RankImages], List[float]]) -> Callable[..., bool]:
    """Return a predicate that tests whether the ranks' results are ``formula(case)``.

    ``formula`` computes the results of a known mistake.
    """

    def gives(case: RankImages, got: List[Any]) -> bool:
        with np.errstate(all="ignore"):
            want = formula(case)
        return all((np.isnan(a) and np.isnan(b)) or _is_close(a, b) for a, b in zip(got, want))

    return gives


def _rank_accuracies(case: RankImages) -> List[Any]:
    """Return the accuracy of each rank, or NaN for a rank without images."""
    return [np.mean(right) if right else np.nan for _, right in case.shards]


def _all_right_flags(case: RankImages) -> List[int]:
    """Return 1 for each right and 0 for each wrong prediction on all ranks, including padding."""
    return [one for _, right in case.shards for one in right]


def _matches_on_every_rank(value: Callable[[RankImages], Any]) -> Callable[..., bool]:
    """Return a predicate that tests whether every rank's result is ``value(case)``."""
    return _matches_ranks(lambda case: [value(case)] * len(case.shards))


ACCURACY_MISTAKES: List[Mistake] = [
    (_matches_ranks(_rank_accuracies), "that is the accuracy of the rank's own images",
     "それはそのランク自身の画像だけの正解率です"),
    (_matches_on_every_rank(lambda case: np.mean(_all_right_flags(case))), "the padding images are counted twice",
     "パディングの画像が 2 回数えられています"),
    (_matches_on_every_rank(lambda case: sum(_all_right_flags(case)) / case.size),
     "the correct answers for padding images are counted twice", "パディングの正解が 2 回数えられています"),
    *((_matches_on_every_rank(mean_of),
      "that is a mean of the ranks' means: images on a rank with few images count more",
       "ランクごとの平均の平均なので、枚数の少ないランクの画像が重く数えられます")
      for mean_of in (lambda case: np.mean(_rank_accuracies(case)),
                      lambda case: np.mean(np.nan_to_num(_rank_accuracies(case))))),
    (_matches_on_every_rank(lambda case: 100 * case.accuracy),
     "that is a percentage: return a number from 0 to 1", "これは百分率です。正解率は 0 から 1 までの数です"),
    (_matches_on_every_rank(lambda case: np.nansum(_rank_accuracies(case))), "the ranks' accuracies are added up",
     "ランクごとの正解率を足しただけです"),
]  # fmt: skip


# --- 08-4: the staleness of each push to an asynchronous parameter server


Event = Tuple[int, str, str]  # (worker, "pull" or "push", key)
PULL, PUSH = "pull", "push"


@exercise("08-4")
def check_staleness(answer: Callable[[List[Event]], List[int]]) -> None:
    """Count the updates of other workers that a worker has not seen at each push."""
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
    random = case_rng(84)
    for _ in range(8):
        workers, keys = int(random.randint(2, 5)), ["w", "b", "v"][: random.randint(1, 4)]
        events: List[Event] = []
        for _ in range(int(random.randint(8, 24))):
            worker, what = int(random.randint(workers)), [PULL, PUSH][random.randint(2)]
            events.append((worker, what, keys[random.randint(len(keys))]))
        cases.append(events)

    def describe(events: List[Event], got: Any, want: List[int]) -> TextPair:
        """Describe wrong counts of missed updates, in English and Japanese."""
        call = f"staleness({events})"
        if not isinstance(got, list):
            raise wrong_return(got, call, "a list with a number for each push", "push ごとの数のリスト")
        if len(got) != len(want):
            why = (
                f"pushes: {len(want)}, numbers: {len(got)}",
                f"push は {len(want)} 回ですが、数が {len(got)} 個あります",
            )
            raise counterexample(*wrong_value_texts(call, got, want), why)
        return wrong_value_texts(call, got, want)

    results = run_cases(lambda case: _to_list(answer(case)), [(case,) for case in cases], _count_missed_updates)
    results.check_results(_is_same_list, STALENESS_MISTAKES, describe)


def _to_list(value: Any) -> Any:
    """Convert a collection to a list of built-in Python types. Return other values unchanged."""
    if not isinstance(value, Iterable) or isinstance(value, (str, dict)):
        return value
    return [one.item() if isinstance(one, np.generic) else one for one in value]


def _is_same_list(got: Any, want: List[Any]) -> bool:
    return isinstance(got, list) and got == want


def _count_missed_updates(
    events: List[Event],
    updates_by_key: bool = True,
    pulls_by_key: bool = True,
    count_own: bool = False,
    start_events: Tuple[str, ...] = (PULL,),
    count_workers: bool = False,
    unpulled: bool = True,
) -> List[int]:
    """Return, for each push, the number of updates that the pushing worker has not seen.

    An update counts if another worker updated the same key after the pushing worker's last pull of
    this key. Arguments other than the defaults simulate mistakes.

    Args:
        events: the pulls and pushes of all workers, in order.
        updates_by_key: whether to count only updates of the push's key.
        pulls_by_key: whether only pulls of the push's key restart the counting.
        count_own: whether to include the worker's own updates.
        start_events: the kinds of the worker's own events after which counting restarts. If this is
            empty, counting starts at the first event and never restarts.
        count_workers: whether to count workers instead of updates.
        unpulled: whether to also count updates for a worker that has not pulled yet.
    """
    pushes: List[Tuple[int, str]] = []  # (worker, key) of all pushes so far
    # (worker, key) -> the number of pushes by all workers before the counting starts
    since: Dict[Tuple[int, str], int] = {}
    missed = []
    for worker, what, key in events:
        worker_key = worker, key if pulls_by_key else ""
        if what == PUSH:
            new_pushes = pushes[since.get(worker_key, 0) :] if unpulled or worker_key in since else []
            counted = [
                other
                for other, other_key in new_pushes
                if (count_own or other != worker) and (other_key == key or not updates_by_key)
            ]
            missed.append(len(set(counted) if count_workers else counted))
            pushes.append((worker, key))
        if what in start_events:
            since[worker_key] = len(pushes)
    return missed


def _matches_count(**how: Any) -> Callable[..., bool]:
    """Return a predicate that tests for the result ``_count_missed_updates(events, **how)``."""
    return lambda events, got: _is_same_list(got, _count_missed_updates(events, **how))


STALENESS_MISTAKES: List[Mistake] = [
    (_matches_count(count_own=True), "the worker's own updates are also counted, but it already knows them",
     "自分の更新も数えています。自分の更新は古さには入りません"),
    (_matches_count(updates_by_key=False), "updates of other keys are counted", "ほかのキーの更新も数えています"),
    (_matches_count(pulls_by_key=False), "a pull of another key does not bring this one",
     "別のキーを pull しても、このキーは新しくなりません"),
    (_matches_count(updates_by_key=False, pulls_by_key=False), "updates of other keys are counted",
     "ほかのキーの更新も数えています"),
    (_matches_count(start_events=(PUSH,)),
     "you count since the worker's last push: count since its last pull",
     "最後の push から数えています。その後に pull した分は古くありません"),
    (_matches_count(start_events=(PULL, PUSH)), "a push does not bring new weights to its worker: only a pull does",
     "push しても新しい重みは届きません。届くのは pull したときだけです"),
    (_matches_count(count_workers=True), "that is the number of other workers that pushed: count every update",
     "push したワーカーの数ではなく、更新の回数を数えます"),
    (_matches_count(unpulled=False),
     "a worker that has not pulled yet has the initial weight, so it has missed all updates",
     "まだ pull していないワーカーが持つのは最初の重みで、どの更新も見ていません"),
    (_matches_count(start_events=()),
     "you count from the start: a pull brings the newest weight, so count from the last pull",
     "最初から数えています。pull すれば最新の重みになります"),
    (_matches_count(updates_by_key=False, pulls_by_key=False, count_own=True),
     "the updates of all workers and keys are counted: count only other workers' updates of this key",
     "すべてのワーカーとキーの更新を数えています"),
]  # fmt: skip


# --- 08-5: the step from which a killed run resumes


STEPS_PER_EPOCH = 5


class KilledRun(NamedTuple):
    """A run that was killed.

    ``metrics``: the text of its log, with one JSON object per line. ``checkpoints``: for the step
    of each checkpoint, whether the checkpoint is complete.
    """

    metrics: str
    checkpoints: Dict[int, bool]

    @property
    def logged_steps(self) -> List[int]:
        """The steps that have a complete line in the log."""
        lines = [json.loads(line) for line in self.metrics.splitlines() if line.endswith("}")]
        return [line["step"] for line in lines if line["kind"] == "step"]

    @property
    def last_step(self) -> int:
        """The last step that has a complete line in the log, or 0."""
        return max(self.logged_steps, default=0)

    def usable_checkpoints(self, last: int, whole: bool = True) -> List[int]:
        """Return the steps of all checkpoints up to step ``last``, in the order of ``checkpoints``.

        ``whole``: whether to ignore damaged checkpoints.
        """
        return [step for step, is_whole in self.checkpoints.items()
                if step <= last and (is_whole or not whole)]  # fmt: skip

    def newest_checkpoint(self, whole: bool = True, logged: bool = True) -> int:
        """Return the step of the newest usable checkpoint, or 0.

        ``whole``: whether to ignore damaged checkpoints. ``logged``: whether to ignore checkpoints
        after the last logged step.
        """
        last = self.last_step if logged else max(self.checkpoints, default=0)
        return max(self.usable_checkpoints(last, whole), default=0)

    def restart_point(self) -> Tuple[int, int]:
        """Return the step to resume from, and the number of steps to repeat."""
        return self.newest_checkpoint(), self.last_step - self.newest_checkpoint()


@exercise("08-5")
def check_restart_step(answer: Callable[[str, Dict[int, bool]], Tuple[int, int]]) -> None:
    """Find the step from which a killed run resumes, and the number of repeated steps."""
    cases = [
        _make_killed_run(12, {5: True, 10: True}),
        _make_killed_run(13, {5: True, 10: False}),
        _make_killed_run(9, {5: True, 10: True}),
        _make_killed_run(3, {}),
        _make_killed_run(10, {5: True, 10: True}),
        _make_killed_run(0, {}, cut='{"kind": "st'),
        _make_killed_run(7, {5: True}, cut='{"kind": "step", "step": 8, "lo'),
        _make_killed_run(14, {4: True, 8: False, 12: False}, resumed=4),
        _make_killed_run(13, {10: True, 5: True}),
        _make_killed_run(8, {4: True, 8: True}, cut='{"kind": "step", "step": 9, "lo'),
        _make_killed_run(9, {8: True, 6: True, 10: True, 2: True}),
    ]
    randint = case_rng(85).randint
    for _ in range(8):
        last, every = int(randint(4, 40)), int(randint(2, 8))
        checkpoints = {step: bool(randint(4)) for step in range(every, last + 2 * every, every)}
        cut = f'{{"kind": "step", "step": {last + 1}, "lo' if randint(2) else ""
        cases.append(_make_killed_run(last, checkpoints, cut, resumed=every if randint(2) else None))

    def describe(metrics: str, checkpoints: Dict[int, bool], got: Any, want: Tuple[int, int]) -> TextPair:
        """Describe a wrong restart step or number of repeated steps, in English and Japanese."""
        if not isinstance(got, tuple) or len(got) != 2:
            en = "two numbers: the step from which the run resumes, and the number of repeated steps"
            raise wrong_return(got, "goes_on(...)", en, "2 つの数 (再開するステップと、やり直す回数) ")
        steps, en, ja = len(KilledRun(metrics, checkpoints).logged_steps), "", ""
        if not metrics.endswith("\n") and metrics:
            en, ja = " and an incomplete line", "と途中で切れた 1 行"
        return (
            f"a log of {steps} steps{en}, checkpoints {checkpoints}: {got}, expected {want}",
            f"{steps} ステップのログ{ja}、チェックポイント {checkpoints}: {got} でしたが、正しくは {want} です",
        )

    def expected_restart(metrics: str, checkpoints: Dict[int, bool]) -> Tuple[int, int]:
        return KilledRun(metrics, checkpoints).restart_point()

    results = run_cases(lambda *case: _to_pair(answer(*case)), cases, expected_restart)
    results.check_results(_is_same_pair, RESTART_MISTAKES, describe)


def _make_killed_run(
    last: int, checkpoints: Dict[int, bool], cut: str = "", resumed: Optional[int] = None
) -> KilledRun:
    """Return a run that was killed after ``last`` steps.

    ``cut``: an incomplete last line of the log, or "". ``resumed``: the step from which the run was
    resumed earlier, or None.
    """
    lines: List[Dict[str, Any]] = []
    for step in range(1, last + 1):
        lines.append({"kind": "step", "step": step, "loss": round(2 / step, 4)})
        if step % STEPS_PER_EPOCH == 0:
            epoch = step // STEPS_PER_EPOCH
            lines.append({"kind": "epoch", "epoch": epoch, "step": step, "accuracy": 0.9})
        if step == resumed:
            lines.append({"kind": "event", "event": "resumed", "step": step})
    return KilledRun("".join(json.dumps(line) + "\n" for line in lines) + cut, checkpoints)


def _to_pair(value: Any) -> Any:
    """Convert a list or array of numbers to a tuple. Return other values unchanged."""
    values = value if isinstance(value, set) else _to_list(value)
    is_pair = isinstance(values, list) and all(is_number(one) for one in values)
    return tuple(values) if is_pair else value


def _is_same_pair(got: Any, want: Tuple[int, int]) -> bool:
    return isinstance(got, tuple) and got == want


def _matches_run_formula(formula: Callable[[KilledRun], Tuple[int, int]]) -> Callable[..., bool]:
    """Return a predicate that tests whether the result is ``formula(run)``."""
    return lambda *case, got: _is_same_pair(got, formula(KilledRun(*case)))


def _restart_with_cut_line(killed: KilledRun) -> Tuple[int, int]:
    """Return (restart step, repeated steps) for a known mistake: an incomplete line is counted."""
    last = killed.last_step + ("step" in killed.metrics.split("\n")[-1])
    start = max(killed.usable_checkpoints(last), default=0)
    return start, last - start


def _matches_start(start: Callable[[KilledRun], int]) -> Callable[..., bool]:
    """Return a predicate that tests whether the answer resumes the run from step ``start(run)``."""
    return _matches_run_formula(lambda killed: (start(killed), killed.last_step - start(killed)))


RESTART_MISTAKES: List[Mistake] = [
    (_matches_start(lambda killed: killed.newest_checkpoint(whole=False, logged=False)),
     "you use the newest checkpoint even if it is damaged or ahead of the log",
     "最新のチェックポイントを、壊れていないか、ログより先でないかを確かめずに使っています"),
    (_matches_start(lambda killed: killed.newest_checkpoint(whole=False)), "you use a damaged checkpoint",
     "壊れたチェックポイントを使っています"),
    (_matches_start(lambda killed: killed.newest_checkpoint(logged=False)),
     "you use a checkpoint that is ahead of the log", "ログより先のステップのチェックポイントを使っています"),
    (_matches_run_formula(lambda killed: (killed.last_step, 0)),
     "the log does not contain the weights: only a checkpoint does",
     "ログにあっても保存されたわけではありません。重みはチェックポイントにしかありません"),
    (_matches_run_formula(lambda killed:
        (killed.newest_checkpoint() + 1, killed.last_step - killed.newest_checkpoint())),
     "a checkpoint of step 5 is saved after that step: the run resumes from step 5",
     "ステップ 5 のチェックポイントには、そのステップの結果まで入っています。再開するのはそこからです"),
    (_matches_run_formula(lambda killed:
        (killed.newest_checkpoint(), max(0, killed.last_step - killed.newest_checkpoint() - 1))),
     "the last logged step is also repeated", "ログの最後のステップもやり直します"),
    (_matches_run_formula(lambda killed: killed.restart_point()[::-1]), "the two numbers are swapped",
     "2 つの数の順序が逆です"),
    (_matches_start(lambda killed: [0, *killed.usable_checkpoints(killed.last_step)][-1]),
     "that is the last one in the dictionary, but it may not be the newest",
     "これは辞書の最後にあるものです。最も新しいとは限りません"),
    (_matches_start(lambda killed: max(killed.usable_checkpoints(killed.last_step - 1), default=0)),
     "a checkpoint of the last logged step is not ahead of the log",
     "ログの最後のステップのチェックポイントは、ログより先ではありません"),
    (_matches_run_formula(_restart_with_cut_line), "you count the incomplete line as a step",
     "途中で切れた行を 1 ステップと数えています"),
    (_matches_run_formula(lambda killed:
        (killed.newest_checkpoint(),
         len(killed.metrics.splitlines()) - killed.newest_checkpoint())),
     "you count lines, but not every line is a step", "行数を数えていますが、すべての行がステップではありません"),
]  # fmt: skip


# --- 08-6: the host and the local rank of each rank of an LSF job
#
# The answer reads a text that lists the hosts and their numbers of slots, such as "a 2 b 1". A
# RankPlace is (host, local rank).


RankPlace = Tuple[str, int]
HostSlots = List[Tuple[str, int]]


@exercise("08-6")
def check_rank_places(answer: Callable[[str], List[RankPlace]]) -> None:
    """Find the host and the local rank of each rank of an LSF job."""
    cases = ["gpu07 2", "gpu07 2 gpu03 2", "a 1 b 3 c 2", "a 2 b 1 a 2", "n12 4 n3 1 n12 1 n3 2"]
    cases += ["n1 10", "n2 3 n1 12"]
    random = case_rng(86)
    for _ in range(6):
        names = [f"gpu{number:02}" for number in random.permutation(20)[: random.randint(1, 5)]]
        repeated_names = [names[random.randint(len(names))] for _ in range(random.randint(0, 3))]
        cases.append(" ".join(f"{name} {random.randint(1, 5)}" for name in [*names, *repeated_names]))

    def describe(text: str, got: Any, want: List[RankPlace]) -> TextPair:
        """Describe wrong hosts or local ranks, in English and Japanese."""
        call = f"places({text!r})"
        if not isinstance(got, list) or not all(isinstance(one, tuple) for one in got):
            en = "a list with (host, local rank) of each rank"
            raise wrong_return(got, call, en, "ランクごとの (ホスト, ローカルランク) のリスト")
        return wrong_value_texts(call, got, want)

    cases_as_arguments = [(text,) for text in cases]
    results = run_cases(lambda text: _to_places(answer(text)), cases_as_arguments, _launcher_places)
    results.check_results(_is_same_list, PLACE_MISTAKES, describe)


def _launcher_places(text: str) -> List[RankPlace]:
    """Return the (host, local rank) that gluonlab's launcher computes for each rank."""
    _, hosts = read_lsf_hosts({"LSB_MCPU_HOSTS": text})
    flat = [host.host for host in hosts for _ in range(host.slots)]
    return [(host, lsf_local_rank_and_size(rank, hosts)[0]) for rank, host in enumerate(flat)]


def _to_places(value: Any) -> Any:
    """Convert (host, rank) pairs to a list of (str, int) tuples. Return other values unchanged."""
    if not isinstance(value, Iterable) or isinstance(value, (str, dict)):
        return value
    pairs = list(value)
    if not all(isinstance(pair, (tuple, list)) for pair in pairs):
        return value
    return [tuple(_to_list(pair)) for pair in pairs]


def _parse_hosts(text: str) -> HostSlots:
    words = text.split()
    return [(host, int(count)) for host, count in zip(words[::2], words[1::2])]


def _slot_hosts(text: str) -> List[str]:
    return [host for host, count in _parse_hosts(text) for _ in range(count)]


def _number_by_host(hosts: Iterable[str]) -> List[RankPlace]:
    """Return, for each slot, (host, number of earlier slots on the same host)."""
    flat = list(hosts)
    return [(host, flat[:place].count(host)) for place, host in enumerate(flat)]


def _number_by_entry(pairs: Iterable[Tuple[str, int]]) -> List[RankPlace]:
    """Return (host, index of the slot in its pair) for each slot of the (host, slots) pairs."""
    return [(host, n) for host, count in pairs for n in range(count)]


def _places_round_robin(text: str) -> List[RankPlace]:
    """Return each rank's (host, local rank) for a known mistake: hosts take ranks in turn.

    LSF fills one host after the other.
    """
    numbered = _number_by_host(_slot_hosts(text))
    order = list(dict.fromkeys(_slot_hosts(text)))
    return sorted(numbered, key=lambda place: (place[1], order.index(place[0])))


def _places_by_host(text: str) -> List[RankPlace]:
    """Return the result of a known mistake: each host has all its slots at its first position."""
    flat = _slot_hosts(text)
    return _number_by_host(host for name in dict.fromkeys(flat) for host in flat if host == name)


_matches_places = partial(matches_formula, same=_is_same_list)


PLACE_MISTAKES = formula_mistakes(_matches_places, [
    (lambda text: _number_by_entry(_parse_hosts(text)),
     "if a host appears again, continue counting its local ranks: otherwise two ranks use the same GPU",
     "もう一度出てきたホストでは番号が続きます。そうしないと 2 つのランクが同じ番号、つまり同じ GPU になります"),
    (lambda text: [(host, rank) for rank, host in enumerate(_slot_hosts(text))],
     "that is the rank in the job: the local rank starts at 0 on each host",
     "それはジョブ全体でのランクです。ローカルランクはホストごとに 0 から始まります"),
    (_places_round_robin, "fill the slots host by host, not in turns",
     "スロットはホストごとに埋まります。順番に 1 つずつではありません"),
    (_places_by_host, "assign ranks in the order of the list: a host that appears again gets later ranks",
     "ランクは並んでいる順に付きます。もう一度出てきたホストには後のランクが付きます"),
    (lambda text: _number_by_host(sorted(_slot_hosts(text))),
     "keep the hosts in the order of the list, do not sort them", "ホストの順序は名前の順ではなく、並んでいる順です"),
    (lambda text: [(host, n + 1) for host, n in _number_by_host(_slot_hosts(text))], "local ranks are counted from 0",
     "ローカルランクは 0 から数えます"),
    (lambda text: _number_by_entry(dict(_parse_hosts(text)).items()),
     "a host that appears again gets more slots: they do not replace the first ones",
     "もう一度出てきたホストではスロットが増えます。前の分と置き換わるのではありません"),
    (lambda text: _number_by_host(h for h, count in _parse_hosts(text) for _ in range(int(str(count)[0]))),
     "a number of slots may have two digits", "スロット数は 2 桁のこともあります"),
    (lambda text: [(host, count) for host, count in _parse_hosts(text)],
     "return one entry per slot, not one per host", "ホストごとではなく、スロットごとに 1 つ要ります"),
])  # fmt: skip


# --- The guesses


# fmt: off
register_guess("08-a", ChoiceForm("exactly 0", "rounding", "more"),
    "how much do the last losses with one process and with two processes differ?",
    "1 プロセスと 2 プロセスの最後の損失はどれくらい違うか")
register_guess("08-b", DictForm(NumberForm(0, example=0.5, within=0.1), "copied", "lasting"),
    "how many bytes do the devices send each other in a step, in units of the parameters?",
    "1 ステップでデバイスの間を通るのは、パラメータのバイト数の何倍か")
register_guess("08-c", DictForm(NumberForm(0, 1, example=0.1, within=0.04), "2 ranks", "8 ranks"),
    "if each rank draws a different permutation, what fraction of the images is not used?",
    "ランクごとに並べ替えが違うとき、どのランクも使わない画像の割合")
register_guess("08-d", NumberForm(0, 1, example=0.1, within=0.08),
    "if only rank 0 evaluates, for what fraction of the time are the other 7 ranks idle?",
    "ランク 0 だけが評価するとき、残りの 7 個が何もしない時間の割合")
register_guess("08-e", NumberForm(0, example=5, within=0.3),
    "how many updates by the other worker has a worker missed when it pushes?",
    "push が届いたとき、まだ pull していない相手の更新は平均何回分か")
register_guess("08-f", ChoiceForm("the first step", "the last checkpoint", "the kill"),
    "where does the run resume after a worker is killed?", "ワーカーが強制終了された後、どこから再開されるか")
register_guess("08-g", NumberForm(0, example=25),
    "how many steps have a different loss than in an uninterrupted run?",
    "中断しなかった場合と損失が違うステップの数")
