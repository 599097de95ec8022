"""Answers to lab 02 that students give, and what they are told."""

import math

import numpy as np
from mxnet import gluon, nd


def rebinds(data):
    total = data[0].copy()
    for other in data[1:]:
        total = total + other.as_in_context(total.context)
    for i, array in enumerate(data):
        data[i] = total.as_in_context(array.context)


def never_comes_back(data):
    for other in data[1:]:
        data[0][:] += other.as_in_context(data[0].context)


def counts_the_first_twice(data):
    total = data[0].copy()
    for array in data:
        total += array.as_in_context(total.context)
    for array in data:
        total.copyto(array)


def _total(data):
    total = data[0].copy()
    for array in data[1:]:
        total += array.as_in_context(total.context)
    return total


def copies_to_new_arrays(data):
    total = _total(data)
    total.copyto(data[0])
    for array in data[1:]:
        array = total.copyto(array.context)


def rebinds_a_name(data):
    total = _total(data)
    for array in data:
        array = total.as_in_context(array.context)


def multiplies(data):
    total = data[0].copy()
    for array in data[1:]:
        total *= array.as_in_context(total.context)
    for array in data:
        total.copyto(array)


def sums_and_one(data):
    total = _total(data) + 1
    for array in data:
        total.copyto(array)


def averages(data):
    total = data[0].copy()
    for array in data[1:]:
        total += array.as_in_context(total.context)
    for array in data:
        array[:] = (total / len(data)).as_in_context(array.context)


def adds_while_it_changes(data):
    for i, array in enumerate(data):
        for j, other in enumerate(data):
            if i != j:
                array += other.as_in_context(array.context)


def adds_across_devices(data):
    for other in data[1:]:
        data[0][:] += other
    for other in data[1:]:
        data[0].copyto(other)


def through_the_host(data):
    total = sum(array.asnumpy() for array in data)
    for array in data:
        array[:] = total


def for_two_devices(data):
    data[0][:] += data[1].as_in_context(data[0].context)
    data[0].copyto(data[1])


# --- 02-2


def _small(gradient, weights, shards, lr):
    """Where the small updates end."""
    for shard in shards:
        weights = weights - lr * gradient(weights, shard)
    return weights


def _mean(gradient, weights, shards):
    return sum(gradient(weights, shard) for shard in shards) / len(shards)


def _factor(way, large, lr):
    return way @ large / (large @ large) / lr


def small_ones_from_the_beginning(gradient, weights, shards, lr):
    way = sum(lr * gradient(weights, shard) for shard in shards)
    return _factor(way, _mean(gradient, weights, shards), lr)


def sums_gradients(gradient, weights, shards, lr):
    large = sum(gradient(weights, shard) for shard in shards)
    return _factor(weights - _small(gradient, weights, shards, lr), large, lr)


def uphill(gradient, weights, shards, lr):
    way = _small(gradient, weights, shards, lr) - weights
    return _factor(way, _mean(gradient, weights, shards), lr)


def writes_into_the_weights(gradient, weights, shards, lr):
    small = weights
    for shard in shards:
        small -= lr * gradient(small, shard)
    return _factor(weights - small, _mean(gradient, weights, shards), lr)


def large_one_from_the_end(gradient, weights, shards, lr):
    end = _small(gradient, weights, shards, lr)
    return _factor(weights - end, _mean(gradient, end, shards), lr)


