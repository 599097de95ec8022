"""The exercises of lab 07: batch sizes, steps to a target accuracy, learning rates, and time.

07-1: training up to a target. 07-2: the median of several seeds. 07-3: the critical batch size.
07-4: learning rate tuning. 07-5: momentum. 07-6: the cheapest number of devices.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from statistics import mean, median, median_high, median_low
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.data.loading.split_batch import shard_bounds
from gluonlab.exercises.array_tracking import check_unmodified, cpu_devices, format_array
from gluonlab.exercises.exercise_registry import case_rng, exercise
from gluonlab.exercises.explain_wrong_answers import (
    NO_TEXT,
    AnswerResults,
    CaseText,
    Mistake,
    TextPair,
    count_in_english,
    counterexample,
    find_mistake,
    formula_mistakes,
    is_close_number,
    is_number,
    pick_explanation,
    run_cases,
    wrong_result_texts,
    wrong_return,
    wrong_value_texts,
)
from gluonlab.exercises.guesses import ChoiceForm, DictForm, NumberForm, YesNoForm, register_guess
from gluonlab.exercises.softmax_regression import (
    LR,
    Batch,
    LayerParams,
    cut_rest_last,
    initial_params,
    make_net,
    make_trainer,
    random_batches,
    read_params,
)

# --- 07-1: training to a target on k devices, with k times the batch size and the learning rate


EXTRA_QUESTIONS = 3  # how many unnecessary calls of `good_enough` are allowed before the answer is stopped


class TooManyQuestions(BaseException):
    """Stops an answer that trains too long. An ``except Exception`` does not catch this error."""


class TargetQuestions:
    """Provides ``good_enough``. The answer calls this function after each step.

    It returns True from call number ``good_after`` on. ``limit``: the largest number of steps.
    ``values()`` returns the current parameters. ``params_seen``: the parameters at each call.
    """

    def __init__(self, good_after: int, limit: int, values: Callable[[], Any]) -> None:
        self._good_after, self._values = good_after, values
        self._last = min(good_after, limit) + EXTRA_QUESTIONS
        self.params_seen: List[Any] = []

    def good_enough(self, net: Any) -> bool:
        """Return whether the target is reached. Raises TooManyQuestions after too many calls."""
        self.params_seen.append(self._values())
        if len(self.params_seen) >= self._last:
            raise TooManyQuestions
        return len(self.params_seen) >= self._good_after


class ImageCountingLoss(gluon.loss.SoftmaxCrossEntropyLoss):  # type: ignore[misc]
    """Softmax cross-entropy loss. ``images``: the number of images on each device so far."""

    def __init__(self) -> None:
        super().__init__()
        self.images: "Counter[mx.Context]" = Counter()

    def __call__(self, scores: Any, *labels: Any) -> Any:
        self.images[scores.context] += len(scores)
        return super().__call__(scores, *labels)


class TrainingCase(NamedTuple):
    """A training run on ``k`` devices, with ``b`` images per device in each step.

    ``lr``: the learning rate for one device. ``images``: the number of training images.
    ``good_after``: the step that reaches the target. ``limit``: the largest allowed number of
    steps.
    """

    k: int
    b: int
    lr: float
    images: int
    good_after: int
    limit: int

    @property
    def steps(self) -> int:
        """The right number of steps."""
        return min(self.good_after, self.limit)

    @property
    def batch(self) -> Batch:
        """All training images and their labels, in order."""
        return random_batches([self.images])[0]

    def describe(self) -> CaseText:
        """Describe the devices, batch, learning rate and limits in English and Japanese."""
        after = self.good_after
        good, good_ja = f"good enough after {after} steps", f"{after} ステップ"
        if self.good_after > self.limit:
            good, good_ja = "never good enough", "達しない"
        return CaseText(
            f"{count_in_english(self.k, 'device')}, {self.b} images on each, lr {self.lr:g}, "
            f"{self.images} training images, {good}, at most {self.limit} steps",
            f"デバイス {self.k} 台、1 台 {self.b} 枚、学習率 {self.lr:g}、学習画像 {self.images} 枚、目標まで "
            f"{good_ja}、上限 {self.limit} ステップ",
        )


class TrainingAnswer(NamedTuple):
    """The return value of an answer, and the parameters at each of its ``good_enough`` calls."""

    returned: Any
    params_by_step: List[LayerParams]
    devices_differ: bool  # whether the final parameters differ between devices
    idle_devices: List[int]  # the indices of devices that computed no loss


@exercise("07-1")
def check_train_until(answer: Callable[..., Any]) -> None:
    """Train on k devices with k times the batch until it is good enough, and count the steps."""
    runs = [
        TrainingCase(1, 4, 0.25, 8, 2, 9),
        TrainingCase(2, 4, 0.25, 16, 3, 9),
        TrainingCase(2, 2, 0.125, 12, 4, 9),
        TrainingCase(2, 4, 0.25, 13, 5, 9),
        TrainingCase(2, 3, 0.25, 12, 9, 4),
        TrainingCase(3, 4, 0.0625, 17, 6, 6),
    ]
    random = case_rng(71)
    for _ in range(3):
        k, b, limit = (int(random.randint(*ends)) for ends in ((2, 4), (2, 6), (4, 9)))
        # full batches, and sometimes a last batch with at least one image for each device
        images = int(random.randint(1, 4) * k * b + random.choice([0, *range(k, k * b)]))
        lr, good = 2.0 ** -int(random.randint(2, 5)), int(random.randint(2, limit + 3))
        runs.append(TrainingCase(k, b, lr, images, good, limit))
    results = run_cases(lambda run: _run_training(answer, run), [(run,) for run in runs], _right_params_by_step)
    for position, result in enumerate(results):
        _check_training(result.case[0], result.got, result.want, AnswerResults(results[position:]))
    results.raise_error()


def _run_training(answer: Callable[..., Any], run: TrainingCase) -> TrainingAnswer:
    """Run the answer's training, and record its parameters, steps and devices."""
    ctxs, (images, labels) = cpu_devices(run.k), run.batch
    net = make_net(initial_params(), ctxs)
    questions = TargetQuestions(run.good_after, run.limit, lambda: read_params(net, ctxs[0]))
    loss = ImageCountingLoss()
    data = nd.array(images, dtype="float32"), nd.array(labels, dtype="int32")
    try:
        returned = answer(net, loss, make_trainer(net), ctxs, *data, run.b, run.lr, questions.good_enough, run.limit)
    except TooManyQuestions:
        returned = None
    final_params = [read_params(net, ctx) for ctx in ctxs]
    devices_differ = any(not final_params[0].is_close(other) for other in final_params[1:])
    idle_devices = [place for place, ctx in enumerate(ctxs) if not loss.images[ctx]]
    return TrainingAnswer(returned, questions.params_seen, devices_differ, idle_devices)


def _right_params_by_step(run: TrainingCase, **changed: Any) -> List[LayerParams]:
    """Return the right parameters after each step. ``changed``: see `_simulate_training`."""
    return list(_simulate_training(run, run.steps, **changed))


def _simulate_training(
    run: TrainingCase,
    count: int,
    *,
    lr: Optional[float] = None,
    size: Optional[int] = None,
    ragged: bool = True,
    divisor: Optional[Callable[[int], float]] = None,
    wraps: Optional[bool] = None,
    of_means: Optional[Callable[[int, int], Sequence[Any]]] = None,
) -> List[LayerParams]:
    """Simulate training, and return the parameters after each step.

    By default, the training is correct. Each keyword argument simulates a mistake.

    Args:
        run: the training run.
        count: the number of steps.
        lr: a different learning rate.
        size: a different size of the batch over all devices.
        ragged: whether to use the last batch of an epoch if it is smaller.
        divisor: a function that takes the batch size and returns the divisor of the gradient sum.
        wraps: None leaves the last batch of an epoch smaller. True and False fill this batch up
            with the first images. The next batch then starts after these images (True) or with
            image 0 (False).
        of_means: a function that takes (images, devices) and returns the bounds of the shards. If
            given, the update uses the average of the shards' mean gradients instead of the mean
            over the batch.
    """
    size, lr = size or run.k * run.b, run.k * run.lr if lr is None else lr
    images, labels = run.batch
    starts = [first_row for first_row in range(0, run.images, size) if ragged or first_row + size <= run.images]
    values, params_by_step = initial_params(), []
    for step in range(count):
        first_row = starts[step % len(starts)]
        if wraps is not None:
            first_row = step * size if wraps else first_row
            rows = np.arange(first_row, first_row + size) % run.images
        else:
            rows = np.arange(first_row, min(first_row + size, run.images))
        part = images[rows], labels[rows]
        if of_means is not None:
            values = _step_by_mean_of_means(values, part, lr, of_means(len(rows), run.k))
        else:
            values = values.step(part, lr / (divisor(len(rows)) if divisor else len(rows)))
        params_by_step.append(values)
    return params_by_step


