"""The exercises of lab 03: Trainer and kvstore, learning rates, BatchNorm, and step times.

03-1: one update. 03-2: a comparison of two runs. 03-3: a learning rate schedule. 03-4: the mean and
variance of a batch. 03-5: a model of the speedup.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from mxnet import gluon, init, nd

from gluonlab.data.loading.split_batch import shard_bounds
from gluonlab.exercises.array_tracking import cpu_devices
from gluonlab.exercises.exercise_registry import Wrong, case_rng, exercise
from gluonlab.exercises.explain_wrong_answers import (
    AnswerResult,
    CaseText,
    Mistake,
    TextPair,
    count_in_english,
    counterexample,
    find_mistake,
    formula_mistakes,
    is_close_number,
    is_number,
    matches_formula,
    run_cases,
    to_list,
    wrong_result_texts,
    wrong_return,
    wrong_value_texts,
)
from gluonlab.exercises.guesses import ChoiceForm, DictForm, ListForm, NumberForm, YesNoForm, register_guess
from gluonlab.exercises.softmax_regression import CLASSES, FEATURES, LR, TOLERANCE, LayerParams, make_trainer
from gluonlab.kvstores import make_kvstore

# --- 03-1: one update from a batch of any size, on any number of devices


Array = Any  # np.ndarray
BATCHES = ((1, 4), (2, 4), (2, 5), (3, 7), (2, 3), (3, 6))  # (devices, images)


@exercise("03-1")
def check_train_batch(answer: Callable[..., Any]) -> None:
    """Make an update from a batch of any size, the same on any number of devices."""
    for seed, (devices, images) in enumerate(BATCHES):
        batch = UpdateCase(devices, images, seed)
        changes = batch.run_answer(answer)
        for device, change in enumerate(changes[1:], 1):
            if not np.array_equal(change, changes[0]):
                raise batch.case.counterexample(
                    f"devices 0 and {device} have different parameters after the update: all devices need the same "
                    "update",
                    f"更新後のパラメータがデバイス 0 と {device} で違います。全デバイスで同じ更新が必要です",
                )
        _check_update(batch, changes[0])


class UpdateCase:
    """A random batch and random weights of a dense layer, for one update on ``devices`` devices."""

    def __init__(self, devices: int, images: int, seed: int) -> None:
        rng = case_rng(seed)
        self.devices = devices
        self.images = rng.normal(size=(images, FEATURES)).astype("float32")
        self.labels = rng.randint(0, CLASSES, images).astype("float32")
        self.weight = rng.normal(size=(CLASSES, FEATURES)).astype("float32")
        self.case = CaseText(
            f"{images} images on {count_in_english(devices, 'device')}", f"{devices} 台のデバイスに {images} 枚"
        )

    def gradient(self, begin: int, end: int) -> Array:
        """Return the gradient of the total loss on images ``begin`` to ``end`` - 1."""
        labels = self.labels[begin:end].astype(int)
        values = LayerParams(self.weight, np.zeros(CLASSES))
        return values.gradient((self.images[begin:end], labels)).weight

    def run_answer(self, answer: Callable[..., Any]) -> List[Array]:
        """Run the answer for one update, and return the change of the weights on each device."""
        ctxs = cpu_devices(self.devices)
        net = gluon.nn.Dense(CLASSES, use_bias=False, in_units=FEATURES)
        net.initialize(init.Zero(), ctx=ctxs)
        net.weight.set_data(nd.array(self.weight))
        trainer = make_trainer(net, kvstore=make_kvstore("device"))
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        answer(nd.array(self.images), nd.array(self.labels), ctxs, net, loss, trainer)
        return [array.asnumpy() - self.weight for array in net.weight.list_data()]


def _check_update(batch: UpdateCase, change: Array) -> None:
    """Raise Wrong unless ``change`` is the update with the batch's mean gradient."""
    images, shards = len(batch.images), shard_bounds(len(batch.images), batch.devices)
    step = -LR * batch.gradient(0, images) / images
    if _is_close(change, step):
        return
    factor = float((change * step).sum() / (step * step).sum())
    mean_of_means = -LR * sum(batch.gradient(*way) / (way[1] - way[0]) for way in shards)
    batch.case.check_faults(
        (not np.any(change),
         "no parameter changed: either `trainer.step` was not called, or the forward pass was not recorded",
         "パラメータが変化していません。`trainer.step` を呼んでいないか、計算が記録されていません"),
        (_is_positive_multiple(change, step),
         f"the update is {factor:.3g} times too large: `trainer.step` divides the sum of the gradients by its "
             "argument. Pass the number of all images in the batch",
         f"更新量が正しい値の {factor:.3g} 倍です。`trainer.step` は勾配の合計を渡された数で割ります。"
         "バッチ全体の画像の枚数を渡してください"),
        (len(shards) > 1 and _is_positive_multiple(change, -batch.gradient(*shards[0])),
         "the update contains only the gradient of device 0: run backward for the losses of all shards",
         "デバイス 0 の勾配だけで更新されています。すべてのシャードの損失に対して backward を実行してください"),
    )  # fmt: skip
    sizes = " + ".join(str(end - begin) for begin, end in shards)
    if _is_positive_multiple(change, mean_of_means):
        raise CaseText(f"{batch.case.en} ({sizes})", f"{batch.case.ja} ({sizes})").counterexample(
            "you average the losses of each shard, which gives the images in a small shard a larger weight: do not "
            "average the losses, and let `trainer.step` divide by the number of images",
            "シャードごとに損失を平均しているため、小さいシャードの画像の寄与が大きくなっています。"
            "損失は平均せずに backward を実行し、`trainer.step` に画像の枚数を渡してください",
        )
    raise batch.case.counterexample(
        f"the first weights moved by {format_numbers(change[0])}, expected {format_numbers(step[0])}: the update "
        "must use the mean gradient of the batch",
        f"最初の重みの変化は {format_numbers(change[0])}、"
        f"正しくは {format_numbers(step[0])} です。バッチの平均勾配による更新になっていません",
    )


