"""09-1: an allreduce whose sums reach the arrays that it was given."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab09.symptom import still
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import looks_like, wrong
from gluonlab.exercises.shared.watch import Seen, check_devices, watch


@exercise("09-1")
def allreduce(answer: Callable[[List[nd.NDArray]], None]) -> None:
    """An allreduce whose sums reach the arrays that it was given."""
    cases = [[np.array([value]) for value in values] for values in ([1.0, 2.0], [5.0], [1.0, 2, 4])]
    random = draws(9)
    cases += [list(random.randint(-50, 50, (count, 2, 3)).astype(float)) for count in (2, 3, 4)]
    for begin in cases:
        arrays = [nd.array(values, ctx=ctx) for values, ctx in zip(begin, cpus(len(begin)))]
        with watch() as seen:
            answer(list(arrays))  # a list of its own, as train_batch makes one for each parameter
        got, want = [array.asnumpy() for array in arrays], sum(begin)
        if all(np.array_equal(each, want) for each in got):
            check_devices(Seen(mixed=seen.mixed))
        else:
            _check_unchanged(begin, got, want)
            raise wrong(
                f"allreduce of {_line(begin)} left {_line(got)}, "
                f"expected {_line([want])} on every device",
                f"{_line(begin, '、')} の allreduce の結果が {_line(got, '、')} でした。"
                f"すべてのデバイスで {_line([want])} になるはずです",
                looks_like(
                    (np.array_equal(got[0], want), "the sum does not come back to all devices",
                     "合計がすべてのデバイスには戻っていません"),
                    (all(np.allclose(each, want / len(begin)) for each in got),
                     "that is the mean, not the sum", "それは合計ではなく平均です"),
                ),
            )  # fmt: skip


def _check_unchanged(begin: List[Any], got: List[Any], want: Any) -> None:
    if all(map(np.array_equal, got, begin)):
        raise still(
            f"the arrays on {len(begin)} devices held {_line(begin)} before `allreduce`, "
            f"and they hold the same after it; expected {_line([want])} on every device",
            f"{len(begin)} 台のデバイスの配列は `allreduce` の前に {_line(begin, '、')} で、"
            f"呼んだ後も同じままです。すべてのデバイスで {_line([want])} になるはずです",
        )


def _line(arrays: List[Any], join: str = " and ") -> str:
    return join.join(
        "[" + " ".join(f"{one:g}" for one in np.ravel(array)) + "]" for array in arrays
    )
