"""09-7: a training program with two faults, neither of which is there on one device."""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluonlab.exercises.cases import more
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab09.losses import check_losses
from gluonlab.exercises.lab09.symptom import STILL
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import Case, in_english
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results
from gluonlab.exercises.shared.microbatches import moved
from gluonlab.exercises.shared.softmax_regression import (
    LR,
    Batch,
    Values,
    make_net,
    make_trainer,
    on_host,
    some_batches,
    some_values,
)

Array = Any  # of numpy


class _Setting(NamedTuple):
    """What the answer is given; ``largest``: the norm that a gradient may have."""

    images: int
    batch: int
    devices: int
    epochs: int
    largest: float

    def case(self) -> Case:
        """It in words."""
        n, size, count, _, largest = self
        return Case(
            f"{n} images in batches of {size} on {in_english(count, 'device')}, "
            f"gradients of norm {largest:g} at most",
            f"{n} 枚を {size} 枚ずつ、{count} 台のデバイスで、勾配のノルムは {largest:g} まで",
        )

    @property
    def share(self) -> int:
        """The images of one device in a batch."""
        return self.batch // self.devices


class _Run(NamedTuple):
    """What an answer did: the rows of the images, in the order in which the network saw them."""

    rows: List[int]
    on: List[mx.Context]  # where each of them was
    ends: List[Values]  # the parameters on each device
    means: Any


# Of one batch alone, whose update does not depend on the order of its images.
ONE_BATCH = (
    _Setting(24, 24, 2, 1, 0.1),
    _Setting(24, 24, 3, 1, 0.2),
    _Setting(20, 20, 4, 1, 0.05),
    _Setting(24, 24, 2, 1, 100.0),
    _Setting(16, 16, 1, 1, 0.1),
)
EPOCHS = (_Setting(24, 8, 2, 3, 0.3), _Setting(36, 12, 3, 2, 0.2), _Setting(40, 8, 4, 2, 0.15))


@exercise("09-7")
def hunt(answer: Callable[..., Any]) -> None:
    """A training program with two faults that are there on several devices only."""
    epochs = [*EPOCHS, *more(2, lambda random: _Setting(48, 12, int(random.randint(2, 5)), 2, 0.2))]
    runs = [(setting, _run(answer, setting)) for setting in (*epochs, *ONE_BATCH)]
    for setting, run in runs:
        _check_images(setting, run)
    _check_updates(runs[len(epochs) :])
    for setting, run in reversed(runs):  # those of one batch first, where the fault is plain
        _check_parameters(setting, run)
    for setting, run in runs[: len(epochs)]:
        _check_orders(setting, run)
    for setting, run in runs:
        _, means = _trained(setting, run.rows)
        check_losses(
            run.means, means, "fit", "the mean loss of each epoch", "エポックごとの平均損失"
        )


def _batch(setting: _Setting) -> Batch:
    [batch] = some_batches([setting.images])
    return batch


def _run(answer: Callable[..., Any], setting: _Setting) -> _Run:
    """Have the answer train, and write down what the network sees."""
    ctxs, batch = cpus(setting.devices), _batch(setting)
    places = {image.tobytes(): row for row, image in enumerate(batch[0])}
    net = make_net(some_values(), ctxs)
    rows: List[int] = []
    on: List[mx.Context] = []

    def see(block: gluon.Block, inputs: Sequence[Any]) -> None:
        for image in inputs[0].asnumpy():
            rows.append(places.get(image.astype(np.float32).tobytes(), -1))
            on.append(inputs[0].context)

    net.register_forward_pre_hook(see)
    loss, trainer = gluon.loss.SoftmaxCrossEntropyLoss(), make_trainer(net, update_on_kvstore=False)
    more_of_it = (setting.batch, setting.epochs, ctxs, setting.largest)
    means = answer(net, loss, trainer, *on_host(batch), *more_of_it)
    ends = [
        Values(
            net.weight.data(ctx).asnumpy().astype(np.float64),
            net.bias.data(ctx).asnumpy().astype(np.float64),
        )
        for ctx in ctxs
    ]
    return _Run(rows, on, ends, means)