def _step_by_mean_of_means(values: LayerParams, part: Batch, lr: float, cuts: Sequence[Any]) -> LayerParams:
    """Return the parameters after a step that uses the average of the shards' mean gradients.

    ``part``: the images and labels of the step. ``cuts``: (begin, end) of each shard.
    """
    after = values
    for begin, end in cuts:
        shard = part[0][begin:end], part[1][begin:end]
        after = after.subtract(values.gradient(shard), lr / len(cuts) / (end - begin))
    return after


SHARD_RULES = (shard_bounds, cut_rest_last)


def _are_close_params(got: Any, want: Sequence[LayerParams]) -> bool:
    """Return whether the parameters were right at each call of ``good_enough``."""
    params_by_step = got.params_by_step if isinstance(got, TrainingAnswer) else got
    return bool(params_by_step) and all(one.is_close(other) for one, other in zip(params_by_step, want))


def _matches_training(**change: Callable[[TrainingCase], Any]) -> Callable[..., bool]:
    """Return a predicate that tests whether an answer trained with a certain mistake.

    ``change``: the arguments of `_simulate_training` that the mistake changes. Each is given as a
    function that takes the run and returns the argument's value.
    """

    def gives(run: TrainingCase, got: TrainingAnswer) -> bool:
        """Return whether training with this mistake leads to the answer's parameters."""
        changed = {name: value(run) for name, value in change.items()}
        if changed.get("ragged") is False and run.images < run.k * run.b:
            return False
        return _are_close_params(got, _right_params_by_step(run, **changed))

    return gives


def _skips_questions(run: TrainingCase, got: TrainingAnswer) -> bool:
    """Return whether the answer trains correctly but does not call ``good_enough`` in each step."""
    beyond = _simulate_training(run, run.limit + run.images)
    return bool(got.params_by_step) and all(any(map(values.is_close, beyond)) for values in got.params_by_step)


TRAINING_MISTAKES: List[Mistake] = [
    (_matches_training(lr=lambda run: run.lr),
     "that is the learning rate of one device: for k times the batch use k times the learning rate",
     "1 台分の学習率のままです。バッチを k 倍にしたら学習率も k 倍にします"),
    (_matches_training(lr=lambda run: LR), "that is the trainer's initial learning rate: set it to k times lr",
     "trainer の元の学習率のままです。lr の k 倍に設定してください"),
    (_matches_training(lr=lambda run: math.sqrt(run.k) * run.lr),
     "the learning rate grows with the square root of k: use the linear rule",
     "学習率が平方根で増えています。線形スケーリング則を使ってください"),
    (_matches_training(size=lambda run: run.b),
     "a batch contains the images of only one device: it must contain k times as many",
     "バッチが 1 台分の枚数しかありません。その k 倍の枚数にします"),
    (_matches_training(divisor=lambda run: lambda n: run.b),
     "the gradients are divided by the images of one device: divide by those of the whole batch",
     "勾配を 1 台分の枚数で割っています。バッチ全体の枚数で割ってください"),
    (_matches_training(divisor=lambda run: lambda n: n / run.k),
     "the gradients are divided by the images of one device: divide by those of the whole batch",
     "勾配を 1 台分の枚数で割っています。バッチ全体の枚数で割ってください"),
    (_matches_training(divisor=lambda run: lambda n: run.k * run.b),
     "the smaller batch at the end of an epoch is divided by the size of a full batch: divide it by its own size",
     "エポック末の小さいバッチを、満杯のバッチの枚数で割ったのと同じです"),
    (lambda run, got: any(_are_close_params(got, _right_params_by_step(run, wraps=on)) for on in (True, False)),
     "the smaller batch at the end of an epoch is filled up with the first images: leave it smaller",
     "エポック末の小さいバッチに、先頭の画像を足しています"),
    (lambda run, got: any(_are_close_params(got, _right_params_by_step(run, of_means=rule)) for rule in SHARD_RULES),
     "that is the mean of the devices' means: the images of a smaller shard count more than others",
     "デバイスごとの平均の平均になっています。小さいシャードの画像が重く数えられます"),
    (_matches_training(divisor=lambda run: lambda n: 1),
     "the sum of the gradients is not divided by the number of images", "勾配の合計が画像の枚数で割られていません"),
    (_matches_training(ragged=lambda run: False),
     "the smaller batch at the end of an epoch is missing: its images also count",
     "エポック末の小さいバッチが捨てられています。その画像も使います"),
    (lambda run, got: _are_close_params(got, [initial_params(), *_right_params_by_step(run)]),
     "`good_enough` is called before the first step: call it after each step",
     "最初のステップの前に `good_enough` を呼んでいます。各ステップの後に呼んでください"),
    (_skips_questions, "several steps are made before `good_enough` is called: call it after each step",
     "何ステップか進んでから呼んでいます。各ステップの後に呼んでください"),
    (lambda run, got: all(values.is_close(initial_params()) for values in got.params_by_step),
     "the parameters do not change", "パラメータがまったく変わっていません"),
]  # fmt: skip


def _check_training(run: TrainingCase, got: TrainingAnswer, want: List[LayerParams], rest: AnswerResults) -> None:
    """Raise Wrong unless the answer trained correctly.

    ``rest``: this result and all later results. `find_mistake` looks for a known mistake in them.
    """
    case = run.describe()
    if not got.params_by_step:
        raise case.counterexample(
            "`good_enough` was never called: call it after each step", "`good_enough` が一度も呼ばれていません"
        )
    if not _are_close_params(got, want):
        step = next(n for n, (a, b) in enumerate(zip(got.params_by_step, want), 1) if not a.is_close(b))
        nth = f"{step}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(step, 'th') }"
        weight, expected = (values[step - 1].weight[0, 0] for values in (got.params_by_step, want))
        raise case.counterexample(
            f"when `good_enough` was called for the {nth} time, the first weight was {weight:.4f}, expected "
            f"{expected:.4f}",
            f"`good_enough` が {step} 回目に呼ばれたとき、最初の重みが {weight:.4f} でした。"
            f"正しくは {expected:.4f} です",
            find_mistake(rest, _are_close_params, *TRAINING_MISTAKES),
        )
    question_count, idle_device = len(got.params_by_step), [*got.idle_devices, 0][0]
    case.check_faults(
        (got.idle_devices, f"device {idle_device} computed no image",
         f"デバイス {idle_device} が画像を 1 枚も計算していません"),
        (got.devices_differ,
         "the devices have different parameters at the end", "デバイスごとにパラメータが異なっています"),
        (question_count > run.steps, f"training continued after step {run.steps}",
         f"{run.steps} ステップで終わらず、学習を続けました"),
        (question_count < run.steps,
         f"`good_enough` was called {count_in_english(question_count, 'time')}, expected {run.steps}: once after "
             "each step",
         f"`good_enough` が {question_count} 回しか呼ばれていません。正しくは {run.steps} 回です (各ステップの後に 1 "
         "回)"),
    )  # fmt: skip
    expected_steps = run.good_after if run.good_after <= run.limit else None
    if got.returned != expected_steps or isinstance(got.returned, bool):
        raise case.counterexample(
            f"your function returned {got.returned!r}, expected {expected_steps}",
            f"戻り値は {got.returned!r} でした。正しくは {expected_steps} です",
            pick_explanation(
                (all(each.got.returned is None for each in rest), "is `return` missing?",
                 "`return` を忘れていませんか"),
                (got.returned is None and expected_steps == run.limit,
                 "the last step within the limit may also be good enough",
                 "上限の最後のステップで十分よくなることもあります"),
                (got.returned is None and expected_steps is not None, "it was good enough", "十分よくなっていました"),
            ),
        )  # fmt: skip


