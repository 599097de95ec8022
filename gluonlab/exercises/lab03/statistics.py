"""03-4: mean and variance of a batch from those of its shards."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.lab03.update import numbers
from gluonlab.exercises.shared.counterexamples import wrong
from gluonlab.exercises.shared.diagnosis import Mistake, Result, explains, results

Array = Any  # np.ndarray


@exercise("03-4")
def combine(answer: Callable[..., Any]) -> None:
    """Mean and variance of a batch from those of its shards."""
    rng = draws(2)
    cases: List[List[List[float]]] = [[[1, 3]], [[1, 3], [1, 3]], [[0, 0], [2, 2]]]
    cases += [[[0], [3, 3, 3]], [[0, 2], [4]]]
    for _ in range(30):
        count = rng.randint(1, 5)
        cases.append([list(rng.normal(rng.normal(), 2, rng.randint(1, 9))) for _ in range(count)])
    found = results(
        lambda shards: answer(*shards.described()),
        [(Shards(shards),) for shards in cases],
        lambda shards: (shards.whole.mean(axis=0), shards.whole.var(axis=0)),
    )
    both: Tuple[List[Result], List[Result]] = ([], [])
    for case, got, want in found:
        _check_form(got, case[0])
        for place, kept in enumerate(both):
            kept.append(Result(case, _two_channels(got[place]), want[place]))
    for pair in zip(*both):
        for quantity, one, of_all in zip((MEAN, VARIANCE), pair, both):
            if not _same(one.got, one.want):
                raise quantity.is_wrong(one, of_all)
    found.end()


class Shards:
    """The pixels of a batch's shards in two channels: an answer for one is not enough."""

    def __init__(self, shards: Sequence[Sequence[float]]) -> None:
        self.parts = [np.stack([np.array(one), 10 - 2 * np.array(one)], axis=1) for one in shards]
        self.whole: Array = np.concatenate(self.parts)

    def described(self) -> Tuple[List[Array], List[Array], List[int]]:
        """The means, the variances, and how many pixels each shard has."""
        means, variances = ([of(part, axis=0) for part in self.parts] for of in (np.mean, np.var))
        return means, variances, [len(part) for part in self.parts]

    def shown(self, channel: int) -> str:
        """``[0, 0] + [2, 2]``: what one channel of each shard holds."""
        return " + ".join(numbers(part[:, channel]) for part in self.parts)


def _check_form(got: Any, shards: Shards) -> None:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        shown = shards.shown(0)
        raise wrong(
            f"for shards {shown} it returned {got!r}: return two things, the mean and the variance",
            f"シャード {shown} に対する戻り値は {got!r} でした。平均と分散の 2 つを返してください",
        )


def _two_channels(value: Any) -> Array:
    value = value.asnumpy() if hasattr(value, "asnumpy") else value
    return np.broadcast_to(np.asarray(value, dtype=float), (2,))


def _same(got: Array, want: Array) -> bool:
    return bool(np.allclose(got, want, rtol=1e-4, atol=1e-5))  # float32 is enough


class Quantity(NamedTuple):
    """The mean or the variance: its name, and the mistakes that are often made with it."""

    en: str
    ja: str
    mistakes: Sequence[Mistake]

    def is_wrong(self, one: Result, of_all: Sequence[Result]) -> Wrong:
        """The counterexample of one result."""
        channel = int(np.argmax(np.abs(one.got - one.want)))
        shown, got, want = one.case[0].shown(channel), one.got[channel], one.want[channel]
        return wrong(
            f"shards {shown}: {self.en} {got:.4g}, expected {want:.4g}",
            f"シャード {shown}: {self.ja}は {got:.4g} でしたが、正しくは {want:.4g} です",
            explains(of_all, _same, *self.mistakes),
        )


def _by(formula: Callable[..., Array]) -> Callable[..., bool]:
    """A mistake that gives what a formula of means, variances and counts gives."""
    return lambda shards, got: _same(got, formula(*shards.described()))


def _variance(shards: Shards, ddof: int = 0) -> Array:
    return shards.whole.var(axis=0, ddof=ddof if len(shards.whole) > ddof else 0)


MEAN = Quantity("mean", "平均", [
    (_by(lambda means, variances, counts: np.mean(means, axis=0)),
     "a shard with more images counts more: weight by `counts`",
     "画像の多いシャードほど重みを大きくしてください"),
    (_by(lambda means, variances, counts: np.sum(means, axis=0)),
     "the means are only added up", "平均を足しただけです"),
])  # fmt: skip

APART = (
    "that is the mean of the shards' variances; how far their means lie apart is missing",
    "これはシャードの分散の平均です。シャードの平均どうしのずれが入っていません",
)
VARIANCE = Quantity("variance", "分散", [
    (_by(lambda means, variances, counts: np.average(variances, axis=0, weights=counts)), *APART),
    (_by(lambda means, variances, counts: np.mean(variances, axis=0)), *APART),
    (_by(lambda means, variances, counts: np.mean(variances, axis=0) + np.var(means, axis=0)),
     "a shard with more images counts more here, too: weight by `counts`",
     "ここでも、画像の多いシャードほど重みを大きくしてください"),
    (lambda shards, got: _same(got, np.sqrt(_variance(shards))),
     "that is the standard deviation", "これは標準偏差です"),
    (lambda shards, got: _same(got, _variance(shards, ddof=1)),
     "BatchNorm divides by the number of images, not by one less",
     "BatchNorm は n - 1 ではなく n で割ります"),
])  # fmt: skip
