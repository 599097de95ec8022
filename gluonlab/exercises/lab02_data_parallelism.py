"""The exercises of lab 02: data parallelism by hand.

02-1 and 02-4: allreduce. 02-2 and 02-3: learning rates of large batches. 02-5: evaluation on all
devices.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, List, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.exercises import explain_wrong_answers as explain
from gluonlab.exercises.array_tracking import ArrayTrace, check_mixing_and_waits, cpu_devices, format_array, watch
from gluonlab.exercises.exercise_registry import Wrong, case_rng, exercise, extra_cases
from gluonlab.exercises.explain_wrong_answers import CaseText, count_in_english, counterexample, pick_explanation
from gluonlab.exercises.guesses import ChoiceForm, DictForm, NumberForm, YesNoForm, register_guess

Array = Any  # np.ndarray


# --- 02-1 and 02-4: an allreduce by hand, and an allreduce with additions on all devices


def check_allreduce(
    answer: Callable[[List[Any]], Any], values: List[List[Array]], single_parameter: bool = False
) -> ArrayTrace:
    """Raise Wrong unless ``answer`` sums each parameter over the devices, in place.

    ``values[i][j]`` is the value of parameter j on device i. ``single_parameter``: whether to pass
    one array per device instead of a list of arrays. Returns the answer's recorded copies and
    waits.
    """
    ctxs = cpu_devices(len(values))
    arrays = [[nd.array(value, ctx=ctx) for value in row] for row, ctx in zip(values, ctxs)]
    given = [row[0] if single_parameter else list(row) for row in arrays]
    with watch() as trace:
        returned = answer(given)
    made_new = not {*map(id, _list_arrays([given, returned]))} <= {*map(id, _list_arrays(arrays))}
    received = trace.received_bytes() if single_parameter else {}
    for j, initial in enumerate(zip(*values)):
        want, got = np.sum(initial, axis=0), [row[j].asnumpy() for row in arrays]
        en, ja = ("the arrays were", "") if len(values[0]) == 1 else (f"parameter {j} was", f"パラメータ {j} が ")
        initial_text = ", ".join(map(format_array, initial))
        for device, result in enumerate(got):
            if not np.array_equal(result, want):
                raise counterexample(
                    f"{en} {initial_text} before the call: device {device} has {format_array(result)} afterwards, "
                    f"expected {format_array(want)}",
                    f"{ja}{initial_text} のとき: 実行後のデバイス {device} は {format_array(result)} で、正しくは "
                    f"{format_array(want)} です",
                    _explain_wrong_sum(initial, got, device, made_new, ctxs[device] in received),
                )
    check_mixing_and_waits(trace)
    return trace


def _list_arrays(given: Any) -> List[nd.NDArray]:
    """Return all arrays in nested lists."""
    if isinstance(given, (list, tuple)):
        return [one for each in given for one in _list_arrays(each)]
    return [given] if isinstance(given, nd.NDArray) else []


def _explain_wrong_sum(
    initial: Sequence[Array], got: List[Array], device: int, made_new: bool, received: bool
) -> explain.TextPair:
    """Return the likely reason for a wrong sum on ``device``.

    ``initial``, ``got``: the values on each device before and after the answer's call.
    ``made_new``: whether the answer created new arrays. ``received``: whether a copy arrived on
    ``device``.
    """
    total, is_equal = np.sum(initial, axis=0), np.array_equal
    unchanged, is_own_value = (all(map(is_equal, initial, got)), is_equal(got[device], initial[device]))
    return pick_explanation(
        (unchanged and made_new,
         "you created new arrays, but did not change the old ones. Write into the old ones with `array[:] = ...`, "
             "`+=` or `copyto(array)`",
         "新しい配列を作っただけで、元の配列は変わっていません。`array[:] = ...`、`+=`、`copyto(array)` "
         "で元の配列に書き込んでください"),
        (is_own_value and received,
         "you copied something to this device, but into a new array. Write into the existing array with `array[:] = "
             "...`, `+=` or `copyto(array)`",
         "このデバイスへのコピーは別の新しい配列になっただけです。`array[:] = ...`、`+=`、`copyto(array)` "
         "で元の配列に書き込んでください"),
        (unchanged, "no array has changed", "どの配列も変わっていません"),
        (any(is_equal(one, total) for one in got) and is_own_value, "the sum was never copied back to this device",
         "合計した値がこのデバイスに戻されていません"),
        (all(is_equal(one, total + initial[0]) for one in got), "the first device's array was counted twice",
         "最初のデバイスの配列を 2 回足しています"),
        (total.any() and all(np.allclose(one, total / len(initial)) for one in got), "that is the mean, not the sum",
         "これは合計ではなく平均です"),
        (not is_equal(got[0], got[-1]), "the devices have different results", "デバイスによって値が違います"),
    )  # fmt: skip


@exercise("02-1")
def check_allreduce_by_hand(answer: Callable[[List[nd.NDArray]], Any]) -> None:
    """Replace the arrays of all devices by their sum, in place."""
    # Each case has one array per device. Its numbers are small and whole, so that sums are exact.
    cases: List[Any] = [[[3], [5]], [[5, 7]], [[1, 10], [2, 20]], [[1], [2], [4]], [[1, 0], [0, 1], [2, 2], [-4, 8]]]
    random = case_rng(0)
    cases += [random.randint(-9, 10, shape) for shape in ((2, 2, 3), (3, 4), (5, 1, 2, 2))]
    for values in cases:
        check_allreduce(answer, [[np.array(value, dtype=np.float32)] for value in values], True)


@exercise("02-4")
def check_spread_allreduce(answer: Callable[[List[List[nd.NDArray]]], Any]) -> None:
    """Write an allreduce that spreads the additions over the devices."""
    random = case_rng(0)
    small = [(2, [1]), (1, [2, 1]), (2, [1, 1]), (3, [2, 1, 3, 1]), (2, [6, 2, 5, 1, 4])]
    # Weights and biases alternate, as in a network: every other parameter is large.
    large = [(4, [16] * 12), (4, [160, 16] * 4), (3, [90, 9] * 3), (4, [16, 320, 160, 160])]
    # If these parameters are assigned to the devices in turn, one device gets too many
    # numbers.
    # If the largest parameters are assigned first, all devices get equally many.
    large += [(2, [100, 40, 60]), (3, [90, 30, 30, 60, 60]), (2, [20, 80, 60, 40, 120])]
    for devices, sizes in [*small, *large]:
        values = [[random.randint(-9, 10, size).astype(np.float32) for size in sizes] for _ in range(devices)]
        trace = check_allreduce(answer, values)
        if (devices, sizes) in large:
            _check_balance(trace, devices, sizes)


def _check_balance(trace: ArrayTrace, devices: int, sizes: List[int]) -> None:
    """Raise Wrong if a device receives more numbers than any device in a greedy assignment.

    The greedy assignment starts with the largest parameter, and assigns each parameter to the
    device that owns the fewest numbers so far. ``sizes``: the size of each parameter.
    """
    owned_sizes = [0] * devices
    for size in sorted(sizes, reverse=True):
        owned_sizes[owned_sizes.index(min(owned_sizes))] += size
    fair_share = max(owned * (devices - 2) for owned in owned_sizes) + sum(sizes)
    received = {ctx: trace.received_bytes().get(ctx, 0) / 4 for ctx in cpu_devices(devices)}
    busiest = max(received, key=lambda ctx: received[ctx])
    if received[busiest] <= fair_share * 1.001:
        return
    numbers = ", ".join(f"{ctx} {count:.0f}" for ctx, count in received.items())
    raise counterexample(
        f"the sums are right, but for parameters of {sizes} numbers on {devices} devices, the devices received more "
            f"numbers than necessary ({numbers}): each device needs at most {fair_share}",
        f"合計は正しいのですが、大きさが {sizes} のパラメータを {devices} 台で合計したとき、"
        f"各デバイスが受け取った数値は {numbers} 個でした。多くても {fair_share} 個で済みます",
        pick_explanation(
            (received[busiest] >= (devices - 1) * sum(sizes), f"{busiest} collects everything, as in the star",
             f"星形と同じく {busiest} がすべてを集めています"),
            (True,
             f"{busiest} owns too much. Assign the largest parameters first, each to the device that owns least so "
                 "far",
             f"{busiest} の担当分が多すぎます。"
             "大きいパラメータから順に、担当分が最も少ないデバイスに割り当ててください"),
        ),
    )  # fmt: skip


# --- 02-2: the learning rate with which one large update replaces k small updates


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """A least-squares problem. Each row of a shard contains an image's features and its target."""

    weights: Array
    shards: List[Array]
    lr: float

    def gradient(self, weights: Array, shard: Array) -> Array:
        """Return the gradient of a shard's loss, which is half the mean squared error."""
        rows = np.asarray(shard, float)
        if rows.ndim != 2 or np.shape(weights) != self.weights.shape:
            raise counterexample(
                f"gradient(weights, shard) was called with arrays of shapes {np.shape(weights)} and {rows.shape}: "
                "pass all weights and one shard",
                f"gradient(weights, shard) に形状 {np.shape(weights)} と {rows.shape} の配列が"
                "渡されました。渡すのはすべての重みとシャード 1 つです",
            )
        return rows[:, :-1].T @ (rows[:, :-1] @ weights - rows[:, -1]) / len(rows)

    @cached_property
    def small_updates(self) -> List[Array]:
        """The small updates, one per shard. Each is lr * gradient at the updated weights."""
        updates: List[Array] = []
        for shard in self.shards:
            updates.append(self.lr * self.gradient(self.weights - sum(updates), shard))
        return updates

    @cached_property
    def total_update(self) -> Array:
        """The sum of the small updates."""
        return sum(self.small_updates)

    @cached_property
    def large_update(self) -> Array:
        """The large update: ``lr`` times the mean of all shards' gradients at ``weights``."""
        return self.lr * sum(self.gradient(self.weights, shard) for shard in self.shards) / len(self.shards)

    @cached_property
    def best_factor(self) -> float:
        """The factor that brings the large update closest to the sum of the small updates."""
        return nearest_factor(self.total_update, self.large_update)

    @property
    def case(self) -> CaseText:
        """The problem's sizes and learning rate in English and Japanese, for messages."""
        k, (b, n) = len(self.shards), self.shards[0].shape
        return CaseText(
            f"{count_in_english(k, 'shard')} of {count_in_english(b, 'image')}, {count_in_english(n - 1, 'weight')}, "
            f"lr {self.lr:g}",
            f"シャード {k} 個、それぞれ画像 {b} 枚、重み {n - 1} 個、lr {self.lr:g}",
        )


