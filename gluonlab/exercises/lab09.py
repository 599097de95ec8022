"""The checkers of lab 09: six programs with a fault.

While it is there they name the symptom, not the cure.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.arrays import cpus, devices_in_words
from gluonlab.exercises.exercise import Wrong, exercise, returned
from gluonlab.exercises.initial_parameters import check_replicas
from gluonlab.exercises.microbatches import check_parts, left_over, wrong_update
from gluonlab.exercises.softmax_regression import (
    CLASSES,
    FEATURES,
    LR,
    Batch,
    Values,
    make_net,
    make_trainer,
    on_host,
    some_batches,
    some_values,
    values_of,
)  # fmt: skip
from gluonlab.exercises.sums import check_devices
from gluonlab.exercises.watch import Seen, watch

STILL = ("the fault is still there: ", "まだ直っていません: ")


def _still(en: str, ja: str) -> Wrong:
    return Wrong(en=STILL[0] + en, ja=STILL[1] + ja)


# --- 09-1


@exercise("09-1")
def allreduce(answer: Callable[[List[nd.NDArray]], None]) -> None:
    """An allreduce whose sums reach the arrays that it was given."""
    cases: List[List[Any]] = [
        [np.array([1.0]), np.array([2.0])],
        [np.array([5.0])],
        [np.array([1.0]), np.array([2.0]), np.array([4.0])],
    ]
    random = np.random.RandomState(9)
    cases += [list(random.randint(-50, 50, (count, 2, 3)).astype(float)) for count in (2, 3, 4)]
    for begin in cases:
        arrays = [nd.array(values, ctx=ctx) for values, ctx in zip(begin, cpus(len(begin)))]
        with watch() as seen:
            answer(list(arrays))  # a list of its own, as train_batch makes one for each parameter
        got, want = [array.asnumpy() for array in arrays], sum(begin)
        if all(np.array_equal(each, want) for each in got):
            check_devices(Seen(mixed=seen.mixed))
            continue
        wanted, en, ja = _line(want), "", ""
        came, given = (
            [join.join(map(_line, arrays)) for join in (" and ", "、")] for arrays in (got, begin)
        )
        if all(map(np.array_equal, got, begin)):
            raise _still(
                f"the arrays on {len(begin)} devices held {given[0]} before `allreduce`, "
                f"and they hold the same after it; expected {wanted} on every device",
                f"{len(begin)} 台のデバイスの配列は `allreduce` の前に {given[1]} で、"
                f"呼んだ後も同じままです。すべてのデバイスで {wanted} になるはずです",
            )
        if np.array_equal(got[0], want):
            en, ja = (
                ": the sum does not come back to all devices",
                "。合計がすべてのデバイスには戻っていません",
            )
        elif all(np.allclose(each, want / len(begin)) for each in got):
            en, ja = ": that is the mean, not the sum", "。それは合計ではなく平均です"
        raise Wrong(
            en=f"allreduce of {given[0]} left {came[0]}, expected {wanted} on every device{en}",
            ja=f"{given[1]} の allreduce の結果が {came[1]} でした。"
            f"すべてのデバイスで {wanted} になるはずです{ja}",
        )


def _line(values: Any) -> str:
    return "[" + " ".join(f"{value:g}" for value in np.ravel(values)) + "]"


# --- 09-2


@exercise("09-2")
def accumulated(answer: Callable[..., Any]) -> None:
    """Microbatches whose every update is that of its own batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [
        ((4,), 2),
        ((4, 4), 2),
        ((4, 4, 4), 1),
        ((8, 8, 3, 8), 3),
        ((9, 5, 7), 4),
    ]
    for sizes, parts in cases:
        [ctx] = cpus(1)
        begin, batches, seen = some_values(), some_batches(sizes), []  # type: Values, List[Batch], List[int]
        net = make_net(begin, [ctx], "add")
        net.register_forward_pre_hook(lambda block, inputs, seen=seen: seen.append(len(inputs[0])))
        trainer = make_trainer(net)
        for number, batch in enumerate(batches):
            del seen[:]
            answer(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, *on_host(batch), parts)
            got, done = values_of(net, ctx), batches[: number + 1]
            want = begin.train(done)
            if got.near(left_over(begin, done)) and not got.near(want):
                raise _still(
                    f"of {len(done)} batches the last one moved the weights by "
                    f"{_moved(got, begin.train(done[:-1]))}, "
                    f"expected {_moved(want, begin.train(done[:-1]))}, as without microbatches; "
                    "the first one was right",
                    f"{len(done)} 番目のバッチで重みが {_moved(got, begin.train(done[:-1]))} "
                    f"動きました。マイクロバッチなしでは {_moved(want, begin.train(done[:-1]))} "
                    "です。1 番目のバッチは正しい動きでした",
                )
            if not got.near(want):
                raise wrong_update(got, begin, done, parts)
            check_parts(seen, len(batch[0]), parts)


def _moved(after: Values, before: Values) -> str:
    return f"{np.linalg.norm(after.weight - before.weight):.4g}"


# --- 09-3


