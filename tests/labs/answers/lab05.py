"""Answers to lab 05 that students really give, and what they must be told."""

import heapq
import itertools
import statistics
from functools import lru_cache

import numpy as np
from changed_solution import change, forgets_to_return

# --- 05-1


def crossing(outputs, cuts):
    return [0, *(outputs[cut - 1] for cut in cuts), 0]


def both_ways(outputs, cuts, images, each=4):
    edges = crossing(outputs, cuts)
    return [each * images * (a + b) for a, b in zip(edges, edges[1:])]


def everything_that_a_stage_puts_out(outputs, cuts, images):
    bounds = [0, *cuts, len(outputs)]
    return [4 * images * sum(outputs[a:b]) for a, b in zip(bounds, bounds[1:])]


def eats_its_input(outputs, cuts, images):
    sent, before = [], 0
    while cuts:
        after = outputs[cuts.pop(0) - 1]
        sent.append(4 * images * (before + after))
        before = after
    return (*sent, 4 * images * before)


# --- 05-2


def as_many_layers(costs, stages):
    each, extra = divmod(len(costs), stages)
    return [number * each + min(number, extra) for number in range(1, stages)]


def filled_in_turn(costs, stages):
    part, cuts, total = sum(costs) / stages, [], 0
    for number, cost in enumerate(costs):
        if number and total + cost > part and len(cuts) < stages - 1:
            cuts.append(number)
            total = 0
        total += cost
    while len(cuts) < stages - 1:  # cut single layers off the end
        cuts.append(len(costs) - (stages - 1 - len(cuts)))
    return cuts


def filled_over(costs, stages):
    part, cuts, total = sum(costs) / stages, [], 0
    for number, cost in enumerate(costs):
        left = stages - 1 - len(cuts)
        if number and left and (total >= part or len(costs) - number == left):
            cuts.append(number)
            total = 0
        total += cost
    return cuts


def nearest_to_equal_parts(costs, stages):
    totals = list(itertools.accumulate(costs))
    cuts = []
    for number in range(1, stages):
        first, last = (cuts or [0])[-1] + 1, len(costs) - (stages - number)
        aim = totals[-1] * number / stages
        cuts.append(min(range(first, last + 1), key=lambda cut: abs(totals[cut - 1] - aim)))
    return cuts


def halves(costs, stages):
    """The most expensive stage is cut in its middle, again and again."""

    def best_cut(begin, end):
        return min(range(begin + 1, end), key=lambda cut: max(sum(costs[begin:cut]), sum(costs[cut:end])))

    cuts = []
    while len(cuts) < stages - 1:
        bounds = [0, *sorted(cuts), len(costs)]
        parts = [(sum(costs[a:b]), a, b) for a, b in zip(bounds, bounds[1:]) if b - a > 1]
        _, begin, end = max(parts)
        cuts.append(best_cut(begin, end))
    return sorted(cuts)


def whole_thresholds(costs, stages):
    """Bisection over the largest stage: right, but only to whole numbers."""
    low, high = 0, int(sum(costs)) + 1
    while low < high:
        middle = (low + high) // 2
        if len(_within(costs, middle)) <= stages - 1 and max(costs) <= middle:
            high = middle
        else:
            low = middle + 1
    return _spread(_within(costs, low), len(costs), stages)


def _within(costs, most):
    cuts, total = [], 0
    for number, cost in enumerate(costs):
        if number and total + cost > most:
            cuts.append(number)
            total = 0
        total += cost
    return cuts


def _spread(cuts, layers, stages):
    """With as many cuts as are needed: more of them make no stage larger."""
    free = [place for place in range(1, layers) if place not in cuts]
    return sorted([*cuts, *free[: stages - 1 - len(cuts)]])


def by_bisection(costs, stages):
    sums = {sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)}
    least = min(most for most in sums if most >= max(costs) and len(_within(costs, most)) <= stages - 1)
    return np.array(_spread(_within(costs, least), len(costs), stages), dtype=int)


def by_recursion(costs, stages):
    totals = (0, *itertools.accumulate(costs))

    @lru_cache(maxsize=None)
    def best(end, count):
        if count == 1:
            return totals[end], ()
        choices = []
        for cut in range(count - 1, end):
            largest, cuts = best(cut, count - 1)
            choices.append((max(largest, totals[end] - totals[cut]), (*cuts, cut)))
        return min(choices)

    return (cut for cut in best(len(costs), stages)[1])


