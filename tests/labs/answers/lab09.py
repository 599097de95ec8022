"""Cures of lab 09's faults that cure the symptom only, or something else, and what they must be
told.
"""

import random

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from gluonlab.data.loading.split_batch import shard, shard_bounds
from gluonlab.scratch.data_parallel import Replica, get_params
from gluonlab.scratch.lenet import SHAPES
from gluonlab.scratch.recipes import he_deviation


def forgets_to_return(*given):
    given = list(given)


# --- 09-1


def into_the_first(arrays):
    for other in arrays[1:]:
        arrays[0][:] += other.as_in_context(arrays[0].context)


def mean(arrays):
    total = sum(array.as_in_context(arrays[0].context) for array in arrays) / len(arrays)
    for array in arrays:
        array[:] = total.as_in_context(array.context)


def returned(arrays):
    total = arrays[0].copy()
    for other in arrays[1:]:
        total = total + other.as_in_context(total.context)
    return [total.as_in_context(array.context) for array in arrays]


def one_after_the_other(arrays):
    for array in arrays:
        for other in arrays:
            if other is not array:
                array += other.as_in_context(array.context)


def mixed(arrays):
    for other in arrays[1:]:
        arrays[0] += other
    for other in arrays[1:]:
        arrays[0].copyto(other)


# --- 09-2


def _accumulate(net, loss, images, labels, parts, before=lambda: None):
    """What the batch's images lost, in all."""
    total = 0
    for begin, end in shard_bounds(len(images), parts):
        before()
        with autograd.record():
            part = loss(net(images[begin:end]), labels[begin:end]).sum()
        part.backward()
        total = total + part
    return total


def returns_the_sum(net, loss, trainer, images, labels, parts):
    net.collect_params().zero_grad()
    total = _accumulate(net, loss, images, labels, parts)
    trainer.step(len(images))
    return total


def returns_no_loss(net, loss, trainer, images, labels, parts):
    returns_the_sum(net, loss, trainer, images, labels, parts)


def zeroed_for_every_part(net, loss, trainer, images, labels, parts):
    _accumulate(net, loss, images, labels, parts, net.collect_params().zero_grad)
    trainer.step(len(images))


def smaller_steps(net, loss, trainer, images, labels, parts):
    _accumulate(net, loss, images, labels, parts)
    trainer.step(2 * len(images))


def clipped(net, loss, trainer, images, labels, parts):
    _accumulate(net, loss, images, labels, parts)
    for param in net.collect_params().values():
        param.grad()[:] = param.grad().clip(-1, 1)
    trainer.step(len(images))


def whole_batches(net, loss, trainer, images, labels, parts):
    net.collect_params().zero_grad()
    _accumulate(net, loss, images, labels, 1)
    trainer.step(len(images))


def weights_only(net, loss, trainer, images, labels, parts):
    net.weight.zero_grad()
    _accumulate(net, loss, images, labels, parts)
    trainer.step(len(images))


# --- 09-3


def _backward(net, loss, images, labels, ctxs):
    xs, ys = shard(images, ctxs), shard(labels, ctxs)
    with autograd.record():
        losses = [loss(net(x), y) for x, y in zip(xs, ys)]
    autograd.backward(losses)
    return xs


def as_if_even(net, loss, trainer, images, labels, ctxs):
    xs = _backward(net, loss, images, labels, ctxs)
    trainer.step(len(xs[0]) * len(ctxs))


def smaller_rate(net, loss, trainer, images, labels, ctxs):
    xs = _backward(net, loss, images, labels, ctxs)
    trainer._optimizer.lr = 0.5 / len(ctxs)
    trainer.step(len(xs[0]))


def not_divided(net, loss, trainer, images, labels, ctxs):
    _backward(net, loss, images, labels, ctxs)
    trainer.step(1)


def divided_twice(net, loss, trainer, images, labels, ctxs):
    _backward(net, loss, images, labels, ctxs)
    trainer.step(len(images) * len(ctxs))


# --- 09-4


def _epoch(net, loss, trainer, images, labels, size, ctxs, devices=lambda n, ctxs: ctxs, drop=0):
    for begin in range(0, len(images), size):
        x, y = images[begin : begin + size], labels[begin : begin + size]
        if len(x) >= drop:
            _backward(net, loss, x, y, devices(len(x), ctxs))
            trainer.step(len(x))


def small_batches_dropped(net, loss, trainer, images, labels, size, ctxs):
    _epoch(net, loss, trainer, images, labels, size, ctxs, drop=len(ctxs))