def _is_close(a: Array, b: Array) -> bool:
    return bool(np.linalg.norm(a - b) <= TOLERANCE * np.linalg.norm(b))


def _is_positive_multiple(a: Array, b: Array) -> bool:
    """Return whether ``a`` is a positive multiple of ``b``."""
    factor = (a * b).sum() / (b * b).sum()
    return bool(factor > 0 and _is_close(a, factor * b))


def format_numbers(values: Sequence[float]) -> str:
    """Return numbers as text, such as ``[1, 0.5]``."""
    return "[" + ", ".join(f"{value:.3g}" for value in np.ravel(values)) + "]"


# --- 03-2: two runs compared after equal epochs, equal updates and equal seconds


CLOCKS = ("epochs", "updates", "seconds")
ACCURACY_TOLERANCE = 1e-6

# For each epoch: (updates since the start, seconds of the epoch, accuracy).
Run = List[Tuple[int, float, float]]
Difference = Optional[float]  # the second run's accuracy minus the first run's accuracy
# A list of clock readings, and a list with the accuracy at each reading.
Curve = Tuple[Sequence[float], Sequence[float]]


@exercise("03-2")
def check_compare_runs(answer: Callable[[Run, Run], Dict[str, Difference]]) -> None:
    """Compare two runs after equal epochs, equal updates and equal seconds."""
    random = case_rng(2)
    cases: List[Tuple[Run, Run]] = [
        ([(10, 2.0, 0.5), (20, 2.0, 0.7)], [(5, 1.5, 0.4), (10, 1.5, 0.6), (15, 1.5, 0.65)]),
        ([(4, 1.0, 0.3)], [(4, 1.0, 0.5)]),
        ([(4, 1.0, 0.3), (8, 1.0, 0.6)], [(4, 1.0, 0.5), (8, 1.0, 0.4)]),
        ([(100, 9.0, 0.8), (200, 9.0, 0.9)], [(5, 1.0, 0.2), (10, 1.0, 0.4)]),
        ([(5, 1.0, 0.2), (10, 1.0, 0.4)], [(100, 9.0, 0.8)]),
        ([(5, 1.0, 0.2), (10, 2.0, 0.5), (15, 4.0, 0.6)], [(5, 1.5, 0.3), (10, 2.5, 0.4)]),
    ]
    cases += [(_random_run(random), _random_run(random)) for _ in range(20)]

    def describe(first: Run, second: Run, got: Any, want: Dict[str, Difference]) -> TextPair:
        """Describe wrong differences between two runs, in English and Japanese."""
        call = f"compare({_format_run(first)}, {_format_run(second)})"
        if not isinstance(got, dict) or set(got) != set(CLOCKS):
            names = ", ".join(f'"{clock}"' for clock in CLOCKS)
            raise wrong_return(got, call, f"a dictionary with {names}", f"キーが {names} の辞書")
        clock = next(clock for clock in CLOCKS if not _is_same_difference(got[clock], want[clock]))
        return wrong_value_texts(f'{call}["{clock}"]', _format_number(got[clock]), _format_number(want[clock]))

    results = run_cases(answer, cases, lambda first, second: _compare_runs(first, second, RIGHT_COMPARISON))
    results.check_results(_are_same_differences, COMPARISON_MISTAKES, describe)


class _CurveComparison(NamedTuple):
    """A rule for comparing runs. The rule of a known mistake is wrong in one field.

    ``accuracy_at(curve, reading)``: returns the accuracy at a clock reading. ``seconds``: converts
    the duration of each epoch to clock readings. ``sign``: 1, or -1 to swap the two runs.
    """

    accuracy_at: Callable[[Curve, float], Difference]
    seconds: Callable[[Sequence[float]], Sequence[float]] = lambda each: list(accumulate(each))
    sign: float = 1.0


