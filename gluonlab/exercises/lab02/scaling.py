"""02-2: k small updates beside a large one, and the factor between their learning rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, List, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import (
    NUMBERS,
    Case,
    in_english,
    near,
    returned,
    wrong,
)
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results

Array = Any  # of numpy
CLOSE = 1e-3  # relative: whoever searches for the factor finds some of its digits


@dataclass(frozen=True, eq=False)
class Problem:
    """Least squares: a shard's rows are an image's features and, last, what it should give."""

    weights: Array
    shards: List[Array]
    lr: float

    def gradient(self, weights: Array, shard: Array) -> Array:
        """Of the mean of half the squared errors on one shard."""
        rows = np.asarray(shard, float)
        if rows.ndim != 2 or np.shape(weights) != self.weights.shape:
            raise wrong(
                f"gradient(weights, shard) was called with arrays of shape {np.shape(weights)} and "
                f"{rows.shape}: it takes all weights and one shard",
                f"gradient(weights, shard) に形状 {np.shape(weights)} と {rows.shape} の配列が"
                "渡されました。渡すのはすべての重みとシャード 1 つです",
            )
        return rows[:, :-1].T @ (rows[:, :-1] @ weights - rows[:, -1]) / len(rows)

    @cached_property
    def steps(self) -> List[Array]:
        """What the small updates subtract, one by one."""
        found, now = [], self.weights
        for shard in self.shards:
            found.append(self.lr * self.gradient(now, shard))
            now = now - found[-1]
        return found

    @cached_property
    def gradients(self) -> List[Array]:
        """Those of all shards at the weights of the beginning."""
        return [self.gradient(self.weights, shard) for shard in self.shards]

    def factor(self, way: Array = None, large: Array = None) -> float:
        """How much of ``lr`` times ``large`` comes nearest to ``way``; both as they should be."""
        way = sum(self.steps) if way is None else way
        large = sum(self.gradients) / len(self.gradients) if large is None else large
        return float(way @ large / (self.lr * (large @ large)))

    @property
    def case(self) -> Case:
        """It in words."""
        k, (b, n) = len(self.shards), self.shards[0].shape
        return Case(
            f"{in_english(k, 'shard')} of {in_english(b, 'image')}, {in_english(n - 1, 'weight')}, "
            f"lr {self.lr:g}",
            f"シャード {k} 個、それぞれ画像 {b} 枚、重み {n - 1} 個、lr {self.lr:g}",
        )


@exercise("02-2")
def k_times_the_batch(answer: Callable[..., Any]) -> None:
    """The factor by which a batch k times as large changes the rate that goes as far."""
    one = [[1.0, 1.0]]  # its gradient is w - 1
    cases = [
        _problem([0.0], [one], 0.1),
        _problem([0.0], [one, one], 0.1),
        _problem([0.0], [one, [[1.0, 3.0]]], 0.5),
        _problem([0.0, 0.0], [[[1.0, 0.0, 1.0]], [[0.0, 2.0, 1.0]]], 0.1),
    ]
    random = draws(22)
    for _ in range(8):
        k, b, n = (int(random.randint(*ends)) for ends in ((2, 9), (1, 6), (2, 7)))
        shards = [random.normal(size=(b, n + 1)) + ([0.0] * n + [2.0]) for _ in range(k)]
        lr = float(random.choice([0.01, 0.05, 0.2]))
        cases.append(Problem(random.normal(size=n), shards, lr))
    found = results(lambda problem: _given(answer, problem), [(each,) for each in cases], _right)
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (problem,), got, want = mistaken[0]
    if not isinstance(got, NUMBERS):
        raise returned(got, "best_factor(...)", "a number", "数値")
    raise problem.case.wrong(
        f"the factor is {got:.6g}, expected {want:.6g}",
        f"倍率が {got:.6g} です。正しくは {want:.6g} です",
        explains(found, _alike, *MISTAKES),
    )


def _problem(weights: Any, shards: Any, lr: float) -> Problem:
    return Problem(np.array(weights), [np.array(shard) for shard in shards], lr)


def _given(answer: Callable[..., Any], problem: Problem) -> Any:
    """What the answer gives. Raises Wrong if it has changed the weights."""
    weights = problem.weights.copy()
    shards = [shard.copy() for shard in problem.shards]
    got = answer(problem.gradient, weights, shards, problem.lr)
    if not np.array_equal(weights, problem.weights):
        raise problem.case.wrong(
            "`weights` has been changed, so that the large update begins elsewhere: `-=` writes "
            "into the array itself",
            "`weights` が書き換えられていて、大きな更新の始点がずれます。"
            "`-=` は配列そのものに書き込みます",
        )
    return got.item() if isinstance(got, (np.ndarray, np.generic)) and got.size == 1 else got


def _right(problem: Problem) -> float:
    return problem.factor()


def _alike(got: Any, want: float) -> bool:
    return near(got, want, CLOSE)


def _by(formula: Callable[[Problem], float]) -> Callable[..., bool]:
    return lambda problem, got: isinstance(got, NUMBERS) and near(got, formula(problem), CLOSE)


def _end(problem: Problem) -> Array:
    return problem.weights - sum(problem.steps)


def _of_end(problem: Problem) -> Array:
    """The mean gradient where the small updates have ended."""
    found = [problem.gradient(_end(problem), shard) for shard in problem.shards]
    return sum(found) / len(found)


def _without_rate(problem: Problem) -> float:
    """If the small updates subtract whole gradients, and the large one, too."""
    return Problem(problem.weights, problem.shards, 1.0).factor()


def _both(problem: Problem) -> Tuple[Array, Array]:
    return sum(problem.steps), problem.lr * sum(problem.gradients) / len(problem.gradients)


def _inverse(problem: Problem) -> float:
    way, large = _both(problem)
    return float(way @ way / (way @ large))


def _lengths(problem: Problem) -> float:
    way, large = _both(problem)
    return float(np.linalg.norm(way) / np.linalg.norm(large))


def _mean_ratio(problem: Problem) -> float:
    way, large = _both(problem)
    with np.errstate(all="ignore"):
        return float(np.mean(way / large))


MISTAKES: List[Mistake] = [
    (_by(lambda problem: len(problem.shards)),
     "that is the rule itself: each small update has its gradient where the one before has ended",
     "これは線形スケーリング則そのものです。"
     "小さい更新の勾配は、1 つ前の更新が終わったところで計算します"),
    (_by(lambda problem: problem.factor() / len(problem.shards)),
     "the large update takes the mean of the shards' gradients, not their sum",
     "大きな更新に使うのは、シャードの勾配の和ではなく平均です"),
    (_by(lambda problem: problem.factor() * problem.lr),
     "that is the rate, c * lr: return c", "これは学習率 c * lr です。c を返してください"),
    (_by(lambda problem: -problem.factor()),
     "the sign is wrong: both updates subtract", "符号が逆です。どちらの更新も引き算です"),
    (_by(lambda problem: problem.factor(large=_of_end(problem))),
     "the large update begins at `weights`, not where the small ones have ended",
     "大きな更新の始点は、小さい更新の終点ではなく `weights` です"),
    (_by(_lengths),
     "both go equally far then, but in different directions: their ends could be nearer",
     "これでは進む長さが等しくなるだけです。向きが違うので、終点は最も近くなりません"),
    (_by(_inverse),
     "what remains is perpendicular to the way of the small updates, not of the large one",
     "残りの差が、小さい更新の進んだ向きと直交しています。直交させる相手は大きな更新の向きです"),
    (_by(_mean_ratio),
     "that is the mean of the factors of single weights, which is not the nearest",
     "これは重みごとの倍率の平均で、終点が最も近くなる値ではありません"),
    (_by(lambda problem: problem.factor(large=problem.gradients[0])),
     "the large update takes all shards, not the first",
     "大きな更新には、最初のシャードだけでなくすべてのシャードを使います"),
    (_by(lambda problem: problem.factor(large=problem.gradients[-1])),
     "the large update takes all shards, not the last",
     "大きな更新には、最後のシャードだけでなくすべてのシャードを使います"),
    (_by(lambda problem: problem.factor(way=problem.steps[-1])),
     "the small updates have come all the way from `weights`: that is the last of them",
     "これは最後の更新 1 回分です。`weights` から k 回で進んだ分を使います"),
    (_by(_without_rate),
     "a small update is lr times the gradient, not the gradient",
     "小さい更新 1 回分は勾配そのものではなく、その lr 倍です"),
    (_by(lambda problem: problem.factor(way=_end(problem))),
     "where an update ends is not how far it has gone: subtract it from `weights`",
     "終点ではなく、進んだ分を使います。`weights` との差をとってください"),
]  # fmt: skip