# --- 07-2: the steps that the median seed needs to reach a target


Curve = List[Tuple[int, float]]  # (steps, validation accuracy) at each measurement


@exercise("07-2")
def check_median_steps(answer: Callable[..., Any]) -> None:
    """Compute the steps of the median seed to a target, or None if it does not reach the target."""
    cases: List[Tuple[List[Curve], float]] = [
        ([[(10, 0.5), (20, 0.9)]], 0.8),
        ([[(10, 0.5), (20, 0.9), (30, 0.7), (40, 0.95)]], 0.9),
        ([[(10, 0.5), (20, 0.8)], [(10, 0.8)], [(10, 0.1), (20, 0.2), (40, 0.85)]], 0.8),
        ([[(5, 0.9), (10, 0.6)], [(5, 0.2), (15, 0.9)], [(5, 0.2), (20, 0.9)]], 0.8),
        ([[(5, 0.5), (10, 0.9)], [(5, 0.9)]], 0.9),
        ([[(8, 0.9)], [(8, 0.2), (16, 0.3)], [(8, 0.4), (16, 0.9)]], 0.9),
        ([[(8, 0.9)], [(8, 0.2), (16, 0.3)], [(8, 0.4), (16, 0.5)]], 0.9),
        ([[(8, 0.9)], [(8, 0.2), (16, 0.3)]], 0.9),
        ([[(8, 0.2), (16, 0.3)]], 0.9),
    ]
    random = case_rng(72)
    for _ in range(12):
        seeds = [_random_curve(random) for _ in range(random.randint(1, 8))]
        cases.append((seeds, round(float(random.uniform(0.5, 0.9)), 2)))

    def describe(curves: List[Curve], target: float, got: Any, want: Optional[float]) -> TextPair:
        """Describe a wrong median number of steps, in English and Japanese."""
        texts = wrong_result_texts(f"median_steps({curves}, {target})", repr(got), want)
        if is_number(got) and math.isinf(got):
            none = "return None if there is no number", "数がないときは None を返してください"
            raise counterexample(*texts, none)
        return texts

    results = run_cases(answer, cases, _average_over_seeds(_first_step_at_target))
    results.check_results(_is_same_steps, MEDIAN_MISTAKES, describe)


def _random_curve(random: Any) -> Curve:
    """Return a random, noisy accuracy curve that rises toward a value from 0.4 to 1."""
    step, right, top, points = 0, 0.1, random.uniform(0.4, 1.0), []
    for _ in range(random.randint(3, 7)):
        step += int(random.randint(1, 20))
        right += (top - right) * random.uniform(0.1, 0.9)
        points.append((step, round(float(right - abs(random.normal(0, 0.06))), 2)))
    return points


def _first_step_at_target(curve: Curve, target: float) -> float:
    return next((step for step, right in curve if right >= target), math.inf)


def _step_of_lasting_target(curve: Curve, target: float) -> float:
    """Return the first step from which the accuracy stays at or above the target, or infinity."""
    step = math.inf
    for at, right in reversed(curve):
        if right < target:
            break
        step = at
    return step


def _interpolate_step(curve: Curve, target: float) -> float:
    """Return the linearly interpolated step at which the curve reaches the target, or infinity."""
    previous: "Optional[Tuple[int, float]]" = None
    for step, right in curve:
        if right >= target:
            if previous is None:
                return step
            return previous[0] + (step - previous[0]) * (target - previous[1]) / (right - previous[1])
        previous = step, right
    return math.inf


def _is_same_steps(got: Any, want: Optional[float]) -> bool:
    if want is None:
        return got is None
    return is_number(got) and not isinstance(got, bool) and bool(got == want)


def _matches_steps_formula(formula: Callable[[List[Curve], float], Any]) -> Callable[..., bool]:
    """Return a predicate that tests whether the result is ``formula(curves, target)``.

    ``formula`` computes the result of a known mistake.
    """

    def gives(curves: List[Curve], target: float, got: Any) -> bool:
        """Return whether ``got`` is the number of steps that the formula returns."""
        try:
            return _is_same_steps(got, formula(curves, target))
        except (ValueError, IndexError):  # the formula has no value if no seed reaches the target
            return False

    return gives


def _average_over_seeds(
    step_of: Callable[[Curve, float], float], average: Callable[[List[float]], float] = median
) -> Callable[[List[Curve], float], Any]:
    """Return a function (curves, target) that averages the steps of all seeds.

    ``step_of(curve, target)`` returns the steps of one seed. ``average`` averages the steps of all
    seeds. The function returns None if the average is infinite.
    """

    def steps(curves: List[Curve], target: float) -> Optional[float]:
        value = average([step_of(curve, target) for curve in curves])
        return value if math.isfinite(value) else None

    return steps


def _steps_of_seeds_at_target(curves: List[Curve], target: float) -> List[float]:
    """Return the first step at the target for each seed that reaches the target."""
    return [step for step in (_first_step_at_target(curve, target) for curve in curves) if math.isfinite(step)]


def _average_over_seeds_at_target(average: Callable[[List[float]], float]) -> Callable[[List[Curve], float], Any]:
    """Return a function (curves, target) that averages the steps of seeds that reach the target.

    The function returns None if no seed reaches the target.
    """

    def steps(curves: List[Curve], target: float) -> Optional[float]:
        reached = _steps_of_seeds_at_target(curves, target)
        return average(reached) if reached else None

    return steps


def _number_measurements(curve: Curve, first: int) -> Curve:
    """Return the curve with measurement numbers, counted from ``first``, instead of steps."""
    return [(number, right) for number, (_, right) in enumerate(curve, first)]


MEDIAN_MISTAKES = formula_mistakes(_matches_steps_formula, [
    (_average_over_seeds_at_target(median),
     "you ignored seeds that never reach the target, so hopeless settings look good: count such seeds as slower "
         "than all others",
     "目標に達しないシードが除かれています。それでは見込みのない設定がよく見えます。"
     "ほかのどのシードよりも長くかかるものとして数えてください"),
    (lambda curves, target:
        None if len(_steps_of_seeds_at_target(curves, target)) < len(curves)
         else median(_steps_of_seeds_at_target(curves, target)),
     "one seed that never reaches the target does not make the median infinite",
     "達しないシードが 1 つあっても、中央値のシードが達していれば答えは数です"),
    (_average_over_seeds(lambda curve, target: min(_first_step_at_target(curve, target), curve[-1][0])),
     "a seed that never reaches the target is counted as if it had reached it at its last evaluation",
     "目標に達しないシードを、最後の計測で達したものとして数えています"),
    (_average_over_seeds(lambda curve, target: next((s for s, r in curve if r > target), math.inf)),
     "an accuracy equal to the target is enough", "ちょうど目標の値でも達したことになります"),
    (_average_over_seeds(_first_step_at_target, mean),
     "that is the mean, which a single bad seed spoils: use the median",
     "これは平均です。1 つのシードで大きく変わります"),
    (_average_over_seeds_at_target(mean), "that is the mean of the seeds that reach the target",
     "これは目標に達したシードの平均です"),
    *((_average_over_seeds(_first_step_at_target, middle),
       "for an even number of seeds the median is the mean of the middle two",
       "シードが偶数個なら、中央値は中央の 2 つの平均です")
      for middle in (median_high, median_low)),
    (_average_over_seeds(lambda curve, target: _first_step_at_target(_number_measurements(curve, 0), target)),
     "that is the index of the evaluation, not its number of steps",
     "それは何番目の計測かで、ステップ数ではありません"),
    (_average_over_seeds(lambda curve, target: _first_step_at_target(_number_measurements(curve, 1), target)),
     "that is the number of evaluations, not of steps", "それは計測の回数で、ステップ数ではありません"),
    (_average_over_seeds(_step_of_lasting_target),
     "a seed reaches the target at its first evaluation at or above the target, even if it falls below again later",
     "最初に目標以上になった計測で達したとします。その後で下回ってもかまいません"),
    (_average_over_seeds(_interpolate_step),
     "do not interpolate between two evaluations: the first one at or above the target counts",
     "計測と計測の間は測っていません。目標以上になった最初の計測のステップ数です"),
    (_average_over_seeds(lambda curve, target: _first_step_at_target(curve[::-1], target)),
     "you used the last evaluation at or above the target: use the first",
     "最初ではなく、最後に目標に達していた計測を数えています"),
    (_average_over_seeds(_first_step_at_target, min), "that is the fastest seed", "これは最も速いシードです"),
])  # fmt: skip