def _check_images(setting: _Setting, run: _Run) -> None:
    """Every image goes through the network once in an epoch, and each device has its share."""
    case, n = setting.case(), setting.images
    if len(run.rows) != n * setting.epochs:
        raise case.wrong(
            f"{len(run.rows)} images went through the network in "
            f"{in_english(setting.epochs, 'epoch')}, expected {n * setting.epochs}",
            f"{setting.epochs} エポックで {len(run.rows)} 枚がネットワークを通りました。"
            f"{n * setting.epochs} 枚のはずです",
        )
    for epoch in range(setting.epochs):
        times = np.bincount(
            [row for row in run.rows[epoch * n : (epoch + 1) * n] if row >= 0], minlength=n
        )
        if times.max() != 1 or times.min() != 1:
            often, never = int(np.argmax(times)), int(np.argmin(times))
            raise STILL.wrong(
                f"{case.en}: in an epoch image {often} went through the network {times[often]} "
                f"times, and image {never} {times[never]} times",
                f"{case.ja}: 1 エポックで画像 {often} は {times[often]} 回、"
                f"画像 {never} は {times[never]} 回ネットワークを通りました",
            )
    for begin in range(0, len(run.rows), setting.batch):
        of_batch = run.on[begin : begin + setting.batch]
        for ctx in cpus(setting.devices):
            own = of_batch.count(ctx)
            if own != setting.share:
                raise case.wrong(
                    f"{ctx} computed {own} images of batch {begin // setting.batch + 1}, "
                    f"expected {setting.share}",
                    f"{begin // setting.batch + 1} 番目のバッチで {ctx} が計算したのは {own} 枚です"
                    f" ({setting.share} 枚のはず)",
                )


def _check_updates(runs: Sequence[Tuple[_Setting, _Run]]) -> None:
    """The updates from one batch alone, which tell what has become of its gradient."""
    found = results(lambda setting, run: run.ends[0], runs, _updated)
    mistaken = found.wrong(_near)
    if not mistaken:
        return
    (setting, _), got, want = mistaken[0]
    went, wanted = moved(got, some_values()), moved(want, some_values())
    en = f"the update moved the weights by {went:.4g}, expected {wanted:.4g}, as on one device"
    ja = f"更新で重みが {went:.4g} 動きました。1 台のデバイスと同じ {wanted:.4g} になるはずです"
    case = setting.case()
    if any(explains(found, _near, (still, "yes", "yes"))[0] == "yes" for still in STILL_THERE):
        raise STILL.wrong(f"{case.en}: {en}", f"{case.ja}: {ja}")
    raise case.wrong(en, ja, explains(found, _near, *OF_UPDATES))


def _near(got: Values, want: Values) -> bool:
    return got.near(want)


def _norm(gradient: Values) -> float:
    return float(np.sqrt((gradient.weight**2).sum() + (gradient.bias**2).sum()))


def _update(gradient: Values, images: int, limit: float, times: float = 1.0) -> Values:
    """The parameters after the first update, by a sum of gradients of norm ``limit`` at most."""
    scale = min(1.0, limit / _norm(gradient))
    return some_values().minus(gradient, LR / images * scale * times)


def _whole(setting: _Setting) -> Values:
    """The sum of the gradients of the first batch, which is the only one."""
    return some_values().gradient(_batch(setting))


def _updated(setting: _Setting, run: _Run) -> Values:
    return _update(_whole(setting), setting.images, setting.largest * setting.images)


def _scaled(limit: Callable[[_Setting], float], again: bool = False) -> Callable[..., bool]:
    """The sum scaled to another limit; ``again``: and then added up over the devices."""
    return lambda setting, run, got: _near(
        got,
        _update(_whole(setting), setting.images, limit(setting), setting.devices if again else 1),
    )


def _each_scaled(limit: Callable[[_Setting], float]) -> Callable[..., bool]:
    """Every device's gradient scaled by itself, before the sum."""

    def gives(setting: _Setting, run: _Run, got: Values) -> bool:
        after = some_values()
        for gradient in _of_devices(setting, run):
            scale = min(1.0, limit(setting) / _norm(gradient))
            after = after.minus(gradient, LR / setting.images * scale)
        return _near(got, after)

    return gives


def _of_devices(setting: _Setting, run: _Run) -> List[Values]:
    """The gradient of each device's images."""
    images, labels = _batch(setting)
    rows = [
        [row for row, on in zip(run.rows, run.on) if on == ctx] for ctx in cpus(setting.devices)
    ]
    return [some_values().gradient((images[own], labels[own])) for own in rows]


def _side_by_side(setting: _Setting, run: _Run, got: Values) -> bool:
    """The sum scaled by the norm of all the numbers on all devices."""
    norm = np.sqrt(sum(_norm(gradient) ** 2 for gradient in _of_devices(setting, run)))
    scale = min(1.0, setting.largest * setting.images / norm)
    return _near(got, _update(_whole(setting), setting.images, np.inf, scale))


def _by_parameter(setting: _Setting, run: _Run, got: Values) -> bool:
    limit = setting.largest * setting.images
    parts = (part * min(1.0, limit / np.linalg.norm(part)) for part in _whole(setting))
    return _near(got, some_values().minus(Values(*parts), LR / setting.images))


