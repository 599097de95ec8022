"""Mistakes that students make in lab 03."""

import itertools
import math

import numpy as np
from changed_solution import change, forgets_to_return
from mxnet import autograd, gluon, nd


def moves_the_first_weights_by_one(images, labels, devices, net, loss, trainer):
    weight = net.weight.data(devices[0])
    weight[0] += 1
    net.weight.set_data(weight)


# --- 03-2


def places_of(run, clock, added=True):
    """Where the epochs of a run lie on a clock."""
    if clock == "epochs":
        return list(range(1, len(run) + 1))
    if clock == "updates":
        return [updates for updates, _, _ in run]
    seconds = [seconds for _, seconds, _ in run]
    return list(itertools.accumulate(seconds)) if added else seconds


def seconds_of_an_epoch_alone(first, second):
    """In a loop over the measurements, which stops at the first that is far enough."""

    def read(places, accuracies, place):
        for number, end in enumerate(places):
            if end == place:
                return accuracies[number]
            if end > place:
                if not number:
                    return None
                begin, low, high = places[number - 1], accuracies[number - 1], accuracies[number]
                return low + (place - begin) / (end - begin) * (high - low)
        return None

    found = {}
    for clock in ("epochs", "updates", "seconds"):
        places = [places_of(run, clock, added=False) for run in (first, second)]
        place = min(each[-1] for each in places)
        one, other = (
            read(each, [accuracy for *_, accuracy in run], place) for each, run in zip(places, (first, second))
        )
        found[clock] = None if one is None or other is None else other - one
    return found


def right_for_the_example(first, second):
    known = {"epochs": -0.1, "updates": 0.05, "seconds": -0.2 / 3}
    return known if len(second) == 3 else dict.fromkeys(known, 0.0)


# --- 03-3