def divided_by_a_full_batch(net, loss, trainer, images, labels, size, ctxs):
    for begin in range(0, len(images), size):
        _backward(net, loss, images[begin : begin + size], labels[begin : begin + size], ctxs)
        trainer.step(size)


def images_doubled(net, loss, trainer, images, labels, size, ctxs):
    for begin in range(0, len(images), size):
        x, y = images[begin : begin + size], labels[begin : begin + size]
        if len(x) < len(ctxs):
            _backward(net, loss, nd.concat(*[x] * len(ctxs), dim=0), nd.concat(*[y] * len(ctxs), dim=0), ctxs)
        else:
            _backward(net, loss, x, y, ctxs)
        trainer.step(len(x))


def returns_no_means(net, loss, trainer, images, labels, size, ctxs):
    for begin in range(0, len(images), size):
        x, y = images[begin : begin + size], labels[begin : begin + size]
        _backward(net, loss, x, y, ctxs[: len(x)])
        for ctx in ctxs[len(x) :]:
            for param in net.collect_params().values():
                param.grad(ctx)[:] = 0
        trainer.step(len(x))


def stale_ones_ignored(net, loss, trainer, images, labels, size, ctxs):
    for begin in range(0, len(images), size):
        x, y = images[begin : begin + size], labels[begin : begin + size]
        _backward(net, loss, x, y, ctxs)
        trainer.step(len(x), ignore_stale_grad=True)


# --- 09-5


def _right(net, x, y):
    return int((net(x).argmax(axis=1) == y).sum().asscalar())


def divided_by_all(net, images, labels, size, ctxs):
    right = 0
    for batch in mx.io.NDArrayIter(images, labels, size):
        right += sum(_right(net, x, y) for x, y in zip(shard(batch.data[0], ctxs), shard(batch.label[0], ctxs)))
    return right / len(images)


def discarded(net, images, labels, size, ctxs):
    right = counted = 0
    for batch in mx.io.NDArrayIter(images, labels, size, last_batch_handle="discard"):
        right += sum(_right(net, x, y) for x, y in zip(shard(batch.data[0], ctxs), shard(batch.label[0], ctxs)))
        counted += size
    return right / max(counted, 1)


def at_once(net, images, labels, size, ctxs):
    xs, ys = shard(nd.array(images), ctxs), shard(nd.array(labels), ctxs)
    return sum(_right(net, x, y) for x, y in zip(xs, ys)) / len(images)


def on_one_device(net, images, labels, size, ctxs):
    right = 0
    for i in range(len(images)):
        right += _right(net, nd.array(images[i : i + 1], ctx=ctxs[0]), nd.array(labels[i : i + 1], ctx=ctxs[0]))
    return right / len(images)


def mean_of_batches(net, images, labels, size, ctxs):
    found = []
    for batch in mx.io.NDArrayIter(images, labels, size):
        n = len(batch.data[0]) - batch.pad
        pairs = zip(shard(batch.data[0][:n], ctxs), shard(batch.label[0][:n], ctxs))
        found.append(sum(_right(net, x, y) for x, y in pairs) / n)
    return sum(found) / len(found)


# --- 09-6


def _draw(shape, ctx=None):
    fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
    return nd.random.normal(0, he_deviation(fan_in), shape, ctx=ctx) if len(shape) > 1 else nd.zeros(shape, ctx=ctx)


def _replica(params):
    for param in params:
        param.attach_grad()
    return Replica(params, [param.grad for param in params])


def seeded_for_each(ctxs, seed=0):
    replicas = []
    for ctx in ctxs:
        mx.random.seed(seed)
        replicas.append(_replica([_draw(shape, ctx) for shape in SHAPES]))
    return replicas


def seeded_with_a_number(ctxs, seed=0):
    replicas = []
    for ctx in ctxs:
        mx.random.seed(seed + ctx.device_id)
        replicas.append(_replica([_draw(shape, ctx) for shape in SHAPES]))
    return replicas


def all_alike(ctxs, seed=0):
    mx.random.seed(seed)
    return [_replica([nd.full(shape, 0.01, ctx=ctx) for shape in SHAPES]) for ctx in ctxs]


def one_for_all(ctxs, seed=0):
    mx.random.seed(seed)
    replica = get_params([_draw(shape) for shape in SHAPES], ctxs[0])
    return [replica] * len(ctxs)


def always_the_same(ctxs, seed=0):
    mx.random.seed(0)
    params = [_draw(shape) for shape in SHAPES]
    return [get_params(params, ctx) for ctx in ctxs]


