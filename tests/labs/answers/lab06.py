"""Answers to lab 06 that students really give, and what they must be told."""

import numpy as np
from changed_solution import change, forgets_to_return
from mxnet import autograd, gluon

from gluonlab.data.loading.split_batch import shard_bounds

# --- 06-2


def one_backward(net, loss, trainer, images, labels, parts):
    """All parts go forward first."""
    net.collect_params().zero_grad()
    with autograd.record():
        losses = [loss(net(images[begin:end]), labels[begin:end]) for begin, end in shard_bounds(len(images), parts)]
    autograd.backward(losses)
    trainer.step(len(images))


# --- 06-3


def larger_last(count, parts):
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def one_backward_for_all_means(net, mean_loss, trainer, x, labels, real, parts):
    net.collect_params().zero_grad()
    total = 0
    with autograd.record():
        for begin, end in shard_bounds(len(x), parts):
            own = real[begin:end].sum()
            if own.asscalar():
                mean = mean_loss(net(x[begin:end]), labels[begin:end], real[begin:end])
                total = total + mean * own
    total.backward()
    trainer.step(real.sum().asscalar())


def forward_of_all_parts(net, mean_loss, trainer, x, labels, real, parts):
    """Goes forward with a part without words, too, but not backward."""
    net.collect_params().zero_grad()
    for begin, end in larger_last(len(x), parts):
        with autograd.record():
            mean = mean_loss(net(x[begin:end]), labels[begin:end], real[begin:end])
            weighted = mean * real[begin:end].sum()
        if not np.isnan(weighted.asscalar()):
            weighted.backward()
    trainer.step(real.sum().asscalar())


def means_at_once(net, mean_loss, trainer, x, labels, real, parts):
    net.collect_params().zero_grad()
    with autograd.record():
        mean = mean_loss(net(x), labels, real)
    mean.backward()
    trainer.step(1)


def means_without_record(net, mean_loss, trainer, x, labels, real, parts):
    mean_loss(net(x), labels, real).backward()
    trainer.step(1)


# --- 06-5


