"""Cures of lab 09's faults that cure the symptom only, or something else, and what they must be
told.
"""

import random

import mxnet as mx
import numpy as np
from changed_solution import change, forgets_to_return
from mxnet import autograd, gluon, nd

from gluonlab.data.loading.split_batch import shard
from gluonlab.scratch.data_parallel import Replica
from gluonlab.scratch.lenet import SHAPES
from gluonlab.scratch.recipes import he_deviation

# --- 09-1


def one_after_the_other(arrays):
    for array in arrays:
        for other in arrays:
            if other is not array:
                array += other.as_in_context(array.context)


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


def fitting(orders=a_permutation, update=scaled_sum):
    """Return `fit` with another order of the images in each epoch, or with another update."""

    def fit(net, loss, trainer, images, labels, size, epochs, ctxs, largest):
        share, found = size // len(ctxs), []
        for epoch in range(epochs):
            order, total = orders(epoch, len(images), len(ctxs)), 0
            for begin in range(0, len(images), size):
                losses = []
                with autograd.record():
                    for i, ctx in enumerate(ctxs):
                        rows = nd.array(order[i][begin + i * share : begin + (i + 1) * share])
                        x, y = (data.take(rows).as_in_context(ctx) for data in (images, labels))
                        losses.append(loss(net(x), y))
                autograd.backward(losses)
                update(net, trainer, ctxs, size, share, largest)
                total += sum(float(each.sum().asscalar()) for each in losses)
            found.append(total / len(images))
        return found

    return fit


def norm_of_all_devices(net, trainer, ctxs, size, share, largest):
    grads = [grad for param in net.collect_params().values() for grad in param.list_grad()]
    scale = min(1, largest * size / np.sqrt(sum(float((g**2).sum().asscalar()) for g in grads)))
    for grad in grads:
        grad *= scale
    trainer.step(size)