def not_seeded(ctxs, seed=0):
    params = [_draw(shape) for shape in SHAPES]
    return [get_params(params, ctx) for ctx in ctxs]


# --- 09-7


def scaled_sum(net, trainer, ctxs, size, share, largest):
    """The right way: add up, then scale."""
    trainer.allreduce_grads()
    clip(net, ctxs, largest * size)
    trainer.update(size)


def clip(net, ctxs, limit):
    for ctx in ctxs:
        gradients = [param.grad(ctx) for param in net.collect_params().values()]
        gluon.utils.clip_global_norm(gradients, limit)


def a_permutation(epoch, n, count):
    return [np.random.permutation(n)] * count


def of_each_device(epoch, n, count):
    return [np.random.permutation(n) for _ in range(count)]


def fixed_shards(net, loss, trainer, images, labels, size, epochs, ctxs, largest):
    """Each device shuffles the same images in every epoch."""
    share = size // len(ctxs)

    def orders(epoch, n, count):
        own = [np.random.permutation(np.arange(i, n, count)) for i in range(count)]
        parts = [each[b : b + share] for b in range(0, n // count, share) for each in own]
        return [np.concatenate(parts)] * count

    return fitting(orders)(net, loss, trainer, images, labels, size, epochs, ctxs, largest)


def fitting(orders=a_permutation, update=scaled_sum, whole=False, means=True, labelled=True):
    """fit with one thing wrong, or with other means."""

    def fit(net, loss, trainer, images, labels, size, epochs, ctxs, largest):
        share, found = size // len(ctxs), []
        for epoch in range(epochs):
            order, total = orders(epoch, len(images), len(ctxs)), 0
            for begin in range(0, len(images), size):
                losses = []
                with autograd.record():
                    for i, ctx in enumerate(ctxs):
                        first = begin if whole else begin + i * share
                        rows = order[i][first : first + (size if whole else share)]
                        x = images.take(nd.array(rows)).as_in_context(ctx)
                        of = rows if labelled else np.arange(first, first + len(rows))
                        y = labels.take(nd.array(of)).as_in_context(ctx)
                        losses.append(loss(net(x), y))
                autograd.backward(losses)
                update(net, trainer, ctxs, size, share, largest)
                total += sum(float(each.sum().asscalar()) for each in losses)
            found.append(total / len(images))
        return found if means else None

    return fit


def each_scaled(net, trainer, ctxs, size, share, largest):
    clip(net, ctxs, largest * share)
    trainer.step(size)


def each_scaled_to_all(net, trainer, ctxs, size, share, largest):
    clip(net, ctxs, largest * size)
    trainer.step(size)


def each_scaled_less(net, trainer, ctxs, size, share, largest):
    clip(net, ctxs, largest * share / len(ctxs))
    trainer.step(size)


def not_scaled(net, trainer, ctxs, size, share, largest):
    trainer.step(size)


def scaled_without_the_images(net, trainer, ctxs, size, share, largest):
    trainer.allreduce_grads()
    clip(net, ctxs, largest)
    trainer.update(size)


def scaled_to_a_share(net, trainer, ctxs, size, share, largest):
    trainer.allreduce_grads()
    clip(net, ctxs, largest * share)
    trainer.update(size)


def added_up_twice(net, trainer, ctxs, size, share, largest):
    trainer.allreduce_grads()
    clip(net, ctxs, largest * size)
    trainer.step(size)


def only_the_first_is_scaled(net, trainer, ctxs, size, share, largest):
    trainer.allreduce_grads()
    clip(net, ctxs[:1], largest * size)
    trainer.update(size)


def norm_of_all_devices(net, trainer, ctxs, size, share, largest):
    grads = [grad for param in net.collect_params().values() for grad in param.list_grad()]
    scale = min(1, largest * size / np.sqrt(sum(float((g**2).sum().asscalar()) for g in grads)))
    for grad in grads:
        grad *= scale
    trainer.step(size)


def every_parameter_by_itself(net, trainer, ctxs, size, share, largest):
    trainer.allreduce_grads()
    for ctx in ctxs:
        for param in net.collect_params().values():
            gluon.utils.clip_global_norm([param.grad(ctx)], largest * size)
    trainer.update(size)


def every_number_by_itself(net, trainer, ctxs, size, share, largest):
    trainer.allreduce_grads()
    for ctx in ctxs:
        for param in net.collect_params().values():
            param.grad(ctx)[:] = param.grad(ctx).clip(-largest * size, largest * size)
    trainer.update(size)


def divided_by_a_share(net, trainer, ctxs, size, share, largest):
    trainer.allreduce_grads()
    clip(net, ctxs, largest * size)
    trainer.update(share)


def only_first_device(net, loss, trainer, images, labels, size, epochs, ctxs, largest):
    """Only one device left, and so nothing that two can do wrong."""
    return fitting(update=lambda *given: None)(net, loss, trainer, images, labels, size, epochs, ctxs[:1], largest)


WRONG = {
    "09-1": [
        (into_the_first, "the sum does not come back", "戻っていません"),
        (mean, "that is the mean, not the sum", "合計ではなく平均"),
        (returned, r"there: the arrays on 2 devices held \[1\] and \[2\]", "まだ直っていません"),
        (mixed, "CPU devices allow that, two GPUs do not", "2 個の GPU"),
        (one_after_the_other, r"left \[3\] and \[5\], expected \[3\]", r"結果が \[3\]、\[5\]"),
    ],
    "09-2": [
        (zeroed_for_every_part, "only the last part counts", "最後の部分しか"),
        (smaller_steps, "the weights moved by", "動きました"),
        (clipped, "the weights moved by", "動きました"),
        (whole_batches, "saves no memory", "メモリは減りません"),
        (weights_only, "batch 2, of 4 images", "2 番目のバッチ"),
        (returns_no_loss, "is `return` missing.*the batch's mean loss", "`return` を忘れて"),
        (returns_the_sum, "the parameters are right, but `train_batch` returned", "戻り値が"),
    ],
    "09-3": [
        (as_if_even, "7 images on 2 devices.*right for batches that divide", "均等に割り切れる"),
        (smaller_rate, "right for batches that divide evenly", "均等に割り切れる"),
        (not_divided, "nothing divides them", "どこでも割られていません"),
        (divided_twice, "4 images on 2 devices", "4 枚を 2 台のデバイスで"),
    ],
    "09-4": [
        (small_batches_dropped, "the last 1 were not used|not used at all", "使われていません"),
        (divided_by_a_full_batch, "5 images in batches of 4 on 2 devices", "5 枚を 4 枚ずつ"),
        (images_doubled, "counts more or less than once", "1 回ずつ数えられて"),
        (stale_ones_ignored, "the fault is still there", "まだ直っていません"),
        (returns_no_means, "is `return` missing.*mean loss of each batch", "`return` を忘れて"),
    ],
    "09-5": [
        (forgets_to_return, "is `return` missing.*a number", "`return` を忘れて"),
        (divided_by_all, "3 images.*3 right ones were counted", "正解が"),
        (discarded, "left out", "抜けています"),
        (at_once, "a device had", "一度に"),
        (on_one_device, r"cpu\(1\) did nothing", "何もしていません"),
        (mean_of_batches, "expected", "正しくは"),
    ],
    "09-6": [
        (forgets_to_return, "is `return` missing.*a list with a Replica", "`return` を忘れて"),
        (seeded_for_each, "draw numbers of their own.*GPUs have one each", "GPU では番号が"),
        (seeded_with_a_number, "fault is still there: before any training", "まだ直っていません"),
        (all_alike, "alike is not enough", "そろえるだけでは"),
        (one_for_all, "lies on", "用のレプリカ"),
        (always_the_same, "the seed has no effect", "seed が効いていません"),
        (not_seeded, "gives other parameters the second time", "違うパラメータ"),
    ],
    "09-7": [
        (fitting(update=each_scaled), "still there: .*moved", "まだ直っていません.*動きました"),
        (fitting(orders=of_each_device), "an epoch image", "まだ直っていません.*エポックで画像"),
        (fitting(update=each_scaled_to_all), "there: .*moved the weights", "まだ直っていません"),
        (fitting(update=each_scaled_less), "there: .*moved the weights", "まだ直っていません"),
        (fitting(update=not_scaled), "no gradient is scaled down any more", "まったく縮められて"),
        (fitting(update=scaled_without_the_images), "for their mean", "平均の勾配についての値"),
        (fitting(update=scaled_to_a_share), "not those of a shard", "シャードの枚数ではありません"),
        (fitting(update=added_up_twice), "too large by the number of devices", "台数倍だけ"),
        (fitting(update=norm_of_all_devices), "all devices' gradients side", "並べたもののノルム"),
        (fitting(update=every_parameter_by_itself), "one gradient, with one norm", "1 つのノルム"),
        (fitting(update=every_number_by_itself), r"[\d.]+, as on one device$", "なるはずです$"),
        (fitting(update=divided_by_a_share), "too large by the number of devices", "台数倍だけ"),
        (fitting(update=only_the_first_is_scaled), r"weights on cpu\(1\)", r"cpu\(1\) の重みが"),
        (fitting(lambda e, n, k: [np.arange(n)] * k), "in which they are stored", "並び順のまま"),
        (fitting(lambda e, n, k: [np.arange(n)[::-1]] * k), "in which they are stored", "並び順"),
        (fitting(lambda e, n, k: [np.random.RandomState(0).permutation(n)] * k), "the same order", "同じです"),
        (fitting(lambda e, n, k: [np.random.randint(0, n, n)] * k), "in an epoch image", "エポックで画像"),
        (fitting(whole=True), "images went through the network in", "枚がネットワークを通りました"),
        (fitting(labelled=False), "moved", "動きました"),
        (fitting(means=False), "is `return` missing.*mean loss of each epoch", "`return` を忘れて"),
        (only_first_device, "computed 8 images of batch 1, expected 4", "計算したのは 8 枚"),
        (fixed_shards, "every device saw the same images in two epochs", "同じ画像が渡りました"),
    ],
}  # fmt: skip


def zeroed_afterwards(net, loss, trainer, images, labels, parts):
    total = _accumulate(net, loss, images, labels, parts)
    trainer.step(len(images))
    net.collect_params().zero_grad()
    return float(total.asscalar()) / len(images)


def counts_the_shards(net, loss, trainer, images, labels, ctxs):
    xs, ys = shard(images, ctxs), shard(labels, ctxs)
    with autograd.record():
        losses = [loss(net(x), y) for x, y in zip(xs, ys)]
    autograd.backward(losses)
    trainer.step(sum(map(len, xs)))
    return losses


def seeds_more_than_once(ctxs, seed=0):
    """It may, as long as one device alone draws."""
    params = []
    for number, shape in enumerate(SHAPES):
        mx.random.seed(seed + number)
        params.append(_draw(shape))
    return [_replica([param.copyto(ctx) for param in params]) for ctx in ctxs]


def by_hand_from_the_host(ctxs, seed=0):
    random = np.random.RandomState(seed)
    params = []
    for shape in SHAPES:
        fan_in = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
        params.append(random.normal(0, he_deviation(fan_in), shape) if len(shape) > 1 else np.zeros(shape))
    return [_replica([nd.array(values, ctx=ctx) for values in params]) for ctx in ctxs]


def shuffled_lists(epoch, n, count):
    order = list(range(n))
    random.shuffle(order)
    return [order] * count


def by_seeds(epoch, n, count):
    """Each device shuffles by itself, and alike."""
    return [np.random.RandomState(epoch).permutation(n) for _ in range(count)]


def divided_by_more(net, trainer, ctxs, size, share, largest):
    """The gradients stay as they are; a larger divisor makes the update shorter."""
    trainer.allreduce_grads()
    own = [param.grad(ctxs[-1]).asnumpy() for param in net.collect_params().values()]
    norm = sum(float((each**2).sum()) for each in own) ** 0.5
    trainer.update(max(size, norm / largest))


def scaled_on_the_host(net, trainer, ctxs, size, share, largest):
    """Added up and scaled in numpy, without the trainer's kvstore."""
    params = list(net.collect_params().values())
    sums = [sum(grad.asnumpy() for grad in param.list_grad()) for param in params]
    scale = min(1, largest * size / np.sqrt(sum((each**2).sum() for each in sums)))
    for param, total in zip(params, sums):
        for grad in param.list_grad():
            grad[:] = nd.array(total * scale, ctx=grad.context)
    trainer.update(size)


def with_shards(net, loss, trainer, images, labels, size, epochs, ctxs, largest):
    means = []
    for _ in range(epochs):
        order = nd.array(np.random.permutation(len(images)))
        x, y, found = images.take(order), labels.take(order), []
        for begin in range(0, len(images), size):
            xs = shard(x[begin : begin + size], ctxs)
            ys = shard(y[begin : begin + size], ctxs)
            with autograd.record():
                losses = [loss(net(each), of) for each, of in zip(xs, ys)]
            autograd.backward(losses)
            scaled_sum(net, trainer, ctxs, size, size // len(ctxs), largest)
            found += [float(each.mean().asscalar()) for each in losses]
        means.append(np.mean(found))
    return np.array(means)


RIGHT = {
    "09-2": [zeroed_afterwards],
    "09-3": [counts_the_shards],
    "09-6": [by_hand_from_the_host, seeds_more_than_once],
    "09-7": [
        fitting(shuffled_lists),
        fitting(by_seeds),
        fitting(update=divided_by_more),
        fitting(update=scaled_on_the_host),
        with_shards,
    ],
}