# --- 07-3: the critical batch size, from the steps to a target
#
# The curve is steps = a + b / size = a * (1 + critical / size). a is the fewest steps, b is the
# number of images that the smallest batches need, and b / a is the critical batch size. In the
# formulas below, n is the array of batch sizes, and s is the array of measured steps. A fit is (a,
# b / a).


FIT_ROUNDS = 30  # rounds of iterative fits
FIT_TOLERANCE = 1e-3  # relative tolerance, wide enough for answers that fit iteratively

CurveFit = Tuple[float, float]


@exercise("07-3")
def check_critical_batch(answer: Callable[..., Any]) -> None:
    """Fit the fewest steps and the critical batch size to measured steps."""
    cases: List[Tuple[List[int], List[float]]] = [
        ([1, 9], [100.0, 20.0]),
        ([2, 8, 32, 128], [450.0, 150.0, 75.0, 56.25]),
        ([2, 8, 32, 128, 512], [630.0, 185.0, 77.0, 49.0, 41.0]),
    ]
    random = case_rng(74)
    for _ in range(8):
        count = int(random.randint(3, 9))
        sizes = sorted(random.permutation(11)[:count].tolist())
        fewest, critical = random.uniform(20, 2000), 2.0 ** random.uniform(1, 9)
        noise = np.exp(random.normal(0, 0.15, count))
        steps = [float(round(fewest * (1 + critical / 2**size) * each))
                 for size, each in zip(sizes, noise)]  # fmt: skip
        cases.append(([2**size for size in sizes], steps))

    def describe(sizes: List[int], steps: List[float], got: Any, want: CurveFit) -> TextPair:
        """Describe a wrong fit, in English and Japanese."""
        call = f"critical_batch({sizes}, [{', '.join(f'{each:g}' for each in steps)}])"
        if not (isinstance(got, tuple) and len(got) == 2):
            raise wrong_return(got, call, "two numbers, (fewest, critical)", "2 つの数 (fewest, critical) ")
        return wrong_value_texts(call, *(f"({a:.5g}, {b:.5g})" for a, b in (got, want)))

    results = run_cases(lambda *case: _to_two_floats(answer(*case)), cases, _fit_curve)
    results.check_results(_is_close_fit, FIT_MISTAKES, describe)


def _to_two_floats(value: Any) -> Any:
    """Convert two numbers to floats. Return other values unchanged."""
    try:
        first, second = value
        return float(first), float(second)
    except (TypeError, ValueError):
        return value


def _fit_line(sizes: Any, steps: Any, weights: Any) -> CurveFit:
    """Fit the curve steps = a + b / size by weighted least squares, and return (a, b)."""
    columns = np.stack([weights, weights / sizes], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, weights * steps, rcond=None)
    return float(a), float(b)


def _fit_curve(sizes: Sequence[float], steps: Sequence[float], power: float = 1.0) -> CurveFit:
    """Fit the curve by weighted least squares, and return (fewest steps, critical batch size).

    The weights are ``steps**-power``. A power of 1 is right, and other powers are mistakes.
    """
    n, s = np.asarray(sizes, float), np.asarray(steps, float)
    a, b = _fit_line(n, s, s**-power)
    return a, b / a


def _is_close_fit(got: Any, want: Any) -> bool:
    is_pair = isinstance(got, tuple) and len(got) == 2
    return is_pair and bool(np.allclose(got, want, rtol=FIT_TOLERANCE, atol=0))


def _matches_fit(formula: Callable[[Any, Any], Optional[CurveFit]]) -> Callable[..., bool]:
    """Return a predicate that tests whether the result is ``formula(sizes, steps)``.

    ``formula`` computes the result of a known mistake.
    """

    def gives(sizes: List[int], steps: List[float], got: Any) -> bool:
        value = formula(np.asarray(sizes, float), np.asarray(steps, float))
        return value is not None and _is_close_fit(got, value)

    return gives


def _fit_relative_to_curve(n: Any, s: Any) -> CurveFit:
    """Return the fit that minimizes the squares of measured / fitted steps - 1 (Gauss-Newton)."""
    x = np.stack([np.ones(len(n)), 1 / n], axis=1)
    curve = np.array(_fit_line(n, s, 1 / s))
    for _ in range(FIT_ROUNDS):
        fitted = x @ curve
        curve = curve + np.linalg.lstsq(x * (s / fitted**2)[:, None], s / fitted - 1, rcond=None)[0]
    return float(curve[0]), float(curve[1] / curve[0])


def _fit_reweighted(n: Any, s: Any) -> CurveFit:
    """Fit repeatedly, with the weights 1 / (steps of the previous fit), and return the last fit."""
    a, b = _fit_line(n, s, 1 / s)
    for _ in range(FIT_ROUNDS):
        a, b = _fit_line(n, s, 1 / (a + b / n))
    return a, b / a


def _fit_images(n: Any, s: Any) -> CurveFit:
    """Fit a straight line to the image counts sizes * steps, as a function of the sizes."""
    a, b = np.polyfit(n, n * s, 1)
    return float(a), float(b / a)


def _fit_end_points(n: Any, s: Any) -> CurveFit:
    """Return the curve through the first and the last measurement."""
    b = (s[0] - s[-1]) / (1 / n[0] - 1 / n[-1])
    a = s[0] - b / n[0]
    return float(a), float(b / a)


def _fit_power_law(n: Any, s: Any) -> CurveFit:
    """Fit the power law steps = c * size**k, and return (c, k)."""
    slope, at = np.polyfit(np.log(n), np.log(s), 1)
    return float(np.exp(at)), float(slope)


FIT_MISTAKES = formula_mistakes(_matches_fit, [
    (lambda n, s: _fit_curve(n, s)[::-1], "the two are the wrong way round", "2 つの順番が逆です"),
    (lambda n, s: (_fit_curve(n, s)[0], _fit_curve(n, s)[0] * _fit_curve(n, s)[1]),
     "the second number is the images that the smallest batches need: divide it by the fewest steps",
     "2 つ目は、最小のバッチで必要な画像の枚数です。最小ステップ数で割ってください"),
    (lambda n, s: _fit_curve(n, s, power=0.0),
     "that fits the steps themselves, so only the small batches matter: divide each difference by the measured steps",
     "ステップ数そのものに当てはめているので、小さいバッチだけで決まってしまいます。差を、"
     "計測したそれぞれのステップ数で割ってください"),
    (lambda n, s: _fit_curve(n, s, power=0.5),
     "you divided each difference by the square root of the steps: divide by the steps",
     "差を、ステップ数ではなくその平方根で割っています"),
    *((inverse,
       "you divided each error by the curve's steps: divide by the measured steps",
       "相対誤差が逆です。計測したステップ数ではなく、曲線のステップ数で割っています")
      for inverse in (_fit_relative_to_curve, _fit_reweighted)),
    (_fit_images, "that fits the images (sizes times steps), so only the large batches matter",
     "画像の枚数 (バッチサイズとステップ数の積) に当てはめているので、大きいバッチだけで決まってしまいます"),
    (_fit_end_points, "that is the curve through only the smallest and the largest batch: fit all batches",
     "これは最小と最大のバッチだけを通る曲線です"),
    (lambda n, s: (float(s.min()), _fit_curve(n, s)[1]),
     "the fewest steps come from the curve, not from the smallest measurement",
     "最小ステップ数は曲線の値です。計測した中の最小ではありません"),
    (_fit_power_law, "that is a straight line in logarithms, a power law",
     "これは両対数グラフでの直線、つまりべき乗則です"),
])  # fmt: skip


# --- 07-4: a short search for the learning rate that reaches the target in the fewest steps


MAX_TRAININGS = 40