def _interpolate_accuracy(curve: Curve, time: float) -> Difference:
    """Return the linearly interpolated accuracy, or None before the first measurement."""
    times, accuracies = curve
    if time < times[0]:
        return None
    return float(np.interp(time, times, accuracies))


def _accuracy_before(curve: Curve, time: float) -> Difference:
    """Return the last accuracy measured up to ``time``, or None."""
    accuracies = [accuracy for measured_at, accuracy in zip(*curve) if measured_at <= time]
    return accuracies[-1] if accuracies else None


def _accuracy_after(curve: Curve, time: float) -> Difference:
    """Return the first accuracy measured at ``time`` or later."""
    return next(accuracy for measured_at, accuracy in zip(*curve) if measured_at >= time)


def _nearest_accuracy(curve: Curve, time: float) -> Difference:
    """Return the accuracy of the nearest measurement, or None before the first measurement."""
    times, accuracies = curve
    if time < times[0]:
        return None
    return accuracies[int(np.argmin([abs(measured_at - time) for measured_at in times]))]


def _compare_runs(first: Run, second: Run, comparison: _CurveComparison) -> Dict[str, Difference]:
    """Return the difference of the accuracies at the end of the shorter run, for each clock.

    The clocks are epochs, updates and seconds. The difference is None if one of the runs has no
    accuracy yet at that time.
    """
    differences: Dict[str, Difference] = {}
    for clock in CLOCKS:
        curves = [(_clock_readings(run, clock, comparison), [one[2] for one in run]) for run in (first, second)]
        end = min(curves[0][0][-1], curves[1][0][-1])
        at_end = [comparison.accuracy_at(curve, end) for curve in curves]
        differences[clock] = None
        if at_end[0] is not None and at_end[1] is not None:
            differences[clock] = comparison.sign * (at_end[1] - at_end[0])
    return differences


def _clock_readings(run: Run, clock: str, comparison: _CurveComparison) -> Sequence[float]:
    """Return the reading of ``clock`` (epochs, updates or seconds) after each epoch of the run."""
    if clock == "epochs":
        return [float(number + 1) for number in range(len(run))]
    if clock == "updates":
        return [float(updates) for updates, _, _ in run]
    return comparison.seconds([seconds for _, seconds, _ in run])


RIGHT_COMPARISON = _CurveComparison(_interpolate_accuracy)


def _matches_comparison(accuracy_at: Callable[[Curve, float], Difference], sign: float = 1.0) -> Callable[..., bool]:
    """Return a predicate that tests whether an answer used ``accuracy_at`` and ``sign``."""
    comparison = _CurveComparison(accuracy_at, sign=sign)
    return lambda first, second, got: _are_same_differences(got, _compare_runs(first, second, comparison))


def _uses_epoch_seconds(first: Run, second: Run, got: Any) -> bool:
    """Return whether the answer uses each epoch's seconds instead of the seconds since the start.

    If the seconds do not increase from epoch to epoch, the result depends on how the answer
    searches them. In this case, any value for "seconds" is accepted as this mistake.
    """
    want, mistaken = (
        _compare_runs(first, second, comparison)
        for comparison in (RIGHT_COMPARISON, _CurveComparison(_interpolate_accuracy, lambda s: s))
    )
    if not isinstance(got, dict) or set(got) != set(CLOCKS):
        return False
    seconds_rise = all(a[1] < b[1] for run in (first, second) for a, b in zip(run, run[1:]))
    others_right = all(_is_same_difference(got[clock], want[clock]) for clock in CLOCKS[:2])
    return others_right and (not seconds_rise or _is_same_difference(got["seconds"], mistaken["seconds"]))


COMPARISON_MISTAKES: List[Mistake] = [
    (_matches_comparison(_interpolate_accuracy, sign=-1.0),
     "the second run's accuracy minus the first's, not the other way round",
     "2 番目の学習の正解率から 1 番目を引きます。逆になっています"),
    (_matches_comparison(lambda curve, place: curve[1][-1]),
     "those are the last accuracies of both runs, which ended at different times",
     "どこで終わったかに関係なく、両方の最後の正解率を比べています"),
    (_uses_epoch_seconds, "the seconds are the times of single epochs: add them up",
     "秒数はエポックごとの値です。足していってください"),
    (_matches_comparison(_accuracy_before),
     "between two measurements the accuracy grows evenly: it does not stay constant until the next one",
     "2 つの計測の間では正解率は一定の割合で増えます。次の計測までそのままではありません"),
    *((_matches_comparison(next_one),
       "between two measurements the accuracy grows evenly: it does not jump to the next one",
       "2 つの計測の間では正解率は一定の割合で増えます。まだ次の計測の値にはなっていません")
      for next_one in (
          _accuracy_after, lambda *at: None if _interpolate_accuracy(*at) is None else _accuracy_after(*at))),
    (_matches_comparison(_nearest_accuracy),
     "between two measurements the accuracy grows evenly: interpolate instead of using the nearest measurement",
     "2 つの計測の間では正解率は一定の割合で増えます。最も近い計測値ではありません"),
    (_matches_comparison(lambda curve, place: float(np.interp(place, *curve))),
     "before its first measurement a run has no accuracy: return None",
     "最初の計測より前の正解率は分からないので、None です"),
    (_matches_comparison(lambda curve, place: _interpolate_accuracy(([0.0, *curve[0]], [0.0, *curve[1]]), place)),
     "before its first measurement a run has no accuracy: return None, not 0",
     "最初の計測より前の正解率は分かりません。0 と計測されたわけではありません"),
]  # fmt: skip


