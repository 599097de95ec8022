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


def returns_what_it_was_given(data):
    return data


def returns_sums(data):
    return [_total(data).as_in_context(array.context) for array in data]


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


def keeps_the_batch(k, b, lr, images):
    return b, k * lr, math.ceil(images / b)


def keeps_the_rate(k, b, lr, images):
    return k * b, lr, math.ceil(images / (k * b))


def divides_the_rate(k, b, lr, images):
    return k * b, lr / k, math.ceil(images / (k * b))


def takes_the_square_root(k, b, lr, images):
    return k * b, math.sqrt(k) * lr, math.ceil(images / (k * b))


def drops_the_ragged_batch(k, b, lr, images):
    return k * b, k * lr, images // (k * b)


def one_more_step(k, b, lr, images):
    return k * b, k * lr, images // (k * b) + 1


def rounds_steps(k, b, lr, images):
    return k * b, k * lr, round(images / (k * b))


def steps_of_one_device(k, b, lr, images):
    return k * b, k * lr, math.ceil(images / b)


def a_step_too_many(k, b, lr, images):
    return k * b, k * lr, math.ceil(images / (k * b)) + 1


def squares_the_rate(k, b, lr, images):
    return k * b, k * k * lr, math.ceil(images / (k * b))


def one_number(k, b, lr, images):
    return k * b


def forgets_to_scale_the_batch(accuracy_of, ks, b, rates):
    return {k: max(sorted(rates), key=lambda lr: accuracy_of(k, b, lr)) for k in ks}


def believes_nan(accuracy_of, ks, b, rates):
    return {k: max(rates, key=lambda lr: accuracy_of(k, k * b, lr)) for k in ks}


def takes_any_of_equals(accuracy_of, ks, b, rates):
    best = {}
    for k in ks:
        accuracies = {lr: accuracy_of(k, k * b, lr) for lr in rates}
        best[k] = max((lr for lr in rates if not math.isnan(accuracies[lr])), key=accuracies.get)
    return best


def returns_accuracies(accuracy_of, ks, b, rates):
    return {k: max(accuracy_of(k, k * b, lr) for lr in rates) for k in ks}


def one_for_all(accuracy_of, ks, b, rates):
    return max(sorted(rates), key=lambda lr: accuracy_of(ks[0], ks[0] * b, lr))


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
        right = (
            right
            + (net(x.as_in_context(ctx), replicas[0]).argmax(axis=1) == y.as_in_context(ctx)).sum()
        )
    return right.asscalar() / len(images)


def averages_batches(net, replicas, images, labels, size):
    ctxs, accuracies = [replica[0].context for replica in replicas], []
    for x, y in _batches(images, labels, size):
        parts = zip(_split(x, ctxs), _split(y, ctxs), replicas)
        accuracies.append(
            sum((net(s, r).argmax(axis=1) == t).sum().asscalar() for s, t, r in parts) / len(x)
        )
    return sum(accuracies) / len(accuracies)


def drops_the_last_batch(net, replicas, images, labels, size):
    ctxs, right, whole = (
        [replica[0].context for replica in replicas],
        0,
        len(images) - len(images) % size,
    )
    for x, y in _batches(images[:whole], labels[:whole], size):
        right += sum(
            (net(s, r).argmax(axis=1) == t).sum().asscalar()
            for s, t, r in zip(_split(x, ctxs), _split(y, ctxs), replicas)
        )
    return right / len(images)


def drops_the_first_batch(net, replicas, images, labels, size):
    return drops_the_last_batch(net, replicas, images[::-1], labels[::-1], size)


def never_asks_the_network(net, replicas, images, labels, size):
    return 0.25


def a_tenth_less(net, replicas, images, labels, size):
    return 0.9 * asks_after_every_batch(net, replicas, images, labels, size)


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
            (net(s, replicas[0]).argmax(axis=1) == t).sum().asscalar()
            for s, t in zip(_split(x, ctxs), _split(y, ctxs))
        )
    return right / len(images)


