"""Answers to lab 01 that students give, and what they are told."""

import time

import numpy as np
from mxnet import nd

PLACES = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1, "f": 0, "g": 1, "h": 0}


def reads_the_clock_too_early(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def counts_what_was_queued_before(work):
    began = time.perf_counter()
    work()
    nd.waitall()
    return time.perf_counter() - began


def waits_before_only(work):
    nd.waitall()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def starts_after_the_call(work):
    nd.waitall()
    work()
    began = time.perf_counter()
    nd.waitall()
    return time.perf_counter() - began


def counts_queueing_twice(work):
    nd.waitall()
    began = time.perf_counter()
    work()
    queueing = time.perf_counter() - began
    nd.waitall()
    return queueing + time.perf_counter() - began


def warms_up(work):
    work()
    nd.waitall()
    began = time.perf_counter()
    work()
    nd.waitall()
    return time.perf_counter() - began


def subtracts_the_wrong_way_round(work):
    nd.waitall()
    began = time.perf_counter()
    work()
    nd.waitall()
    return began - time.perf_counter()


def in_milliseconds(work):
    nd.waitall()
    began = time.perf_counter()
    work()
    nd.waitall()
    return 1e3 * (time.perf_counter() - began)


def process_time(work):
    nd.waitall()
    began = time.process_time()
    work()
    nd.waitall()
    return time.process_time() - began


def three_times(work):
    nd.waitall()
    began = time.perf_counter()
    work()
    nd.waitall()
    return 3 * (time.perf_counter() - began)


def prints_instead(work):
    nd.waitall()
    began = time.perf_counter()
    work()
    nd.waitall()
    print(time.perf_counter() - began)


def splits_evenly(array, sizes, devices):
    each = -(-len(array) // len(devices))
    return [array[i * each : (i + 1) * each].as_in_context(ctx) for i, ctx in enumerate(devices)]


def begins_at_multiples_of_its_own_size(array, sizes, devices):
    shards = [
        array[max(0, i * size - (i * size + size - len(array)) * (i * size + size > len(array))) :][:size]
        for i, size in enumerate(sizes)
    ]
    return [shard.as_in_context(ctx) for shard, ctx in zip(shards, devices)]


def never_moves(array, sizes, devices):
    shards, begin = [], 0
    for size in sizes:
        shards.append(array[begin : begin + size])
        begin += size
    return shards


def goes_through_numpy(array, sizes, devices):
    shards, begin = [], 0
    for size, ctx in zip(sizes, devices):
        shards.append(nd.array(array.asnumpy()[begin : begin + size].astype("float32"), ctx=ctx))
        begin += size
    return shards


def adds(gradients, sizes):
    return sum((g.as_in_context(gradients[0].context) for g in gradients[1:]), gradients[0])


def forgets_to_divide(gradients, sizes):
    ctx = gradients[0].context
    return sum((n * g.as_in_context(ctx) for g, n in zip(gradients[1:], sizes[1:])), sizes[0] * gradients[0])


def writes_into_the_first(gradients, sizes):
    total = gradients[0]
    total *= sizes[0]
    for g, n in zip(gradients[1:], sizes[1:]):
        total += n * g.as_in_context(total.context)
    return total / sum(sizes)


def adds_across_devices(gradients, sizes):
    return sum((n * g for g, n in zip(gradients[1:], sizes[1:])), sizes[0] * gradients[0]) / sum(sizes)


def on_the_last_device(gradients, sizes):
    ctx = gradients[-1].context
    return sum(n * g.as_in_context(ctx) for g, n in zip(gradients, sizes)) / sum(sizes)


WRONG = {
    "01-1": [
        ({**PLACES, "h": 1}, r"1: `copyto\(a\)` writes", "`h` があるのはデバイス 1 ではありません"),
        ({**PLACES, "f": 1}, "`f` is not on device 1: d was copied", "`f` があるのは"),
        (dict.fromkeys("abcdefgh", 0), "`b` is not on device 0", "`b` があるのはデバイス 0"),
        ({**PLACES, "c": "first"}, "said to be on 'first': give 0", "`c` に 'first' と書かれて"),
        ({"a": 0, "b": 1}, "no number for `c`", "`c` の番号がありません"),
        ([0, 1, 0, 1, 1, 0, 1, 0], "not a dictionary", "辞書ではありません"),
    ],
    "01-2": [
        (reads_the_clock_too_early, "read when the work had been queued", "終わる前に時刻を取って"),
        (waits_before_only, "the clock was read when the work had", "終わる前に時刻を取って"),
        (counts_what_was_queued_before, "other work had been queued before", "別の処理まで数えて"),
        (starts_after_the_call, "started when `work` had come", "`work` が戻ってから計測を始めて"),
        (warms_up, "`work` was called 2 times", "`work` が 2 回呼ばれました"),
        (subtracts_the_wrong_way_round, "subtract the earlier time", "前の時刻を引いて"),
        (in_milliseconds, "return seconds", "単位は秒"),
        (lambda work: 1e3 * in_milliseconds(work), "return seconds", "単位は秒"),
        (process_time, "`time.process_time` counts the time in which this process", "待つ時間は"),
        (three_times, "it counts too much", "数えすぎ"),
        (prints_instead, "it returned None", "None が返りました"),
        (counts_queueing_twice, "0.6 s, .*the time of the call", "呼び出している時間を 2 回数えて"),
    ],
    "01-3": [
        (splits_evenly, r"1\] gave shards of \[2, 2\]", r"4 行を \[3, 1\] に分割すると \[2, 2\]"),
        (begins_at_multiples_of_its_own_size, "the one before it ends", "直前のシャードの終わり"),
        (never_moves, r"for cpu\(1\) is on cpu\(0\): it was cut, but", "デバイスに移していません"),
        (goes_through_numpy, "int32 became float32", "int32 から float32"),
        (lambda array, sizes, devices: never_moves(array, sizes[:-1], devices), "gave 1: return a list of 2 arrays",
         "2 個の配列のリスト"),
    ],
    "01-4": [
        (adds, "that is their sum", "これは合計で"),
        (lambda gradients, sizes: adds(gradients, sizes) / len(gradients), "that is their mean", "単純な平均"),
        (lambda gradients, sizes: forgets_to_divide(gradients, sizes) / max(sizes), r"expected \[2, 0\]$",
         r"正しくは \[2, 0\] です$"),
        (lambda gradients, sizes: forgets_to_divide(gradients, sizes) / len(sizes), "not by the number of shards",
         "シャードの数ではなく"),
        (forgets_to_divide, "divide by the number of all images", "全体の枚数で割って"),
        (writes_into_the_first, "0 that it was given was .* it was written", "渡した配列 0 が"),
        (adds_across_devices, r"inputs on cpu\(0\) and cpu\(1\)", "2 個の GPU では動きません"),
        (on_the_last_device, r"is on cpu\(1\): it belongs on the device", "最初の勾配のデバイス"),
    ],
}  # fmt: skip


def seconds_of_numpy(work):
    nd.waitall()
    began = time.perf_counter()
    work()
    nd.waitall()
    return np.float32(time.perf_counter() - began)


def by_way_of_the_host(array, sizes, devices):
    parts = np.split(array.asnumpy(), np.cumsum(sizes)[:-1])
    return tuple(nd.array(part, ctx=ctx, dtype=part.dtype) for part, ctx in zip(parts, devices))


def weights_first(gradients, sizes):
    return sum(
        (gradient * (size / sum(sizes))).as_in_context(gradients[0].context) for gradient, size in zip(gradients, sizes)
    )


RIGHT = {
    "01-1": [{name: np.int64(place) for name, place in PLACES.items()}],
    "01-2": [seconds_of_numpy],
    "01-3": [by_way_of_the_host],
    "01-4": [weights_first],
}