def nearest_factor(total_update: Array, large_update: Array) -> float:
    """Return the factor for which ``factor * large_update`` is nearest to ``total_update``."""
    return float(total_update @ large_update / (large_update @ large_update))


@exercise("02-2")
def check_best_factor(answer: Callable[..., Any]) -> None:
    """Find the learning-rate factor with which one large update goes as far as k small ones."""
    one = [[1.0, 1.0]]  # a shard whose gradient is w - 1
    two_weights = [[[1.0, 0.0, 1.0]], [[0.0, 2.0, 1.0]]]
    cases: List[Any] = [([0.0], [one], 0.1), ([0.0], [one, one], 0.1), ([0.0], [one, [[1.0, 3.0]]], 0.5)]
    cases.append(([0.0, 0.0], two_weights, 0.1))
    random = case_rng(22)
    for _ in range(8):
        k, b, n = (int(random.randint(*ends)) for ends in ((2, 9), (1, 6), (2, 7)))
        shards = [random.normal(size=(b, n + 1)) + ([0.0] * n + [2.0]) for _ in range(k)]
        lr = float(random.choice([0.01, 0.05, 0.2]))
        cases.append((random.normal(size=n), shards, lr))
    problems = [(LeastSquares(np.array(weights), list(map(np.array, shards)), lr),) for weights, shards, lr in cases]

    def run_answer(problem: LeastSquares) -> Any:
        """Return the answer's factor. Raises Wrong if the answer modified the weights."""
        weights = problem.weights.copy()
        got = answer(problem.gradient, weights, [shard.copy() for shard in problem.shards], problem.lr)
        problem.case.check_faults(
            (not np.array_equal(weights, problem.weights),
             "your code changed `weights`, so the large update starts from another point: `-=` writes into the "
                 "array itself",
             "`weights` が書き換えられていて、大きな更新の始点がずれます。`-=` は配列そのものに書き込みます"),
        )  # fmt: skip
        return got.item() if isinstance(got, (np.ndarray, np.generic)) and got.size == 1 else got

    def describe(problem: LeastSquares, got: Any, want: float) -> explain.TextPair:
        """Describe a wrong factor, in English and Japanese."""
        explain.check_number(got, "best_factor(...)")
        return problem.case.with_texts(
            f"the factor is {got:.6g}, expected {want:.6g}", f"倍率が {got:.6g} です。正しくは {want:.6g} です"
        )

    results = explain.run_cases(run_answer, problems, lambda problem: problem.best_factor)
    results.check_results(_is_close_factor, FACTOR_MISTAKES, describe)


