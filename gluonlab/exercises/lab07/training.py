"""07-1: a training on k devices with k times the batch and the rate, until it is good enough."""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab07.looks import CountedLoss, Looks, TooMany
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import Case, in_english, looks_like
from gluonlab.exercises.shared.diagnosis import Mistake, Results, explains, results
from gluonlab.exercises.shared.softmax_regression import (
    LR,
    Batch,
    Values,
    make_net,
    make_trainer,
    some_batches,
    some_values,
)


class Run(NamedTuple):
    """A training: devices, images per device, its rate for one, images, and when it is to end.

    ``good_after``: the step after which it is good enough; ``limit``: of steps.
    """

    k: int
    b: int
    lr: float
    images: int
    good_after: int
    limit: int

    @property
    def steps(self) -> int:
        """How many the training has to make."""
        return min(self.good_after, self.limit)

    @property
    def batch(self) -> Batch:
        """All training images, in their order."""
        return some_batches([self.images])[0]

    def case(self) -> Case:
        """In words."""
        after = self.good_after
        good, good_ja = f"good enough after {after} steps", f"{after} ステップ"
        if self.good_after > self.limit:
            good, good_ja = "never good enough", "達しない"
        return Case(
            f"{in_english(self.k, 'device')}, {self.b} images on each, lr {self.lr:g}, "
            f"{self.images} training images, {good}, at most {self.limit} steps",
            f"デバイス {self.k} 台、1 台 {self.b} 枚、学習率 {self.lr:g}、"
            f"学習画像 {self.images} 枚、"
            f"目標まで {good_ja}、上限 {self.limit} ステップ",
        )


class Trained(NamedTuple):
    """What an answer returned, and the values at each question whether they are good enough."""

    returned: Any
    path: List[Values]
    apart: bool  # whether the devices ended with different values
    idle: List[int]  # numbers of devices whose images never reached the loss


@exercise("07-1")
def train_until(answer: Callable[..., Any]) -> None:
    """Train on k devices with k times the batch, until it is good enough; how many steps."""
    runs = [Run(1, 4, 0.25, 8, 2, 9), Run(2, 4, 0.25, 16, 3, 9), Run(2, 2, 0.125, 12, 4, 9)]
    runs += [Run(2, 4, 0.25, 13, 5, 9), Run(2, 3, 0.25, 12, 9, 4), Run(3, 4, 0.0625, 17, 6, 6)]
    random = draws(71)
    for _ in range(3):
        k, b, limit = (int(random.randint(*ends)) for ends in ((2, 4), (2, 6), (4, 9)))
        # whole batches, and one that leaves something for each device
        images = int(random.randint(1, 4) * k * b + random.choice([0, *range(k, k * b)]))
        lr, good = 2.0 ** -int(random.randint(2, 5)), int(random.randint(2, limit + 3))
        runs.append(Run(k, b, lr, images, good, limit))
    found = results(lambda run: _trained(answer, run), [(run,) for run in runs], _path)
    for place, one in enumerate(found):
        _check(one.case[0], one.got, one.want, Results(found[place:]))
    found.end()


def _trained(answer: Callable[..., Any], run: Run) -> Trained:
    ctxs, (images, labels) = cpus(run.k), run.batch
    net = make_net(some_values(), ctxs)
    looks = Looks(run.good_after, run.limit, lambda: _values(net, ctxs[0]))
    loss = CountedLoss()
    data = nd.array(images, dtype="float32"), nd.array(labels, dtype="int32")
    try:
        got = answer(
            net, loss, make_trainer(net), ctxs, *data, run.b, run.lr, looks.good_enough, run.limit
        )
    except TooMany:
        got = None
    ends = [_values(net, ctx) for ctx in ctxs]
    apart = any(not ends[0].near(other) for other in ends[1:])
    idle = [place for place, ctx in enumerate(ctxs) if not loss.images[ctx]]
    return Trained(got, looks.seen, apart, idle)


def _values(net: Any, ctx: mx.Context) -> Values:
    return Values(
        *(param.data(ctx).asnumpy().astype("float64") for param in (net.weight, net.bias))
    )


