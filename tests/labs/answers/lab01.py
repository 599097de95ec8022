"""Answers to lab 01 that students give, and what they are told."""

import time

import numpy as np
from changed_solution import change
from mxnet import nd

PLACES = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1, "f": 0, "g": 1, "h": 0}


def writes_into_the_first(gradients, sizes):
    total = gradients[0]
    total *= sizes[0]
    for g, n in zip(gradients[1:], sizes[1:]):
        total += n * g.as_in_context(total.context)
    return total / sum(sizes)


WRONG = {
    "01-1": [
        ({**PLACES, "h": 1}, r"1: `copyto\(a\)` writes", "`h` があるのはデバイス 1 ではありません"),
        ({**PLACES, "f": 1}, "`f` is not on device 1: d was copied", "`f` があるのは"),
        (dict.fromkeys("abcdefgh", 0), "`b` is not on device 0", "`b` があるのはデバイス 0"),
        ({**PLACES, "c": "first"}, "0 for `first`, 1 for `second`", "`c` に 'first' と書かれて"),
        ({"a": 0, "b": 1}, "no number for `c`", "`c` の番号がありません"),
        ([0, 1, 0, 1, 1, 0, 1, 0], "not a dictionary", "辞書ではありません"),
    ],
    "01-2": [
        (change("01-2", "nd.waitall()", ""), "queued, but before it was done", "終わる前に時刻を取って"),
        (change("01-2", "work()\n    nd.waitall()", "work()"), "queued, but before it was done",
         "終わる前に時刻を取って"),
        (change("01-2", "nd.waitall()  #", "#"), "work before you start the clock", "別の処理まで数えて"),
        (change("01-2", "began = time.perf_counter()\n    work()", "work()\n    began = time.perf_counter()"),
         r"returned\. Start it before the call", "`work` が戻ってから計測を始めて"),
        (change("01-2", "nd.waitall()  #", "work()\n    nd.waitall()  #"), "`work` was called 2 times",
         "`work` が 2 回呼ばれました"),
        (change("01-2", "time.perf_counter() - began", "began - time.perf_counter()"), "subtract the earlier time",
         "前の時刻を引いて"),
        (change("01-2", "return time.perf_counter() - began", "return 1e3 * (time.perf_counter() - began)"),
         "return seconds", "単位は秒"),
        (change("01-2", "return time.perf_counter() - began", "return 1e6 * (time.perf_counter() - began)"),
         "return seconds", "単位は秒"),
        (change("01-2", "perf_counter", "process_time"), r"waits for a device\. Use `time\.perf_counter`",
         "待つ時間は"),
        (change("01-2", "return time.perf_counter() - began", "return 3 * (time.perf_counter() - began)"),
         "it counts too much", "数えすぎ"),
        (change("01-2", "return time.perf_counter() - began", "print(time.perf_counter() - began)"),
         "your function returned None", "None が返りました"),
        (change("01-2", "work()\n", "work()\n    queueing = time.perf_counter() - began\n", "return time",
                "return queueing + time"), "0.6 s, .*the time of the call", "呼び出している時間を 2 回数えて"),
    ],
    "01-3": [
        (change("01-3", "shards, begin", "sizes = [-(-len(array) // len(devices))] * len(devices)\n    shards, begin"),
         r"1\] gave shards of \[2, 2\]", r"4 行を \[3, 1\] に分割すると \[2, 2\]"),
        (change("01-3", "array[begin : begin + size]", "array[min(len(shards) * size, len(array) - size) :][:size]"),
         "sum of all sizes before it", "直前のシャードの終わり"),
        (change("01-3", ".as_in_context(device)", ""), r"for cpu\(1\) is on cpu\(0\): you cut it, but",
         "デバイスに移していません"),
        (change("01-3", "array[begin : begin + size].as_in_context(device)",
                'nd.array(array.asnumpy()[begin : begin + size].astype("float32"), ctx=device)'),
         "int32 became float32", "int32 から float32"),
        (change("01-3", "zip(sizes,", "zip(sizes[:-1],"), "gave 1: return a list of 2 arrays", "2 個の配列のリスト"),
    ],
    "01-4": [
        (change("01-4", "size * ", "", " / sum(sizes)", ""), "that is their sum", "これは合計で"),
        (change("01-4", "size * ", "", "sum(sizes)", "len(sizes)"), "that is their mean", "単純な平均"),
        (change("01-4", "sum(sizes)", "max(sizes)"), r"expected \[2, 0\]$", r"正しくは \[2, 0\] です$"),
        (change("01-4", "sum(sizes)", "len(sizes)"), "not by the number of shards", "シャードの数ではなく"),
        (change("01-4", " / sum(sizes)", ""), "divide by the number of all images", "全体の枚数で割って"),
        (writes_into_the_first, "changed array 0 of its input from .* compute with a copy", "渡した配列 0 が"),
        (change("01-4", ".as_in_context(device)", ""), r"arrays on cpu\(0\) and cpu\(1\)", "2 個の GPU では動きません"),
        (change("01-4", "gradients[0]", "gradients[-1]"), r"is on cpu\(1\): put it on the device",
         "最初の勾配のデバイス"),
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