def an_epoch_too_early(n, k, b, epochs, lr, warmup_epochs, drops):
    updates = math.ceil(n / (k * b))
    rates = change("03-3")(n, k, b, epochs, lr, warmup_epochs, [])
    return [rate * 0.1 ** sum(drop <= update // updates + 1 for drop in drops) for update, rate in enumerate(rates)]


def divides_by_the_warmup(n, k, b, epochs, lr, warmup_epochs, drops):
    updates = math.ceil(n / (k * b))
    return [
        (lr + (k - 1) * lr * min(1, update / (updates * warmup_epochs)))
        * 0.1 ** sum(drop <= update // updates for drop in drops)
        for update in range(updates * epochs)
    ]


def pops_the_drops(n, k, b, epochs, lr, warmup_epochs, drops):
    rates, rate = [], k * lr
    for rate_ in change("03-3")(n, k, b, epochs, lr, warmup_epochs, []):
        epoch = len(rates) // math.ceil(n / (k * b))
        if drops and epoch == drops[-1]:
            drops.pop()
            rate /= 10
        rates.append(min(rate_, rate))
    return rates


def unweighted_variance(means, variances, counts):
    return (np.average(means, axis=0, weights=counts), np.mean(variances, axis=0) + np.var(means, axis=0))


WRONG = {
    "03-1": [
        (change("03-1", "len(images))", "len(images) / len(devices))"), "2 devices.* 2 times too large",
         "2 台のデバイスに 4 枚.* 2 倍"),
        (change("03-1", "step(len(images))", "step(len(devices))"), "4 times too large", "4 倍"),
        (change("03-1", "gluon.utils.split_and_load(images, devices, even_split=False)",
                "[images.as_in_context(ctx) for ctx in devices]",
                "gluon.utils.split_and_load(labels, devices, even_split=False)",
                "[labels.as_in_context(ctx) for ctx in devices]"), "2 times too large", "2 倍"),
        (change("03-1", "loss(net(x), y) for", "loss(net(x), y).mean() for", "step(len(images))", "step(len(devices))"),
         "[+] 2.: you average the losses", "シャードごとに損失を平均"),
        (change("03-1", "loss(net(x), y) for", "loss(net(x), y) * (x is xs[0]) for"), "gradient of device 0",
         "デバイス 0 の勾配だけ"),
        (change("03-1", "    with", "    return\n    with"), "no parameter changed", "パラメータが変化していません"),
        (change("03-1", "even_split=False", "even_split=True"), "ValueError.*even_split", "ValueError.*even_split"),
        (moves_the_first_weights_by_one, "first weights moved", r"最初の重みの変化は \[1(, 1)+\]"),
    ],
    "03-2": [
        (change("03-2", "other - one", "one - other"), "not the other way round", "逆になって"),
        (change("03-2", "np.interp(end, each, [accuracy for *_, accuracy in run])", "run[-1][2]",
                "found[name] = None\n            continue", "pass"), "the last accuracies of both", "最後の正解率"),
        (change("03-2", "list(accumulate(seconds for _, seconds, _ in run))", "[seconds for _, seconds, _ in run]"),
         "add them up", "足していって"),
        (change("03-2", "np.interp(end, each, [accuracy for *_, accuracy in run])",
                "next(epoch for at, epoch in list(zip(each, run))[::-1] if at <= end)[2]"),
         "stay constant until the next one", "次の計測までそのまま"),
        (change("03-2", "np.interp(end, each, [accuracy for *_, accuracy in run])",
                "min(zip(each, run), key=lambda pair: abs(pair[0] - end))[1][2]"),
                "instead of using the nearest measurement",
         "最も近い計測値では"),
        (change("03-2", "found[name] = None\n            continue", "pass"), "a run has no accuracy: return None",
         "None です"),
        (change("03-2", "np.interp(end, each, [accuracy for *_, accuracy in run])",
                "np.interp(end, [0, *each], [0, *(accuracy for *_, accuracy in run)])",
                "found[name] = None\n            continue", "pass"), "None, not 0", "0 と計測された"),
        (change("03-2", "min(each[-1]", "max(each[-1]", "found[name] = None\n            continue", "pass"),
         "the last accuracies of both", "最後の正解率"),
        (change("03-2", "np.interp(end, each, [accuracy for *_, accuracy in run])",
                "next(epoch for at, epoch in zip(each, run) if at >= end)[2]"), "not jump to the next one",
         "まだ次の計測の値には"),
        (seconds_of_an_epoch_alone, "of single epochs: add them up", "足していって"),
        (change("03-2", "list(accumulate(seconds for _, seconds, _ in run))",
                "[(n + 1) * sum(seconds for _, seconds, _ in run) / len(run) for n in range(len(run))]"),
         r"-?[\d.]+, expected -?[\d.]+$", r"正しくは -?[\d.]+ です$"),
        (change("03-2", "np.interp(end, each, [accuracy for *_, accuracy in run])",
                "max(np.interp(end, each, [accuracy for *_, accuracy in run]), *(right for at, (*_, right) in "
                "zip(each, run) if at <= end))"), r"is -?[\d.]+, expected -?[\d.]+$", r"正しくは -?[\d.]+ です$"),
        (change("03-2", "return found", 'return found["epochs"]'), 'returned -0.0.*: return a dictionary with "epochs"',
         "の辞書を返して"),
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (lambda first, second: {"epochs": 0}, 'a dictionary with "epochs"', "の辞書を返して"),
        (lambda first, second: dict.fromkeys(("epochs", "updates", "seconds"), "0"), "'0', expected", "正しくは"),
        (change("03-2", "    found = {}",
                '    if len(first) == 1:\n        raise ValueError("too short")\n    found = {}'),
         "ValueError: too short", "ValueError: too short"),
        (right_for_the_example, r"is 0, expected 0.2$", "正しくは 0.2 です$"),
        (change("03-2", "    found = {}", "    first.sort(key=lambda epoch: epoch[2])\n    found = {}"),
         r"is -?[\d.]+, expected -?[\d.]+$", r"正しくは -?[\d.]+ です$"),
    ],
    "03-3": [
        (change("03-3", "math.ceil(images / (devices * batch_per_device))", "images // (devices * batch_per_device)"),
         "the end of an epoch", "最後の小さいバッチ"),
        (change("03-3",
         "(devices * batch_per_device)", "batch_per_device"),
         "contain the images of all devices", "全デバイス分"),
        (change("03-3", "base_lr * devices", "base_lr"), "grow with the number of devices", "デバイス数に比例"),
        (change("03-3", "base_lr * devices", "base_lr * devices**0.5"), "square root rule", "平方根の規則"),
        (change("03-3", "base_lr + (full - base_lr)", "full"), "not at 0", "0 からではなく"),
        (change("03-3", "* update /", "* (update + 1) /"), "each later one is a step higher", "1 回ごとに"),
        (change("03-3", "/ warmup for", "/ max(warmup - 1, 1) for"), "after the warm-up$", "次の更新です$"),
        (change("03-3", "* update / warmup", ""), "the warm-up is missing", "ウォームアップがありません"),
        (change("03-3", "* update / warmup", "* 0"), "does not jump at the end", "一気に"),
        (change("03-3", "update / warmup", "(update / warmup) ** 2"), "1 .* expected 0.15$", "正しくは 0.15 です$"),
        (change("03-3", "sum(drop <= epoch for drop in drops)", "0"), "the drops are missing", "引き下げがありません"),
        (change("03-3", "drop <= epoch", "drop < epoch"), "epochs count from 0", "0 から数え"),
        (change("03-3", "drop <= epoch", "drop == epoch"), "not rise again after that epoch", "低いまま"),
        (change("03-3", "sum(drop", "any(drop"), "two drops divide it by 100", "100 分の 1"),
        (change("03-3", "drop <= epoch for drop in drops)] * updates",
                "drop <= epoch * updates + u for drop in drops) for u in range(updates)]"), "not updates",
         "更新の番号では"),
        (change("03-3", "* update /", "* (update // updates * updates) /"),
         "every update, not once per epoch", "エポックごとではなく"),
        (change("03-3", "math.ceil(images / (devices * batch_per_device))",
                "images // (devices * batch_per_device) + 1"), "there is no update", "最後のバッチの後"),
        (change("03-3", "base_lr + (full - base_lr) * update / warmup", "base_lr * devices ** (update / warmup)"),
         "not by the same factor", "同じ倍率では"),
        (an_epoch_too_early, "an epoch too early: epochs count from 0", "1 エポック早すぎ"),
        (change("03-3", "    updates", "    warmup_epochs = max(1, warmup_epochs)\n    updates"),
         "0 epochs of warm-up.*has the learning rate 0.1, expected 0.2$", "正しくは 0.2 です$"),
        (change("03-3",
         "math.ceil(images / (devices * batch_per_device))", "1"),
         "3 learning rates, expected 6", "6 個のはず"),
        (divides_by_the_warmup, "ZeroDivisionError", "ZeroDivisionError"),
        (lambda n, k, b, epochs, lr, warmup_epochs, drops: k * lr, "return a list of numbers", "数のリスト"),
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (pops_the_drops, r"has the learning rate [\d.]+, expected [\d.]+$", "です$"),
    ],
    "03-4": [
        (change("03-4", " + (m - mean) ** 2", ""), "distance between their means is missing", "平均どうしのずれ"),
        (change("03-4", "np.array(counts) / np.sum(counts)", "np.ones(len(counts)) / len(counts)"),
         "counts more: weight by `counts`", "画像の多いシャード"),
        (change("03-4", "return mean, variance", "return mean, variance**0.5"), "standard deviation", "標準偏差"),
        (unweighted_variance, "counts more here: weight by `counts`", "ここでも"),
        (change("03-4", "return mean, variance",
         "return sum(means), sum(variances)"),
         "the means are added up, not averaged",
         "足しただけ"),
        (change("03-4", "return mean, variance", "return means[0], variances[0]"), r"mean 10, expected 8$",
         "正しくは 8 です$"),
        (change("03-4", "return mean, variance", "return mean, 2 * variance"), r"variance 8, expected 4$",
         "正しくは 4 です$"),
        (lambda means, variances, counts: np.mean(means, axis=0),
         "values, the mean and the variance", "平均と分散の 2 つ"),
    ],
    "03-5": [
        (lambda host, compute, total, k: max(host, compute) / max(k * host, compute + (k > 1) * total),
         "k times the images", "k 倍の枚数"),
        (lambda host, compute, total, k: k * max(host, compute) / max(host, compute + (k > 1) * total),
         "one device after the other", "1 台ずつ順に"),
        (lambda host, compute, total, k: k * max(host, compute) / max(k * host, compute + total),
         "anything, so its speedup is 1", "1 台なら合計は要らず"),
        (lambda host, compute, total, k: k * max(host, compute) / max(host, compute + total),
         "one device after the other", "1 台ずつ順に"),
        (lambda host, compute, total, k: k * max(host, compute) / (max(k * host, compute) + (k > 1) * total),
         "the host is free meanwhile", "ホストは空いて"),
        (lambda host, compute, total, k: k * 0.9, r"gave 1.8, expected 2$", "正しくは 2 です$"),
        (lambda host, compute, total, k: k if k == 1 else k * compute / (compute + total + host), r"expected [\d.]+$",
         r"正しくは [\d.]+ です$"),
        (lambda host, compute, total, k: k * max(host, compute) / max(k * host, compute), "sum is missing",
         "合計の時間が入っていません"),
        (lambda host, compute, total, k: k * (host + compute) / (k * host + compute + (k > 1) * total),
         "host queues the next step while", "次のステップをキューに入れられます"),
    ],
}  # fmt: skip


def weighted_means(images, labels, devices, net, loss, trainer):
    xs, ys = (gluon.utils.split_and_load(array, devices, even_split=False) for array in (images, labels))
    with autograd.record():
        losses = [loss(net(x), y).mean() * (len(x) / len(images)) for x, y in zip(xs, ys)]
    for each in losses:
        each.backward()
    trainer.step(1)


def with_mxnet(means, variances, counts):
    means, variances, images = ([nd.array(each) for each in means], [nd.array(each) for each in variances], sum(counts))
    mean = sum(own * count for own, count in zip(means, counts)) / images
    return [mean, sum((var + (own - mean) ** 2) * count for own, var, count in zip(means, variances, counts)) / images]


def by_hand(first, second):
    found = {}
    for number, clock in enumerate(("epochs", "updates", "seconds")):
        curves, end = [], float("inf")
        for run in (first, second):
            at, curve = 0, []
            for epoch, (updates, seconds, accuracy) in enumerate(run):
                at += seconds
                curve.append(((epoch + 1, updates, at)[number], accuracy))
            curves.append(curve)
            end = min(end, curve[-1][0])
        values = []
        for curve in curves:
            later = next((i for i, (place, _) in enumerate(curve) if place >= end), None)
            if later == 0 and curve[0][0] > end:
                values.append(None)
                continue
            (p, a), (q, b) = curve[max(0, later - 1)], curve[later]
            values.append(b if q == end else a + (b - a) * (end - p) / (q - p))
        found[clock] = None if None in values else values[1] - values[0]
    return found


def in_numpy_s_types(first, second):
    right = by_hand(first, second)
    return {clock: v if v is None else np.float64(v) for clock, v in sorted(right.items())}


def as_a_generator(n, k, b, epochs, lr, warmup_epochs, drops):
    updates, rate = len(range(0, n, k * b)), np.float64(k * lr)
    for epoch in range(epochs):
        rate = rate / 10 if epoch in drops else rate
        for update in range(updates):
            done = epoch * updates + update
            if epoch < warmup_epochs:
                yield lr * (1 + (k - 1) * done / (updates * warmup_epochs))
            else:
                yield rate


def by_interpolation(n, k, b, epochs, lr, warmup_epochs, drops):
    updates = -(-n // (k * b))
    places = np.arange(updates * epochs)
    rates = np.interp(places, [0, updates * warmup_epochs], [lr, k * lr])
    if not warmup_epochs:
        rates[:] = k * lr
    for drop in drops:
        rates[drop * updates :] /= 10
    return rates


RIGHT = {
    "03-1": [weighted_means],
    "03-2": [by_hand, in_numpy_s_types],
    "03-3": [as_a_generator, by_interpolation],
    "03-4": [with_mxnet],
}