def _random_run(random: Any) -> Run:
    """Return a random run whose accuracy may decrease between epochs."""
    epochs, updates = int(random.randint(1, 7)), int(random.randint(3, 40))
    seconds = 0.5 * random.randint(1, 12, epochs)
    accuracies = 0.01 * np.sort(random.choice(90, epochs, replace=False))
    if random.randint(2):
        random.shuffle(accuracies)  # so that accuracies also decrease
    return [
        (updates * (number + 1), float(s), round(float(a), 2)) for number, (s, a) in enumerate(zip(seconds, accuracies))
    ]


def _is_same_difference(got: Any, want: Difference) -> bool:
    if want is None or got is None:
        return got is want
    return is_number(got) and abs(got - want) < ACCURACY_TOLERANCE


def _are_same_differences(got: Any, want: Dict[str, Difference]) -> bool:
    keys = isinstance(got, dict) and set(got) == set(CLOCKS)
    return keys and all(_is_same_difference(got[clock], want[clock]) for clock in CLOCKS)


def _format_run(run: Run) -> str:
    return "[" + ", ".join(f"({u}, {s:g}, {a:g})" for u, s, a in run) + "]"


def _format_number(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else repr(value)


# --- 03-3: the learning rate of every update, with the recipe of Goyal et al.


Rates = List[float]


@exercise("03-3")
def check_learning_rates(answer: Callable[..., Iterable[float]]) -> None:
    """Compute the learning rate of each update: scaled, with a warm-up, and lowered later."""
    random = case_rng(1)
    fixed_cases = [
        _ScheduledTraining(8, 2, 2, 3, 0.1, 1, ()),
        _ScheduledTraining(9, 2, 2, 3, 0.1, 1, (2,)),
        _ScheduledTraining(8, 1, 4, 2, 0.2, 0, ()),
        _ScheduledTraining(8, 1, 2, 3, 0.2, 2, ()),
        _ScheduledTraining(12, 2, 2, 4, 0.1, 0, (1, 3)),
        _ScheduledTraining(2, 4, 2, 4, 0.1, 2, (3,)),
    ]
    cases = [(each,) for each in [*fixed_cases, *(_random_training(random) for _ in range(20))]]
    results = run_cases(
        lambda each: to_list(answer(*each.answer_arguments())), cases, _ScheduledTraining.learning_rates
    )
    results.check_results(_are_same_rates, RATE_MISTAKES, _describe_wrong_rates)


class _ScheduledTraining(NamedTuple):
    """The answer's arguments for one training run, and the expected learning rates.

    ``per_device``: images per device in a batch. ``base_lr``: the rate for one device. ``drops``:
    the epochs at which the rate drops to a tenth.
    """

    images: int
    devices: int
    per_device: int
    epochs: int
    base_lr: float
    warmup_epochs: int
    drops: Tuple[int, ...]

    def answer_arguments(self) -> Tuple[Any, ...]:
        """Return the arguments to pass to the answer."""
        return (*self[:-1], list(self.drops))

    def describe(self) -> CaseText:
        """Describe the run's sizes, rates and epochs in English and Japanese, for messages."""
        n, k, b, e, lr, warmup, drops = self.answer_arguments()
        return CaseText(
            f"{n} images, {count_in_english(k, 'device')} with {b} each, {count_in_english(e, 'epoch')}, base_lr "
            f"{lr:g}, {count_in_english(warmup, 'epoch')} of warm-up, drops {drops}",
            f"画像 {n} 枚、1 台 {b} 枚で {k} 台、{e} エポック、base_lr {lr:g}、"
            f"ウォームアップ {warmup} エポック、drops {drops}",
        )

    def learning_rates(
        self,
        epoch_steps: "Callable[[_ScheduledTraining], int] | None" = None,
        full_rate: "Callable[[_ScheduledTraining], float] | None" = None,
        first_rate: "Callable[[_ScheduledTraining], float] | None" = None,
        rise: Callable[[int, int], float] = lambda update, steps: update / steps,
        lowered: "Callable[[_ScheduledTraining, int, int], int] | None" = None,
    ) -> Rates:
        """Return the learning rate of each update. If no argument is given, the rates are right.

        Each argument replaces a part of the recipe, to compute the rates of a known mistake.

        Args:
            epoch_steps: a function that returns the number of updates per epoch.
            full_rate: a function that returns the rate after the warm-up.
            first_rate: a function that returns the rate at the start of the warm-up.
            rise: a function that takes (update, steps) and returns the fraction of the warm-up that
                is done.
            lowered: a function that takes (training, epoch, update) and returns the number of drops
                so far.
        """
        steps = epoch_steps(self) if epoch_steps else -(-self.images // (self.devices * self.per_device))
        top = full_rate(self) if full_rate else self.base_lr * self.devices
        low = first_rate(self) if first_rate else self.base_lr
        warmup_steps = steps * self.warmup_epochs
        rates: Rates = []
        for update in range(steps * self.epochs):
            if update < warmup_steps:
                rates.append(low + (top - low) * rise(update, warmup_steps))
                continue
            epoch = update // steps
            drop_count = lowered(self, epoch, update) if lowered else sum(drop <= epoch for drop in self.drops)
            rates.append(top * 0.1**drop_count)
        return rates

    def rates_dropped_early(self) -> Rates:
        """Return the rates for a known mistake: each drop is an epoch too early."""
        rates = self.learning_rates(lowered=lambda training, epoch, update: 0)
        steps = len(rates) // self.epochs
        return [
            rate * 0.1 ** sum(drop <= update // steps + 1 for drop in self.drops) for update, rate in enumerate(rates)
        ]

    def rates_raised_by_epoch(self) -> Rates:
        """Return the rates for a known mistake: the warm-up raises the rate only once per epoch."""
        rates, top = self.learning_rates(), self.base_lr * self.devices
        steps = len(rates) // self.epochs
        for update in range(steps * self.warmup_epochs):
            risen = update // steps / self.warmup_epochs
            rates[update] = self.base_lr + (top - self.base_lr) * risen
        return rates

    def rates_raised_by_factor(self) -> Rates:
        """Return the rates for a known mistake: the warm-up raises the rate exponentially."""
        rates = self.learning_rates()
        warmup_steps = len(rates) // self.epochs * self.warmup_epochs
        for update in range(warmup_steps):
            rates[update] = self.base_lr * self.devices ** (update / warmup_steps)
        return rates


def _rate_mistake(en: str, ja: str, **changes: Any) -> Mistake:
    """Return the mistake of using the rates `_ScheduledTraining.learning_rates(**changes)`."""
    return lambda each, got: _are_same_rates(got, each.learning_rates(**changes)), en, ja


RATE_MISTAKES: List[Mistake] = [
    _rate_mistake("the smaller batch at the end of an epoch also makes an update",
        "エポックの最後の小さいバッチでも更新します", epoch_steps=lambda t: t.images // (t.devices * t.per_device)),
    _rate_mistake("the batch must contain the images of all devices", "1 回の更新に使うバッチは全デバイス分です",
        epoch_steps=lambda t: -(-t.images // t.per_device)),
    _rate_mistake("the learning rate must grow with the number of devices", "デバイス数に比例していません",
        full_rate=lambda t: t.base_lr),
    _rate_mistake("that is the square root rule: use the linear rule",
        "これは平方根の規則です。線形スケーリング則を使ってください", full_rate=lambda t: t.base_lr * t.devices**0.5),
    _rate_mistake("the warm-up starts at the learning rate of one device, not at 0",
        "ウォームアップは 0 からではなく 1 台分の学習率から始めます", first_rate=lambda t: 0.0),
    _rate_mistake("the first update uses base_lr; each later one is a step higher",
        "最初の更新の学習率が base_lr で、そこから 1 回ごとに上がります",
        rise=lambda update, steps: (update + 1) / steps),
    _rate_mistake("the full learning rate starts with the first update after the warm-up",
        "最大の学習率になるのはウォームアップの次の更新です",
        rise=lambda update, steps: update / (steps - 1) if steps > 1 else 0.0),
    _rate_mistake("all updates use the full learning rate: the warm-up is missing",
        "最初の更新から最大の学習率です。ウォームアップがありません", rise=lambda update, steps: 1.0),
    _rate_mistake("there is no update after the last batch: 8 images in batches of 4 make 2 updates",
        "最後のバッチの後に更新はありません。8 枚を 4 枚ずつなら更新は 2 回です",
        epoch_steps=lambda t: t.images // (t.devices * t.per_device) + 1),
    (lambda each, got: _are_same_rates(got, each.rates_raised_by_epoch()),
     "during the warm-up the learning rate rises with every update, not once per epoch",
     "ウォームアップの間は、エポックごとではなく更新ごとに上がります"),
    (lambda each, got: _are_same_rates(got, each.rates_raised_by_factor()),
     "during the warm-up the learning rate rises by the same amount with every update, not by the same factor",
     "ウォームアップの間は、更新ごとに同じ量だけ上がります。同じ倍率ではありません"),
    _rate_mistake("during the warm-up the learning rate rises with every update; it does not jump at the end",
        "ウォームアップの間は更新ごとに上がります。最後に一気に上げるのではありません", rise=lambda update, steps: 0.0),
    _rate_mistake("the drops are missing", "drops での引き下げがありません", lowered=lambda t, epoch, update: 0),
    _rate_mistake("epochs count from 0: the learning rate drops at the start of that epoch",
        "エポックは 0 から数えます。そのエポックの始めに下げます",
        lowered=lambda t, epoch, update: sum(drop < epoch for drop in t.drops)),
    (lambda each, got: _are_same_rates(got, each.rates_dropped_early()),
     "the learning rate drops an epoch too early: epochs count from 0",
     "引き下げが 1 エポック早すぎます。エポックは 0 から数えます"),
    _rate_mistake("after a drop the learning rate stays low: it does not rise again after that epoch",
        "一度下げたら低いままです。そのエポックの後に戻してはいけません",
        lowered=lambda t, epoch, update: sum(drop == epoch for drop in t.drops)),
    _rate_mistake("each drop divides the learning rate by 10, so two drops divide it by 100",
        "drops のたびに 10 分の 1 にします。2 回なら 100 分の 1 です",
        lowered=lambda t, epoch, update: int(any(drop <= epoch for drop in t.drops))),
    _rate_mistake("`drops` contains epochs, not updates", "drops は更新の番号ではなくエポックの番号です",
        lowered=lambda t, epoch, update: sum(drop <= update for drop in t.drops)),
]  # fmt: skip


def _random_training(random: Any) -> _ScheduledTraining:
    """Return a random training run of 3 to 6 epochs."""
    devices, per_device = int(random.randint(2, 6)), int(random.randint(1, 6))
    warmup, after = int(random.randint(1, 3)), int(random.randint(2, 5))
    drops = sorted(random.choice(np.arange(warmup, warmup + after), random.randint(0, 3), False))
    return _ScheduledTraining(
        int(random.randint(devices * per_device, 60)),
        devices,
        per_device,
        warmup + after,
        0.01 * int(random.randint(1, 50)),
        warmup,
        tuple(map(int, drops)),
    )


def _are_same_rates(got: Any, want: Rates) -> bool:
    """Return whether ``got`` is a list that equals ``want`` up to rounding errors."""
    if not isinstance(got, list) or len(got) != len(want):
        return False
    return all(is_number(one) for one in got) and np.allclose(np.array(got, float), want, rtol=1e-6, atol=1e-12)


def _describe_wrong_rates(training: _ScheduledTraining, got: Any, want: Rates) -> TextPair:
    """Describe the first wrong learning rate, in English and Japanese."""
    if not isinstance(got, list) or not all(is_number(rate) for rate in got):
        call = f"learning_rates({', '.join(map(str, training.answer_arguments()))})"
        raise wrong_return(got, call, "a list of numbers", "数のリスト")
    if len(got) != len(want):
        return training.describe().with_texts(
            f"{len(got)} learning rates, expected {len(want)}: one for each update",
            f"学習率が {len(got)} 個です。更新ごとに 1 個、{len(want)} 個のはずです",
        )
    is_right = np.isclose(np.array(got, float), want, rtol=1e-6, atol=1e-12)
    update = int(np.argmin(is_right))
    return training.describe().with_texts(
        f"update {update} (counted from 0) has the learning rate {got[update]:.6g}, expected {want[update]:.6g}",
        f"{update} 番目 (0 から) の更新の学習率が {got[update]:.6g} です。正しくは {want[update]:.6g} です",
    )


# --- 03-4: the mean and variance of a batch, computed from its shards' means and variances


@exercise("03-4")
def check_combine(answer: Callable[..., Any]) -> None:
    """Compute the mean and variance of a batch from its shards' means and variances."""
    rng = case_rng(2)
    cases: List[List[List[float]]] = [[[1, 3]], [[1, 3], [1, 3]], [[0, 0], [2, 2]]]
    cases += [[[0], [3, 3, 3]], [[0, 2], [4]]]
    for _ in range(30):
        count = rng.randint(1, 5)
        cases.append([list(rng.normal(rng.normal(), 2, rng.randint(1, 9))) for _ in range(count)])
    results = run_cases(
        lambda shards: answer(*shards.statistics()),
        [(ShardCase(shards),) for shards in cases],
        lambda shards: (shards.whole.mean(axis=0), shards.whole.var(axis=0)),
    )
    by_quantity: Tuple[List[AnswerResult], List[AnswerResult]] = ([], [])
    for case, got, want in results:
        _check_returns_two_values(got, case[0])
        for index, quantity_results in enumerate(by_quantity):
            quantity_results.append(AnswerResult(case, _to_two_channels(got[index]), want[index]))
    for quantity_pair in zip(*by_quantity):
        for quantity, result, all_results in zip((MEAN, VARIANCE), quantity_pair, by_quantity):
            if not _are_close(result.got, result.want):
                raise quantity.make_counterexample(result, all_results)
    results.raise_error()


class ShardCase:
    """The values of a batch's shards. The two channels differ, so answers for one channel fail."""

    def __init__(self, shards: Sequence[Sequence[float]]) -> None:
        # Each shard is an array of shape (pixels, 2). Its second channel is 10 - 2 * its first.
        self.parts = [np.stack([np.array(one), 10 - 2 * np.array(one)], axis=1) for one in shards]
        self.whole: Array = np.concatenate(self.parts)

    def statistics(self) -> Tuple[List[Array], List[Array], List[int]]:
        """Return three lists: the shards' means, variances and pixel counts."""
        means, variances = ([of(part, axis=0) for part in self.parts] for of in (np.mean, np.var))
        return means, variances, [len(part) for part in self.parts]

    def format_channel(self, channel: int) -> str:
        """Return one channel of all shards as text, such as ``[0, 0] + [2, 2]``."""
        return " + ".join(format_numbers(part[:, channel]) for part in self.parts)


def _check_returns_two_values(got: Any, shards: ShardCase) -> None:
    """Raise Wrong unless the answer returned two values: the mean and the variance."""
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        shown = shards.format_channel(0)
        raise counterexample(
            f"your function returned {got!r} for the shards {shown}: return two values, the mean and the variance",
            f"シャード {shown} に対する戻り値は {got!r} でした。平均と分散の 2 つを返してください",
        )


def _to_two_channels(value: Any) -> Array:
    value = value.asnumpy() if hasattr(value, "asnumpy") else value
    return np.broadcast_to(np.asarray(value, dtype=float), (2,))


def _are_close(got: Array, want: Array) -> bool:
    return bool(np.allclose(got, want, rtol=1e-4, atol=1e-5))  # tolerances wide enough for float32


class CombinedQuantity(NamedTuple):
    """The mean or the variance: its name in English and Japanese, and common mistakes."""

    en: str
    ja: str
    mistakes: Sequence[Mistake]

    def make_counterexample(self, result: AnswerResult, all_results: Sequence[AnswerResult]) -> Wrong:
        """Return a counterexample for ``result``. The named mistake explains ``all_results``."""
        channel = int(np.argmax(np.abs(result.got - result.want)))
        shown, got, want = (result.case[0].format_channel(channel), result.got[channel], result.want[channel])
        return counterexample(
            f"shards {shown}: {self.en} {got:.4g}, expected {want:.4g}",
            f"シャード {shown}: {self.ja}は {got:.4g} でしたが、正しくは {want:.4g} です",
            find_mistake(all_results, _are_close, *self.mistakes),
        )


def _matches_shard_formula(formula: Callable[..., Array]) -> Callable[..., bool]:
    """Return a predicate that tests whether the result is ``formula(means, variances, counts)``."""
    return lambda shards, got: _are_close(got, formula(*shards.statistics()))


def _batch_variance(shards: ShardCase, ddof: int = 0) -> Array:
    return shards.whole.var(axis=0, ddof=ddof if len(shards.whole) > ddof else 0)


MEAN = CombinedQuantity("mean", "平均", [
    (_matches_shard_formula(lambda means, variances, counts: np.mean(means, axis=0)),
     "a shard with more images counts more: weight by `counts`", "画像の多いシャードほど重みを大きくしてください"),
    (_matches_shard_formula(lambda means, variances, counts: np.sum(means, axis=0)),
     "the means are added up, not averaged",
     "平均を足しただけです"),
])  # fmt: skip

MEANS_IGNORED = (
    "that is the mean of the shards' variances: the distance between their means is missing",
    "これはシャードの分散の平均です。シャードの平均どうしのずれが入っていません",
)
VARIANCE = CombinedQuantity("variance", "分散", [
    (_matches_shard_formula(lambda means, each, counts:
        np.average(each, axis=0, weights=counts)), *MEANS_IGNORED),
    (_matches_shard_formula(lambda means, each, counts: np.mean(each, axis=0)), *MEANS_IGNORED),
    (_matches_shard_formula(lambda means, each, counts: np.mean(each, axis=0) + np.var(means, axis=0)),
     "a shard with more images also counts more here: weight by `counts`",
     "ここでも、画像の多いシャードほど重みを大きくしてください"),
    (lambda shards, got: _are_close(got, np.sqrt(_batch_variance(shards))), "that is the standard deviation",
     "これは標準偏差です"),
    (lambda shards, got: _are_close(got, _batch_variance(shards, ddof=1)),
     "BatchNorm divides by the number of images, not by one less", "BatchNorm は n - 1 ではなく n で割ります"),
])  # fmt: skip


# --- 03-5: the speedup of several devices, computed with a model of the step time
#
# In the formulas, h is the time in which the host queues a step of one device, c is the time in
# which a device computes, and s is the time in which the devices sum gradients, all in
# milliseconds. k is the number of devices.


@exercise("03-5")
def check_speedup(answer: Callable[[float, float, float, int], float]) -> None:
    """Compute the speedup of k devices in images per second with a model of a step."""
    rng = case_rng(3)
    cases = [(0.0, 1.0, 0.0, 2), (0.0, 1.0, 0.5, 1), (0.0, 1.0, 1.0, 2), (1.0, 0.0, 0.0, 2)]
    cases += [(1.0, 3.0, 1.0, 2), (1.0, 3.0, 1.0, 8)]
    for a, b, c in rng.uniform(0.1, 5, (50, 3)):
        cases.append((float(a), float(b), float(c), int(rng.randint(1, 17))))

    def expected_speedup(h: float, c: float, s: float, k: int) -> float:
        return k * max(h, c) / (max(k * h, c + s) if k > 1 else max(h, c))

    def describe(h: float, c: float, s: float, k: int, got: Any, want: float) -> TextPair:
        call = f"speedup(host_ms={h:.3g}, compute_ms={c:.3g}, sum_ms={s:.3g}, devices={k})"
        return wrong_result_texts(call, _format_number(got), f"{want:.4g}")

    run_cases(answer, cases, expected_speedup).check_results(is_close_number, SPEEDUP_MISTAKES, describe)


def _matches_speedup(formula: Callable[..., float]) -> Callable[..., bool]:
    """Return a predicate that tests whether an answer returned the result of ``formula``.

    ``formula`` computes the speedup of a known mistake. On one device, the answer may or may not
    include the time for the gradient sum.
    """

    def gives(host: float, compute: float, total: float, devices: int, got: Any) -> bool:
        sums = (total, 0.0 if devices == 1 else total)
        return any(matches_formula(formula)(host, compute, sum_ms, devices, got=got) for sum_ms in sums)

    return gives


SPEEDUP_MISTAKES = [
    (matches_formula(lambda h, c, s, k: k * max(h, c) / max(k * h, c + s)),
     "one device does not sum anything, so its speedup is 1", "1 台なら合計は要らず、倍率はちょうど 1 です"),
    *formula_mistakes(_matches_speedup, [
        (lambda h, c, s, k: max(h, c) / max(k * h, c + s), "a step on k devices trains on k times the images",
         "k 台の 1 ステップは k 倍の枚数を処理します"),
        (lambda h, c, s, k: max(k * h, c + s) / max(h, c),
         "that is the slowdown of a step: divide the other way round, and count k times the images",
         "これは 1 ステップの時間が何倍になるかです。割る向きを逆にし、枚数が k 倍になることも計算に入れてください"),
        (lambda h, c, s, k: k * max(h, c) / max(h, c + s), "the host queues the work of one device after the other",
         "ホストはデバイス 1 台ずつ順に処理をキューに入れます"),
        (lambda h, c, s, k: k * (h + c) / (k * h + c + s), "the host queues the next step while the devices compute",
         "デバイスの計算中に、ホストは次のステップをキューに入れられます"),
        (lambda h, c, s, k: k * max(h, c) / (k * h + c + s), "the host queues the next step while the devices compute",
         "デバイスの計算中に、ホストは次のステップをキューに入れられます"),
        (lambda h, c, s, k: k * max(h, c) / (max(k * h, c) + s),
         "the devices sum after they have computed, and the host is free meanwhile",
         "合計は計算の後にデバイスが行い、その間ホストは空いています"),
        (lambda h, c, s, k: k * max(h, c) / max(k * h, c),
         "the sum is missing, which begins when the gradients are ready",
         "勾配がそろってから始まる合計の時間が入っていません"),
    ]),
]  # fmt: skip


# --- The guesses


# fmt: off
register_guess("03-a", DictForm(YesNoForm(), "weights", "gradients"),
    "are the weights and the gradients of the two replicas the same after a step?",
    "1 ステップの後、レプリカの重みは同じか。勾配は同じか")
register_guess("03-b", DictForm(ChoiceForm("higher", "about equal", "lower"), "B", "C"),
    "after the same number of epochs, how do B and C compare with A?",
    "同じエポック数の後、B と C の正解率は A に比べてどうか")
register_guess("03-c", ListForm(NumberForm(example=-1, within=0.05), 4),
    "what does BatchNorm compute from 0, 0, 2, 2 on two devices?",
    "0, 0, 2, 2 を 2 台に分けると、BatchNorm の出力はどうなるか")
register_guess("03-d", ChoiceForm("computing", "sum", "update", "host"),
    "which part of a step takes longest on two devices?", "2 台のステップで最も長いのはどの部分か")
