"""Mistakes that students make in lab 04."""

from dataclasses import replace

import numpy as np
from changed_solution import change

from gluonlab.collectives.algorithms import bidirectional_ring, hierarchical, ring, ring_reduce_scatter, star
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.schedule import Transfer
from gluonlab.collectives.topology_aware import make_for_links, multi_ring

# --- 04-1


def to_the_left_owner(world_size):
    """The ring as lab 04 shows it: chunk c ends on rank c - 1."""
    return ring_reduce_scatter(world_size).steps


def everybody_at_once(world_size):
    return [
        [Transfer(r, c, c, "add") for c in range(world_size) for r in range(world_size) if r != c] for _ in range(2)
    ]


def by_star(world_size):
    """Everything to rank 0, and from there."""
    ranks, chunks = range(1, world_size), range(world_size)
    return [[Transfer(r, 0, c, "add") for c in chunks for r in ranks], [Transfer(0, c, c, "copy") for c in ranks]]


# --- 04-3


def counts(of_loads):
    """busiest_link by a formula of what each device sums."""

    def busiest_link(sizes, owners, devices):
        loads = [sum(size for size, owner in zip(sizes, owners) if owner == device) for device in range(devices)]
        return of_loads(loads, devices)

    return busiest_link


# --- 04-5


def by_way_of_first(arrays, send):
    """The star."""
    for device in range(1, len(arrays)):
        arrays[0][:] = arrays[0] + send(arrays[device], device, 0)
    for device in range(1, len(arrays)):
        arrays[device][:] = send(arrays[0], 0, device)


def whole_arrays(arrays, send):
    """A ring of whole arrays: everybody's array travels around."""
    n, traveling = len(arrays), [array.copy() for array in arrays]
    for _ in range(n - 1):
        traveling = [send(traveling[(device - 1) % n], (device - 1) % n, device) for device in range(n)]
        for array, piece in zip(arrays, traveling):
            array[:] = array + piece


def reads_directly(arrays, send):
    total = sum(array.as_in_context(arrays[0].context) for array in arrays)
    for array in arrays:
        total.copyto(array)


def rebinds(arrays, send):
    for device in range(len(arrays)):
        arrays[device] = sum(array.as_in_context(arrays[device].context) for array in arrays)


def no_modulo(arrays, send):
    for device in range(len(arrays)):
        arrays[device][:] = arrays[device] + send(arrays[device], device, device + 1)


# --- 04-6

DOUBLES, SINGLES = [0, 3, 2, 1, 5, 6, 7, 4], [0, 1, 3, 7, 5, 4, 6, 2]


def rings(*orders, add_steps=7, chunk_step=8):
    """The steps of several rings at once, each on chunks of its own."""
    steps = [[] for _ in range(14)]
    for number, order in enumerate(orders):
        for place in range(8):
            for step in range(14):
                src, dst = order[(place + step) % 8], order[(place + step + 1) % 8]
                op = "add" if step < add_steps else "copy"
                steps[step].append(Transfer(src, dst, chunk_step * number + place, op))
    return steps


def both(*orders):
    return [*orders, *(order[::-1] for order in orders)]


def six_rings():
    return rings(*both(DOUBLES, DOUBLES, SINGLES))


def ours_renamed():
    """The solver's schedule; its chunks have other numbers, and its transfers another order."""
    ours = make_for_links("synthesized", make_topology("p3.16xlarge"), 8).cheapest(1e8)
    return [[(t.src, t.dst, ours.chunks - 1 - t.chunk, t.op) for t in reversed(step)] for step in ours.steps]


def one_transfer_less():
    steps = six_rings()
    del steps[3][17]
    return steps


def a_copy_too_early():
    steps = six_rings()
    steps[2][5] = steps[2][5]._replace(op="copy")
    return steps


