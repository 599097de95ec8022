"""Answers to lab 02 that students give, and what they are told."""

import math

import numpy as np
from changed_solution import change
from mxnet import gluon, nd


def adds_while_it_changes(data):
    for i, array in enumerate(data):
        for j, other in enumerate(data):
            if i != j:
                array += other.as_in_context(array.context)


def through_the_host(data):
    total = sum(array.asnumpy() for array in data)
    for array in data:
        array[:] = total


# --- 02-2


def _small(gradient, weights, shards, lr):
    """Where the small updates end."""
    for shard in shards:
        weights = weights - lr * gradient(weights, shard)
    return weights


def _mean(gradient, weights, shards):
    return sum(gradient(weights, shard) for shard in shards) / len(shards)


# --- 02-3


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


def _batches(images, labels, size):
    for begin in range(0, len(images), size):
        yield images[begin : begin + size], labels[begin : begin + size]


WRONG = {
    "02-1": [
        (change("02-1", "total +=", "total = total +", "for other in others:\n        total.copyto(other)",
                "for i, array in enumerate(data):\n        data[i] = total.as_in_context(array.context)"),
         "you created new arrays", "元の配列は変わっていません"),
        (change("02-1", "total.copyto(other)", "pass"), "1 has .* the sum was never copied back to this device",
         "戻されていません"),
        (change("02-1", "total, *others = data", "total, others = data[0].copy(), data"), "was counted twice",
         "2 回足して"),
        (change("02-1", "for other in others:\n        total.copyto(other)",
                "total /= len(data)\n    for other in others:\n        total.copyto(other)"), "that is the mean",
         "平均です"),
        (change("02-1", "total.copyto(other)",
         "other = total.copyto(other.context)"), "but into a new array",
         "別の新しい配列"),
        (change("02-1", "total.copyto(other)", "other = total.as_in_context(other.context)"),
         "but into a new array", "別の新しい"),
        (lambda data: data, "no array has changed$", "どの配列も変わって"),
        (change("02-1", "total +=", "total = total +", "for other in others:\n        total.copyto(other)",
                "return [total.as_in_context(array.context) for array in data]"), "you created new arrays",
         "新しい配列を作っただけ"),
        (change("02-1", "+=", "*="), r"device 0 has \[15\] afterwards, expected \[8\]$", "正しくは"),
        (change("02-1", "for other in others:\n        total.copyto(other)",
                "total += 1\n    for other in others:\n        total.copyto(other)"),
         r"device 0 has \[9\] afterwards, expected \[8\]$", "正しくは"),
        (adds_while_it_changes, r"expected \[8\]: the devices have different results", "デバイスによって値"),
        (change("02-1", ".as_in_context(total.context)", ""), r"one operation used arrays on cpu\(0\)",
         "2 個の GPU では動きません"),
        (through_the_host, "Python waited 2 times", "2 回待ちました"),
    ],
    "02-2": [
        (lambda gradient, weights, shards, lr: len(shards), "2, expected 1.9: that is the linear rule itself",
         "則そのものです"),
        (change("02-2", "gradient(small, shard)", "gradient(weights, shard)"), "1.9: that is the linear rule",
         "則そのもの"),
        (lambda gradient, weights, shards, lr: len(shards) ** 0.5, r"is 1.41421, expected 1.9$", r"正しくは 1.9 です$"),
        (change("02-2", " / len(shards)", ""), "0.95, expected 1.9: .*mean of the shards'", "和ではなく平均"),
        (change("02-2", "(lr * (large @ large))", "(large @ large)"), "0.1, expected 1: that is the learning rate",
         "学習率 c . lr です"),
        (change("02-2", "(weights - small)", "(small - weights)"), "-1, expected 1: the sign is wrong", "符号が逆です"),
        (change("02-2", "small = small - lr", "small -= lr"),
         "`-=` writes into the array itself", "書き換えられていて"),
        (change("02-2", "large = sum(gradient(weights,", "large = sum(gradient(small,"),
         "not where the small updates ended", "終点ではなく `weights`"),
        (change("02-2", "return (weights - small) @ large / (lr * (large @ large))",
                "return np.linalg.norm(weights - small) / np.linalg.norm(lr * large)"),
                "c brings their ends closer together",
         "進む長さが等しくなるだけ"),
        (change("02-2", "@ large / (lr * (large @ large))", "@ (weights - small) / ((weights - small) @ large) / lr"),
         "be perpendicular to the large update", "直交させる相手"),
        (change("02-2", "return (weights - small) @ large / (lr * (large @ large))",
                "return ((weights - small) / large).mean() / lr"), "which does not minimize the distance",
         "重みごとの倍率の平均"),
        (change("02-2", "return (weights - small) @ large / (lr * (large @ large))",
                "return (weights - small) / large / lr"), r"returned array\(\[.*: return a number", "数値を返して"),
        (change("02-2", "sum(gradient(weights, shard) for shard in shards) / len(shards)", "gradient(weights, shards)"),
         "pass all weights and one shard", "シャード 1 つです"),
        (change("02-2", "sum(gradient(weights, shard) for shard in shards) / len(shards)",
                "gradient(weights, shards[0])"), "all shards, not only the first", "最初のシャードだけでなく"),
        (change("02-2", "sum(gradient(weights, shard) for shard in shards) / len(shards)",
                "gradient(weights, shards[-1])"), "all shards, not only the last", "最後のシャードだけでなく"),
        (change("02-2", "small = small - lr", "before, small = small, small - lr", "(weights - small) @",
                "(before - small) @"), "the k small updates from `weights`", "最後の更新 1 回分"),
        (change("02-2", "(weights - small) @", "small @"), "from `weights` to get the distance", "進んだ分を使います"),
        (change("02-2", "lr * ", ""), "lr times the gradient, not the gradient", "その lr 倍です"),
        (change("02-2", "return (weights - small) @ large / (lr * (large @ large))",
                "return min(range(20), key=lambda c: np.linalg.norm(weights - c * lr * large - small))"),
         "is 2, expected 1.9$", "正しくは 1.9 です$"),
        (change("02-2", "return (weights - small) @ large / (lr * (large @ large))",
                "return np.linalg.norm(weights - len(shards) * lr * large - small)"), "is 0, expected 1$",
         "正しくは 1 です$"),
        (change("02-2", "return (", "("), "is `return` missing", "`return` を忘れて"),
        (lambda *given: given[2][9], "IndexError", "IndexError"),
    ],
    "02-3": [
        (change("02-3", "k * batch_per_device", "batch_per_device"), "64: 32 images on each device",
         "全体のバッチサイズ 32 の学習"),
        (change("02-3", "[lr for lr, accuracy in accuracies.items() if not math.isnan(accuracy)]", "rates"),
         "that training diverged", "発散して"),
        (change("02-3", "sorted(rates)", "rates"),
         "if accuracies are equal, choose the smaller learning rate", "小さいほうの学習率"),
        (change("02-3", "max(learned, key=accuracies.get)", "max(accuracies.values())"),
         "that is an accuracy: return its learning rate", "これは正解率です"),
        (change("02-3", "return best", "return best[ks[0]]"), "return a dictionary", "辞書を返して"),
        (stops_at_the_first_fall, "you chose 0.1, expected 0.8", "また上がる.*0.1 が選ばれました"),
        (change("02-3", "key=accuracies.get", "key=lambda lr: accuracy_of(k, k * batch_per_device, lr)"),
         "were trained 2 times", "2 回行われました"),
    ],
    "02-4": [
        (change("02-4", "owned.index(min(owned))", "0"), r"cpu\(0\) collects everything, as in the star",
         "星形と同じく"),
        (change("02-4", "for copies in by_size:", "for j, copies in enumerate(zip(*gradients)):",
                "owned.index(min(owned))", "j % len(gradients)"), "device that owns least so far",
         "担当分が多すぎます"),
        (change("02-4", "for copies in by_size:", "for j, copies in enumerate(zip(*gradients)):",
                "owned.index(min(owned))", "j * len(gradients) // len(by_size)"),
         "device that owns least so far", "担当分が多すぎます"),
        (change("02-4", "for copies in by_size:",
                "for j, copies in enumerate(list(zip(*gradients))[: len(gradients)]):", "owned.index(min(owned))", "j"),
         "no array has changed", "どの配列も変わって"),
        (change("02-4", "total.copyto(other)", "pass"), "device 1 has .* the sum was never copied back",
         "戻されていません"),
        (change("02-4", ".as_in_context(total.context)", ""), "one operation used arrays on",
         "2 個の GPU では動きません"),
    ],
    "02-5": [
        (change("02-5", "    ctxs", "    replicas = replicas[:1]\n    ctxs"),
         r"cpu\(0\) computed 4 images instead of 2", "担当分は 2 枚"),
        (change("02-5", "    right = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]\n", "    accuracies = []\n",
                "        busy", "        right = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]\n        busy",
                "    return sum(count.asscalar() for count in right) / len(images)",
                "        accuracies.append(sum(count.asscalar() for count in right) / len(x))\n"
                "    return sum(accuracies) / len(accuracies)"), "the mean of the batches' accuracies",
         "バッチごとの正解率の平均"),
        (change("02-5", "range(0, len(images),", "range(0, len(images) - global_batch_size + 1,"),
         "only 4 images were computed; missing: 4-6$", "4 枚しか"),
        (change("02-5", "range(0, len(images),", "range(len(images) % global_batch_size, len(images),"),
         "only 4 images were computed; missing: 0-2$", "4 枚しか"),
        (lambda net, replicas, images, labels, size: 0.25, "only 0 images were computed", "0 枚しか計算して"),
        (change("02-5", "return sum", "return 0.9 * sum"), "then divide by the number of images$", "割ってください$"),
        (change("02-5", "    return sum", "        [count.asscalar() for count in right]\n    return sum"),
         "Python waited .* times", "回待ちました"),
        (change("02-5", " / len(images)", ""), "of correct images, not the fraction", "割合ではなく正解数"),
        (change("02-5", "net(shard, replica)", "net(shard, replicas[0])"), r"images on cpu\(1\), but its replica",
         "同じデバイスのもの"),
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