def compares_lengths(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return np.linalg.norm(way) / np.linalg.norm(lr * _mean(gradient, weights, shards))


def the_other_way_round(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return way @ way / (way @ _mean(gradient, weights, shards)) / lr


def weight_by_weight(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return np.mean(way / _mean(gradient, weights, shards)) / lr


def a_factor_for_each(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return way / _mean(gradient, weights, shards) / lr


def all_shards_at_once(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return _factor(way, gradient(weights, shards), lr)


def the_first_shard(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return _factor(way, gradient(weights, shards[0]), lr)


def the_last_shard(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return _factor(way, gradient(weights, shards[-1]), lr)


def the_last_update(gradient, weights, shards, lr):
    before = _small(gradient, weights, shards[:-1], lr)
    way = lr * gradient(before, shards[-1])
    return _factor(way, _mean(gradient, weights, shards), lr)


def end_for_way(gradient, weights, shards, lr):
    end = _small(gradient, weights, shards, lr)
    return _factor(end, _mean(gradient, weights, shards), lr)


def forgets_the_rate(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, 1)
    return _factor(way, _mean(gradient, weights, shards), 1)


def whole_factors_only(gradient, weights, shards, lr):
    end, large = _small(gradient, weights, shards, lr), _mean(gradient, weights, shards)
    return min(range(20), key=lambda c: np.linalg.norm(weights - c * lr * large - end))


def a_distance(gradient, weights, shards, lr):
    end, large = _small(gradient, weights, shards, lr), _mean(gradient, weights, shards)
    return np.linalg.norm(weights - len(shards) * lr * large - end)


def no_factor(gradient, weights, shards, lr):
    best_factor(gradient, weights, shards, lr)


def best_factor(gradient, weights, shards, lr):
    way = weights - _small(gradient, weights, shards, lr)
    return _factor(way, _mean(gradient, weights, shards), lr)


# --- 02-3


def takes_any_of_equals(accuracy_of, ks, b, rates):
    best = {}
    for k in ks:
        accuracies = {lr: accuracy_of(k, k * b, lr) for lr in rates}
        best[k] = max((lr for lr in rates if not math.isnan(accuracies[lr])), key=accuracies.get)
    return best


def stops_at_the_first_fall(accuracy_of, ks, b, rates):
    best = {}
    for k in ks:
        so_far = -1
        for lr in sorted(rates):
            accuracy = accuracy_of(k, k * b, lr)
            if math.isnan(accuracy) or accuracy <= so_far:
                break
            best[k], so_far = lr, accuracy
    return best


def trains_twice(accuracy_of, ks, b, rates):
    best = {}
    for k in ks:
        learned = [lr for lr in sorted(rates) if not math.isnan(accuracy_of(k, k * b, lr))]
        best[k] = max(learned, key=lambda lr: accuracy_of(k, k * b, lr))
    return best


def _add_up(copies, owner):
    for device, copy in enumerate(copies):
        if device != owner:
            copies[owner][:] += copy.as_in_context(copies[owner].context)
    for device, copy in enumerate(copies):
        if device != owner:
            copies[owner].copyto(copy)


def the_star(gradients):
    for copies in zip(*gradients):
        _add_up(copies, 0)


def by_turns(gradients):
    for j, copies in enumerate(zip(*gradients)):
        _add_up(copies, j % len(gradients))


def neighbours_together(gradients):
    k, parameters = len(gradients), list(zip(*gradients))
    for j, copies in enumerate(parameters):
        _add_up(copies, j * k // len(parameters))


def only_the_first_parameters(gradients):
    for owner, copies in enumerate(list(zip(*gradients))[: len(gradients)]):
        _add_up(copies, owner)


def leaves_it_with_the_owner(gradients):
    for j, copies in enumerate(zip(*gradients)):
        owner = j % len(gradients)
        for device, copy in enumerate(copies):
            if device != owner:
                copies[owner][:] += copy.as_in_context(copies[owner].context)


def adds_by_owner_across_devices(gradients):
    for j, copies in enumerate(zip(*gradients)):
        owner = j % len(gradients)
        total = nd.add_n(*copies[owner:], *copies[:owner])
        for copy in copies:
            total.copyto(copy)


def _split(array, ctxs):
    return gluon.utils.split_and_load(array, ctxs[: len(array)], even_split=False)


def _batches(images, labels, size):
    for begin in range(0, len(images), size):
        yield images[begin : begin + size], labels[begin : begin + size]


def on_one_device(net, replicas, images, labels, size):
    ctx, right = replicas[0][0].context, 0
    for x, y in _batches(images, labels, size):
        right = right + (net(x.as_in_context(ctx), replicas[0]).argmax(axis=1) == y.as_in_context(ctx)).sum()
    return right.asscalar() / len(images)


def averages_batches(net, replicas, images, labels, size):
    ctxs, accuracies = [replica[0].context for replica in replicas], []
    for x, y in _batches(images, labels, size):
        parts = zip(_split(x, ctxs), _split(y, ctxs), replicas)
        accuracies.append(sum((net(s, r).argmax(axis=1) == t).sum().asscalar() for s, t, r in parts) / len(x))
    return sum(accuracies) / len(accuracies)


def drops_the_last_batch(net, replicas, images, labels, size):
    ctxs, right, whole = ([replica[0].context for replica in replicas], 0, len(images) - len(images) % size)
    for x, y in _batches(images[:whole], labels[:whole], size):
        right += sum(
            (net(s, r).argmax(axis=1) == t).sum().asscalar()
            for s, t, r in zip(_split(x, ctxs), _split(y, ctxs), replicas)
        )
    return right / len(images)


def drops_the_first_batch(net, replicas, images, labels, size):
    return drops_the_last_batch(net, replicas, images[::-1], labels[::-1], size)


def asks_after_every_batch(net, replicas, images, labels, size):
    ctxs, right = [replica[0].context for replica in replicas], 0
    for x, y in _batches(images, labels, size):
        right += sum(
            (net(s, r).argmax(axis=1) == t).sum().asscalar()
            for s, t, r in zip(_split(x, ctxs), _split(y, ctxs), replicas)
        )
    return right / len(images)


def counts(net, replicas, images, labels, size):
    return asks_after_every_batch(net, replicas, images, labels, size) * len(images)


def mixes_up_the_replicas(net, replicas, images, labels, size):
    ctxs, right = [replica[0].context for replica in replicas], 0
    for x, y in _batches(images, labels, size):
        right += sum(
            (net(s, replicas[0]).argmax(axis=1) == t).sum().asscalar() for s, t in zip(_split(x, ctxs), _split(y, ctxs))
        )
    return right / len(images)


WRONG = {
    "02-1": [
        (rebinds, "new arrays were made or returned", "元の配列は変わっていません"),
        (never_comes_back, "1 holds .* the sum never came back to this device", "戻されていません"),
        (counts_the_first_twice, "was counted twice", "2 回足して"),
        (averages, "that is the mean", "平均です"),
        (copies_to_new_arrays, "into an array of its own", "別の新しい配列"),
        (rebinds_a_name, "into an array of its own", "別の新しい"),
        (lambda data: data, "no array has changed$", "どの配列も変わって"),
        (lambda data: [_total(data).as_in_context(array.context) for array in data], "new arrays were made or returned",
         "新しい配列を作っただけ"),
        (multiplies, r"device 0 holds \[15\] afterwards, expected \[8\]$", "正しくは"),
        (sums_and_one, r"device 0 holds \[9\] afterwards, expected \[8\]$", "正しくは"),
        (adds_while_it_changes, r"expected \[8\]: the devices do not agree", "デバイスによって値"),
        (adds_across_devices, r"an operation had arrays of cpu\(0\)", "2 個の GPU では動きません"),
        (through_the_host, "Python waited 2 times", "2 回待ちました"),
    ],
    "02-2": [
        (lambda gradient, weights, shards, lr: len(shards), "2, expected 1.9: that is the rule itself",
         "則そのものです"),
        (small_ones_from_the_beginning, "2, expected 1.9: that is the rule", "則そのもの"),
        (lambda gradient, weights, shards, lr: len(shards) ** 0.5, r"is 1.41421, expected 1.9$", r"正しくは 1.9 です$"),
        (sums_gradients, "0.95, expected 1.9: .*mean of the shards'", "和ではなく平均"),
        (lambda gradient, weights, shards, lr: lr * best_factor(gradient, weights, shards, lr),
         "0.1, expected 1: that is the rate", "学習率 c . lr です"),
        (uphill, "-1, expected 1: the sign is wrong", "符号が逆です"),
        (writes_into_the_weights, "`weights` has been changed", "書き換えられていて"),
        (large_one_from_the_end, "large update begins at `weights`", "終点ではなく `weights`"),
        (compares_lengths, "both go equally far then", "進む長さが等しくなるだけ"),
        (the_other_way_round, "way of the small updates, not of the large", "直交させる相手"),
        (weight_by_weight, "mean of the factors of single weights", "重みごとの倍率の平均"),
        (a_factor_for_each, r"returned array\(\[.*: return a number", "数値を返して"),
        (all_shards_at_once, "it takes all weights and one shard", "シャード 1 つです"),
        (the_first_shard, "takes all shards, not the first", "最初のシャードだけでなく"),
        (the_last_shard, "takes all shards, not the last", "最後のシャードだけでなく"),
        (the_last_update, "that is the last of them", "最後の更新 1 回分"),
        (end_for_way, "is not how far it has gone", "進んだ分を使います"),
        (forgets_the_rate, "lr times the gradient, not the gradient", "その lr 倍です"),
        (whole_factors_only, "is 2, expected 1.9$", "正しくは 1.9 です$"),
        (a_distance, "is 0, expected 1$", "正しくは 1 です$"),
        (no_factor, "is `return` missing", "`return` を忘れて"),
        (lambda *given: given[2][9], "IndexError", "IndexError"),
    ],
    "02-3": [
        (lambda accuracy_of, ks, b, rates: {k: max(sorted(rates), key=lambda lr: accuracy_of(k, b, lr)) for k in ks},
         "on 2 devices a training", "全体のバッチサイズ 32 の学習"),
        (lambda accuracy_of, ks, b, rates: {k: max(rates, key=lambda lr: accuracy_of(k, k * b, lr)) for k in ks},
         "that training diverged", "発散して"),
        (takes_any_of_equals, "of equal accuracies take the smaller rate", "小さいほうの学習率"),
        (lambda accuracy_of, ks, b, rates: {k: max(accuracy_of(k, k * b, lr) for lr in rates) for k in ks},
         "that is an accuracy: return its rate", "これは正解率です"),
        (lambda accuracy_of, ks, b, rates: max(sorted(rates), key=lambda lr: accuracy_of(ks[0], ks[0] * b, lr)),
         "return a dictionary", "辞書を返して"),
        (stops_at_the_first_fall, "you chose 0.1, expected 0.8", "また上がる.*0.1 が選ばれました"),
        (trains_twice, "were trained 2 times", "2 回行われました"),
    ],
    "02-4": [
        (the_star, r"cpu\(0\) collects everything, as in the star", "星形と同じく"),
        (by_turns, "owns too much. Give away the largest", "担当分が多すぎます"),
        (neighbours_together, "owns too much. Give away the largest", "担当分が多すぎます"),
        (only_the_first_parameters, "no array has changed", "どの配列も変わって"),
        (leaves_it_with_the_owner, "device 1 holds .* the sum never came back", "戻されていません"),
        (adds_by_owner_across_devices, "an operation had arrays of", "2 個の GPU では動きません"),
    ],
    "02-5": [
        (on_one_device, r"cpu\(0\) computed 4 of the images, 2 are its share", "担当分は 2 枚"),
        (averages_batches, "the mean of the batches' accuracies", "バッチごとの正解率の平均"),
        (drops_the_last_batch, "only 4 images were computed, and not number 4-6$", "4 枚しか"),
        (drops_the_first_batch, "only 4 images were computed, and not number 0-2$", "4 枚しか"),
        (lambda net, replicas, images, labels, size: 0.25, "only 0 images were computed", "0 枚しか計算して"),
        (lambda net, replicas, images, labels, size: 0.9 * asks_after_every_batch(net, replicas, images, labels, size),
         "then divide by the number of images$", "割ってください$"),
        (asks_after_every_batch, "Python waited .* times", "回待ちました"),
        (counts, "that is how many are right", "割合ではなく正解数"),
        (mixes_up_the_replicas, r"got images on cpu\(1\) with the replica", "同じデバイスのもの"),
    ],
}  # fmt: skip


def everybody_to_everybody(data):
    before = [array.copy() for array in data]
    for i, array in enumerate(data):
        for other in before[:i] + before[i + 1 :]:
            array += other.as_in_context(array.context)


def of_one_large_batch(gradient, weights, shards, lr):
    """All images in one array, and a copy that is written into."""
    small = weights.copy()
    for shard in shards:
        small -= lr * gradient(small, shard)
    large = gradient(weights, np.concatenate(shards))
    return np.dot(large, weights - small) / np.dot(large, large) / lr


def by_least_squares(gradient, weights, shards, lr):
    large = np.mean([gradient(weights, shard) for shard in shards], axis=0)
    way = weights - _small(gradient, weights, shards, lr)
    return np.linalg.lstsq((lr * large)[:, None], way, rcond=None)[0]


def by_search(gradient, weights, shards, lr):
    """Thirds of an interval, as often as it takes."""
    end, large = _small(gradient, weights, shards, lr), _mean(gradient, weights, shards)
    low, high = -50.0, 50.0
    while high - low > 1e-6:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        far = [np.linalg.norm(weights - c * lr * large - end) for c in (left, right)]
        low, high = (low, right) if far[0] < far[1] else (left, high)
    return low


def by_recursion(gradient, weights, shards, lr):
    def after(now, rest):
        return after(now - lr * gradient(now, rest[0]), rest[1:]) if rest else now

    unit = _mean(gradient, weights, shards)
    length = np.linalg.norm(unit)
    return np.float32((weights - after(weights, list(shards))) @ (unit / length) / (lr * length))


def with_numpy(accuracy_of, ks, batch, rates):
    rates = np.sort(rates)
    return {k: rates[np.nanargmax([accuracy_of(k, k * batch, lr) for lr in rates])] for k in ks}


def by_chunk(gradients):
    k = len(gradients)
    for copies in zip(*gradients):
        flat = [copy.reshape(-1) for copy in copies]
        ends = [len(flat[0]) * i // k for i in range(k + 1)]
        for owner, begin, end in zip(copies, ends, ends[1:]):
            if begin < end:
                total = nd.add_n(*[part[begin:end].as_in_context(owner.context) for part in flat])
                for part in flat:
                    part[begin:end] = total.as_in_context(part.context)


def asks_for_every_shard_at_the_end(net, replicas, images, labels, size):
    ctxs, labels, guesses = [replica[0].context for replica in replicas], labels.asnumpy(), []
    for x, _ in _batches(images, images, size):
        shards = gluon.utils.split_and_load(x, ctxs[: len(x)], even_split=False)
        guesses += [net(shard, replica).argmax(axis=1) for shard, replica in zip(shards, replicas)]
    return (np.concatenate([guess.asnumpy() for guess in guesses]) == labels).mean()


RIGHT = {
    "02-1": [everybody_to_everybody],
    "02-2": [of_one_large_batch, by_least_squares, by_search, by_recursion],
    "02-3": [with_numpy],
    "02-4": [by_chunk],
    "02-5": [asks_for_every_shard_at_the_end],
}