WRONG = {
    "02-1": [
        (rebinds, "new arrays were made or returned", "元の配列は変わっていません"),
        (
            never_comes_back,
            "device 1 holds .* the sum never came back to this device",
            "戻されていません",
        ),
        (counts_the_first_twice, "was counted twice", "2 回足して"),
        (averages, "that is the mean", "平均です"),
        (copies_to_new_arrays, "into an array of its own", "別の新しい配列"),
        (rebinds_a_name, "into an array of its own", "別の新しい"),
        (returns_what_it_was_given, "no array has changed$", "どの配列も変わって"),
        (returns_sums, "new arrays were made or returned", "新しい配列を作っただけ"),
        (multiplies, r"device 0 holds \[15\] afterwards, expected \[8\]$", "正しくは"),
        (sums_and_one, r"device 0 holds \[9\] afterwards, expected \[8\]$", "正しくは"),
        (
            adds_while_it_changes,
            (
                r"\[3\], \[5\]: device 1 holds \[13\] afterwards, expected \[8\]: "
                r"the devices do not agree"
            ),
            "デバイスによって値",
        ),
        (
            adds_across_devices,
            r"an operation had arrays of cpu\(0\) and cpu\(1\)",
            "2 個の GPU では動きません",
        ),
        (through_the_host, "Python waited 2 times", "2 回待ちました"),
    ],
    "02-2": [
        (keeps_the_batch, "the global batch size is 64, expected 128", "全体のバッチサイズが 64"),
        (keeps_the_rate, "the learning rate is 0.1, expected 0.2", "学習率が 0.1"),
        (divides_the_rate, "must be longer, not shorter", "小さくではなく大きく"),
        (takes_the_square_root, "square root rule", "平方根の規則"),
        (drops_the_ragged_batch, "11 steps per epoch, expected 12", "11 ステップです"),
        (one_number, "return three numbers", "3 つの数"),
        (one_more_step, "where the images divide evenly", "割り切れるとき"),
        (rounds_steps, "however small it is: round up", "切り上げ"),
        (steps_of_one_device, "takes the images of all devices", "全デバイス分"),
        (a_step_too_many, r"21 steps per epoch, expected 20$", "正しくは 20 です$"),
        (squares_the_rate, r"learning rate is 0.4, expected 0.2$", "正しくは 0.2 です$"),
    ],
    "02-3": [
        (
            forgets_to_scale_the_batch,
            "on 2 devices a training with a global batch of 32",
            "全体のバッチサイズ 32 の学習",
        ),
        (believes_nan, "that training diverged", "発散して"),
        (takes_any_of_equals, "of equal accuracies take the smaller rate", "小さいほうの学習率"),
        (returns_accuracies, "that is an accuracy: return its rate", "これは正解率です"),
        (one_for_all, "return a dictionary", "辞書を返して"),
        (
            stops_at_the_first_fall,
            "the accuracy falls, and rises again: .* you chose 0.1, expected 0.8",
            "また上がる.*0.1 が選ばれました",
        ),
        (trains_twice, "were trained 2 times", "2 回行われました"),
    ],
    "02-4": [
        (the_star, r"cpu\(0\) collects everything, as in the star", "星形と同じく"),
        (by_turns, "owns too much. Give away the largest", "担当分が多すぎます"),
        (neighbours_together, "owns too much. Give away the largest", "担当分が多すぎます"),
        (only_the_first_parameters, "no array has changed", "どの配列も変わって"),
        (
            leaves_it_with_the_owner,
            "device 1 holds .* the sum never came back to this device",
            "戻されていません",
        ),
        (adds_by_owner_across_devices, "an operation had arrays of", "2 個の GPU では動きません"),
    ],
    "02-5": [
        (on_one_device, r"cpu\(0\) computed 4 of the images, 2 are its share", "担当分は 2 枚"),
        (averages_batches, "the mean of the batches' accuracies", "バッチごとの正解率の平均"),
        (drops_the_last_batch, "only 4 images were computed, and not number 4-6$", "4 枚しか"),
        (drops_the_first_batch, "only 4 images were computed, and not number 0-2$", "4 枚しか"),
        (never_asks_the_network, "only 0 images were computed", "0 枚しか計算して"),
        (a_tenth_less, "then divide by the number of images$", "割ってください$"),
        (asks_after_every_batch, "Python waited .* times", "回待ちました"),
        (counts, "that is how many are right", "割合ではなく正解数"),
        (
            mixes_up_the_replicas,
            r"`net` got images on cpu\(1\) with the replica on cpu\(0\)",
            "同じデバイスのもの",
        ),
    ],
}


def everybody_to_everybody(data):
    before = [array.copy() for array in data]
    for i, array in enumerate(data):
        for other in before[:i] + before[i + 1 :]:
            array += other.as_in_context(array.context)


def as_one_array(k, batch, lr, images):
    return np.array([k * batch, k * lr, math.ceil(images / (k * batch))])


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
    "02-2": [as_one_array],
    "02-3": [with_numpy],
    "02-4": [by_chunk],
    "02-5": [asks_for_every_shard_at_the_end],
}
