"""Mistakes that students make in lab 03."""

import bisect
import itertools
import math

import numpy as np
from mxnet import autograd, gluon, nd


def trains(divide_by, even=False, mean=False, only_first=False, record=True, whole=False):
    """train_batch with one thing wrong."""

    def train_batch(images, labels, devices, net, loss, trainer):
        if whole:
            xs, ys = ([images.as_in_context(ctx) for ctx in devices], [labels.as_in_context(ctx) for ctx in devices])
        else:
            xs, ys = (gluon.utils.split_and_load(part, devices, even_split=even) for part in (images, labels))
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


def moves_the_first_weights_by_one(images, labels, devices, net, loss, trainer):
    weight = net.weight.data(devices[0])
    weight[0] += 1
    net.weight.set_data(weight)


def per_device(images, devices):
    return len(images) / len(devices)


def all_images(images, devices):
    return len(images)


def number_of_devices(images, devices):
    return len(devices)


def forgets_to_return(*given):
    given = list(given)


# --- 03-2


def places_of(run, clock, added=True):
    """Where the epochs of a run lie on a clock."""
    if clock == "epochs":
        return list(range(1, len(run) + 1))
    if clock == "updates":
        return [updates for updates, _, _ in run]
    seconds = [seconds for _, seconds, _ in run]
    return list(itertools.accumulate(seconds)) if added else seconds


def comparing(read=None, end=min, added=True, none=True, sign=1):
    """compare with one thing wrong; ``read(places, accuracies, place)``: the accuracy there."""
    read = read or (lambda places, accuracies, place: np.interp(place, places, accuracies))

    def compare(first, second):
        found = {}
        for clock in ("epochs", "updates", "seconds"):
            places = [places_of(run, clock, added) for run in (first, second)]
            accuracies = [[accuracy for *_, accuracy in run] for run in (first, second)]
            place = end(each[-1] for each in places)
            if none and any(place < each[0] for each in places):
                found[clock] = None
                continue
            one, other = (read(*curve, place) for curve in zip(places, accuracies))
            found[clock] = sign * (other - one)
        return found

    return compare


def last_accuracy(places, accuracies, place):
    return accuracies[-1]


def the_one_before(places, accuracies, place):
    return next(a for p, a in list(zip(places, accuracies))[::-1] if p <= place)


def the_one_after(places, accuracies, place):
    return next(a for p, a in zip(places, accuracies) if p >= place)


def the_nearest(places, accuracies, place):
    return accuracies[min(range(len(places)), key=lambda i: abs(places[i] - place))]


def best_so_far(places, accuracies, place):
    return max(np.interp(place, places, accuracies), *accuracies[: bisect.bisect(places, place)])


def from_zero(places, accuracies, place):
    return np.interp(place, [0, *places], [0, *accuracies])


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


def seconds_of_a_mean_epoch(first, second):
    def evened(run):
        mean = sum(seconds for _, seconds, _ in run) / len(run)
        return [(updates, mean, accuracy) for updates, _, accuracy in run]

    return comparing()(evened(first), evened(second))


def sorts_its_runs(first, second):
    first.sort(key=lambda epoch: epoch[2])
    return comparing()(first, second)


def fails_on_one_epoch(first, second):
    if len(first) == 1:
        raise ValueError("too short")
    return comparing()(first, second)


def right_for_the_example(first, second):
    known = {"epochs": -0.1, "updates": 0.05, "seconds": -0.2 / 3}
    return known if len(second) == 3 else dict.fromkeys(known, 0.0)


# --- 03-3