def _is_close_factor(got: Any, want: float) -> bool:
    return explain.is_close_number(got, want, rel=1e-3)  # an answer may search for the factor numerically


def _matches_factor(formula: Callable[[LeastSquares], Any]) -> Callable[..., bool]:
    return explain.matches_formula(np.errstate(all="ignore")(formula), _is_close_factor)


FACTOR_MISTAKES = explain.formula_mistakes(_matches_factor, [
    (lambda p: len(p.shards),
     "that is the linear rule itself: compute the gradient of each small update at the point where the previous "
         "update ended",
     "これは線形スケーリング則そのものです。小さい更新の勾配は、1 つ前の更新が終わったところで計算します"),
    (lambda p: p.best_factor / len(p.shards), "the large update uses the mean of the shards' gradients, not their sum",
     "大きな更新に使うのは、シャードの勾配の和ではなく平均です"),
    (lambda p: p.best_factor * p.lr, "that is the learning rate, c * lr: return c",
     "これは学習率 c * lr です。c を返してください"),
    (lambda p: -p.best_factor, "the sign is wrong: both updates subtract", "符号が逆です。どちらの更新も引き算です"),
    (lambda p: nearest_factor(p.total_update, LeastSquares(p.weights - p.total_update, p.shards, p.lr).large_update),
     "the large update starts at `weights`, not where the small updates ended",
     "大きな更新の始点は、小さい更新の終点ではなく `weights` です"),
    (lambda p: np.linalg.norm(p.total_update) / np.linalg.norm(p.large_update),
     "with this c both go equally far, but in different directions: another c brings their ends closer together",
     "これでは進む長さが等しくなるだけです。向きが違うので、終点は最も近くなりません"),
    (lambda p: p.total_update @ p.total_update / (p.total_update @ p.large_update),
     "the remaining difference is perpendicular to the small updates, but it must be perpendicular to the large "
         "update",
     "残りの差が、小さい更新の進んだ向きと直交しています。直交させる相手は大きな更新の向きです"),
    (lambda p: np.mean(p.total_update / p.large_update),
     "that is the mean of the factors for each weight, which does not minimize the distance",
     "これは重みごとの倍率の平均で、終点が最も近くなる値ではありません"),
    (lambda p: nearest_factor(p.total_update, p.lr * p.gradient(p.weights, p.shards[0])),
     "the large update uses all shards, not only the first",
     "大きな更新には、最初のシャードだけでなくすべてのシャードを使います"),
    (lambda p: nearest_factor(p.total_update, p.lr * p.gradient(p.weights, p.shards[-1])),
     "the large update uses all shards, not only the last",
     "大きな更新には、最後のシャードだけでなくすべてのシャードを使います"),
    (lambda p: nearest_factor(p.small_updates[-1], p.large_update),
     "that is only the last small update: use the whole distance of the k small updates from `weights`",
     "これは最後の更新 1 回分です。`weights` から k 回で進んだ分を使います"),
    (lambda p: LeastSquares(p.weights, p.shards, 1.0).best_factor,
     "a small update is lr times the gradient, not the gradient",
     "小さい更新 1 回分は勾配そのものではなく、その lr 倍です"),
    (lambda p: nearest_factor(p.weights - p.total_update, p.large_update),
     "you used the point where an update ends: subtract it from `weights` to get the distance",
     "終点ではなく、進んだ分を使います。`weights` との差をとってください"),
])  # fmt: skip


