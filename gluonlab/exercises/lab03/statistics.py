"""03-4: mean and variance of a batch from those of its shards."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab03.update import numbers
from gluonlab.exercises.shared.counterexamples import Pair, looks_like, wrong

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
    for shards in cases:
        # two channels, the second with other numbers: an answer for one number alone is not enough
        pixels = [np.stack([np.array(shard), 10 - 2 * np.array(shard)], axis=1) for shard in shards]
        means = [part.mean(axis=0) for part in pixels]
        variances = [part.var(axis=0) for part in pixels]
        counts = [len(part) for part in pixels]
        got, whole = answer(means, variances, counts), np.concatenate(pixels)
        _check_form(got, pixels)
        mean, variance = map(_two_channels, got)
        _check("mean", "平均", pixels, mean, whole.mean(axis=0), _fault_of_mean(mean, means))
        fault = _fault_of_variance(variance, variances, counts, whole)
        _check("variance", "分散", pixels, variance, whole.var(axis=0), fault)


def _check_form(got: Any, pixels: Sequence[Array]) -> None:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        shown = _shards(pixels, 0)
        raise wrong(
            f"for shards {shown} it returned {got!r}: return two things, the mean and the variance",
            f"シャード {shown} に対する戻り値は {got!r} でした。平均と分散の 2 つを返してください",
        )


def _two_channels(value: Any) -> Array:
    value = value.asnumpy() if hasattr(value, "asnumpy") else value
    return np.broadcast_to(np.asarray(value, dtype=float), (2,))


def _check(en: str, ja: str, pixels: Sequence[Array], got: Array, want: Array, why: Pair) -> None:
    if not np.allclose(got, want, rtol=1e-4, atol=1e-5):  # float32 is enough
        channel = int(np.argmax(np.abs(got - want)))
        shown = _shards(pixels, channel)
        raise wrong(
            f"shards {shown}: {en} {got[channel]:.4g}, expected {want[channel]:.4g}",
            f"シャード {shown}: {ja}は {got[channel]:.4g} でしたが、"
            f"正しくは {want[channel]:.4g} です",
            why,
        )


def _shards(pixels: Sequence[Array], channel: int) -> str:
    """``[0, 0] + [2, 2]``: what one channel of each shard holds."""
    return " + ".join(numbers(part[:, channel]) for part in pixels)


def _fault_of_mean(got: Array, means: Sequence[Array]) -> Pair:
    return looks_like(
        (np.allclose(got, np.mean(means, axis=0)),
         "a shard with more images has more to say: weight by counts",
         "画像の多いシャードほど重くしてください"),
    )  # fmt: skip


def _fault_of_variance(
    got: Array, variances: Sequence[Array], counts: Sequence[int], whole: Array
) -> Pair:
    inside = [np.average(variances, axis=0, weights=weights) for weights in (counts, None)]
    return looks_like(
        (any(np.allclose(got, guess) for guess in inside),
         "that is the mean of the shards' variances; how far their means lie apart is missing",
         "これはシャードの分散の平均です。シャードの平均どうしのずれが入っていません"),
        (np.allclose(got, np.sqrt(whole.var(axis=0))),
         "that is the standard deviation", "これは標準偏差です"),
        (len(whole) > 1 and np.allclose(got, whole.var(axis=0, ddof=1)),
         "BatchNorm divides by the number of images, not by one less",
         "BatchNorm は n - 1 ではなく n で割ります"),
    )  # fmt: skip