# --- 05-3


def shares(units, devices):
    return np.array_split(np.arange(units), devices)


def outputs_of_both(w1, b1, w2, b2, devices):
    return [
        (w1[own], b1[own], w2[out], b2[out]) for own, out in zip(shares(len(b1), devices), shares(len(b2), devices))
    ]


def in_turns(w1, b1, w2, b2, devices):
    """Unit 0 on device 0, unit 1 on device 1, and so on; every device has a part of b2."""
    for device in range(devices):
        yield [w1[device::devices], b1[device::devices], w2[:, device::devices], b2 / devices]


def last_has_the_bias(w1, b1, w2, b2, devices):
    parts = [
        tuple(array.tolist() for array in (w1[own], b1[own], w2[:, own], np.zeros(len(b2))))
        for own in shares(len(b1), devices)
    ]
    parts[-1] = (*parts[-1][:3], b2.tolist())
    return tuple(parts)


# --- 05-4


def of_step(step):
    def answer(forward, backward, microbatches):
        whole = step(forward, backward, microbatches)
        return [1 - microbatches * (f + b) / whole for f, b in zip(forward, backward)]

    return answer


def of_1f1b(forward, backward, m):
    """Each device as many forwards ahead as there are stages from it on, by simulation."""
    stages, done, free = len(forward), {}, [0.0] * len(forward)
    queues = []
    for stage in range(stages):
        ahead = min(m, stages - stage - 1)
        steady = [step for i in range(m - ahead) for step in (("f", ahead + i), ("b", i))]
        queues.append([*(("f", i) for i in range(ahead)), *steady, *(("b", i) for i in range(m - ahead, m))])
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, i = queue[0]
                before = ("f", stage - 1) if kind == "f" else ("b", stage + 1)
                outside = before[1] in (-1, stages)
                if not outside and (*before, i) not in done:
                    break
                took = forward[stage] if kind == "f" else backward[stage]
                begin = max(free[stage], 0 if outside else done[(*before, i)])
                free[stage] = done[(kind, stage, i)] = begin + took
                queue.pop(0)
    return [1 - m * (f + b) / max(free) for f, b in zip(forward, backward)]


def gpipe_step(forward, backward, m):
    return sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward))


def of_the_pipeline(forward, backward, m):
    whole = gpipe_step(forward, backward, m)
    busy = m * (sum(forward) + sum(backward))
    return 1 - busy / (whole * len(forward))


def by_simulation(forward, backward, m):
    stages = len(forward)
    free, done = [0.0] * stages, {}
    for microbatch in range(m):
        for stage in range(stages):
            begin = max(free[stage], done.get((stage - 1, microbatch), 0))
            free[stage] = done[stage, microbatch] = begin + forward[stage]
    back = {}
    for microbatch in range(m):
        for stage in reversed(range(stages)):
            begin = max(free[stage], back.get((stage + 1, microbatch), 0))
            free[stage] = back[stage, microbatch] = begin + backward[stage]
    whole = max(free)
    return np.array([1 - m * (f + b) / whole for f, b in zip(forward, backward)])


def with_fractions(forward, backward, m):
    there = sum(forward) + (m - 1) * max(forward)
    back = sum(backward) + (m - 1) * max(backward)
    return ((there + back - m * (f + b)) / (there + back) for f, b in zip(forward, backward))


# --- 05-5


def gpipe_order(device, devices, microbatches):
    return [(op, m) for op in ("forward", "backward") for m in range(microbatches)]


def warmed_up(device, microbatches, ahead):
    forwards = [("forward", m) for m in range(microbatches)]
    backwards = [("backward", m) for m in range(microbatches)]
    ahead = max(0, min(ahead, microbatches))
    steady = [step for pair in zip(forwards[ahead:], backwards) for step in pair]
    return [*forwards[:ahead], *steady, *backwards[microbatches - ahead :]]


def never_the_last_backwards(device, devices, microbatches):
    ahead = min(devices - device - 1, microbatches)
    order = warmed_up(device, microbatches, ahead)
    return order[: len(order) - ahead]