# --- 02-3: the best learning rate for each number of devices


class AccuracyLandscape(NamedTuple):
    """Simulated training runs, with known best learning rates.

    ``accuracy(global_batch_size, lr)``: the accuracy of a run. ``ks``: the device counts; each has
    its own best rate. ``rates``: the learning rates to choose from.
    """

    en: str
    ja: str
    accuracy: Callable[[int, float], float]
    ks: List[int]
    batch_per_device: int
    rates: List[float]


def _peaked_accuracy(best: Callable[[int], float], limit: float = math.inf) -> Callable[[int, float], float]:
    """Return a function accuracy(n, lr) whose maximum is at lr = ``best(n)``.

    If lr is above ``limit``, the simulated run diverges, and its accuracy is nan.
    """
    return lambda n, lr: math.nan if lr > limit else 0.9 - 0.05 * abs(math.log2(lr / best(n)))


def _two_peaks(n: int, lr: float) -> float:
    return {0.1: 0.8, 0.2: 0.6, 0.4: 0.7, 0.8: 0.9 if n > 32 else 0.85}[lr]


def _random_landscape(random: Any) -> AccuracyLandscape:
    """Return simulated training runs with the same random best rate for all batch sizes."""
    rates = (0.025 * 2.0 ** random.permutation(7)[:4]).tolist()
    best, ks = rates[random.randint(len(rates))], (1 + random.permutation(8)[:2]).tolist()
    texts = f"the best learning rate is {best:g}", f"最適な学習率は {best:g}"
    return AccuracyLandscape(*texts, _peaked_accuracy(lambda n: best), ks, int(2 ** random.randint(2, 8)), rates)