STILL_THERE = [
    _each_scaled(lambda setting: setting.largest * setting.share),
    _each_scaled(lambda setting: setting.largest * setting.images),
    _each_scaled(lambda setting: setting.largest * setting.share / setting.devices),
    _each_scaled(lambda setting: setting.largest),
]
OF_UPDATES: List[Mistake] = [
    (_scaled(lambda setting: float("inf")),
     "no gradient is scaled down any more", "勾配がまったく縮められていません"),
    (_scaled(lambda setting: setting.largest),
     "what is scaled is a sum over the images, and `largest` is for their mean",
     "縮めている勾配は画像についての合計ですが、`largest` は平均の勾配についての値です"),
    (_scaled(lambda setting: setting.largest * setting.share),
     "the sum of all devices has the images of the whole batch, not those of a shard",
     "全デバイスの合計はバッチ全体の勾配です。掛ける数はシャードの枚数ではありません"),
    (_scaled(lambda setting: setting.largest * setting.images, again=True),
     "the update is too large by the number of devices: the sum was added up again, as `step` "
     "does, or divided by the images of one device",
     "デバイスの台数倍だけ動いています。`step` のようにもう一度合計したか、"
     "1 台分の枚数で割ったかのどちらかです"),
    (_side_by_side,
     "the norm is that of all devices' gradients side by side: take that of their sum",
     "全デバイスの勾配を並べたもののノルムです。合計した勾配のノルムを使ってください"),
    (_by_parameter,
     "every parameter is scaled by itself: it is one gradient, with one norm",
     "パラメータごとに縮めています。全体で 1 つの勾配、1 つのノルムです"),
]  # fmt: skip


def _trained(setting: _Setting, rows: Sequence[int]) -> Tuple[Values, List[float]]:
    """The parameters, and the mean loss of each epoch, of one device that sees these images."""
    images, labels = _batch(setting)
    values, losses = some_values(), []
    for begin in range(0, len(rows), setting.batch):
        own = list(rows[begin : begin + setting.batch])
        batch = images[own], labels[own]
        losses.append(float(values.losses(batch).mean()))
        gradient = values.gradient(batch)
        scale = min(1.0, setting.largest * setting.batch / _norm(gradient))
        values = values.minus(gradient, LR / setting.batch * scale)
    return values, np.reshape(losses, (setting.epochs, -1)).mean(axis=1).tolist()


def _check_parameters(setting: _Setting, run: _Run) -> None:
    """All devices end with the parameters of one device."""
    want, _ = _trained(setting, run.rows)
    for ctx, got in zip(cpus(setting.devices), run.ends):
        if not got.near(want):
            went, wanted = moved(got, some_values()), moved(want, some_values())
            raise setting.case().wrong(
                f"after {in_english(setting.epochs, 'epoch')} the weights on {ctx} have moved by "
                f"{went:.4g}, expected {wanted:.4g}, as on one device that sees the same batches",
                f"{setting.epochs} エポックで {ctx} の重みが {went:.4g} 動きました。"
                f"同じバッチを 1 台のデバイスで学習したときの {wanted:.4g} になるはずです",
            )


def _check_orders(setting: _Setting, run: _Run) -> None:
    """Every epoch has an order of its own, and none is that of the images."""
    n = setting.images
    orders = [run.rows[begin : begin + n] for begin in range(0, len(run.rows), n)]
    setting.case().check(
        (sorted(orders[0]) == orders[0] or sorted(orders[0]) == orders[0][::-1],
         "the images were used in the order in which they are stored: "
         "each epoch should have a random one",
         "画像が並び順のまま使われています。エポックごとに無作為な順にするはずでした"),
        (orders[0] == orders[1],
         "two epochs have the same order: each should have a new one",
         "2 つのエポックの順番が同じです。エポックごとに新しい順にするはずでした"),
        (setting.devices > 1 and len({_images_on_each(setting, run, e) for e in (0, 1)}) == 1,
         "every device saw the same images in two epochs: on one device any images can come into "
         "one batch together",
         "2 つのエポックで、どのデバイスにも同じ画像が渡りました。1 台のデバイスなら、どの画像の"
         "組み合わせも同じバッチに入る可能性があるはずです"),
    )  # fmt: skip


def _images_on_each(setting: _Setting, run: _Run, epoch: int) -> FrozenSet[Tuple[int, mx.Context]]:
    """Each image of an epoch, and the device that saw it."""
    own = slice(epoch * setting.images, (epoch + 1) * setting.images)
    return frozenset(zip(run.rows[own], run.on[own]))
