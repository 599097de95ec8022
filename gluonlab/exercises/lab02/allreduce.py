"""02-1 and 02-4: an allreduce by hand, and one whose adding is spread over the devices."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab02.sums import check_allreduce
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import wrong
from gluonlab.exercises.shared.watch import Seen


def _vectors() -> List[List[Any]]:
    """What the devices hold, the simplest first.

    Small whole numbers, whose sum has the same bits in every order of addition.
    """
    random = draws(0)
    cases: List[List[Any]] = [[[3], [5]], [[5, 7]], [[1, 10], [2, 20]], [[1], [2], [4]]]
    cases.append([[1, 0], [0, 1], [2, 2], [-4, 8]])
    for devices, shape in ((2, (2, 3)), (3, (4,)), (5, (1, 2, 2))):
        cases.append(random.randint(-9, 10, (devices, *shape)).tolist())
    return cases


@exercise("02-1")
def allreduce(answer: Callable[[List[nd.NDArray]], Any]) -> None:
    """The arrays of all devices end with their sum, in place."""
    for values in _vectors():
        check_allreduce(answer, [[np.array(value, dtype=np.float32)] for value in values], True)


@exercise("02-4")
def different_parameters_on_different_devices(
    answer: Callable[[List[List[nd.NDArray]]], Any],
) -> None:
    """An allreduce whose adding is spread over the devices."""
    random = draws(0)
    small = [(2, [1]), (1, [2, 1]), (2, [1, 1]), (3, [2, 1, 3, 1]), (2, [6, 2, 5, 1, 4])]
    # weights and biases take turns, as in a network: every other parameter is large
    large = [(4, [16] * 12), (4, [160, 16] * 4), (3, [90, 9] * 3), (4, [16, 320, 160, 160])]
    # neither neighbours together nor dealt out in turns are these even, and whole ones can be
    large += [(2, [100, 40, 60]), (3, [90, 30, 30, 60, 60]), (2, [20, 80, 60, 40, 120])]
    for devices, sizes in [*small, *large]:
        values = [
            [random.randint(-9, 10, size).astype(np.float32) for size in sizes]
            for _ in range(devices)
        ]
        seen = check_allreduce(answer, values)
        if (devices, sizes) in large:
            _check_balance(seen, devices, sizes)


def _check_balance(seen: Seen, devices: int, sizes: List[int]) -> None:
    """Raise Wrong if a device receives more than if the largest parameters are dealt out first."""
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
    star = received[busiest] >= 4 * (devices - 1) * total
    raise wrong(
        f"the sums are right. But with parameters of {sizes} numbers on {devices} devices "
        f"they received {numbers} numbers; {fair} at most are possible",
        f"合計は正しいのですが、大きさが {sizes} のパラメータを {devices} 台で合計したとき、"
        f"各デバイスが受け取った数値は {numbers} 個でした。多くても {fair} 個で済みます",
        (f"{busiest} collects everything, as in the star",
         f"星形と同じく {busiest} がすべてを集めています") if star else
        (f"{busiest} owns too much. Give away the largest parameters first, "
         "each to the device that owns least so far",
         f"{busiest} の担当分が多すぎます。大きいパラメータから順に、"
         "担当分が最も少ないデバイスに割り当ててください"),
    )  # fmt: skip