@exercise("09-3")
def step_size(answer: Callable[..., Any]) -> None:
    """An update that is the same on one device and on several."""
    for size, count in ((4, 1), (4, 2), (6, 3), (7, 2), (10, 4), (5, 4), (33, 2)):
        ctxs, begin, batches = cpus(count), some_values(), some_batches([size, size])
        net = make_net(begin, ctxs)
        trainer = make_trainer(net)
        for number, batch in enumerate(batches):
            answer(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, *on_host(batch), ctxs)
            before, want = begin.train(batches[:number]), begin.train(batches[: number + 1])
            for ctx in ctxs:
                _check_step(values_of(net, ctx), before, want, batch, ctxs, ctx)


def _check_step(
    got: Values,
    before: Values,
    want: Values,
    batch: Batch,
    ctxs: Sequence[mx.Context],
    ctx: mx.Context,
) -> None:
    if got.near(want):
        return
    size, count = len(batch[0]), len(ctxs)
    share = shard_bounds(size, count)[0][1]
    moved, wanted = _moved(got, before), _moved(want, before)
    if got.near(before.step(batch, LR / share)):
        raise _still(
            f"with {size} images on {count} devices the weights moved by {moved}, "
            f"with the same images on one device by {wanted}",
            f"{size} 枚を {count} 台のデバイスで学習すると重みが {moved} 動きました。"
            f"同じ画像を 1 台のデバイスで学習すると {wanted} です",
        )
    en, ja = "", ""
    if got.near(before):
        en, ja = ": the parameters do not move at all", "。パラメータがまったく動いていません"
    elif got.near(before.step(batch, LR / share / count)):
        en, ja = (
            ": it was right for batches that divide evenly",
            "。均等に割り切れるバッチでは正しい値でした",
        )
    elif got.near(before.step(batch, LR)):
        en, ja = (
            ": the gradients are added up, and nothing divides them",
            "。勾配の合計がどこでも割られていません",
        )
    raise Wrong(
        en=f"{size} images on {devices_in_words(count)}: "
        f"on {ctx} the weights moved by {moved}, expected {wanted}, as on one device{en}",
        ja=f"{size} 枚を {count} 台のデバイスで: {ctx} の重みが {moved} 動きました。"
        f"1 台のデバイスと同じ {wanted} になるはずです{ja}",
    )


# --- 09-4


@exercise("09-4")
def idle_replica(answer: Callable[..., Any]) -> None:
    """An epoch whose last batch has fewer images than there are devices."""
    for images, size, count in ((8, 4, 2), (5, 4, 2), (9, 4, 3), (10, 4, 3), (21, 5, 2)):
        ctxs, begin = cpus(count), some_values()
        [(all_images, all_labels)] = some_batches([images])
        batches = [
            (all_images[i : i + size], all_labels[i : i + size]) for i in range(0, images, size)
        ]
        net = make_net(begin, ctxs)
        trainer = make_trainer(net)
        for epoch in (1, 2):
            answer(
                net,
                gluon.loss.SoftmaxCrossEntropyLoss(),
                trainer,
                *on_host((all_images, all_labels)),
                size,
                ctxs,
            )
            for ctx in ctxs:
                _check_epoch(values_of(net, ctx), begin, batches, epoch, ctxs, ctx)


def _check_epoch(
    got: Values,
    begin: Values,
    batches: List[Batch],
    epoch: int,
    ctxs: Sequence[mx.Context],
    ctx: mx.Context,
) -> None:
    done = batches * epoch
    if got.near(begin.train(done)):
        return
    before, last, count = begin.train(done[:-1]), batches[-1], len(ctxs)
    left, images = len(last[0]), sum(len(labels) for _, labels in batches)
    moved, wanted = _moved(got, before), _moved(begin.train(done), before)
    plan = f"{images} images in batches of {len(batches[0][0])} on {devices_in_words(count)}"
    plan_ja = f"{images} 枚を {len(batches[0][0])} 枚ずつ、{count} 台のデバイスで"
    if got.near(_stale(begin, done, count)):
        raise _still(
            f"{plan}: the last batch, of {left}, moved the weights by {moved}, expected {wanted}, "
            "as on one device",
            f"{plan_ja}: 最後のバッチ ({left} 枚) で重みが {moved} 動きました。"
            f"1 台のデバイスと同じ {wanted} になるはずです",
        )
    en, ja = "", ""
    full = [batch for batch in batches if len(batch[0]) >= count]
    if got.near(begin.train(full * epoch)) or got.near(before):
        en, ja = f": the last {left} were not used at all", f"。最後の {left} 枚が使われていません"
    elif (
        got.near(before.step(last, LR))
        or got.near(before.step(last, LR * count / left))
        or got.near(before.step(last, LR / count))
    ):
        en, ja = (
            ": an image of the last batch counts more or less than once",
            "。最後のバッチの画像が 1 回ずつ数えられていません",
        )
    raise Wrong(
        en=f"{plan}: after epoch {epoch} the parameters on {ctx} are not those of one device; "
        f"the last batch, of {left}, moved the weights by {moved}, expected {wanted}{en}",
        ja=f"{plan_ja}: エポック {epoch} の後、{ctx} のパラメータが 1 "
        f"台のデバイスの結果と違います。最後のバッチ ({left} 枚) で重みが {moved} 動きました。"
        f"{wanted} のはずです{ja}",
    )