def last_in_first_out(device, devices, microbatches):
    return [("forward", m) for m in range(microbatches)] + [("backward", m) for m in reversed(range(microbatches))]


def backward_first(device, devices, microbatches):
    ahead = min(devices - device - 1, microbatches)
    order = [("forward", m) for m in range(ahead)]
    for m in range(microbatches):
        order.append(("backward", m))
        if m + ahead < microbatches:
            order.append(("forward", m + ahead))
    return order


def counts_from_one(device, devices, microbatches):
    return [(op, m + 1) for op, m in warmed_up(device, microbatches, devices - device - 1)]


def other_words(device, devices, microbatches):
    return [(op[0].upper(), m) for op, m in warmed_up(device, microbatches, devices - device - 1)]


def as_generator(device, devices, microbatches):
    yield from warmed_up(device, microbatches, devices - device - 1)


def by_time(device, devices, microbatches):
    """At which tick each step would begin if forward and backward took one tick each."""
    order = []
    for m in range(microbatches):
        warm = devices - device  # microbatches that enter one after the other
        begin = device + m if m < warm else 2 * m + device
        heapq.heappush(order, (begin, "forward", m))
        heapq.heappush(order, (2 * devices - 1 - device + 2 * m, "backward", m))
    return [[op, np.int64(m)] for _, op, m in (heapq.heappop(order) for _ in range(len(order)))]


# --- 05-6


def measured_by(choose, formula=lambda step, own: 1 - own / step, times=5):
    def answer(seconds, step, alone):
        def chosen(work):
            return choose([seconds(work) for _ in range(times)])

        whole = chosen(step)
        return [formula(whole, chosen(own)) for own in alone]

    return answer


def in_rounds(seconds, step, alone):
    """All works in turn, so that a slow minute hits all of them."""
    works = [step, *alone]
    rounds = np.array([[seconds(work) for work in works] for _ in range(12)])
    whole, *own = rounds.min(axis=0)
    return 1 - np.array(own) / whole


def own_output_both_ways(outputs, cuts, images):
    lasts = [outputs[end - 1] for end in (*cuts, len(outputs))]
    return [4 * images * last * ((n < len(cuts)) + (n > 0)) for n, last in enumerate(lasts)]


def as_few_stages_as_suffice(costs, stages):
    """Bisects the limit, and forgets that there are to be so many stages."""

    def cuts_below(limit):
        cuts, total = [], 0
        for number, cost in enumerate(costs):
            if total + cost > limit:
                cuts.append(number)
                total = 0
            total += cost
        return cuts

    low, high = max(costs), sum(costs)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if len(cuts_below(middle)) < stages else (middle, high)
    return cuts_below(high)


def with_empty_stages(costs, stages):
    """The best cuts, some of them at one place."""
    totals = [0, *itertools.accumulate(costs)]
    best = {end: (totals[end], ()) for end in range(len(totals))}
    for _ in range(stages - 1):
        best = {
            end: min((max(best[cut][0], totals[end] - totals[cut]), (*best[cut][1], cut)) for cut in range(end + 1))
            for end in range(len(totals))
        }
    return best[len(costs)][1]


def until_its_own_end(forward, backward, microbatches):
    ready = [0.0] * microbatches
    for seconds in forward:
        free = 0.0
        for number in range(microbatches):
            free = ready[number] = max(free, ready[number]) + seconds
    free, ends = ready[-1], []
    ready = [free] * microbatches
    for seconds in reversed(backward):
        for number in range(microbatches):
            ready[number] = max(ready[number - 1] if number else 0, ready[number]) + seconds
        ends.insert(0, ready[-1])
    return [1 - microbatches * (f + b) / end for f, b, end in zip(forward, backward, ends)]