WRONG = {
    "09-1": [
        (change("09-1", "total.copyto(other)", "pass"), "not copied back to all devices", "戻っていません"),
        (change("09-1", "    for other in arrays[1:]:\n        total.copyto(other)",
                "    total /= len(arrays)\n    for other in arrays[1:]:\n        total.copyto(other)"),
         "that is the mean, not the sum", "合計ではなく平均"),
        (change("09-1", "total +=", "total = total +", "    for other in arrays[1:]:\n        total.copyto(other)",
                "    return [total.as_in_context(array.context) for array in arrays]"),
         r"there: `allreduce` did not change the arrays \[1\] and \[2\]", "まだ直っていません"),
        (change("09-1", ".as_in_context(total.ctx)", ""), "CPU devices allow this, but GPUs do not", "2 個の GPU"),
        (one_after_the_other, r"to \[3\] and \[5\], expected \[3\]", r"結果が \[3\]、\[5\]"),
    ],
    "09-2": [
        (change("09-2", "        with", "        net.collect_params().zero_grad()\n        with"),
         "only the last part counts", "最後の部分しか"),
        (change("09-2", "net.collect_params().zero_grad()", "pass", "step(len(images))", "step(2 * len(images))"),
         "the weights moved by", "動きました"),
        (change("09-2", "net.collect_params().zero_grad()", "pass", "    trainer",
                "    for param in net.collect_params().values():\n        param.grad()[:] = param.grad().clip(-1, 1)\n"
                "    trainer"), "the weights moved by", "動きました"),
        (change("09-2", "len(images), parts", "len(images), 1"), "2: that does not save memory", "メモリは減りません"),
        (change("09-2", "net.collect_params().zero_grad()", "net.weight.zero_grad()"), "batch 2, of 4 images",
         "2 番目のバッチ"),
        (change("09-2", "    return total / len(images)", ""), "is `return` missing.*the batch's mean loss",
         "`return` を忘れて"),
        (change("09-2", "total / len(images)", "total"), "the parameters are right, but `train_batch` returned",
         "戻り値が"),
    ],
    "09-3": [
        (change("09-3", "step(len(images))", "step(len(xs[0]) * len(ctxs))"),
         "7 images on 2 devices.*batches that divide", "均等に割り切れる"),
        (change("09-3", "trainer.step(len(images))",
                "trainer._optimizer.lr = 0.5 / len(ctxs)\n    trainer.step(len(xs[0]))"),
         "batches that divide evenly", "均等に割り切れる"),
        (change("09-3", "step(len(images))", "step(1)"), "are added up, but never divided", "どこでも割られていません"),
        (change("09-3", "step(len(images))", "step(len(images) * len(ctxs))"), "4 images on 2 devices",
         "4 枚を 2 台のデバイスで"),
    ],
    "09-4": [
        (change("09-4", "x, y = images[begin:end], labels[begin:end]",
                "x, y = images[begin:end], labels[begin:end]\n        if len(x) < len(ctxs):\n            continue"),
         "the last 1 were not used", "使われていません"),
        (change("09-4", "step(len(x))", "step(global_batch_size)"), "5 images in batches of 4 on 2 devices",
         "5 枚を 4 枚ずつ"),
        (change("09-4", "x, y = images[begin:end], labels[begin:end]",
                "x, y = images[begin:end], labels[begin:end]\n        if len(x) < len(ctxs):\n"
                "            x, y = (nd.concat(*[rows] * len(ctxs), dim=0) for rows in (x, y))", "step(len(x))",
                "step(min(len(images) - begin, global_batch_size))"), "batch does not count exactly once",
         "1 回ずつ数えられて"),
        (change("09-4", "param.grad(ctx)[:] = 0", "pass", "step(len(x))", "step(len(x), ignore_stale_grad=True)"),
         "the bug is still there", "まだ直っていません"),
        (change("09-4", "    return means", ""), "is `return` missing.*mean loss of each batch", "`return` を忘れて"),
    ],
    "09-5": [
        (forgets_to_return, "is `return` missing.*a number", "`return` を忘れて"),
        (change("09-5", ":true]", ":]", "right / counted", "right / len(images)"),
         "3 correct answers were counted for 3 images", "正解が"),
        (change("09-5", "global_batch_size):", 'global_batch_size, last_batch_handle="discard"):', "right / counted",
                "right / max(counted, 1)"), "left out", "抜けています"),
        (change("09-5", "global_batch_size):", "len(images)):"), "a device had", "一度に"),
        (change("09-5", "global_batch_size):", "1):", "[:true], ctxs)", "[:true], ctxs[:1])"), r"cpu\(1\) was idle",
         "何もしていません"),
        (change("09-5", "    right = counted = 0", "    found = []",
                "right += int((net(x).argmax(axis=1) == y).sum().asscalar())\n            counted += len(x)",
                "found.append(float((net(x).argmax(axis=1) == y).mean().asscalar()))", "right / counted",
                "sum(found) / len(found)"), "expected", "正しくは"),
    ],
    "09-6": [
        (forgets_to_return, "is `return` missing.*a list with one Replica", "`return` を忘れて"),
        (seeded_for_each, "draw their own numbers.*Each GPU has", "GPU では番号が"),
        (seeded_with_a_number, "bug is still there: before training", "まだ直っていません"),
        (change("09-6", "nd.random.normal(0, (2 / fan_in) ** 0.5, shape) if len(shape) > 1 else nd.zeros(shape)",
                "nd.full(shape, 0.01)"), "equal initial weights learn the same", "そろえるだけでは"),
        (change("09-6", "in ctxs]", "in ctxs[:1]] * len(ctxs)"), r"for cpu\(1\) is on cpu\(0\)", "用のレプリカ"),
        (change("09-6", "random.seed(seed)", "random.seed(0)"), "the seed has no effect", "seed が効いていません"),
        (change("09-6", "mx.random.seed(seed)", "pass"), "gives other parameters the second time", "違うパラメータ"),
    ],
    "09-7": [
        (change("09-7", "trainer.allreduce_grads()", "pass", "largest * global_batch_size", "largest * share",
                "trainer.update(", "trainer.step("), "still there: .*moved", "まだ直っていません.*動きました"),
        (change("09-7", "order = np.random.permutation(len(images))",
                "orders = [np.random.permutation(len(images)) for _ in ctxs]", "order[first", "orders[device][first"),
         r"in one epoch image \d went through the model \d times", "まだ直っていません.*エポックで画像"),
        (change("09-7", "trainer.allreduce_grads()", "pass", "trainer.update(", "trainer.step("),
         "there: .*moved the weights", "まだ直っていません"),
        (change("09-7", "trainer.allreduce_grads()", "pass", "largest * global_batch_size",
                "largest * share / len(ctxs)", "trainer.update(", "trainer.step("), "there: .*moved the weights",
         "まだ直っていません"),
        (change("09-7", "gluon.utils.clip_global_norm(gradients, largest * global_batch_size)", "pass"),
         "gradients are no longer scaled down", "まったく縮められて"),
        (change("09-7",
         "largest * global_batch_size", "largest"),
         "limits the gradient of their mean", "平均の勾配についての値"),
        (change("09-7", "largest * global_batch_size", "largest * share"), "whole batch, not only one shard",
         "シャードの枚数ではありません"),
        (change("09-7", "trainer.update(", "trainer.step("), "too large by the number of devices", "台数倍だけ"),
        (fitting(update=norm_of_all_devices), "use the norm of their sum", "並べたもののノルム"),
        (change("09-7", "gluon.utils.clip_global_norm(gradients, largest * global_batch_size)",
                "for gradient in gradients:\n"
                "                    gluon.utils.clip_global_norm([gradient], largest * global_batch_size)"),
         "form one gradient with one norm", "1 つのノルム"),
        (change("09-7", "gluon.utils.clip_global_norm(gradients, largest * global_batch_size)",
                "for gradient in gradients:\n                    gradient[:] = gradient.clip(-largest * "
                "global_batch_size, largest * global_batch_size)"), r"[\d.]+, as on one device$", "なるはずです$"),
        (change("09-7", "update(global_batch_size)", "update(share)"), "too large by the number of devices",
         "台数倍だけ"),
        (change("09-7", "for ctx in ctxs:", "for ctx in ctxs[:1]:"), r"weights on cpu\(1\)", r"cpu\(1\) の重みが"),
        (change("09-7", "np.random.permutation(len(images))", "np.arange(len(images))"), "in which they are stored",
         "並び順のまま"),
        (change("09-7", "np.random.permutation(len(images))", "np.arange(len(images))[::-1]"),
         "in which they are stored", "並び順"),
        (change("09-7", "np.random.permutation(len(images))", "np.random.RandomState(0).permutation(len(images))"),
         "the same order", "同じです"),
        (change("09-7", "np.random.permutation(len(images))", "np.random.randint(0, len(images), len(images))"),
         "in one epoch image", "エポックで画像"),
        (change("09-7", "order[first : first + share]", "order[begin : begin + global_batch_size]"),
         "images went through the model in", "枚がネットワークを通りました"),
        (change("09-7", "labels.take(rows)", "labels.take(nd.array(np.arange(first, first + share)))"), "moved",
         "動きました"),
        (change("09-7", "    return means", ""), "is `return` missing.*mean loss of each epoch", "`return` を忘れて"),
        (change("09-7", "    params", "    ctxs = ctxs[:1]\n    params", "trainer.allreduce_grads()", "continue"),
         "processed 8 images of batch 1, expected 4", "計算したのは 8 枚"),
        (change("09-7", "        order = np.random.permutation(len(images))",
                "        own = [np.random.permutation(np.arange(i, len(images), len(ctxs))) for i in "
                "range(len(ctxs))]\n        order = np.concatenate([each[b : b + share] for b in range(0, len(own[0]), "
                "share) for each in own])"), "every device saw the same images in two epochs", "同じ画像が渡りました"),
    ],
}  # fmt: skip


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
    "09-2": [
        change(
            "09-2",
            "net.collect_params().zero_grad()",
            "pass",
            "return total /",
            "net.collect_params().zero_grad()\n    return float(total.asscalar()) /",
        )
    ],
    "09-3": [change("09-3", "step(len(images))", "step(sum(map(len, xs)))")],
    "09-6": [by_hand_from_the_host, seeds_more_than_once],
    "09-7": [
        fitting(shuffled_lists),
        fitting(by_seeds),
        fitting(update=divided_by_more),
        fitting(update=scaled_on_the_host),
        with_shards,
    ],
}