class RateLandscape(NamedTuple):
    """Simulated training runs that reach a target after a number of steps.

    A run with the learning rate ``best`` takes ``fewest`` steps. Each factor of 2 between the rate
    and ``best`` multiplies the steps by ``steeper``. A run with a rate above ``highest`` fails.
    ``first``: the first rate of the search. ``limit``: the largest number of steps in a run.
    """

    first: float
    best: float
    fewest: int
    steeper: float
    highest: float
    limit: int

    def steps_at(self, rate: float) -> float:
        """Return the number of steps of a run with this rate, or infinity if the run fails."""
        if rate > self.highest * 1.001:
            return math.inf
        doublings = abs(math.log2(rate / self.best))
        return float(round(self.fewest * self.steeper**doublings))

    def steps_by_rate(self) -> Dict[float, float]:
        """Return {rate: steps} for rates in factors of 2, around ``first`` and ``best``."""
        ends = sorted([self.first, self.best])
        rates, rate = [], ends[0] / 2
        while rate < ends[1] * 3:
            rates.append(rate)
            rate *= 2
        return {rate: self.steps_at(rate) for rate in rates}

    def sufficient_steps(self) -> int:
        """Return the total steps of a good search that starts in the more expensive direction."""
        return max(self._search_steps(2.0), self._search_steps(0.5))

    def _search_steps(self, factor: float) -> int:
        """Return the total steps of a search that first multiplies the rate by ``factor``.

        The search continues in this direction while the steps decrease. It then starts again from
        the first rate in the other direction.
        """
        spent = fewest = int(self.steps_at(self.first))
        for direction in (factor, 1 / factor):
            rate = self.first * direction
            while True:
                steps = self.steps_at(rate)
                spent += int(min(steps, fewest))
                if steps >= fewest:
                    break
                fewest, rate = int(steps), rate * direction
        return spent

    def describe(self) -> CaseText:
        """Describe the first rate, the limit and the steps by rate in English and Japanese."""
        steps = ", ".join(
            f"{rate:g}: {'never' if math.isinf(count) else f'{count:.0f}'}"
            for rate, count in self.steps_by_rate().items()
        )
        return CaseText(
            f"first={self.first:g}, limit={self.limit}, steps with each learning rate {{{steps}}}",
            f"first={self.first:g}, limit={self.limit}, 各学習率でのステップ数 "
            f"{{{steps.replace('never', '達しない')}}}",
        )


@exercise("07-4")
def check_learning_rate_search(answer: Callable[..., Any]) -> None:
    """Find the learning rate with the fewest steps to the target, without wasting steps."""
    cases = [
        RateLandscape(0.25, 0.25, 50, 2.0, 8.0, 400),
        RateLandscape(0.25, 0.5, 50, 2.0, 0.5, 300),
        RateLandscape(0.25, 2.0, 40, 1.5, 8.0, 500),
        RateLandscape(1.0, 0.125, 30, 1.6, 1.0, 900),
        RateLandscape(0.5, 0.5, 20, 3.0, 0.5, 2000),
    ]
    random = case_rng(73)
    for _ in range(8):
        away, above = int(random.randint(-4, 5)), int(random.randint(0, 3))
        best, fewest = 2.0 ** int(random.randint(-6, 1)), int(random.randint(20, 60))
        first, steeper = best * 2.0**away, float(random.uniform(1.3, 2.0))
        highest = max(first, best) * 2.0**above
        limit = round(fewest * steeper ** abs(away) * random.uniform(1.2, 4))
        cases.append(RateLandscape(first, best, fewest, steeper, highest, limit))
    for landscape in cases:
        _check_tuning(answer, landscape)


def _check_tuning(answer: Callable[..., Any], landscape: RateLandscape) -> None:
    """Raise Wrong unless the answer finds the best rate without too many steps in total."""
    case, spent = landscape.describe(), 0
    rates_tried: List[float] = []

    def steps_with(rate: float, max_steps: float) -> Optional[int]:
        """Return the steps of a simulated training run, or None if they exceed ``max_steps``."""
        nonlocal spent
        rates_tried.append(rate)
        doublings = math.log2(rate / landscape.first) if rate > 0 else math.nan
        case.check_faults(
            (not math.isfinite(doublings) or abs(doublings - round(doublings)) > 1e-6,
             f"it tried the learning rate {rate:g}: only double or halve {landscape.first:g} repeatedly",
             f"学習率 {rate:g} を試しました。{landscape.first:g} の 2 倍、4 倍、…、2 分の 1、4 分の 1、… "
             "だけを試してください"),
            (len(rates_tried) > MAX_TRAININGS, f"it has not stopped after {MAX_TRAININGS} trainings",
             f"{MAX_TRAININGS} 回学習しても終わりません"),
        )  # fmt: skip
        steps = landscape.steps_at(rate)
        max_steps = min(max_steps, landscape.limit)
        spent += int(min(steps, max_steps))
        return int(steps) if steps <= max_steps else None

    got = answer(steps_with, landscape.first, landscape.limit)
    if not is_close_number(got, landscape.best):
        raise case.counterexample(
            f"your function returned {got!r}, expected {landscape.best:g}",
            f"戻り値は {got!r} でした。正しくは {landscape.best:g} です",
            _explain_worse_rate(got, landscape, rates_tried),
        )
    sufficient = landscape.sufficient_steps()
    if spent > sufficient:
        raise case.counterexample(
            f"{landscape.best:g} is right, but {count_in_english(len(rates_tried), 'training run')} took {spent} "
            f"steps in total instead of {sufficient}. Limit each run to the number of steps of the best run so far. "
            "Stop searching in a direction as soon as a learning rate is no better",
            f"{landscape.best:g} は正しいのですが、{len(rates_tried)} 回の学習に合計 {spent} ステップかかりました。"
            f"{sufficient} で足ります。これまでの最良のステップ数を超える学習はさせず、"
            "よくならなくなったらその方向の探索をやめてください",
        )


def _explain_worse_rate(got: Any, landscape: RateLandscape, rates_tried: List[float]) -> TextPair:
    """Return the likely reason why the answer did not return the best rate."""
    is_positive = is_number(got) and not isinstance(got, bool) and got > 0
    if not is_positive:
        return pick_explanation(
            (got is None, "is `return` missing?", "`return` を忘れていませんか"),
            (True, "return a learning rate", "学習率を返してください"),
        )
    steps, fewest = landscape.steps_at(float(got)), landscape.steps_at(landscape.best)
    return pick_explanation(
        (got == fewest,
         "that is a number of steps: return the learning rate", "これはステップ数です。学習率を返してください"),
        (math.isinf(steps), "that training never reaches the target", "その学習は目標に達しません"),
        (landscape.best not in rates_tried, f"{landscape.best:g} was never tried",
         f"{landscape.best:g} を試していません"),
        (True, f"{got:g} takes {steps:g} steps, {landscape.best:g} takes {fewest:g}",
         f"{got:g} では {steps:g} ステップ、{landscape.best:g} では {fewest:g} ステップです"),
    )  # fmt: skip


# --- 07-5: MXNet's momentum with a learning rate that changes


MOMENTUM_TOLERANCE = 1e-4

Array = Any  # np.ndarray


class MomentumSteps(NamedTuple):
    """A test case with several steps. ``gradients[step][parameter]`` is an array."""

    momentum: float
    rates: Tuple[float, ...]
    initial_weights: Tuple[Array, ...]
    gradients: Tuple[Tuple[Array, ...], ...]

    def describe(self) -> CaseText:
        """Describe the momentum, rates and gradients of the test case in English and Japanese."""
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        return CaseText(
            f"momentum {self.momentum:g}, rates {rates}, gradients of the first parameter "
            f"{', '.join(format_array(of_step[0]) for of_step in self.gradients)}",
            f"モーメンタム {self.momentum:g}、学習率 {rates}、最初のパラメータの勾配 "
            f"{', '.join(format_array(of_step[0]) for of_step in self.gradients)}",
        )


WeightPath = List[List[Array]]  # weights[step][parameter], after each step


class StepTrace(NamedTuple):
    """The weights and the velocities after each step."""

    params_by_step: WeightPath
    velocities: WeightPath