WRONG = {
    "05-1": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (change("05-1", "back + on", "on"), "sends the gradient of what it received back", "勾配を同じ切れ目から"),
        (lambda o, c, n: both_ways(o, c, n, 1), "a float32 has 4 bytes", "1 個 4 バイト"),
        (lambda o, c, n: both_ways(o, c, 1), "that is for one image", "画像 1 枚分"),
        (lambda o, c, n: both_ways(o, c, n, 8), "a device receives do not count", "ちょうど 2 倍"),
        (own_output_both_ways, "its input, not of its output", "受け取った値の勾配です"),
        (lambda o, c, n: both_ways(o, c, n) if c else [], "returned 0 numbers, expected", "数が 0 個"),
        (change("05-1", "outputs[cut - 1]", "outputs[cut]"), "c - 1 crosses the cut", "層 c - 1 の出力"),
        (change("05-1", "4 * images * (back + on)", "8 * images * on"), "the cut sends the gradient back",
         "切れ目の後ろのデバイス"),
        (change("05-1", "in cuts), 0]", "in cuts), outputs[-1]]"), "activation: it computes the loss itself",
         "最後のデバイスは活性値を"),
        (everything_that_a_stage_puts_out, "one stage stay on its device", "デバイスの外に出ません"),
        (lambda o, c, n: sum(both_ways(o, c, n)), "list with a number for each", "1 個の数を持つ"),
        (lambda o, c, n: both_ways(o, c, n)[:-1], "returned 1 number, expected 2", "数が 1 個"),
        (  # right on the first cases only
            lambda o, c, n: both_ways(o, c, n if n < 7 else 1),
            r"gave \[3200, 3200\], expected \[204800, 204800\]",
            "正しくは",
        ),
    ],
    "05-2": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (as_many_layers, "of layers: balance their costs instead", "層の数を均等に"),
        (lambda costs, stages: [number * len(costs) // stages for number in range(1, stages)],
         "of layers: balance their costs instead", "層の数を均等に"),
        (filled_in_turn, "the most expensive stage costs", "最大のステージのコスト"),
        (filled_over, "the most expensive stage costs", "最大のステージのコスト"),
        (nearest_to_equal_parts, r"costs [\d.]+, but only [\d.]+ with the cuts .*\]$", r"なら [\d.]+ です$"),
        (halves, r"but only [\d.]+ with the cuts .*\]$", r"なら [\d.]+ です$"),
        (as_few_stages_as_suffice, r"1 cut, \[1\], makes 2", "ステージは 2 個です。正しくは 3 個"),
        (with_empty_stages, r"1, 1\], 3\): the cuts \[0, 1\].*no stage is empty", "空のステージ"),
        (lambda costs, stages: [cut - 1 for cut in by_recursion(costs, stages)], "those are the last layers of stages",
         "ステージの最後の層"),
        (whole_thresholds, r"balanced\(\[1.062, .*but only [\d.]+ with the cuts .*\]$", r"なら [\d.]+ です$"),
        (lambda costs, stages: [0, *as_many_layers(costs, stages)], "2 cuts.*make 3 stages, expected 2",
         "切れ目が 2 個"),
        (lambda costs, stages: [0] * (stages - 1), "no stage is empty", "空のステージ"),
        (lambda costs, stages: list(by_recursion(costs, 2)) * (stages - 1), "stage has at least one layer", "増えて"),
        (lambda costs, stages: [float(cut) for cut in as_many_layers(costs, stages)],
         "each stage except the first stage", "番号のリスト"),
    ],
    "05-3": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (change("05-3", "b2 if device == 0 else np.zeros_like(b2)", "b2"), "every device adds b2", "どのデバイスも b2"),
        (change("05-3", "b2 if device == 0 else np.zeros_like(b2)", "0 * b2"), "b2 is missing", "b2 が入って"),
        (change("05-3", "b2 if", "b2 / devices if"), "adds it: do not divide it", "1 台だけ"),
        (outputs_of_both, "shape of its w2 is .*part of the outputs", "出力の一部"),
        (change("05-3", "w2[:, own]", "w2"), "other hidden units are on other devices", "残りの隠れユニット"),
        (lambda w1, b1, w2, b2, devices: [(w1, b1, w2 / devices, b2 / devices)] * devices,
         "units: divide them among the devices",
         "分割されていません"),
        (change("05-3", "np.array_split(np.arange(len(b1)), devices)",
                "np.arange(len(b1) // devices * devices).reshape(devices, -1)"), "6 together, expected 7", "合計 6 個"),
        (change("05-3", "np.array_split(np.arange(len(b1)), devices)",
                "np.split(np.arange(len(b1)), [len(b1) // devices * n for n in range(1, devices)])"),
         "may differ by at most one", "差は多くても 1 個"),
        (change("05-3", "w2[:, own]", "w2[:, own[::-1]]"), r"over the devices is .*, expected -?[\d.]+$",
         r"正しくは -?[\d.]+ です$"),
        (change("05-3", "len(b1)", "w1.shape[1]",
                "w1[own], b1[own], w2[:, own], b2 if device == 0 else np.zeros_like(b2)", "w1[:, own], b1, w2, b2"),
         r"\d\), expected \(4, 3\): you divided", "入力で分割しています"),
        (change("05-3", "w2[:, own]", "w2.T[own]"), r"its w2 is \(4, 2\), expected \(2, 4\): it is transposed",
         "転置され"),
        (change("05-3", "b1[own]", "b1[own] / devices"), "b1 is divided by the number of devices", "b1 がデバイス数で"),
        (change("05-3", "enumerate(units)", "enumerate(units[:1])"), "1 parts, expected 2", "部分が 1 個"),
        (change("05-3", "    units", "    b2 /= devices\n    units"), "read-only", "read-only"),
    ],
    "05-4": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (lambda forward, backward, m: [(len(forward) - 1) / (m + len(forward) - 1) for _ in forward],
         "bubble of equal stages", "等しいとき"),
        (of_1f1b, "GPipe runs all forward passes first", "それは 1F1B の値です"),
        (change("05-4", "1 - microbatches * (f + b) / step", "microbatches * (f + b) / step"),
         "the time in which it works", "計算している時間の割合"),
        (change("05-4", "1 - microbatches * (f + b) / step", "step / (microbatches * (f + b)) - 1"),
         "the time of the whole step", "計算時間に対する"),
        (change("05-4",
         "1 - microbatches * (f + b) / step",
         "step - microbatches * (f + b)"), "by the time of the step",
         "待ち時間そのもの"),
        (of_the_pipeline, "a list with a number for each device", "1 個の数を持つ"),
        (of_step(lambda f, b, m: sum(f) + sum(b) + (m - 1) * max(x + y for x, y in zip(f, b))),
         "the stage with the slowest backward", "順伝播が全部終わって"),
        (of_step(lambda f, b, m: m * (sum(f) + sum(b))),
         "the previous one has finished backward", "前のマイクロバッチ"),
        (of_step(lambda f, b, m: sum(f) + sum(b) + m * (max(f) + max(b))), "one microbatch too many", "1 個多く"),
        (of_step(lambda f, b, m: m * (max(f) + max(b))), "fills and drains", "空になるまで"),
        (of_step(lambda f, b, m: (m + len(f) - 1) * (max(f) + max(b))), "each stage in that stage's time",
         "最も遅いステージと同じ時間"),
        (of_step(lambda f, b, m: (m + len(f) - 1) * max(x + y for x, y in zip(f, b))),
         "each stage in that stage's time", "最も遅いステージと同じ時間"),
        (of_step(lambda f, b, m: sum(f) + (m - 1) * max(f) + m * b[-1]),
         "not the end of the chain", "デバイス 0 です"),
        (until_its_own_end, "not when each single device is", "デバイスごとの終わり"),
        (change("05-4", "1 - microbatches * (f + b) / step", "100 * (1 - microbatches * (f + b) / step)"),
         "a number from 0 to 1", "パーセント"),
        (of_step(lambda f, b, m: sum(f) + sum(b) + (m - 1) * (f[-1] + b[-1])), "may not be the last stage",
         "最後のステージとは"),
        (of_step(lambda f, b, m: sum(f) + sum(b) + (m - 1) * (f[0] + b[0])), "may not be the first stage",
         "最初のステージとは"),
        (lambda f, b, m: [0.5] * len(f), r"gave \[0.5, 0.5\]|, expected \[[^:]*$", "正しくは"),
    ],
    "05-5": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (gpipe_order, "keeps the activations of 4 microbatches at once .all", "GPipe と同じく全部"),
        (lambda device, devices, microbatches: [(op, m) for m in range(microbatches) for op in ("forward", "backward")],
         "needs little memory, but a step takes", "1 ステップに"),
        (lambda device, devices, microbatches: warmed_up(device, microbatches, devices - device),
         "activations of 3 microbatches at once, although 2", "3 個のマイクロ"),
        (lambda device, devices, microbatches: warmed_up(device, microbatches, devices - device - 2),
         "needs little memory, but a step takes", "1 ステップに"),
        (lambda d, p, m: warmed_up(0, m, p - 1), "microbatches at once, although 1", "1 個で足ります"),
        (lambda device, devices, microbatches: warmed_up(device, microbatches, device),
         "ever before its backward pass of microbatch", "永久に待ちます。証明の出力"),
        (never_the_last_backwards, r"no \('backward', \d\)", r"\('backward', \d\) がありません"),
        (last_in_first_out, r"before \('backward', 0\)", r"\('backward', 0\) がまだ"),
        (backward_first, r"is \('backward', 0\), before its forward", "順伝播がまだです"),
        (counts_from_one, r"\('forward', 1\), before \('forward', 0\)", r"\('forward', 0\) がまだ"),
        (other_words, 'return a list of ."forward", microbatch', '"forward", マイクロバッチ'),
        (lambda device, devices, microbatches: warmed_up(device, microbatches, 3 - device), "keeps the activations of",
         "活性値を保持"),
        (lambda d, p, m: warmed_up(d, m, p - d - 1) * 2, "which was already done", "それは済んで|ま"),
        (lambda d, p, m: gpipe_on_the_last(d, p, m), "waits forever", "永久に待ちます"),
    ],
    "05-6": [
        (forgets_to_return, "is `return` missing", "`return` を忘れて"),
        (measured_by(lambda reads: reads[0], times=1), "called .1, .*five times", "5 回以上"),
        (measured_by(min, times=3), "five times", "5 回以上"),
        (measured_by(lambda reads: sum(reads) / len(reads)), "changes: use the minimum of each", "平均を使って"),
        (measured_by(statistics.median), "so use the minimum of each", "中央値"),
        (measured_by(max), "runs: use the minimum of each", "最も遅い回"),
        (measured_by(lambda reads: reads[0]), "setup: use the minimum of each", "最初の 1 回を使って"),
        (measured_by(min, lambda step, own: own / step), "in which it works", "計算している時間"),
        (measured_by(min, lambda step, own: step / own - 1), "the time of the whole step", "計算時間に対する"),
        (measured_by(min, lambda step, own: step - own), "by the time of the step", "待ち時間そのもの"),
        (change("05-6", "whole = smallest(step)", "smallest(step)\n    times = [smallest(own) for own in alone]",
                "[1 - smallest(own) / whole for own in alone]", "[1 - own / sum(times) for own in times]"),
         "the time of the step is missing", "ステップの時間を使って"),
        (change("05-6", "[1 - smallest(own) / whole for own in alone]",
                "1 - sum(map(smallest, alone)) / (len(alone) * whole)"), "a list with a number for each device",
         "1 個の数を持つ"),
        (change("05-6", "    def smallest",
                "    def read_clock(work):\n        began = time.perf_counter()\n        work()\n"
                "        return time.perf_counter() - began\n\n    def smallest", "min(seconds(work)",
                "min(read_clock(work)"), "`seconds` was never called", "一度も呼ばれていません"),
        (measured_by(min, lambda step, own: 100 * (1 - own / step)), "a number from 0 to 1", "パーセント"),
        (lambda seconds, step, alone: [1 - seconds(own()) / seconds(step()) for own in alone],
         r"the function itself, as in `seconds\(step\)`", "処理そのものを渡す"),
    ],
}  # fmt: skip


def gpipe_on_the_last(device, devices, microbatches):
    if device == devices - 1:
        return gpipe_order(device, devices, microbatches)
    return warmed_up(device, microbatches, devices - device - 1)


RIGHT = {
    "05-1": [
        eats_its_input,
        lambda o, c, n: np.array(both_ways(o, c, n)),
        lambda o, c, n: (float(sent) for sent in both_ways(o, c, n)),
    ],
    "05-2": [by_bisection, by_recursion],
    "05-3": [in_turns, last_has_the_bias],
    "05-4": [by_simulation, with_fractions],
    "05-5": [as_generator, by_time],
    "05-6": [in_rounds, measured_by(min, times=20)],
}