FALLING_RATES = [0.8, 0.4, 0.2, 0.1]
LANDSCAPES = [
    AccuracyLandscape("the best learning rate grows with the batch", "最適な学習率がバッチに比例する",
                      _peaked_accuracy(lambda n: 0.1 * n / 32), [1, 2, 4], 32, [0.05, 0.1, 0.2, 0.4]),
    AccuracyLandscape("the best learning rate is the same for all", "最適な学習率が変わらない",
                      _peaked_accuracy(lambda n: 0.2), [1, 2], 64, FALLING_RATES),
    AccuracyLandscape("learning rates above 0.3 diverge", "0.3 より大きい学習率は発散する",
                      _peaked_accuracy(lambda n: 0.2, 0.3), [1, 2], 16, FALLING_RATES),
    AccuracyLandscape("two learning rates are equally good", "2 つの学習率が同じ正解率になる",
                      lambda n, lr: 0.7 - (lr > 0.2) / 5, [2], 8, [0.2, 0.1, 0.4]),
    AccuracyLandscape("the accuracy falls, then rises again", "正解率が下がってからまた上がる",
                      _two_peaks, [1, 2], 32, [0.8, 0.1, 0.4, 0.2]),
]  # fmt: skip


@exercise("02-3")
def check_best_rates(answer: Callable[..., Any]) -> None:
    """Find the best learning rate for each number of devices."""
    for landscape in [*LANDSCAPES, *extra_cases(3, _random_landscape)]:
        _check_rate_choice(answer, landscape)