def _stale(begin: Values, batches: List[Batch], count: int) -> Values:
    """The parameters when a device without a shard adds what it added in the batch before."""
    values, added = begin, [Values(0 * begin.weight, 0 * begin.bias)] * count
    for images, labels in batches:
        for device, (a, b) in enumerate(shard_bounds(len(images), count)):
            added[device] = values.gradient((images[a:b], labels[a:b]))
        for gradient in added:
            values = values.minus(gradient, LR / len(images))
    return values


# --- 09-5


@exercise("09-5")
def padded_evaluation(answer: Callable[..., float]) -> None:
    """An accuracy in which every image counts once."""
    cases = [
        ([1, 1, 1, 0], 4, 1),
        ([1, 1, 1, 0], 2, 2),
        ([1, 0, 1], 2, 1),
        ([1, 1, 0, 0, 0], 4, 2),
        ([0, 0, 1], 2, 2),
        ([1, 0], 8, 2),
    ]
    random = np.random.RandomState(5)
    cases += [
        (random.randint(0, 2, n).tolist(), size, k)
        for n, size, k in ((13, 4, 2), (10, 3, 3), (25, 8, 2), (9, 8, 4))
    ]
    for right, size, count in cases:
        _check_accuracy(answer, right, size, count)


def _check_accuracy(answer: Callable[..., float], right: List[int], size: int, count: int) -> None:
    n, ctxs = len(right), cpus(count)
    labels = np.random.RandomState(n).randint(0, CLASSES, n)
    # what the network will say: the label, or the class after it
    shown = (labels + 1 - np.array(right)) % CLASSES
    images = np.eye(CLASSES, FEATURES, dtype="float32")[shown]
    net = make_net(Values(np.eye(CLASSES, FEATURES), np.zeros(CLASSES)), ctxs)
    seen: List[Tuple[mx.Context, int]] = []
    net.register_forward_pre_hook(
        lambda block, inputs: seen.append((inputs[0].context, len(inputs[0])))
    )
    given, want = answer(net, images, labels, size, ctxs), sum(right) / n
    if not isinstance(given, (int, float, np.number, nd.NDArray)):
        raise returned(given, "`accuracy`", en="a number", ja="数値")
    got = float(given.asscalar() if isinstance(given, nd.NDArray) else given)
    rows = math.ceil(n / size) * size
    padded, whole = sum(right[i % n] for i in range(rows)), sum(right[: n // size * size])
    en = (
        f"{n} images, {sum(right)} of them right, in batches of {size}: "
        f"the accuracy is {got:.4g}, expected {want:.4g}"
    )
    ja = (
        f"{n} 枚のうち {sum(right)} 枚が正解、バッチ {size} 枚ずつ: "
        f"正解率が {got:.4g} になりました。正しくは {want:.4g} です"
    )
    if not math.isclose(got, want, abs_tol=1e-6):
        if math.isclose(got, padded / rows, abs_tol=1e-6):
            raise _still(
                f"{en}; {got:.4g} times {n} images is {got * n:.4g} images",
                f"{ja}。{n} 枚の {got:.4g} 倍は {got * n:.4g} 枚です",
            )
        if math.isclose(got, padded / n, abs_tol=1e-6):
            en, ja = (
                f"{en}: {padded} right ones were counted among {n}",
                f"{ja}。{n} 枚の中で正解が {padded} 枚と数えられました",
            )
        elif whole != sum(right) and any(
            math.isclose(got, whole / of, abs_tol=1e-6) for of in (n, max(1, n // size * size))
        ):
            en, ja = (
                f"{en}: the last {n % size} were left out",
                f"{ja}。最後の {n % size} 枚が抜けています",
            )
        raise Wrong(en=en, ja=ja)
    if n >= count and size >= count:
        for ctx in ctxs:
            if ctx not in {each for each, _ in seen}:
                raise Wrong(
                    en=f"{en}, which is right, but {ctx} did nothing: "
                    f"the images should be shared among {count} devices",
                    ja=f"正解率 {got:.4g} は正しいのですが、{ctx} が何もしていません。"
                    f"{count} 台のデバイスで分担してください",
                )
    most = max(length for _, length in seen)
    if most > math.ceil(size / count):
        raise Wrong(
            en=f"the accuracy is right, but a device had {most} images at once, "
            f"expected at most {math.ceil(size / count)} ({size} on {count} devices)",
            ja=f"正解率は正しいのですが、1 台のデバイスに一度に {most} 枚が載りました。"
            f"多くても {math.ceil(size / count)} 枚のはずです ({size} 枚を {count} 台のデバイスで)",
        )


# --- 09-6


@exercise("09-6")
def initial_parameters(answer: Callable[..., Any]) -> None:
    """Replicas that begin alike on every device."""
    found = check_replicas(answer)
    if found is not None:
        raise _still(*found)
