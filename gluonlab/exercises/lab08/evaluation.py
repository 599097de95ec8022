"""08-3: the accuracy over all ranks, some of whose images are padding."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.lab08.ranks import Hang, Outcome, Ranks, Unequal
from gluonlab.exercises.shared.counterexamples import NUMBERS, returned, wrong
from gluonlab.exercises.shared.diagnosis import LEAST, Mistake

Shard = Tuple[List[int], List[int]]  # the images of a rank, and whether each is right


class Evaluation(NamedTuple):
    """What the ranks have. ``right``: of each of the ``size`` images."""

    shards: List[Shard]
    size: int
    right: List[int]

    @property
    def accuracy(self) -> float:
        """The one of all images."""
        return sum(self.right) / self.size

    def __str__(self) -> str:
        return "; ".join(f"images {images}, right {right}" for images, right in self.shards)

    @property
    def ja(self) -> str:
        """In Japanese."""
        return "、".join(f"画像 {images} 正解 {right}" for images, right in self.shards)


class Given(NamedTuple):
    """What each rank returned."""

    case: Evaluation
    got: List[Any]

    @property
    def is_right(self) -> bool:
        """Whether every rank has the accuracy."""
        return all(_same(each, self.case.accuracy) for each in self.got)


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
    mistaken: List[Given] = []
    for case in cases:
        try:
            given = Given(case, _values(answer, case))
        except Wrong:  # the ranks' sums do not meet
            raise
        except Exception:  # whatever a student's code raises: the first counterexample comes first
            if mistaken:
                break
            raise
        if not given.is_right:
            mistaken.append(given)
    if mistaken:
        raise _wrong(mistaken)


def _of(images: List[List[int]], right: List[int]) -> Evaluation:
    return Evaluation([(own, [right[one] for one in own]) for own in images], len(right), right)


def _same(got: Any, want: float) -> bool:
    return isinstance(got, NUMBERS) and bool(abs(got - want) < 1e-6)


def _values(answer: Callable[..., float], case: Evaluation) -> List[Any]:
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
        if not isinstance(value, NUMBERS):
            raise returned(value, "global_accuracy(...)", "a number", "数値")
    return values


def _raise_first(outcomes: List[Outcome], case: Evaluation) -> None:
    """Raise what a rank has raised; Wrong where the ranks' sums do not meet."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    for error in errors:
        if not isinstance(error, (Hang, Unequal)):
            raise error
    for error in errors:
        if isinstance(error, Hang):
            raise wrong(
                f"{case}: rank {error.rank} waits in `allreduce` for rank {error.ended}, which "
                "has ended: every rank must make the same calls",
                f"{case.ja}: ランク {error.rank} が `allreduce` で、すでに終わった"
                f"ランク {error.ended} を待っています。どのランクも同じ回数呼ぶ必要があります",
            )
        raise wrong(
            f"{case}: `allreduce` sums arrays of one shape, and was given {error}",
            f"{case.ja}: `allreduce` に渡す配列は全ランクで同じ形状でなければなりません ({error})",
        )


def _wrong(mistaken: List[Given]) -> Wrong:
    """The first counterexample, and the mistake that explains all of them."""
    case, got = mistaken[0]
    rank = next(rank for rank, each in enumerate(got) if not _same(each, case.accuracy))
    why = ("", "")
    if len(mistaken) >= LEAST:
        for gives, en, ja in MISTAKES:
            if all(gives(each.case, got=each.got) for each in mistaken):
                why = en, ja
                break
    return wrong(
        f"{case}: rank {rank} has {got[rank]:.4g}, expected {case.accuracy:.4g}",
        f"{case.ja}: ランク {rank} の答えは {got[rank]:.4g} でしたが、"
        f"正しくは {case.accuracy:.4g} です",
        why,
    )


def _by(formula: Callable[[Evaluation], List[float]]) -> Callable[..., bool]:
    """Whether the ranks' values are those of a formula."""

    def gives(case: Evaluation, got: List[Any]) -> bool:
        with np.errstate(all="ignore"):
            want = formula(case)
        both_nan = [np.isnan(a) and np.isnan(b) for a, b in zip(got, want)]
        return all(nan or _same(a, b) for a, b, nan in zip(got, want, both_nan))

    return gives


def _means(case: Evaluation) -> List[Any]:
    """Of each rank; NaN of one without images."""
    return [np.mean(right) if right else np.nan for _, right in case.shards]


def _with_padding(case: Evaluation) -> float:
    return float(np.mean([one for _, right in case.shards for one in right]))


def _right_in_all(case: Evaluation) -> int:
    return sum(one for _, right in case.shards for one in right)


MISTAKES: List[Mistake] = [
    (_by(_means),
     "that is the accuracy of the rank's own images",
     "それはそのランク自身の画像だけの正解率です"),
    (_by(lambda case: [_with_padding(case)] * len(case.shards)),
     "padding counts twice", "パディングの画像が 2 回数えられています"),
    (_by(lambda case: [_right_in_all(case) / case.size] * len(case.shards)),
     "the right answers of padding count twice", "パディングの正解が 2 回数えられています"),
    (_by(lambda case: [np.mean(_means(case))] * len(case.shards)),
     "a mean of the ranks' means: images of a rank with few of them count more",
     "ランクごとの平均の平均なので、枚数の少ないランクの画像が重く数えられます"),
    (_by(lambda case: [np.mean(np.nan_to_num(_means(case)))] * len(case.shards)),
     "a mean of the ranks' means: images of a rank with few of them count more",
     "ランクごとの平均の平均なので、枚数の少ないランクの画像が重く数えられます"),
    (_by(lambda case: [100 * case.accuracy] * len(case.shards)),
     "that is in percent; the accuracy is a number from 0 to 1",
     "これは百分率です。正解率は 0 から 1 までの数です"),
    (_by(lambda case: [np.nansum(_means(case))] * len(case.shards)),
     "the ranks' accuracies are added up", "ランクごとの正解率を足しただけです"),
]  # fmt: skip