def planning(each=None, full=None, begin=None, rise=None, lowered=None):
    """learning_rates with one thing wrong."""
    each = each or (lambda n, k, b: math.ceil(n / (k * b)))
    full = full or (lambda lr, k: k * lr)
    rise = rise or (lambda update, warmup: update / warmup)
    lowered = lowered or (lambda drops, epoch, update: sum(drop <= epoch for drop in drops))

    def learning_rates(n, k, b, epochs, lr, warmup_epochs, drops):
        updates, low = each(n, k, b), lr if begin is None else begin
        warmup, rates = updates * warmup_epochs, []
        for update in range(updates * epochs):
            if update < warmup:
                rates.append(low + (full(lr, k) - low) * rise(update, warmup))
            else:
                times = lowered(drops, update // updates, update)
                rates.append(full(lr, k) * 0.1**times)
        return rates

    return learning_rates


def by_the_epoch(n, k, b, epochs, lr, warmup_epochs, drops):
    updates = math.ceil(n / (k * b))
    rates = planning()(n, k, b, epochs, lr, warmup_epochs, drops)
    return [rates[update // updates * updates] for update in range(len(rates))]


def by_the_same_factor(n, k, b, epochs, lr, warmup_epochs, drops):
    warmup = math.ceil(n / (k * b)) * warmup_epochs
    rates = planning()(n, k, b, epochs, lr, warmup_epochs, drops)
    return [lr * k ** (u / warmup) if u < warmup else rate for u, rate in enumerate(rates)]


def an_epoch_too_early(n, k, b, epochs, lr, warmup_epochs, drops):
    updates = math.ceil(n / (k * b))
    rates = planning()(n, k, b, epochs, lr, warmup_epochs, [])
    return [rate * 0.1 ** sum(drop <= update // updates + 1 for drop in drops) for update, rate in enumerate(rates)]


def divides_by_the_warmup(n, k, b, epochs, lr, warmup_epochs, drops):
    updates = math.ceil(n / (k * b))
    return [
        (lr + (k - 1) * lr * min(1, update / (updates * warmup_epochs)))
        * 0.1 ** sum(drop <= update // updates for drop in drops)
        for update in range(updates * epochs)
    ]


def right_without_a_rest(n, k, b, epochs, lr, warmup_epochs, drops):
    return planning()(n // (k * b) * k * b, k, b, epochs, lr, warmup_epochs, drops)


def pops_the_drops(n, k, b, epochs, lr, warmup_epochs, drops):
    rates, rate = [], k * lr
    for rate_ in planning()(n, k, b, epochs, lr, warmup_epochs, []):
        epoch = len(rates) // math.ceil(n / (k * b))
        if drops and epoch == drops[-1]:
            drops.pop()
            rate /= 10
        rates.append(min(rate_, rate))
    return rates


def summed_variance(means, variances, counts):
    mean = np.average(means, axis=0, weights=counts)
    return mean, np.average(variances, axis=0, weights=counts)


def equal_weights(means, variances, counts):
    mean = np.mean(means, axis=0)
    return mean, np.mean(variances, axis=0) + np.var(means, axis=0)


def unweighted_variance(means, variances, counts):
    return (np.average(means, axis=0, weights=counts), np.mean(variances, axis=0) + np.var(means, axis=0))


def doubled_variance(means, variances, counts):
    mean, root = deviation(means, variances, counts)
    return mean, 2 * root**2


def deviation(means, variances, counts):
    mean = np.average(means, axis=0, weights=counts)
    return mean, np.sqrt(np.average(np.array(variances) + (np.array(means) - mean) ** 2, axis=0, weights=counts))


WRONG = {
    "03-1": [
        (trains(per_device), "2 devices.* 2 times the right one", "2 台のデバイスに 4 枚.* 2 倍"),
        (trains(number_of_devices), "4 times the right one", "4 倍"),
        (trains(all_images, whole=True), "2 times the right one", "2 倍"),
        (trains(number_of_devices, mean=True), "[+] 2.: each shard's", "シャードごとに損失を平均"),
        (trains(all_images, only_first=True), "gradient of device 0", "デバイス 0 の勾配だけ"),
        (trains(all_images, record=False), "no parameter changed", "パラメータが変化していません"),
        (trains(all_images, even=True), "ValueError.*even_split", "ValueError.*even_split"),
        (moves_the_first_weights_by_one, "first weights moved", r"最初の重みの変化は \[1(, 1)+\]"),
    ],
    "03-2": [
        (comparing(sign=-1), "not the other way round", "逆になって"),
        (comparing(last_accuracy, none=False), "the last accuracies of both", "最後の正解率"),
        (comparing(added=False), "add them up", "足していって"),
        (comparing(the_one_before), "does not wait for the next", "次の計測までそのまま"),
        (comparing(the_nearest), "not the nearest measurement", "最も近い計測値では"),
        (comparing(none=False), "a run has no accuracy: None", "None です"),
        (comparing(from_zero, none=False), "None, not 0", "0 と計測された"),
        (comparing(end=max, none=False), "the last accuracies of both", "最後の正解率"),
        (comparing(the_one_after), "it has not reached the next yet", "まだ次の計測の値には"),
        (seconds_of_an_epoch_alone, "the seconds are those of each epoch alone", "足していって"),
        (seconds_of_a_mean_epoch, r"-?[\d.]+, expected -?[\d.]+$", r"正しくは -?[\d.]+ です$"),
        (comparing(best_so_far), r"is -?[\d.]+, expected -?[\d.]+$", r"正しくは -?[\d.]+ です$"),
        (lambda first, second: comparing()(first, second)["epochs"],
         'returned -0.0.*: return a dictionary with "epochs"', "の辞書を返して"),
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (lambda first, second: {"epochs": 0}, 'a dictionary with "epochs"', "の辞書を返して"),
        (lambda first, second: dict.fromkeys(("epochs", "updates", "seconds"), "0"), "'0', expected", "正しくは"),
        (fails_on_one_epoch, "ValueError: too short", "ValueError: too short"),
        (right_for_the_example, r"is 0, expected 0.2$", "正しくは 0.2 です$"),
        (sorts_its_runs, r"is -?[\d.]+, expected -?[\d.]+$", r"正しくは -?[\d.]+ です$"),
    ],
    "03-3": [
        (planning(each=lambda n, k, b: n // (k * b)), "the end of an epoch", "最後の小さいバッチ"),
        (planning(each=lambda n, k, b: math.ceil(n / b)), "all devices together", "全デバイス分"),
        (planning(full=lambda lr, k: lr), "does not grow", "デバイス数に比例"),
        (planning(full=lambda lr, k: lr * math.sqrt(k)), "square root rule", "平方根の規則"),
        (planning(begin=0), "not at 0", "0 からではなく"),
        (planning(rise=lambda u, w: (u + 1) / w), "each later one is a step higher", "1 回ごとに"),
        (planning(rise=lambda u, w: u / (w - 1) if w > 1 else 0), "after the warm-up$", "次の更新です$"),
        (planning(rise=lambda u, w: 1), "the warm-up is missing", "ウォームアップがありません"),
        (planning(rise=lambda u, w: 0), "does not jump at the end", "一気に"),
        (planning(rise=lambda u, w: (u / w) ** 2), "1 .* expected 0.15$", "正しくは 0.15 です$"),
        (planning(lowered=lambda d, e, u: 0), "the drops are missing", "引き下げがありません"),
        (planning(lowered=lambda d, e, u: sum(x < e for x in d)), "epochs count from 0", "0 から数え"),
        (planning(lowered=lambda d, e, u: sum(x == e for x in d)), "lowered it stays", "低いまま"),
        (planning(lowered=lambda d, e, u: int(any(x <= e for x in d))), "a hundredth", "100 分の 1"),
        (planning(lowered=lambda d, e, u: sum(x <= u for x in d)), "not updates", "更新の番号では"),
        (by_the_epoch, "rises with every update, not once in an epoch", "エポックごとではなく"),
        (planning(each=lambda n, k, b: n // (k * b) + 1), "there is no update", "最後のバッチの後"),
        (by_the_same_factor, "not by the same factor", "同じ倍率では"),
        (an_epoch_too_early, "an epoch too early: epochs count from 0", "1 エポック早すぎ"),
        (lambda n, k, b, epochs, lr, warmup_epochs, drops: planning()(
                n, k, b, epochs, lr, max(1, warmup_epochs), drops
            ), "0 epochs of warm-up.*has the rate 0.1, expected 0.2$", "正しくは 0.2 です$"),
        (lambda n, k, b, epochs, lr, warmup_epochs, drops: planning()(k * b, k, b, epochs, lr, warmup_epochs, drops),
         "3 rates, expected 6", "6 個のはず"),
        (right_without_a_rest, "at the end of an epoch makes", "最後の小さいバッチ"),
        (divides_by_the_warmup, "ZeroDivisionError", "ZeroDivisionError"),
        (lambda n, k, b, epochs, lr, warmup_epochs, drops: k * lr, "return a list of numbers", "数のリスト"),
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (pops_the_drops, r"has the rate [\d.]+, expected [\d.]+$", "です$"),
    ],
    "03-4": [
        (summed_variance, "how far their means lie apart", "平均どうしのずれ"),
        (equal_weights, "counts more: weight by `counts`", "画像の多いシャード"),
        (deviation, "standard deviation", "標準偏差"),
        (unweighted_variance, "counts more here, too: weight by `counts`", "ここでも"),
        (lambda means, variances, counts: (np.sum(means, axis=0), np.sum(variances, axis=0)),
         "the means are only added up", "足しただけ"),
        (lambda means, variances, counts: (means[0], variances[0]), r"mean 10, expected 8$", "正しくは 8 です$"),
        (doubled_variance, r"variance 8, expected 4$", "正しくは 4 です$"),
        (lambda means, variances, counts: np.mean(means, axis=0), "return two things", "平均と分散の 2 つ"),
    ],
    "03-5": [
        (lambda host, compute, total, k: max(host, compute) / max(k * host, compute + (k > 1) * total),
         "k times the images", "k 倍の枚数"),
        (lambda host, compute, total, k: k * max(host, compute) / max(host, compute + (k > 1) * total),
         "one device after the other", "1 台ずつ順に"),
        (lambda host, compute, total, k: k * max(host, compute) / max(k * host, compute + total),
         "one device has nothing to sum", "1 台なら合計は要らず"),
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