WRONG = {
    "04-1": [
        (to_the_left_owner, "sum of chunk 0 is on rank", "チャンク 0 の合計はランク 1 にあります"),
        (change("04-1", "(r + 1) % world_size", "r + 1"), "% world_size` missing", "% world_size` を忘れて"),
        (everybody_at_once, "more than once", "重複"),
        (change("04-1", '"add"', '"copy"'), "overwrites chunk 1 of rank 1, so the contribution of rank 1",
         "失われます"),
        (lambda world_size: [[Transfer(r, (r + 1) % world_size, 0, "add") for r in range(world_size)]],
         "written and read in one step", "同じステップで書いて読んで"),
        (by_star, "each chunk needs only 1 addition", "回で済みます"),
        (lambda world_size: world_size, "return a list of steps", "リストを返して"),
    ],
    "04-2": [
        ({"A": (3, 3), "B": (0, 1), "C": (1, 0)}, "wrong, so look at earlier steps", "見つけた場所"),
        ({"A": (1, 1), "B": (2, 1), "C": (1, 0)}, "^B: no other transfer", "^B: "),
        ({"A": (2, 2), "B": (0, 1), "C": (1, 0)}, "^A: no other transfer", "何に置き換えても"),
        ({"A": (1, 4), "B": (0, 1), "C": (1, 0)}, "numbers that start at 0", "0 から数えます"),
        ({"A": (1, 1)}, "no answer for schedule B", "スケジュール B の答えがありません"),
    ],
    "04-3": [
        (counts(lambda loads, k: (k - 1) * max(loads)), "go back over the same link", "片道分"),
        (counts(lambda loads, k: 2 * k * max(loads)), "gradients do not pass its link", "デバイス自身の勾配"),
        (counts(lambda loads, k: 2 * (k - 1) * sum(loads)), "all links together", "全リンクの合計"),
        (counts(lambda loads, k: 2 * max(loads)), "owner and gets the sums back", "全デバイスから"),
        (counts(lambda loads, k: 2 * (k - 1) * sum(loads) // k), r"expected 24$", "正しくは 24 です$"),
        (counts(lambda loads, k: 2 * (k - 1) * sum(loads) / k), "mean of all links", "平均です"),
        (lambda sizes, owners, k: 2 * (k - 1) * max(sizes), "link, not only the largest one", "最大のパラメータ"),
        (counts(lambda loads, k: k * max(loads)), r"gave 8, expected 12$", "正しくは 12 です$"),
        (counts(lambda loads, k: max((k - 1) * load + sum(loads) - load for load in loads)),
         "and the sums that go out", "勾配が届いた後"),
    ],
    "04-4": [
        (lambda topology, size: ring(topology.world_size), "returned ring", "戻り値は ring"),
        (lambda topology, size: star(topology.world_size), "returned star", "戻り値は star"),
        (change("04-4", "    schedules += [schedule.placed(topology.ring_order()) for schedule in schedules]\n", ""),
         "on the ring takes", "p3.16xlarge, 100,000,000. .* placed on the ring なら"),
        (lambda topology, size: hierarchical(topology.world_size), "returned hierarchical", "戻り値は hierarchical"),
        (lambda topology, size: replace(ring(topology.world_size), steps=()), "1, 2, 3: no transfer sends this chunk",
         "正しい allreduce では"),
        (lambda topology, size: ring_reduce_scatter(topology.world_size), "returned a reduce_scatter",
         "戻り値は reduce_scatter"),
        (lambda topology, size: "ring", "return a Schedule", "Schedule を返して"),
    ],
    "04-6": [
        (lambda: bidirectional_ring(8).placed(DOUBLES).steps, "the link `NVLink 0 to 3`", "短くして"),
        (lambda: ring(8).steps, "the schedule is correct, but it takes 17,931.7", "17,931.7 µs かかります"),
        (lambda: star(8), "the schedule is correct, but it takes 62,393.3", "62,393.3 µs かかります"),
        (lambda: rings(*both(DOUBLES, SINGLES)), "waits for the link `NVLink 0 to 1`", "を待って"),
        (one_transfer_less, "step 10, transfer 17, .*rank 1 is lost", "失われます"),
        (a_copy_too_early, "step 2, transfer 5, .* rank 0 is lost", "失われます"),
        (lambda: rings(*both(DOUBLES, DOUBLES, SINGLES), add_steps=8), "more than once", "重複"),
        (lambda: rings(*both(DOUBLES, DOUBLES, SINGLES), add_steps=6), "step 6, transfer 0, .*lost", "失われます"),
        # all rings on the same chunks
        (lambda: rings(*both(DOUBLES, DOUBLES, SINGLES), chunk_step=0),
         "step 0, .*and read|written and read in one step", "同じステップで書いて読んで"),
        (lambda: six_rings()[::-1], "step 0, transfer 0, .*lost", "失われます"),
        (lambda: six_rings()[:7], "no transfer ever writes", "何も送られて"),
        (lambda: ring_reduce_scatter(8), "no transfer ever writes|still missing", "寄与が|何も送られて"),
        (lambda: [[(0, 8, 0, "add")]], "ranks go from 0 to 7", "ランクは 0 から 7"),
        (lambda: [[(0, 1, -1, "add")]], "chunks from 0 to 0", "チャンクは 0 から 0"),
        (lambda: [[(3, 3, 0, "add")]], "cannot send to itself", "自分自身には"),
        (lambda: [[(0, 1, 0, "sum")]], "is 'add' or 'copy'", "'add' か 'copy'"),
        (lambda: [[(0, 1, 0)]], r"step 0, transfer 0 is `\(0, 1, 0\)`, not", "転送 0 が"),
        (lambda: [Transfer(0, 1, 0, "add")], "step 0 is .*, not a list: return", "ステップ 0 が"),
        (lambda: [[("0", "1", 0, "add")]], "with three integers and the name of an operation", "前の 3 つは整数"),
        (lambda: {0: six_rings()}, "returned <class .dict.>: return a list", "リストを返して"),
        (lambda: six_rings().sort(), "is `return` missing", "`return` を忘れて"),
        (lambda: [], "no transfer ever writes chunk 0", "何も送られていません"),
        (lambda: "multi_ring", "return a list of steps", "リストを返して"),
        (lambda: 1 // 0, "ZeroDivisionError", "ZeroDivisionError"),
        (lambda: six_rings()[0][99], "IndexError", "IndexError"),
    ],
    "04-5": [
        (by_way_of_first, "each step, not the whole array", "1 チャンクだけ"),
        (whole_arrays, "each step, not the whole array", "1 チャンクだけ"),
        (reads_directly, "the arrays of other devices directly", "直接読んではいけません"),
        (rebinds, "nothing was written", "何も書き込まれていません"),
        (change("04-5", "range(n - 1):  # all-gather", "range(0):"), "expected", "正しくは"),
        (change("04-5", "len(arrays[0]) * chunk // n", "len(arrays[0]) // n * chunk"), "numbers are not in any chunk",
         "どのチャンクにも入っていません"),
        (change("04-5", "(device + 1) % n", "(device - 1) % n", "device - step", "device + step", "device + 1 - step",
                "device - 1 + step"), "i sends to i - 1", "i - 1 に送って"),
        (no_modulo, "% len.arrays.` missing", "% len.arrays.` を忘れて"),
    ],
}  # fmt: skip


def straight_to_the_owners(world_size):
    """Tuples, and a generator of them."""
    yield [(src, dst, dst, "add") for src in range(world_size) for dst in range(world_size) if src != dst]


RIGHT = {
    "04-1": [straight_to_the_owners],
    "04-2": [{"A": [1, 1], "B": np.array([0, 1]), "C": (np.int64(1), np.int64(0))}],
    "04-3": [lambda sizes, owners, k: 2 * (k - 1) * np.bincount(owners, weights=sizes).max()],
    "04-6": [
        ours_renamed,
        six_rings,
        lambda: multi_ring(make_topology("p3.16xlarge")),
        lambda: make_for_links("synthesized", make_topology("p3.16xlarge"), 8).cheapest(1e8).steps,
        # three rings, and so unequal loads, but cheaper than the eight
        lambda: rings(DOUBLES, DOUBLES, DOUBLES[::-1], DOUBLES[::-1], SINGLES),
        lambda: ([[s, d, np.int64(c), op] for s, d, c, op in step] for step in six_rings()),
        lambda: [[], *six_rings(), []],
    ],
}
