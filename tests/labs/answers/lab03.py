"""Mistakes that students make in lab 03."""

import math

import numpy as np
from mxnet import autograd, gluon, nd


def trains(divide_by, even=False, mean=False, only_first=False, record=True, whole=False):
    """train_batch with one thing wrong."""

    def train_batch(images, labels, devices, net, loss, trainer):
        if whole:
            xs, ys = (
                [images.as_in_context(ctx) for ctx in devices],
                [labels.as_in_context(ctx) for ctx in devices],
            )
        else:
            xs, ys = (
                gluon.utils.split_and_load(part, devices, even_split=even)
                for part in (images, labels)
            )
        if not record:
            return
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
            losses = [one.mean() for one in losses] if mean else losses
            if only_first:
                losses = [losses[0]] + [one * 0 for one in losses[1:]]
        autograd.backward(losses)
        trainer.step(divide_by(images, devices))

    return train_batch


def per_device(images, devices):
    return len(images) / len(devices)


def all_images(images, devices):
    return len(images)


def number_of_devices(images, devices):
    return len(devices)


def fails_on_many_images(n, epochs, k, b):
    if n > 50_000:
        raise ValueError("too many")
    return epochs * math.ceil(n / (k * b))


def summed_variance(means, variances, counts):
    mean = np.average(means, axis=0, weights=counts)
    return mean, np.average(variances, axis=0, weights=counts)


def equal_weights(means, variances, counts):
    mean = np.mean(means, axis=0)
    return mean, np.mean(variances, axis=0) + np.var(means, axis=0)


def unweighted_variance(means, variances, counts):
    return (
        np.average(means, axis=0, weights=counts),
        np.mean(variances, axis=0) + np.var(means, axis=0),
    )


def added_means(means, variances, counts):
    return np.sum(means, axis=0), np.sum(variances, axis=0)


def only_the_first_shard(means, variances, counts):
    return means[0], variances[0]


def doubled_variance(means, variances, counts):
    mean, root = deviation(means, variances, counts)
    return mean, 2 * root**2


def deviation(means, variances, counts):
    mean = np.average(means, axis=0, weights=counts)
    return mean, np.sqrt(
        np.average(np.array(variances) + (np.array(means) - mean) ** 2, axis=0, weights=counts)
    )