@exercise("07-5")
def check_momentum_step(answer: Callable[..., Any]) -> None:
    """Make a step with momentum that stays correct when the learning rate changes."""
    cases = [
        _make_constant_gradient_case(0.5, (0.5, 0.5), ((1.0,),)),
        _make_constant_gradient_case(0.5, (0.5, 1.0), ((1.0,),)),
        _make_constant_gradient_case(0.75, (0.25, 0.5, 1.0, 1.0, 0.125, 0.125), ((1.0, -2.0), (4.0,))),
    ]
    random = case_rng(75)
    for _ in range(4):
        rates = tuple(2.0 ** -random.randint(0, 6, random.randint(3, 8)))
        cases.append(_random_steps(random, float(random.choice([0.5, 0.8, 0.9])), rates))
    results = run_cases(lambda steps: _run_steps(answer, steps), [(each,) for each in cases], _apply_momentum_rule)
    for position, result in enumerate(results):
        _check_weights(result.case[0], result.got, result.want, AnswerResults(results[position:]))
    results.raise_error()


def _make_constant_gradient_case(momentum: float, rates: Sequence[float], grads: Any) -> MomentumSteps:
    """Return a case with initial weights of zero and the same gradients in every step."""
    arrays = tuple(np.array(each, np.float32) for each in grads)
    begin = tuple(np.zeros_like(each) for each in arrays)
    return MomentumSteps(momentum, tuple(rates), begin, (arrays,) * len(rates))


def _random_steps(random: Any, momentum: float, rates: Sequence[float]) -> MomentumSteps:
    """Return a case with 1 to 3 parameters of random shapes and values."""
    shapes = [tuple(random.randint(1, 4, random.randint(1, 3))) for _ in range(random.randint(1, 4))]

    def random_arrays() -> Tuple[Array, ...]:
        return tuple(random.normal(0, 1, shape).astype(np.float32) for shape in shapes)

    return MomentumSteps(momentum, tuple(map(float, rates)), random_arrays(), tuple(random_arrays() for _ in rates))


def _run_steps(answer: Callable[..., Any], steps: MomentumSteps) -> StepTrace:
    """Call the answer once per step, and return the weights and velocities after each step."""
    [ctx] = cpu_devices(1)
    weights = [nd.array(each, ctx=ctx) for each in steps.initial_weights]
    velocities = [each.zeros_like() for each in weights]
    weight_path, velocity_path, former_rate = [], [], None
    for rate, grads in zip(steps.rates, steps.gradients):
        gradient_arrays = [nd.array(each, ctx=ctx) for each in grads]
        # The answer receives copies of the lists, so replacing their items has no effect.
        answer(list(weights), gradient_arrays, list(velocities), rate, former_rate, steps.momentum)
        check_unmodified(gradient_arrays, grads)
        weight_path.append([each.asnumpy().astype(np.float64) for each in weights])
        velocity_path.append([each.asnumpy().astype(np.float64) for each in velocities])
        former_rate = rate
    return StepTrace(weight_path, velocity_path)


def _apply_momentum_rule(
    steps: MomentumSteps,
    velocity_factor: Callable[[float], float] = lambda ratio: 1.0,
    gradient_factor: Callable[[float], float] = lambda ratio: 1.0,
) -> WeightPath:
    """Return the weights w after each step of a momentum rule for the gradient g::

        v = momentum * velocity_factor * v + gradient_factor * g
        w = w - rate * v

    Both factors are functions of ratio = rate / previous rate. In the right rule, they return 1.
    """
    weights = [each.astype(np.float64) for each in steps.initial_weights]
    velocities = [np.zeros_like(each) for each in weights]
    weight_path, former_rate = [], None
    for rate, grads in zip(steps.rates, steps.gradients):
        ratio = rate / former_rate if former_rate else 1.0
        for index, grad in enumerate(grads):
            momentum_part = steps.momentum * velocity_factor(ratio) * velocities[index]
            velocities[index] = momentum_part + gradient_factor(ratio) * grad
            weights[index] = weights[index] - rate * velocities[index]
        weight_path.append([each.copy() for each in weights])
        former_rate = rate
    return weight_path


def _are_close_weights(got: Any, want: WeightPath) -> bool:
    """Return whether two sequences of weights are equal up to rounding errors.

    ``got``: a StepTrace, or only its weights.
    """
    path = got.params_by_step if isinstance(got, StepTrace) else got
    return all(
        np.allclose(a, b, rtol=MOMENTUM_TOLERANCE, atol=MOMENTUM_TOLERANCE)
        for one, other in zip(path, want)
        for a, b in zip(one, other)
    )


def _matches_rule(**factors: Callable[[float], float]) -> Callable[..., bool]:
    """Return a predicate that tests whether an answer used the rule with these factors."""
    return lambda steps, got: _are_close_weights(got, _apply_momentum_rule(steps, **factors))


def _weights_if_corrected_late(steps: MomentumSteps) -> WeightPath:
    """Return the weights of a known mistake: velocities are rescaled only after the update."""
    weights = [each.astype(np.float64) for each in steps.initial_weights]
    moves = [np.zeros_like(each) for each in weights]
    weight_path, former_rate = [], None
    for rate, grads in zip(steps.rates, steps.gradients):
        for index, grad in enumerate(grads):
            moves[index] = steps.momentum * moves[index] - rate * grad
            weights[index] = weights[index] + moves[index]
            moves[index] = moves[index] * (rate / former_rate if former_rate else 1.0)
        weight_path.append([each.copy() for each in weights])
        former_rate = rate
    return weight_path


MOMENTUM_MISTAKES: List[Mistake] = [
    (_matches_rule(velocity_factor=lambda ratio: 1 / ratio),
     "that is only MXNet's rule: the velocity still contains the former learning rate",
     "MXNet の規則のままです。速度の中身には以前の学習率が掛かっています"),
    (_matches_rule(velocity_factor=lambda ratio: ratio**-2), "the factor is upside down: it is lr / former_lr",
     "係数が逆数になっています。lr / former_lr です"),
    (lambda steps, got: _are_close_weights(got, _weights_if_corrected_late(steps)),
     "you corrected the velocity after the update: correct it before the update",
     "速度を更新の後に補正しています。更新の前に補正してください"),
    (_matches_rule(velocity_factor=lambda ratio: 0.0),
     "that is the step without momentum: write the velocities in place, so that they stay for the next step",
     "モーメンタムがないのと同じです。速度をその場で書き換えて、次のステップに残してください"),
    (lambda steps, got: all(_are_close_weights([one], [list(steps.initial_weights)]) for one in got.params_by_step),
     "the weights are unchanged: write into the arrays instead of putting new arrays into the lists",
     "重みが変わっていません。リストの要素を差し替えるのではなく、配列に書き込んでください"),
    (_matches_rule(velocity_factor=lambda ratio: float(ratio == 1)),
     "you reset the velocity when the learning rate changes: multiply it by a factor instead",
     "学習率が変わるたびに速度を捨てています。係数を掛けて引き継ぎます"),
    (_matches_rule(gradient_factor=lambda ratio: ratio),
     "you also multiplied the gradient by the factor: multiply only the velocity",
     "勾配にも係数が掛かっています。係数は速度だけに掛けます"),
    (lambda steps, got:
        _are_close_weights(
            got, _apply_momentum_rule(steps, gradient_factor=lambda ratio: 1 - steps.momentum)),
     "you multiplied the gradient by 1 - momentum: MXNet's rule does not do that",
     "勾配に 1 - モーメンタム が掛かっています。MXNet の規則にはありません"),
    (lambda steps, got:
        _are_close_weights([[2 * np.asarray(s) - w for w, s in zip(one, steps.initial_weights)]
                               for one in got.params_by_step], _apply_momentum_rule(steps)),
     "the weights move in the wrong direction", "重みが逆向きに動いています"),
]  # fmt: skip


def _check_weights(steps: MomentumSteps, got: StepTrace, want: WeightPath, rest: AnswerResults) -> None:
    """Raise Wrong for wrong weights or velocities.

    ``rest``: this result and all later results. `find_mistake` looks for a known mistake in them.
    """
    if _are_close_weights(got, want):
        # MXNet's velocity is the change of the weight in a step
        earlier = [list(steps.initial_weights), *want]
        moves = [[b - a for a, b in zip(one, other)] for one, other in zip(earlier, want)]
        _check_velocities(steps, got, moves)
        return
    step, index, current, expected = next(
        (step, index, format_array(one), format_array(other))
        for step, (ours, theirs) in enumerate(zip(got.params_by_step, want))
        for index, (one, other) in enumerate(zip(ours, theirs))
        if not _are_close_weights([[one]], [[other]])
    )
    raise steps.describe().counterexample(
        f"after {count_in_english(step + 1, 'step')}, parameter {index} is {current}, expected {expected}",
        f"{step + 1} ステップ後のパラメータ {index} が {current} です。正しくは {expected} です",
        find_mistake(rest, _are_close_weights, *MOMENTUM_MISTAKES),
    )