def last_takes_the_rest(images, devices, microbatches):
    shards = [
        (d * (images // devices), images if d == devices - 1 else (d + 1) * (images // devices)) for d in range(devices)
    ]
    cuts = [[(b + x, b + y) for x, y in shard_bounds(e - b, microbatches)] for b, e in shards]
    return [[(d, *cut[n]) for d, cut in enumerate(cuts) if n < len(cut)] for n in range(max(map(len, cuts)))]


def one_device_after_the_other(images, devices, microbatches):
    found = []
    for device, (begin, end) in enumerate(shard_bounds(images, devices)):
        found += [[(device, begin + a, begin + b)] for a, b in shard_bounds(end - begin, microbatches)]
    return found


def all_parts_at_once(images, devices, microbatches):
    return [[part for each in one_device_after_the_other(images, devices, microbatches) for part in each]]


def microbatches_first(images, devices, microbatches):
    return [
        [(device, begin + a, begin + b) for device, (a, b) in enumerate(shard_bounds(end - begin, devices))]
        for begin, end in shard_bounds(images, microbatches)
    ]


# --- 06-6


def one_by_one(memory, budget, limit):
    images = 0
    while images < limit and memory(images + 1) <= budget:
        images += 1
    return images


def doubling(memory, budget, limit):
    images = 1
    while images * 2 <= limit and memory(images * 2) <= budget:
        images *= 2
    return images


WRONG = {
    "06-1": [
        (change("06-1", "1 + 1 + states", "1 + states"), "without the gradients of the parameters", "勾配が入って"),
        (change("06-1", "4 * (", "("), "a float32 has 4 bytes", "1 個 4 バイト"),
        (change("06-1", "images * ", ""), "them by the number of images", "画像 1 枚分"),
        (change("06-1", "1 + 1 + states", "1 + 1"), "the states that the optimizer keeps", "オプティマイザの状態"),
        (forgets_to_return, "returned None .is `return` missing", "`return` を忘れて"),
        (change("06-1", "images * ", "2 * images * "),
         "that counts a gradient for every activation: only the activations are kept",
         "活性値ごとに勾配"),
        (lambda shapes, outputs, images, states: 24, r"is 24, expected 48$", "正しくは 48 です$"),
        (change("06-1", "parameters * (", "images * parameters * ("), "per image: all images share them",
         "画像 1 枚ごとにパラメータ"),
    ],
    "06-2": [
        (change("06-2", "net.collect_params().zero_grad()", "pass"), "the gradients of the previous batch",
         "前のバッチの勾配が残った"),
        (change("06-2", "        with", "        net.collect_params().zero_grad()\n        with"),
         "only the last part counts", "最後の部分しか"),
        (change("06-2", "step(len(images))", "step(-(-len(images) // parts))"), "divided by the images of one part",
         "1 個のマイクロバッチの枚数"),
        (change("06-2", ".sum()", ".mean()", "step(len(images))", "step(1)"), "of the parts are added up",
         "平均を足しています"),
        (change("06-2", ".sum()", ".mean()"), "a mean, but `step` divides again", "`step` がもう一度"),
        (change("06-2", ".sum()", ".mean()", "step(len(images))", "step(parts)"), "a mean of means", "平均の平均"),
        (change("06-2", "shard_bounds(len(images), parts)", "shard_bounds(len(images) // parts * parts, parts)"),
         "the batch does not divide evenly", "余った画像が捨てられ"),
        (change("06-2", "    trainer.step(len(images))",
                "        trainer.step(end - begin)\n        net.collect_params().zero_grad()"),
         "an update after every part", "部分ごとに更新"),
        (change("06-2",
         "trainer.step(len(images))", "pass"),
         "once: the parameters have not changed", "まったく変わっていません"),
        (change("06-2", "shard_bounds(len(images), parts)", "shard_bounds(len(images), 1)"),
         "4 images went through the model at once, expected at most", "一度に 4 枚"),
        (change("06-2", "shard_bounds(len(images), parts)", "shard_bounds(len(images), len(images))"),
         "in 4 parts, expected 1", "4 個に分けられ"),
        (one_backward, "of both and saves no memory", "逆伝播より先に次の順伝播"),
        (change("06-2", "for begin, end in shard_bounds(len(images), parts):",
                "each = -(-len(images) // parts)\n    for begin in range(0, len(images), each):\n"
                "        end = begin + each"), "so that the smallest has 2", "できるだけ均等に"),
    ],
    "06-3": [
        (change("06-3", "own / words", "1"), "the means are added up, not averaged", "足しただけ"),
        (change("06-3", "own / words", "1 / parts"), "a mean of means", "平均の平均"),
        (change("06-3", "own / words", "(end - begin) / len(x)"), "are over words: weight by words", "文の数で重み"),
        (change("06-3", "own / words", "own"), "divide by the words of the whole", "単語数で割って"),
        (change("06-3", "own / words", "own / len(x)"), "divided by the sentences", "文の数で割って"),
        (change("06-3",
         "net.collect_params().zero_grad()", "pass"),
         "the gradients of the previous batch", "残ったまま"),
        (change("06-3", "own == 0", "False"), "which is nan, and nan times 0 is nan", "nan に 0 を掛けても"),
        (change("06-3", "step(1)", "step(len(x))"), "already belong to a mean loss", "もう一度割って"),
        (change("06-3", "trainer.step(1)", "pass"),
         "once: the parameters have not changed", "まったく変わっていません"),
        (change("06-3", "        with", "        net.collect_params().zero_grad()\n        with"),
         "only the last part counts", "最後の部分しか"),
        (change("06-3", "own / words", "1 / own"), r"expected [\d.]+, as with", "になるはずです$"),
        (change("06-3", "step(1)", "step(parts)"), r"expected [\d.]+, as with", "になるはずです$"),
        (means_at_once, "2 went through the model at once|sentences went|at once, expected", "一度に"),
        (change("06-3", "net.collect_params().zero_grad()", "pass", "own / words", "own", "step(1)", "step(words)"),
         "the gradients of the previous batch", "残ったまま"),
        (change("06-3", "own / words", "own / words**2"), "divided by the words twice", "2 回割って"),
        (change("06-3", "shard_bounds(len(x), parts)", "shard_bounds(len(x), len(x))"),
         "is right, but they went through the model in 2 parts, expected 1", "2 個に分けられました。1 個のはず"),
        (change("06-3", "shard_bounds(len(x), parts)",
                "[(each * n, each * (n + 1) if n < parts - 1 else len(x)) for n in range(parts)]", "    for begin",
                "    each = len(x) // parts\n    for begin"),
         "the update of 5 sentences in 3 microbatches is right, but 3 went", "正しいのですが、一度に 3 文"),
        (change("06-3", "shard_bounds(len(x), parts)", "[(n, min(n + each, len(x))) for n in range(0, len(x), each)]",
                "    for begin", "    each = -(-len(x) // parts)\n    for begin"),
         r"but the microbatches have \[3, 3, 1\] sentences: divide as evenly as possible", "できるだけ均等に"),
        (one_backward_for_all_means, "of both and saves no memory", "逆伝播より先に次の順伝播"),
        (change("06-3", "own / words", "1 / parts", "shard_bounds(len(x), parts)",
                "[(len(x) * n // parts, len(x) * (n + 1) // parts) for n in range(parts)]"), "a mean of means",
         "平均の平均"),
        (change("06-3", "    words",
                "    long = real * (real.sum(axis=1, keepdims=True) > 1)\n"
                "    real = long if float(long.sum().asscalar()) else real\n    words"), r"expected [\d.]+, as with",
         "になるはずです$"),
        (forgets_to_return, "once: the parameters have not changed", "まったく変わっていません"),
        (means_without_record, "RuntimeError|MXNetError|not.*record|Cannot differentiate", "Error"),
        *((change("06-3", "own / words", factor, "share.backward()",
                  f"share.backward()\n        trainer.step(1)\n        {after_step}", "trainer.step(1)  #", "#"),
           "the parameters are updated after each part", "部分ごとにパラメータを更新")
          for factor in ("own / words", "1")
          for after_step in ("net.collect_params().zero_grad()", "")),
    ],
    "06-4": [
        (forgets_to_return, "is `return` missing.*a list of numbers", "`return` を忘れて"),
        (change("06-4", '[int(number) for number in visible.split(",")]', 'list(range(len(visible.split(","))))',
                "shown[int(name)]", "int(name)"), r"'2,3', 4\) is \[0, 1\], expected \[2, 3\].*numbers inside",
         "プロセスの中での番号"),
        (change("06-4", "return shown",
         "return list(range(count))"),
         "sees only the GPUs in CUDA_VISIBLE_DEVICES", "あるものしか見えません"),
        (change("06-4", "range(count)", "map(str, range(count))", "int(number)", "number"),
         "return numbers, not strings", "文字列ではなく"),
        (change("06-4", "    names", "    shown.sort()\n    names"), "in another order", "順番が違います"),
        (change("06-4", "return shown if", "return sorted(shown) if", '[shown[int(name)] for name in names.split(",")]',
                'sorted(shown[int(name)] for name in names.split(","))'), "in another order", "順番が違います"),
    ],
    "06-5": [
        (forgets_to_return, "is `return` missing.*a list of rounds", "`return` を忘れて"),
        (change("06-5", "cut(0, images,", "cut(0, images // (devices * microbatches) * devices * microbatches,"),
         "image 6 is used 0 times", "画像 6 が使われた回数は 0 回"),
        (last_takes_the_rest, "as evenly as possible", "できるだけ均等"),
        (one_device_after_the_other, "there are 2 rounds|side by side", "ラウンドが 2 回|同時に"),
        (all_parts_at_once, "has two parts in round 0", "2 個の部分"),
        (microbatches_first, "device 0 gets", "デバイス 0 の担当"),
        (change("06-5", " if b > a", ""), r"\[\(0, 1, 2\), \(1, 3, 3\)\]", "空の部分"),
    ],
    "06-6": [
        (forgets_to_return, "is `return` missing.*a number of images", "`return` を忘れて"),
        (one_by_one, "halve the range", "範囲を半分"),
        (change("06-6", "<= budget", "< budget"), "would also fit", "でも入ります"),
        (change("06-6", "too_many = 0,", "too_many = 1,"), "not even one image fits", "1 枚も入りません"),
        (doubling, "would also fit", "でも入ります"),
        (change("06-6", "limit + 1", "limit"), "8 would also fit", "8 枚でも入ります"),
        (lambda memory, budget, limit: (budget - memory(0)) // (memory(1) - memory(0)), "that is above the limit",
         "それより多くの画像"),
        (lambda memory, budget, limit: max(0, min(limit, (budget - memory(0)) // (memory(1) - memory(0)))),
         "5 bytes per 8 images .rounded up..* would also fit", "8 枚ごと .端数は切り上げ. に 5.*でも入ります"),
    ],
}  # fmt: skip


def with_split_data(net, loss, trainer, images, labels, parts):
    net.collect_params().zero_grad()
    for x, y in zip(*(gluon.utils.split_data(array, parts, even_split=False) for array in (images, labels))):
        with autograd.record():
            losses = loss(net(x), y)
        losses.backward()
    trainer.step(len(images))


def sums_from_means(net, mean_loss, trainer, x, labels, real, parts):
    net.collect_params().zero_grad()
    for begin, end in shard_bounds(len(x), parts):
        own = real[begin:end].sum()
        if own.asscalar():
            with autograd.record():
                total = mean_loss(net(x[begin:end]), labels[begin:end], real[begin:end]) * own
            total.backward()
    trainer.step(int(real.sum().asscalar()))


def divides_in_step(net, mean_loss, trainer, x, labels, real, parts):
    """Padding of a part is cut off first, and the head of a gradient carries the weight."""
    for param in net.collect_params().values():
        param.zero_grad()
    each = [gluon.utils.split_data(array, parts, even_split=False) for array in (x, labels, real)]
    for part_x, part_labels, part_real in zip(*each):
        longest = int(part_real.sum(axis=1).max().asscalar())
        if not longest:
            continue
        cut = [array[:, :longest] for array in (part_x, part_labels, part_real)]
        with autograd.record():
            mean = mean_loss(net(cut[0]), cut[1], cut[2])
        mean.backward(part_real.sum() / real.sum())
    trainer.step(1)


def with_arrays(spec, visible, count):
    shown = np.arange(count) if visible is None else np.array(visible.split(","), int)
    names = spec.partition(":")[2]
    return shown if names == "*" else shown[np.array(names.split(","), int)]


def one_round_after_the_other(images, devices, microbatches):
    shards = [
        (device, begin, shard_bounds(end - begin, microbatches))
        for device, (begin, end) in enumerate(shard_bounds(images, devices))
    ]
    for number in range(len(shards[0][2])):
        yield tuple(
            (device, begin + p[number][0], begin + p[number][1]) for device, begin, p in shards if number < len(p)
        )


def galloping(memory, budget, limit):
    low, high = 0, 1
    while high <= limit and memory(high) <= budget:
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if memory(middle) <= budget else (low, middle)
    return np.int64(low)


RIGHT = {
    "06-1": [
        lambda shapes, outputs, images, states: 4.0 * (sum(map(np.prod, shapes)) * (2 + states) + images * sum(outputs))
    ],
    "06-2": [with_split_data],
    "06-3": [sums_from_means, divides_in_step, forward_of_all_parts],
    "06-4": [with_arrays],
    "06-5": [one_round_after_the_other],
    "06-6": [galloping],
}