def _path(run: Run, **changed: Any) -> List[Values]:
    """The values after each step of a right training, or of one that does something else."""
    return list(_steps(run, run.steps, **changed))


def _steps(
    run: Run,
    count: int,
    *,
    lr: Optional[float] = None,
    size: Optional[int] = None,
    ragged: bool = True,
    divisor: Optional[Callable[[int], float]] = None,
    wraps: Optional[bool] = None,
    of_means: Optional[Callable[[int, int], Sequence[Any]]] = None,
) -> List[Values]:
    """``wraps``: a batch that is not full is filled up with the first images, after which the next
    one goes on (True) or begins at the first image (False); ``of_means``: the devices' shards, of
    whose means the mean is taken.
    """
    size, lr = size or run.k * run.b, run.k * run.lr if lr is None else lr
    images, labels = run.batch
    starts = [begin for begin in range(0, run.images, size) if ragged or begin + size <= run.images]
    values, path = some_values(), []
    for step in range(count):
        begin = starts[step % len(starts)]
        if wraps is not None:
            begin = step * size if wraps else begin
            rows = np.arange(begin, begin + size) % run.images
        else:
            rows = np.arange(begin, min(begin + size, run.images))
        part = images[rows], labels[rows]
        if of_means is not None:
            values = _by_mean_of_means(values, part, lr, of_means(len(rows), run.k))
        else:
            values = values.step(part, lr / (divisor(len(rows)) if divisor else len(rows)))
        path.append(values)
    return path


def _by_mean_of_means(values: Values, part: Batch, lr: float, cuts: Sequence[Any]) -> Values:
    """The step by the mean of the devices' own means."""
    after = values
    for begin, end in cuts:
        shard = part[0][begin:end], part[1][begin:end]
        after = after.minus(values.gradient(shard), lr / len(cuts) / (end - begin))
    return after


def _rest_to_the_last(images: int, devices: int) -> List[Any]:
    each = images // devices
    ends = [*(each * device for device in range(devices)), images]
    return list(zip(ends, ends[1:]))


CUTS = (shard_bounds, _rest_to_the_last)


def _same(got: Any, want: Sequence[Values]) -> bool:
    """Whether an answer's values were right at each question that it had to ask."""
    path = got.path if isinstance(got, Trained) else got
    return bool(path) and all(one.near(other) for one, other in zip(path, want))


def _does(**change: Callable[[Run], Any]) -> Callable[..., bool]:
    def gives(run: Run, got: Trained) -> bool:
        changed = {name: value(run) for name, value in change.items()}
        if changed.get("ragged") is False and run.images < run.k * run.b:
            return False
        return _same(got, _path(run, **changed))

    return gives


def _path_beyond(run: Run) -> List[Values]:
    """The values of a right training that goes on after its end."""
    return _steps(run, run.limit + run.images)


def _all_of_them(path: Sequence[Values], of: Sequence[Values]) -> bool:
    return all(any(values.near(other) for other in of) for values in path)