def _check_velocities(steps: MomentumSteps, got: StepTrace, want: WeightPath) -> None:
    """Raise Wrong if the weights are right, but a velocity differs from MXNet's velocity."""
    rounding, velocities = (MOMENTUM_TOLERANCE, MOMENTUM_TOLERANCE), got.velocities
    for step, (rate, ours, theirs) in enumerate(zip(steps.rates, velocities, want)):
        for index, (one, other) in enumerate(zip(ours, theirs)):
            if np.allclose(one, other, *rounding):
                continue
            raise steps.describe().counterexample(
                f"after {count_in_english(step + 1, 'step')}, the weights are right, but velocity {index} is "
                f"{format_array(one)}, expected {format_array(other)}",
                f"{step + 1} ステップ後の重みは正しいのですが、速度 {index} が {format_array(one)} "
                f"です。正しくは {format_array(other)} です",
                pick_explanation(
                    (np.allclose(one, -other, *rounding),
                     "MXNet adds the velocity to the weight: your velocity has the wrong sign",
                     "MXNet の速度は重みに足す値で、符号も同じです"),
                    (np.allclose(one, -other / rate, *rounding),
                     "that is the v of the papers: MXNet's velocity is u = -lr v",
                     "それは論文の v です。MXNet の速度は u = -lr v です"),
                    (step > 0 and np.allclose(one, velocities[step - 1][index], *rounding),
                     "it has not changed in this step: `velocity = ...` makes a new array, `velocity[:] = ...` and "
                         "`velocity *= ...` write into the existing array",
                     "このステップで変わっていません。`velocity = ...` は新しい配列を作ります。"
                     "渡された配列に書き込むのは `velocity[:] = ...` や `velocity *= ...` です"),
                ),
            )  # fmt: skip


# --- 07-6: the cheapest number of devices and batch size that reach a target in time


Choice = Tuple[int, int]  # (number of devices, batch size)
CACHE_MISS_FACTOR = 4


class SimulatedMachine(NamedTuple):
    """A machine whose step time is the sum of three times, in seconds.

    ``fixed``: the time of each step. ``image``: the time per image of a device. ``exchange``: the
    additional time of each step on several devices. ``fits``: how many images fit in a device's
    cache. If a device has more images, each image takes CACHE_MISS_FACTOR times as long.
    """

    fixed: float
    image: float
    exchange: float
    fits: int

    def step_seconds(self, batch: int, devices: int) -> float:
        """Return the seconds of one step."""
        each = batch / devices
        image = self.image * (CACHE_MISS_FACTOR if each > self.fits else 1)
        return self.fixed + image * each + self.exchange * (devices > 1)


class ChoiceProblem(NamedTuple):
    """The task of choosing the cheapest device count and batch size that meet a deadline.

    ``steps``: the steps to the target for each batch size, or None if training does not reach it.
    ``counts``: the possible device counts. ``deadline``: the deadline in seconds.
    """

    steps: Dict[int, Optional[int]]
    machine: SimulatedMachine
    counts: List[int]
    deadline: float

    def costs(self) -> Dict[Choice, Tuple[float, float]]:
        """Return (seconds, device-seconds) for each choice that reaches the target."""
        costs = {}
        for batch, steps in self.steps.items():
            for count in self.counts:
                if steps is not None and batch % count == 0:
                    seconds = steps * self.machine.step_seconds(batch, count)
                    costs[count, batch] = (seconds, count * seconds)
        return costs

    def costs_within_deadline(self) -> Dict[Choice, Tuple[float, float]]:
        """Return (seconds, device-seconds) for each choice that meets the deadline."""
        return {
            choice: time_and_cost for choice, time_and_cost in self.costs().items() if time_and_cost[0] <= self.deadline
        }

    def describe(self) -> CaseText:
        """Describe the known steps, device counts, deadline and machine in English and Japanese."""
        fixed, image, exchange, fits = self.machine
        step = f"{fixed:g} + {image:g} * n"
        given = f"steps={self.steps}, counts={self.counts}, deadline={self.deadline:g}"
        return CaseText(
            f"{given}, a step with n images on each device takes {step} s, {CACHE_MISS_FACTOR} times as long per "
            f"image if n > {fits}, and {exchange:g} s more on several devices",
            f"{given}、デバイスあたり n 枚の 1 ステップは {step} 秒、n > {fits} なら 1 枚あたり "
            f"{CACHE_MISS_FACTOR} 倍、2 台以上ならさらに {exchange:g} 秒",
        )


@exercise("07-6")
def check_cheapest_choice(answer: Callable[..., Any]) -> None:
    """Choose devices and a batch that reach a target in time with the fewest device-seconds."""
    steps: Dict[int, Optional[int]] = {8: 200, 32: 80, 128: 50, 512: 40}
    gpu, slow = SimulatedMachine(0.5, 0.0625, 0.25, 256), SimulatedMachine(0.125, 0.25, 1.0, 16)
    small = SimulatedMachine(0.125, 0.25, 0.0625, 64)
    # On this machine, all device counts cost the same number of device-seconds.
    even = SimulatedMachine(0.0, 0.25, 0.0, 64)
    problems = [
        ChoiceProblem({8: 200}, gpu, [1], 300.0),
        ChoiceProblem(steps, gpu, [1, 2, 4], 1000.0),
        ChoiceProblem(steps, gpu, [1, 2, 4, 8], 120.0),
        ChoiceProblem(steps, slow, [1, 2, 4, 8], 600.0),
        ChoiceProblem(steps, gpu, [1, 2], 60.0),
        ChoiceProblem({**steps, 2: None}, gpu, [1, 3, 4], 150.0),
        ChoiceProblem({8: 200, 16: 100}, SimulatedMachine(1.0, 0.0, 0.0, 64), [1], 100.0),
        ChoiceProblem({128: 50}, small, [1, 2], 8000.0),
        ChoiceProblem({128: 50, 512: 40}, small, [1, 2, 4, 8], 9000.0),
        *(ChoiceProblem({64: 100}, even, counts, 900.0) for counts in ([1, 2, 4], [4, 1, 2])),
    ]
    random = case_rng(76)
    problems += [_random_problem(random) for _ in range(12)]
    questions: List[Tuple[ChoiceProblem, Any, Any]] = []

    def step_seconds(problem: ChoiceProblem, batch: int, devices: int) -> float:
        questions.append((problem, batch, devices))
        return problem.machine.step_seconds(batch, devices)

    def run_answer(problem: ChoiceProblem) -> Any:
        counts, of_offer = list(problem.counts), partial(step_seconds, problem)
        got = answer(dict(problem.steps), of_offer, counts, problem.deadline)
        return tuple(got) if isinstance(got, (tuple, list)) and len(got) == 2 else got

    results = run_cases(run_answer, [(problem,) for problem in problems], _cheapest_choice)
    mistaken = results.find_wrong(_is_same_choice)
    if mistaken:
        [problem], got, want = mistaken[0]
        raise problem.describe().counterexample(
            f"your function returned {got!r}, expected {want}",
            f"戻り値は {got!r} でした。正しくは {want} です",
            next(filter(any, (_explain_invalid_call(*each) for each in questions)), None)
            or _explain_wrong_choice(problem, got, want, results),
        )