WRONG = {
    "03-1": [
        (
            trains(per_device),
            "on 2 devices.* 2 times the right one",
            "2 台のデバイスに 4 枚.* 2 倍",
        ),
        (trains(number_of_devices), "4 times the right one", "4 倍"),
        (trains(all_images, whole=True), "2 times the right one", "2 倍"),
        (
            trains(number_of_devices, mean=True),
            "2 devices .3 [+] 2.: each shard's mean loss",
            "シャードごとに損失を平均",
        ),
        (
            trains(all_images, only_first=True),
            "only the gradient of device 0",
            "デバイス 0 の勾配だけ",
        ),
        (trains(all_images, record=False), "no parameter changed", "パラメータが変化していません"),
        (trains(all_images, even=True), "ValueError.*even_split", "ValueError.*even_split"),
    ],
    "03-2": [
        (lambda n, epochs, k, b: epochs * math.ceil(n / b), "all devices together", "全デバイス分"),
        (
            lambda n, epochs, k, b: epochs * (n // (k * b)),
            "smaller batch at the end",
            "最後の小さいバッチ",
        ),
        (fails_on_many_images, "ValueError: too many", "ValueError: too many"),
        (lambda n, epochs, k, b: math.ceil(n / (k * b)), "one epoch only", "1 エポック分"),
        (
            lambda n, epochs, k, b: math.ceil(n * epochs / (k * b)),
            "into the next epoch",
            "次のエポック",
        ),
        (lambda n, epochs, k, b: epochs * n / (k * b), "whole updates only", "整数"),
        (lambda n, epochs, k, b: epochs * (n // (k * b) + 1), "divide evenly", "割り切れるとき"),
        (lambda n, epochs, k, b: epochs * round(n / (k * b)), "round up$", "切り上げてください$"),
        (lambda n, epochs, k, b: k * epochs * math.ceil(n / (k * b)), "counts once", "1 回と数え"),
        (
            lambda n, epochs, k, b: epochs * (n // (k * b)) + 1,
            "got 3, expected 2$",
            "正しくは 2 です$",
        ),
        (lambda n, epochs, k, b: epochs * n // b, r"got 2, expected 1$", "正しくは 1 です$"),
        (lambda n, epochs, k, b: 2 if n == 8 else 0, r"expected 1$", "正しくは 1 です$"),
    ],
    "03-3": [
        (
            lambda step, lr, k, w: lr * min(1, step / w if w else 1),
            "number of devices",
            "デバイス数に比例",
        ),
        (lambda step, lr, k, w: k * lr, "the warm-up is missing", "ウォームアップがありません"),
        (
            lambda step, lr, k, w: k * lr * min(1, step / (w + 1)) if w else k * lr,
            "has the full rate already",
            "最後のステップで最大",
        ),
        (lambda step, lr, k, w: k * lr if step >= w else lr, "does not jump", "一気に"),
        (
            lambda step, lr, k, w: k * lr * min(1, (step / w) ** 2 if w else 1),
            r"warmup_steps=4\) gave 0.05, expected 0.1$",
            "正しくは 0.1 です$",
        ),
        (
            lambda step, lr, k, w: lr * math.sqrt(k) * min(1, step / w if w else 1),
            r"expected 0.2$",
            "正しくは 0.2 です$",
        ),
        (lambda step, lr, k, w: k * lr * (step / w if w else 1), "stays where it is", "一定です"),
        (
            lambda step, lr, k, w: k * lr * (min(1, (step - 1) / w) if w else 1),
            "count from 1",
            "1 から数え",
        ),
        (
            lambda step, lr, k, w: lr * (1 + (k - 1) * min(1, step / w if w else 1)),
            "begins at 0",
            "0 から始めます",
        ),
        (
            lambda step, lr, k, w: k * lr * min(1, step / w),
            "ZeroDivisionError",
            "ZeroDivisionError",
        ),
    ],
    "03-4": [
        (summed_variance, "how far their means lie apart", "平均どうしのずれ"),
        (equal_weights, "weight by counts", "画像の多いシャード"),
        (deviation, "standard deviation", "標準偏差"),
        (unweighted_variance, "to say here, too: weight by counts", "ここでも"),
        (added_means, "the means are only added up", "足しただけ"),
        (only_the_first_shard, r"mean 10, expected 8$", "正しくは 8 です$"),
        (doubled_variance, r"variance 8, expected 4$", "正しくは 4 です$"),
        (
            lambda means, variances, counts: np.mean(means, axis=0),
            "return two things",
            "平均と分散の 2 つ",
        ),
    ],
    "03-5": [
        (
            lambda host, compute, total, k: (
                max(host, compute) / max(k * host, compute + (k > 1) * total)
            ),
            "k times the images",
            "k 倍の枚数",
        ),
        (
            lambda host, compute, total, k: (
                k * max(host, compute) / max(host, compute + (k > 1) * total)
            ),
            "one device after the other",
            "1 台ずつ順に",
        ),
        (
            lambda host, compute, total, k: k * max(host, compute) / max(k * host, compute + total),
            "one device has nothing to sum",
            "1 台なら合計は要らず",
        ),
        (
            lambda host, compute, total, k: k * max(host, compute) / max(host, compute + total),
            "one device after the other",
            "1 台ずつ順に",
        ),
        (
            lambda host, compute, total, k: (
                k * max(host, compute) / (max(k * host, compute) + (k > 1) * total)
            ),
            "the host is free meanwhile",
            "ホストは空いて",
        ),
        (lambda host, compute, total, k: k * 0.9, r"gave 1.8, expected 2$", "正しくは 2 です$"),
        (
            lambda host, compute, total, k: k if k == 1 else k * compute / (compute + total + host),
            r"expected [\d.]+$",
            r"正しくは [\d.]+ です$",
        ),
        (
            lambda host, compute, total, k: k * max(host, compute) / max(k * host, compute),
            "sum is missing",
            "合計の時間が入っていません",
        ),
        (
            lambda host, compute, total, k: (
                k * (host + compute) / (k * host + compute + (k > 1) * total)
            ),
            "host queues the next step while",
            "次のステップをキューに入れられます",
        ),
    ],
}


def weighted_means(images, labels, devices, net, loss, trainer):
    xs, ys = (
        gluon.utils.split_and_load(array, devices, even_split=False) for array in (images, labels)
    )
    with autograd.record():
        losses = [loss(net(x), y).mean() * (len(x) / len(images)) for x, y in zip(xs, ys)]
    for each in losses:
        each.backward()
    trainer.step(1)


def with_mxnet(means, variances, counts):
    means, variances, images = (
        [nd.array(each) for each in means],
        [nd.array(each) for each in variances],
        sum(counts),
    )
    mean = sum(own * count for own, count in zip(means, counts)) / images
    return [
        mean,
        sum((var + (own - mean) ** 2) * count for own, var, count in zip(means, variances, counts))
        / images,
    ]


RIGHT = {
    "03-1": [weighted_means],
    "03-2": [
        lambda n, epochs, k, b: np.ceil(n / (k * b)) * epochs,
        lambda n, epochs, k, b: epochs * len(range(0, n, k * b)),
    ],
    "03-3": [lambda step, lr, k, w: np.interp(step, [0, w], [0, k * lr])],
    "03-4": [with_mxnet],
}