MISTAKES: List[Mistake] = [
    (_does(lr=lambda run: run.lr),
     "the rate is that of one device: for k times the batch use k times the rate",
     "1 台分の学習率のままです。バッチを k 倍にしたら学習率も k 倍にします"),
    (_does(lr=lambda run: LR),
     "the rate is the one that the trainer was made with: set it to k times lr",
     "trainer の元の学習率のままです。lr の k 倍に設定してください"),
    (_does(lr=lambda run: math.sqrt(run.k) * run.lr),
     "the rate grows as the square root of k: use the linear rule",
     "学習率が平方根で増えています。線形スケーリング則を使ってください"),
    (_does(size=lambda run: run.b),
     "a batch has the images of only one device: it must have k times as many",
     "バッチが 1 台分の枚数しかありません。その k 倍の枚数にします"),
    (_does(divisor=lambda run: lambda n: run.b),
     "the gradients are divided by the images of one device: "
     "divide by those of the whole batch",
     "勾配を 1 台分の枚数で割っています。バッチ全体の枚数で割ってください"),
    (_does(divisor=lambda run: lambda n: n / run.k),
     "the gradients are divided by the images of one device: "
     "divide by those of the whole batch",
     "勾配を 1 台分の枚数で割っています。バッチ全体の枚数で割ってください"),
    (_does(divisor=lambda run: lambda n: run.k * run.b),
     "as if the smaller batch at the end of an epoch were divided by the size of a full one",
     "エポック末の小さいバッチを、満杯のバッチの枚数で割ったのと同じです"),
    (lambda run, got: any(_same(got, _path(run, wraps=goes_on)) for goes_on in (True, False)),
     "the smaller batch at the end of an epoch is filled up with the first images",
     "エポック末の小さいバッチに、先頭の画像を足しています"),
    (lambda run, got: any(_same(got, _path(run, of_means=cut)) for cut in CUTS),
     "as by the mean of the devices' means: the images of a smaller shard count more than others",
     "デバイスごとの平均の平均になっています。小さいシャードの画像が重く数えられます"),
    (_does(divisor=lambda run: lambda n: 1),
     "the sum of the gradients is not divided by the number of images",
     "勾配の合計が画像の枚数で割られていません"),
    (_does(ragged=lambda run: False),
     "the smaller batch at the end of an epoch is left out: its images count, too",
     "エポック末の小さいバッチが捨てられています。その画像も使います"),
    (lambda run, got: _same(got, [some_values(), *_path(run)]),
     "`good_enough` is asked before the first step: ask after each step",
     "最初のステップの前に `good_enough` を呼んでいます。各ステップの後に呼んでください"),
    (lambda run, got: bool(got.path) and _all_of_them(got.path, _path_beyond(run)),
     "it makes several steps before it asks: ask after each step",
     "何ステップか進んでから呼んでいます。各ステップの後に呼んでください"),
    (lambda run, got: all(values.near(some_values()) for values in got.path),
     "the parameters do not change at all", "パラメータがまったく変わっていません"),
]  # fmt: skip


def _check(run: Run, got: Trained, want: List[Values], rest: Results) -> None:
    case = run.case()
    if not got.path:
        raise case.wrong("`good_enough` was never asked", "`good_enough` が一度も呼ばれていません")
    if not _same(got, want):
        step = next(n for n, (a, b) in enumerate(zip(got.path, want), 1) if not a.near(b))
        why = explains(rest, lambda got, want: _same(got, want), *MISTAKES)
        weight, expected = (values[step - 1].weight[0, 0] for values in (got.path, want))
        raise case.wrong(
            f"when `good_enough` was asked for the {_nth(step)} time, the first weight was "
            f"{weight:.4f}, expected {expected:.4f}",
            f"`good_enough` が {step} 回目に呼ばれたとき、最初の重みが {weight:.4f} でした。"
            f"正しくは {expected:.4f} です",
            why,
        )
    asked = len(got.path)
    case.check(
        (got.idle, f"device {got.idle[0] if got.idle else 0} computed no image",
         f"デバイス {got.idle[0] if got.idle else 0} が画像を 1 枚も計算していません"),
        (got.apart, "the devices end with different parameters",
         "デバイスごとにパラメータが異なっています"),
        (asked > run.steps, f"it went on after step {run.steps}",
         f"{run.steps} ステップで終わらず、学習を続けました"),
        (asked < run.steps,
         f"`good_enough` was asked {in_english(asked, 'time')}, expected {run.steps}: "
         "once after each step",
         f"`good_enough` が {asked} 回しか呼ばれていません。正しくは {run.steps} 回です "
         "(各ステップの後に 1 回)"),
    )  # fmt: skip
    number = run.good_after if run.good_after <= run.limit else None
    if got.returned != number or isinstance(got.returned, bool):
        raise case.wrong(
            f"it returned {got.returned!r}, expected {number}",
            f"戻り値は {got.returned!r} でした。正しくは {number} です",
            looks_like(
                (
                    all(each.got.returned is None for each in rest),
                    "is `return` missing?",
                    "`return` を忘れていませんか",
                ),
                (
                    got.returned is None and number == run.limit,
                    "the last step of the limit may be good enough, too",
                    "上限の最後のステップで十分よくなることもあります",
                ),
                (
                    got.returned is None and number is not None,
                    "it was good enough",
                    "十分よくなっていました",
                ),
            ),
        )


def _nth(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