def _random_problem(random: Any) -> ChoiceProblem:
    """Return a random problem with a deadline near the time of one of its choices."""
    fewest, critical = random.uniform(20, 200), 2.0 ** random.uniform(3, 8)
    sizes = sorted((2 ** random.permutation(10)[: random.randint(2, 7)]).tolist())
    steps: Dict[int, Optional[int]] = {
        size: None if random.uniform() < 0.1 else round(fewest * (1 + critical / size)) for size in sizes
    }
    fixed, image, exchange = (round(float(random.uniform(*ends)), 3) for ends in ((0.01, 1), (0.001, 0.1), (0.01, 0.5)))
    machine = SimulatedMachine(fixed, image, exchange, int(2 ** random.randint(3, 8)))
    counts = sorted({1, *(random.permutation(8)[:4] + 1).tolist()})
    problem = ChoiceProblem(steps, machine, counts, 0.0)
    times = sorted(seconds for seconds, _ in problem.costs().values()) or [1.0]
    deadline = times[int(len(times) * random.uniform(0, 0.7))] * random.uniform(0.9, 1.5)
    return problem._replace(deadline=round(float(deadline), 1))


def _cheapest_choice(problem: ChoiceProblem) -> Optional[Choice]:
    costs = problem.costs_within_deadline()
    return min(costs, key=lambda choice: (*costs[choice][::-1], choice)) if costs else None


def _is_same_choice(got: Any, want: Optional[Choice]) -> bool:
    return got is None if want is None else bool(got == want)


def _chooses_least(
    key: Callable[[ChoiceProblem, Choice, float, float], Any], ignore_deadline: bool = False
) -> Callable[..., bool]:
    """Return a predicate that tests whether the answer's choice has the smallest ``key``.

    ``key``: a function that takes (problem, choice, seconds, device-seconds). ``ignore_deadline``:
    whether to also allow choices that miss the deadline.
    """

    def gives(problem: ChoiceProblem, got: Any) -> bool:
        """Return whether ``got`` is the choice with the smallest key."""
        costs = problem.costs() if ignore_deadline else problem.costs_within_deadline()
        if not costs:
            return got is None
        return bool(got == min(costs, key=lambda choice: (key(problem, choice, *costs[choice]), choice)))

    return gives


CHOICE_MISTAKES: List[Mistake] = [
    (_chooses_least(lambda problem, choice, seconds, cost: seconds),
     "that is the fastest: choose the cheapest that meets the deadline",
     "これは最も速い選択です。時間内で最も安いものを選んでください"),
    (_chooses_least(lambda problem, choice, seconds, cost: cost, ignore_deadline=True),
     "that is the cheapest of all: choose the cheapest that meets the deadline",
     "これは期限を無視した、最も安い選択です"),
    (_chooses_least(lambda problem, choice, seconds, cost: seconds, ignore_deadline=True),
     "that is the fastest without regard to the deadline: choose the cheapest that meets the deadline",
     "これは期限を無視した、最も速い選択です"),
    *((_chooses_least(lambda problem, choice, seconds, cost:
              -choice[1] / problem.machine.step_seconds(choice[1], choice[0]), ignore_deadline),
       "that has the most images/s, which does not decide how long it takes",
       "これは 1 秒あたりの枚数が最大の選択です。待つ時間はそれでは決まりません")
      for ignore_deadline in (True, False)),
    (_chooses_least(lambda problem, choice, seconds, cost: (choice[0], seconds)),
     "that has the fewest devices: more devices may cost less if they finish much sooner",
     "これはデバイスが最少の選択です。台数が多いほうが早く終わり、安く済むこともあります"),
    (_chooses_least(lambda problem, choice, seconds, cost: problem.steps[choice[1]]),
     "that has the fewest steps: also count how long each step takes",
     "これはステップ数が最少の選択です。1 ステップの時間は同じではありません"),
]  # fmt: skip


def _explain_invalid_call(problem: ChoiceProblem, batch: Any, devices: Any) -> TextPair:
    """Return the likely reason for invalid arguments in a call ``seconds(batch, devices)``."""
    if batch in problem.steps and devices in problem.counts:
        return NO_TEXT
    return pick_explanation(
        (batch in problem.counts and devices in problem.steps,
         f"`seconds({batch}, {devices})` was called: the batch comes first, then the devices",
         f"`seconds({batch}, {devices})` が呼ばれました。バッチサイズが先、デバイス数が後です"),
        (devices in problem.counts and batch * devices in problem.steps,
         f"`seconds({batch}, {devices})` was called: pass the size of the whole batch, not the images of one device",
         f"`seconds({batch}, {devices})` が呼ばれました。渡すのは 1 台分の枚数ではなく、バッチ全体のサイズです"),
    )  # fmt: skip


def _explain_wrong_choice(
    problem: ChoiceProblem, got: Any, want: Optional[Choice], results: AnswerResults
) -> Tuple[str, str]:
    """Return the likely reason for a wrong choice."""
    if got is None and want is not None:
        return "it can be done in time", "時間内に終わる選択があります"
    explanation = find_mistake(results, _is_same_choice, *CHOICE_MISTAKES)
    if any(explanation):
        return explanation
    if not (isinstance(got, tuple) and len(got) == 2):
        return ("return (devices, batch), or None", "(デバイス数, バッチサイズ) か None を返してください")
    (count, batch), none = got, (math.nan, math.nan)
    time, cost = problem.costs().get(got, none)
    best_time, best = none if want is None else problem.costs()[want]
    return pick_explanation(
        (got not in problem.costs() and got[::-1] in problem.costs(),
         "return the devices first, then the batch", "デバイス数が先です"),
        (batch in problem.steps and problem.steps[batch] is None, f"batches of {batch} never reach the target",
         f"バッチサイズ {batch} では目標に達しません"),
        (count in problem.counts and batch in problem.steps and got not in problem.costs(),
         "this batch does not divide evenly over this many devices", "そのバッチはその台数では割り切れません"),
        (time > problem.deadline, f"it takes {time:.4g} s", f"{time:.4g} 秒かかります"),
        (cost == best, f"it costs as much as {want}, but takes {time:.4g} s, not {best_time:.4g} s",
         f"コストは {want} と同じですが、時間が {best_time:.4g} 秒ではなく {time:.4g} 秒かかります"),
        (not math.isnan(cost + best), f"it costs {cost:.4g} device-seconds, {want} costs {best:.4g}",
         f"コストは {cost:.4g} デバイス秒、{want} では {best:.4g} です"),
        (True, "that choice does not exist", "そのような選択肢はありません"),
    )  # fmt: skip


# --- The guesses


# fmt: off
register_guess("07-a", NumberForm(0, example=3.0, factor=1.5),
    "with batches of 512 instead of 8, by what factor does images/s grow?",
    "バッチを 8 枚から 512 枚にすると、1 秒あたりの枚数は何倍か")
register_guess("07-b", NumberForm(0, example=64.0, factor=1.5),
    "with batches of 512 instead of 8, by what factor does the number of steps fall?",
    "バッチを 8 枚から 512 枚にすると、ステップ数は何分の 1 か")
register_guess("07-c", ChoiceForm("linearly", "more slowly", "not at all"),
    "how does the best learning rate grow if the batch size grows from 8 to 128?",
    "バッチを 8 枚から 128 枚にすると、最適な学習率はどう増えるか")
register_guess("07-d", ChoiceForm("same", "square root", "linear"),
    "which rule for the learning rate is best with 16 devices and the same number of epochs?",
    "16 台、同じエポック数: どの学習率の規則が最良か")
register_guess("07-e", DictForm(NumberForm(0, 9, example=5, within=1), "without", "with"),
    "with learning rate 2, how many of 9 seeds survive without and with a warm-up?",
    "学習率 2 で正解率 50 % を超えるシードは 9 つのうちいくつか (ウォームアップなし / あり)")
register_guess("07-f", NumberForm(0, example=2.0, factor=1.2),
    "after the learning rate falls, how many times as long is MXNet's step as the papers' step?",
    "学習率が 10 分の 1 になった直後、MXNet の歩幅は論文の規則の何倍か")
register_guess("07-g", ChoiceForm(2, 4, 8, 16, 32, 64, 128, 256, 512), "which batch size reaches the target soonest?",
    "目標に最も早く達するバッチサイズはどれか")
register_guess("07-h", YesNoForm(),
    "after the same number of epochs, do large batches also lead to more training errors?",
    "同じエポック数: 大きいバッチは学習画像の誤りも多いか")
register_guess("07-i", ChoiceForm("8", "512", "neither"),
    "at equal training error, which batch size leads to the smaller validation error?",
    "同じ学習誤差: 検証誤差が小さいのはどちらのバッチサイズか")