def _check_rate_choice(answer: Callable[..., Any], landscape: AccuracyLandscape) -> None:
    """Raise Wrong if the answer's rates or batch sizes are wrong, or if a run is repeated."""
    en, ja, accuracy, ks, b, rates = landscape
    case, trainings = CaseText(en, ja), Counter()  # type: CaseText, Counter[Any]

    def accuracy_of(k: int, global_batch_size: int, lr: float) -> float:
        """Simulate and count a training run on ``k`` devices, and return its accuracy."""
        explain.check_faults(
            (global_batch_size != k * b,
             f"on {count_in_english(k, 'device')} your code started a training with a global batch of "
                 f"{global_batch_size}, expected {k * b}: {b} images on each device",
             f"{k} 台で全体のバッチサイズ {global_batch_size} の学習が行われました。"
             f"正しくは {k * b} (1 台あたり {b} 枚) です"),
        )  # fmt: skip
        trainings[k, lr] += 1
        return accuracy(global_batch_size, lr)

    got = answer(accuracy_of, list(ks), b, list(rates))
    case.check_faults(
        (not isinstance(got, dict) or sorted(got) != sorted(ks),
         f"your function returned {got!r}: return a dictionary with a learning rate for each of {ks}",
         f"{got!r} が返りました。{ks} のそれぞれに学習率を持つ辞書を返してください"),
    )  # fmt: skip
    for k in ks:
        accuracies = {lr: accuracy(k * b, lr) for lr in rates}
        best_accuracy = max(value for value in accuracies.values() if not math.isnan(value))
        expected = min(lr for lr, value in accuracies.items() if value == best_accuracy)
        table = ", ".join(f"{lr:g}: {value:.3g}" for lr, value in accuracies.items())
        if got[k] != expected:
            raise case.counterexample(
                f"the accuracies of the learning rates on {count_in_english(k, 'device')} are {table}; "
                f"you chose {got[k]!r}, expected {expected:g}",
                f"{k} 台での正解率は {table} です。{got[k]!r} が選ばれましたが、正しくは {expected:g} です",
                pick_explanation(
                    (got[k] in accuracies.values(), "that is an accuracy: return its learning rate",
                     "これは正解率です。その学習率を返してください"),
                    (math.isnan(accuracies.get(got[k], 0)),
                     "that training diverged. If the first accuracy is nan, `max` returns nan",
                     "その学習は発散しています。先頭が nan だと `max` は nan を返します"),
                    (accuracies.get(got[k]) == best_accuracy,
                     "if accuracies are equal, choose the smaller learning rate",
                     "正解率が同じなら小さいほうの学習率を選んでください"),
                ),
            )  # fmt: skip
    for (k, lr), times in trainings.items():
        explain.check_faults(
            (times > 1,
             f"{count_in_english(k, 'device')} with learning rate {lr:g} were trained {times} times. A training may "
                 "take hours: save its accuracy",
             f"{k} 台、学習率 {lr:g} の学習が {times} 回行われました。"
             "学習には何時間もかかることがあります。正解率を保存して使い回してください"),
        )  # fmt: skip


# --- 02-5: the accuracy on all validation images, computed by all devices


CLASSES = 5


class EvaluationCall(NamedTuple):
    """A call of the answer, its result ``got``, and the recorded work of each device."""

    case: CaseText
    got: Any
    same: Array  # whether each image is classified correctly
    rows: "Counter[mx.Context]"  # how many images each device computed
    times: List[int]  # how many times each image was computed
    mean_batch_accuracy: float  # the mean of the batches' accuracies, a common mistake
    share: int  # the largest number of images on a device if every batch is split evenly
    waits: int  # how often Python waited between the first batch and the last
    seen: ArrayTrace


