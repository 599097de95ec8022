"""09-5: an accuracy in which every image counts once."""

from __future__ import annotations

import math
from typing import Callable, List, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab09.symptom import still
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import NUMBERS, looks_like, returned, wrong
from gluonlab.exercises.shared.softmax_regression import CLASSES, FEATURES, Values, make_net


@exercise("09-5")
def padded_evaluation(answer: Callable[..., float]) -> None:
    """An accuracy in which every image counts once."""
    cases = [([1, 1, 1, 0], 4, 1), ([1, 1, 1, 0], 2, 2), ([1, 0, 1], 2, 1)]
    cases += [([1, 1, 0, 0, 0], 4, 2), ([0, 0, 1], 2, 2), ([1, 0], 8, 2)]
    random = draws(5)
    for n, size, k in ((13, 4, 2), (10, 3, 3), (25, 8, 2), (9, 8, 4)):
        cases.append((random.randint(0, 2, n).tolist(), size, k))
    for right, size, count in cases:
        _check_accuracy(answer, right, size, count)


def _check_accuracy(answer: Callable[..., float], right: List[int], size: int, count: int) -> None:
    n, ctxs = len(right), cpus(count)
    labels = draws(n).randint(0, CLASSES, n)
    # what the network will say: the label, or the class after it
    shown = (labels + 1 - np.array(right)) % CLASSES
    images = np.eye(CLASSES, FEATURES, dtype="float32")[shown]
    net = make_net(Values(np.eye(CLASSES, FEATURES), np.zeros(CLASSES)), ctxs)
    seen: List[Tuple[mx.Context, int]] = []
    net.register_forward_pre_hook(
        lambda block, inputs: seen.append((inputs[0].context, len(inputs[0])))
    )
    given = answer(net, images, labels, size, ctxs)
    if not isinstance(given, (*NUMBERS, nd.NDArray)):
        raise returned(given, "`accuracy`", "a number", "数値")
    got = float(given.asscalar() if isinstance(given, nd.NDArray) else given)
    _check_value(got, right, size)
    for ctx in ctxs if min(n, size) >= count else ():
        if ctx not in {each for each, _ in seen}:
            raise wrong(
                f"{_in_words(got, right, size)[0]}, which is right, but {ctx} did nothing: "
                f"the images should be shared among {count} devices",
                f"正解率 {got:.4g} は正しいのですが、{ctx} が何もしていません。"
                f"{count} 台のデバイスで分担してください",
            )
    most, share = max(length for _, length in seen), math.ceil(size / count)
    if most > share:
        raise wrong(
            f"the accuracy is right, but a device had {most} images at once, "
            f"expected at most {share} ({size} on {count} devices)",
            f"正解率は正しいのですが、1 台のデバイスに一度に {most} 枚が載りました。"
            f"多くても {share} 枚のはずです ({size} 枚を {count} 台のデバイスで)",
        )


def _in_words(got: float, right: List[int], size: int) -> Tuple[str, str]:
    n, correct = len(right), sum(right)
    return (
        f"{n} images, {correct} of them right, in batches of {size}: "
        f"the accuracy is {got:.4g}, expected {correct / n:.4g}",
        f"{n} 枚のうち {correct} 枚が正解、バッチ {size} 枚ずつ: "
        f"正解率が {got:.4g} になりました。正しくは {correct / n:.4g} です",
    )


def _check_value(got: float, right: List[int], size: int) -> None:
    n, (en, ja) = len(right), _in_words(got, right, size)
    rows, whole = math.ceil(n / size) * size, n // size * size
    padded, kept = sum(right[i % n] for i in range(rows)), sum(right[:whole])

    def is_near(value: float) -> bool:
        return math.isclose(got, value, abs_tol=1e-6)

    if is_near(sum(right) / n):
        return
    if is_near(padded / rows):
        raise still(
            f"{en}; {got:.4g} times {n} images is {got * n:.4g} images",
            f"{ja}。{n} 枚の {got:.4g} 倍は {got * n:.4g} 枚です",
        )
    lost = kept != sum(right) and (is_near(kept / n) or is_near(kept / max(1, whole)))
    raise wrong(
        en,
        ja,
        looks_like(
            (is_near(padded / n), f"{padded} right ones were counted among {n}",
             f"{n} 枚の中で正解が {padded} 枚と数えられました"),
            (lost, f"the last {n % size} were left out", f"最後の {n % size} 枚が抜けています"),
        ),
    )  # fmt: skip