@exercise("02-5")
def check_accuracy(answer: Callable[..., Any]) -> None:
    """Compute the accuracy over all devices: each image once, without waiting in between."""
    cases = [(4, 1, 4), (4, 2, 4), (8, 2, 4), (7, 2, 4), (6, 2, 4), (5, 4, 4), (9, 4, 8)]
    evaluations = [_run_evaluation(answer, *case) for case in [*cases, (3, 4, 16), (24, 3, 4)]]
    mistaken = [one for one in evaluations if not _is_close_accuracy(one.got, one.same.mean())]
    if mistaken:
        raise _explain_wrong_accuracy(mistaken)
    for case, _, _, rows, _, _, share, waits, seen in evaluations:
        busiest = max(rows, key=lambda ctx: rows[ctx])
        case.check_faults(
            (rows[busiest] > share,
             f"the result is right, but {busiest} computed {rows[busiest]} images instead of {share}: split every "
                 "batch over all devices",
             f"結果は正しいのですが、{busiest} が {rows[busiest]} 枚を計算しました。担当分は {share} 枚です。"
             "すべてのバッチを全デバイスに分割してください"),
            (waits,
             f"the result is right, but Python waited {waits} times before the last shard was queued: let each "
                 "device count, and read the counts at the end",
             f"結果は正しいのですが、最後のシャードをキューに入れるまでに Python が {waits} 回待ちました。"
             "各デバイスに数えさせ、結果は最後に読み出してください"),
        )  # fmt: skip
        check_mixing_and_waits(ArrayTrace(mixed_inputs=seen.mixed_inputs))


def _run_evaluation(answer: Callable[..., Any], count: int, devices: int, batch: int) -> EvaluationCall:
    """Run the answer on ``count`` images in batches of ``batch``, and record its network calls.

    Each image is a one-hot vector of the predicted class, followed by the number of the image. The
    network is a matrix product that returns the one-hot vector as the scores.
    """
    random, numbers, begins = case_rng(count), np.arange(count), range(0, count, batch)
    labels = random.randint(0, CLASSES, count)
    guesses = np.where(random.rand(count) < 0.6, labels, (labels + 1) % CLASSES)
    guesses[-1] = labels[-1]  # a correct prediction, so that a missing last batch changes the accuracy
    pixels = np.zeros((count, 6), dtype=np.float32)
    pixels[numbers, guesses], pixels[:, CLASSES] = 1, numbers  # the net ignores the image number
    replicas = [[nd.array(np.eye(6, CLASSES), ctx=ctx)] for ctx in cpu_devices(devices)]
    rows: "Counter[mx.Context]" = Counter()
    computed: List[nd.NDArray] = []
    waits: List[int] = []  # the number of waits before each call of the network

    def net(x: nd.NDArray, params: Sequence[nd.NDArray]) -> nd.NDArray:
        """Return the scores of shape (n, CLASSES), and record the images, device and waits."""
        explain.check_faults(
            (x.context != params[0].context,
             f"`net` was called with images on {x.context}, but its replica is on {params[0].context}: both must be "
                 "on the same device",
             f"`net` に {x.context} の画像と {params[0].context} のレプリカが渡されました。"
             "同じデバイスのものを渡してください"),
        )  # fmt: skip
        rows[x.context] += len(x)
        computed.append(x)
        waits.append(trace.waits)
        return nd.dot(x.flatten(), params[0])

    with watch() as trace:
        got = answer(net, replicas, nd.array(pixels.reshape(count, 1, 2, 3)), nd.array(labels), batch)
        got = float(got.asscalar()) if isinstance(got, nd.NDArray) else got
    case = CaseText(
        f"{count} images in batches of {batch} on {count_in_english(devices, 'device')}",
        f"{count} 枚、バッチ {batch}、{devices} 台",
    )
    share = sum(-(-min(batch, count - begin) // devices) for begin in begins)
    seen_numbers = Counter(int(number) for x in computed for number in x.asnumpy().reshape(len(x), 6)[:, CLASSES])
    times, same = [seen_numbers[number] for number in range(count)], guesses == labels
    batch_accuracy = float(np.mean([same[begin : begin + batch].mean() for begin in begins]))
    waits_between = waits[-1] - waits[0] if waits else 0
    return EvaluationCall(case, got, same, rows, times, batch_accuracy, share, waits_between, trace)


def _explain_wrong_accuracy(mistaken: Sequence[EvaluationCall]) -> Wrong:
    """Return a counterexample for the first of the ``mistaken`` calls, which had wrong results."""
    (en, ja), got, same, _, times, *_ = mistaken[0]
    right, count = int(same.sum()), len(same)
    missing = [number for number, count_of_image in enumerate(times) if count_of_image == 0]
    twice = [number for number, count_of_image in enumerate(times) if count_of_image > 1]
    by_batches = len(mistaken) > 1 and all(_is_close_accuracy(each.got, each.mean_batch_accuracy) for each in mistaken)
    return counterexample(
        f"{en}, {right} of them right: got {got!r}, expected {right / count:.4g}",
        f"{ja}、正解は {right} 枚: {got!r} になりました。正しくは {right / count:.4g} です",
        pick_explanation(
            (not explain.is_number(got), "return a number", "数値を返してください"),
            (missing, f"only {count - len(missing)} images were computed; missing: {_format_numbers(missing)}",
             f"{count - len(missing)} 枚しか計算していません。{_format_numbers(missing)} 番が抜けています"),
            (twice, f"some images were computed more than once: {_format_numbers(twice)}",
             f"{_format_numbers(twice)} 番を 2 回以上計算しています"),
            (_is_close_accuracy(got, right), "that is the number of correct images, not the fraction",
             "これは割合ではなく正解数です"),
            (by_batches,
             "that is the mean of the batches' accuracies, in which images of small batches count more. Add up the "
                 "correct images over all batches and devices, then divide by the number of images",
             "これはバッチごとの正解率の平均で、小さいバッチの画像の寄与が大きくなっています。全バッチ、"
             "全デバイスの正解数を合計してから全体の枚数で割ってください"),
            (True,
             "each image was computed once. Add up the correct images over all batches and devices, then divide by "
                 "the number of images",
             "どの画像も 1 回ずつ計算されています。全バッチ、"
             "全デバイスの正解数を合計してから全体の枚数で割ってください"),
        ),
    )  # fmt: skip


def _is_close_accuracy(got: Any, want: float) -> bool:
    return explain.is_number(got) and math.isclose(float(got), want, abs_tol=1e-5)


def _format_numbers(numbers: Sequence[int]) -> str:
    """Return image numbers as text, such as ``4``, ``4-6`` or ``1, 3, 5``."""
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    if len(numbers) > 1 and last - first + 1 == len(numbers):
        return f"{first}-{last}"
    return ", ".join(map(str, numbers))


# --- The guesses


SPLIT_MODES = ("between layers", "within layers", "data")

# fmt: off
register_guess("02-a", DictForm(ChoiceForm(*SPLIT_MODES), 32, 1024),
    "which method moves the fewest bytes with 32 images, and which with 1,024?",
    "32 枚のバッチと 1,024 枚のバッチで、転送量が最も少ない方法はどれか")
register_guess("02-b", DictForm(NumberForm(0, example=0.1, factor=3), "chapter", "he"),
    "how large are the scores with standard deviation 0.01, and with He's rule?",
    "0.01 の場合と He らの規則の場合で、スコアの大きさはどれくらいか")
register_guess("02-c", DictForm(NumberForm(0, example=0.01, factor=100), "one device or two", "the two replicas"),
    "by how much do the parameters differ after one step?", "1 ステップの後、パラメータはどれだけ違うか")
register_guess("02-d", NumberForm(-1, 1, example=0.05, within=0.02),
    "by how much does a second device change the accuracy?", "2 台にすると正解率はどれだけ変わるか")
register_guess("02-e", NumberForm(0, example=2.0, factor=1.2), "how many times as fast are two devices?",
    "2 台では何倍速いか")
register_guess("02-f", DictForm(YesNoForm(), 16, 256),
    "does the second device pay off with 16 images per step, and with 256?",
    "1 ステップが 16 枚のときと 256 枚のとき、2 台目は役に立つか")
register_guess("02-g", ChoiceForm("same rate", "twice the rate"),
    "with twice the batch size, with which learning rate is the loss closer to one device's loss?",
    "バッチが 2 倍のとき、損失が 1 台の場合に近くなる学習率はどちらか")
