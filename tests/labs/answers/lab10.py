"""Mistakes that students make in lab 10."""

from itertools import chain

import numpy as np

from gluonlab.collectives.algorithms import halving_doubling, hierarchical, ring, ring_all_gather, sharded, star, tree
from gluonlab.collectives.schedule import Transfer

ADD, COPY = "add", "copy"
NOTHING_SENT, NOT_SENT_JA = "no transfer ever writes", "何も送られていません"

# --- 10-1


def one_by_one():
    return [[Transfer(0, dst, 0, COPY)] for dst in range(1, 8)]


def tells_before_it_knows():
    """The doublings from the last to the first."""
    return [[Transfer(r, r + know, 0, COPY) for r in range(know)] for know in (4, 2, 1)]


def by_halves():
    """Another right order: the farthest first."""
    return [[Transfer(src, src + far, 0, COPY) for src in range(0, 8, 2 * far)] for far in (4, 2, 1)]


# --- 10-2 and 10-5


def along_the_line(chunks):
    """The pipeline of 10-2, in so many chunks."""
    return [
        [Transfer(s, s + 1, step - s, COPY) for s in range(4) if 0 <= step - s < chunks] for step in range(chunks + 3)
    ]


def in_and_out(chunks):
    """The pipeline of 10-5, in so many chunks."""
    return [
        [Transfer(end, 1, step, ADD) for end in (0, 2) if step < chunks]
        + [Transfer(1, end, step - 1, COPY) for end in (0, 2) if step]
        for step in range(chunks + 1)
    ]


def chunk_after_chunk():
    """Each chunk goes all the way before the next one begins."""
    return [[Transfer(src, src + 1, chunk, COPY)] for chunk in range(6) for src in range(4)]


def whole_sum_to_an_end():
    return [
        [Transfer(2, 1, 0, ADD)], [Transfer(1, 0, 0, ADD)],
        [Transfer(0, 1, 0, COPY)], [Transfer(1, 2, 0, COPY)],
    ]  # fmt: skip


# --- 10-3


def gather(distances, own_first=True):
    """By sending what is held over growing distances."""
    steps, held = [], 1
    for distance in distances:
        count = min(held, 5 - held)
        steps.append(
            [
                Transfer(s, (s + distance) % 5, (s - back) % 5, COPY)
                for s in range(5)
                for back in (range(count) if own_first else range(held - count, held))
            ]
        )
        held += count
    return steps


def to_the_left():
    """The same the other way round: whatever goes to the right there, goes to the left here."""
    mirror = [0, 4, 3, 2, 1]
    return [[Transfer(mirror[s], mirror[d], mirror[c], op) for s, d, c, op in step] for step in gather((1, 2, 4))]


# --- 10-4


def both_ways(up=((1, 2), (2, 1)), down=(3, 2, 1)):
    steps = [[], [], []]
    for chunk in range(6):
        for step, away in enumerate(down):
            src, dst = (chunk + away) % 6, (chunk + away - 1) % 6
            steps[step].append(Transfer(src, dst, chunk, ADD))
        for step, away in up:
            src, dst = (chunk - away) % 6, (chunk - away + 1) % 6
            steps[step].append(Transfer(src, dst, chunk, ADD))
    return steps


def mirrored():
    """Three from below, two from above."""
    mirror = [(-r) % 6 for r in range(6)]
    return [[Transfer(mirror[s], mirror[d], mirror[c], op) for s, d, c, op in step] for step in both_ways()]


# --- 10-6


def by_hubs(*hubs):
    """Chunk c fans in to hubs[c], and out of it."""
    return [
        [Transfer(r, h, c, ADD) for c, h in enumerate(hubs) for r in range(4) if r != h],
        [Transfer(h, r, c, COPY) for c, h in enumerate(hubs) for r in range(4) if r != h],
    ]


# --- 10-7

A, B = (0, 1, 2, 3), (4, 5, 6, 7)


def inside(hub, rest, op, chunk=0):
    return [Transfer(*((r, hub) if op == ADD else (hub, r)), chunk, op) for r in rest]


def over_and_back():
    return [
        inside(0, (1, 2, 3), ADD) + inside(4, (5, 6, 7), ADD),
        [Transfer(4, 0, 0, ADD)], [Transfer(0, 4, 0, COPY)],
        inside(0, (1, 2, 3), COPY) + inside(4, (5, 6, 7), COPY),
    ]  # fmt: skip


def two_halves():
    steps = [[], [], [], []]
    for chunk, (home, other) in enumerate([(0, 4), (4, 0)]):
        for hub in (0, 4):
            steps[0] += inside(hub, range(hub + 1, hub + 4), ADD, chunk)
            steps[3] += inside(hub, range(hub + 1, hub + 4), COPY, chunk)
        steps[1].append(Transfer(other, home, chunk, ADD))
        steps[2].append(Transfer(home, other, chunk, COPY))
    return steps


def exchange_in_one_cell():
    return [
        inside(0, (1, 2, 3), ADD) + inside(4, (5, 6, 7), ADD),
        [Transfer(0, 4, 0, ADD), Transfer(4, 0, 0, ADD)],
        inside(0, (1, 2, 3), COPY) + inside(4, (5, 6, 7), COPY),
    ]


def exchange_without_the_second_sum():
    return [
        inside(0, (1, 2, 3), ADD) + inside(4, (5, 6, 7), ADD),
        [Transfer(0, 4, 0, ADD), Transfer(5, 1, 0, ADD)],
        inside(1, (0, 2, 3), COPY) + inside(4, (5, 6, 7), COPY),
    ]


def put_together_afterwards():
    """Other ranks hold the other host's sum, which is added in a step more."""
    return [
        inside(0, (1, 2, 3), ADD) + inside(4, (5, 6, 7), ADD),
        [Transfer(0, 5, 0, COPY), Transfer(4, 1, 0, COPY)],
        [Transfer(1, 0, 0, ADD), Transfer(5, 4, 0, ADD)],
        inside(0, (1, 2, 3), COPY) + inside(4, (5, 6, 7), COPY),
    ]


# --- 10-8


def cube(orders, parts=3):
    """Halving-doubling once for each order of the three bits, each on eight chunks of its own."""
    halves = [[] for _ in range(6)]
    for number, bits in enumerate(orders):
        for step, bit in enumerate(bits):
            done = sum(bits[:step])
            for rank in range(8):
                for owner in range(8):
                    if (rank ^ owner) & done == 0 and (rank ^ owner) & bit:
                        chunk, partner = 8 * (number % parts) + owner, rank ^ bit
                        halves[step].append(Transfer(rank, partner, chunk, ADD))
                        halves[5 - step].append(Transfer(partner, rank, chunk, COPY))
    return halves


TURNS = [(1, 2, 4), (2, 4, 1), (4, 1, 2)]
OTHER_TURNS = [(4, 2, 1), (2, 1, 4), (1, 4, 2)]


def six_turns():
    return cube(TURNS + OTHER_TURNS, parts=6)


WRONG = {
    "10-1": [
        (one_by_one, "takes 7 µs in 7 steps, although 3 µs would be enough", "7 ステップで 7 µs かか"),
        (lambda: [[Transfer(0, dst, 0, COPY) for dst in range(1, 8)]],
         "Step 0 takes longest, 7 µs: it waits for the link `out of 0`", "`out of 0`"),
        (tells_before_it_knows, "rank 1 does not have it yet in this step", "まだそれを持って"),
        (lambda: one_by_one()[:6], f"{NOTHING_SENT} chunk 0 of rank 7", NOT_SENT_JA),
        (lambda: [[(0, r, 0, ADD) for r in range(1, 8)]], 'to the old content: use "copy"', "足しています"),
        (lambda: [[(0, r, 0, COPY) for r in range(8)]], "cannot send to itself", "自分自身には"),
        (lambda: [[(1, r, 0, COPY) for r in (0, 2)]], "step 0, transfer 0", "ステップ 0、転送 0"),
        (lambda: [[(0, r, 0, COPY) for r in range(1, 9)]], "ranks go from 0 to 7", "0 から 7 ま"),
        (lambda: print("done"), "is `return` missing", "`return` を忘れて"),
        (lambda: list(chain(*by_halves())), r"`\(0, 4, 0, 'copy'\)`, not a list", "ステップ 0 が"),
        (lambda: [list(chain(*by_halves()))], "read in one step", "同じステップで書いて読"),
        (lambda: [[("0", "4", 0, COPY)]], "transfer 0 is .* with three integers", "3 つは整数"),
        (lambda: [[(0, 4, COPY)]], r"transfer 0 is `\(0, 4, 'copy'\)`, not", "転送 0 が"),
        (lambda: [7], "step 0 is `7`, not a list", "ステップ 0 が `7` で"),
        (lambda: dict(enumerate(by_halves())), "returned <class .dict.>: return", "返してください"),
        (lambda: [[(r + 1, r + know + 1, 0, COPY) for r in range(know)] for know in (1, 2, 4)], "ranks go from 0 to 7",
         "0 から 7 ま"),
        (lambda: [*by_halves(), [(0, 1, 0, COPY)]], "takes 4 µs in 4 steps", "4 ステップで 4"),
    ],
    "10-2": [
        (lambda: along_the_line(1), "takes 52 µs in 4 steps, although 27 µs", "4 ステップで 52 µs"),
        (lambda: along_the_line(5), "takes 27.2 µs in 8 steps", "8 ステップで 27.2 µs"),
        (lambda: along_the_line(12), "takes 30 µs in 15 steps", "15 ステップで 30 µs"),
        (chunk_after_chunk, "takes 72 µs in 24 steps", "24 ステップで 72 µs"),
        (lambda: along_the_line(6)[:-1], "on its owner|no transfer ever writes", "rank|ランク 4"),
        (lambda: [[(0, r, 0, COPY) for r in (1, 2)]], "no link from 0 to 2", "0 から 2 へのリンク"),
        (lambda: along_the_line(6)[::-1], "not the same as on its owner, rank 0", "になりません"),
        (lambda: [[(s, s + 1, 0, COPY) for s in range(4)]], "read in one step", "同じステップで書"),
    ],
    "10-3": [
        (lambda: ring_all_gather(5).steps, "ends|not the same as", "になりません"),  # other owners
        (lambda: gather((1, 1, 1)), "0 of rank 1 is written and read", "同じステップで書いて"),
        (lambda: [[(s, (s + 1) % 5, (s - t) % 5, COPY) for s in range(5)] for t in range(4)],
         "takes 8 µs in 4 steps, although 7 µs would be enough", "4 ステップで 8 µs"),
        (lambda: [[(s, d, s, COPY) for s in range(5) for d in range(5) if s != d]], "takes 8 µs in 1 step, although",
         "1 ステップで 8 µs"),
        (lambda: gather((1, 2)), NOTHING_SENT, NOT_SENT_JA),
        (lambda: [[(0, 1, 5, COPY)]], "chunks from 0 to 4", "チャンクは 0 から 4"),
        (lambda: [[(s, (s + 1) % 5, c, COPY) for s in range(5) for c in range(5)]], "written and read in one step",
         "同じステップで書いて読んで"),
    ],
    "10-4": [
        (lambda: [[Transfer(r, (r + 1) % 6, (r - 1 - step) % 6, ADD) for r in range(6)] for step in range(5)],
         "takes 10 µs in 5 steps, although 6 µs would be enough", "5 ステップで 10 µs"),
        (lambda: both_ways(up=()), "the contribution of rank 4, 5", "寄与がありません"),
        (lambda: both_ways(up=((1, 3), (2, 2))), "more than once|still missing", "重複|寄与が"),
        (lambda: both_ways(up=((0, 3), (1, 2), (2, 1))), "rank 3 more than once", "重複"),
        (lambda: both_ways(down=(2, 1)), "the contribution of rank 3", "寄与がありません"),
        (lambda: [[(r, c, c, ADD) for c in range(6) for r in range(6) if r != c]], "there is no link from 2 to 0",
         "2 から 0 へのリンク"),
        (lambda: [], f"{NOTHING_SENT} chunk 0 of rank 0", NOT_SENT_JA),
        (lambda: [[(r, (r + 1) % 6, r, COPY) for r in range(6)]], "no transfer sends|without the contribution|lost",
         "何も|寄与"),
    ],
    "10-5": [
        (lambda: in_and_out(1), "takes 20 µs in 2 steps, although 16 µs", "2 ステップで 20 µs"),
        (lambda: in_and_out(2), "takes 16.5 µs in 3 steps", "3 ステップで 16.5 µs"),
        (lambda: in_and_out(4), "takes 16.[23] µs in 5 steps", "5 ステップで 16.[23] µs"),
        (lambda: in_and_out(9), "takes 20 µs in 10 steps", "10 ステップで 20 µs"),
        (whole_sum_to_an_end, "takes 40 µs in 4 steps", "4 ステップで 40 µs"),
        (lambda: in_and_out(3)[:-1], "still missing|no transfer ever", "ありません|何も"),
        (lambda: star(3), "there is no link from 2 to 0", "2 から 0 へのリンク"),
        (lambda: [[(0, 1, 0, ADD), (2, 1, 0, ADD)], [(1, 0, 0, ADD), (1, 2, 0, COPY)]], "rank 0 more than once",
         "重複"),
        (lambda: [[(0, 1, 0, ADD), (1, 2, 0, ADD)], [(2, 1, 0, COPY)], [(1, 0, 0, COPY)]],
         "chunk 0 of rank 1 is written and read in one step", "同じステップで書いて読んで"),
    ],
    "10-6": [
        (lambda: sharded(4), "takes 21 µs in 2 steps, although 4 µs would be enough. .*`", "2 ステップで 21"),
        (lambda: by_hubs(2), "takes 6 µs in 2 steps", "2 ステップで 6 µs"),
        (lambda: by_hubs(2, 3, 3), "takes 4.7 µs in 2 steps", "2 ステップで 4.7 µs"),
        (lambda: ring(4).placed((0, 2, 1, 3)), "takes 9 µs in 6 steps", "6 ステップで 9 µs"),
        (lambda: by_hubs(2, 3)[:1], "no transfer ever writes|still missing", "何も|寄与が"),
        (lambda: by_hubs(2, 3)[::-1], "is lost|more than once", "失われます|重複"),
        (lambda: by_hubs(2, 3) + by_hubs(2, 3), "more than once", "重複"),
        (lambda: [[(r, h, 0, ADD) for h in (2, 3) for r in range(4) if r != h]], "written and read in one step",
         "同じステップで書いて読んで"),
    ],
    "10-7": [
        (over_and_back, "takes 52 µs in 4 steps, although 28 µs would be enough", "4 ステップで 52 µs"),
        (two_halves, "takes 32 µs .* waits for the link `network from host", "`network from host"),
        (exchange_in_one_cell, "chunk 0 of rank 4 is written and read", "同じステップで書いて"),
        (exchange_without_the_second_sum, "is lost|more than once|still missing", "失|重複|寄与が"),
        (lambda: ring(8), "the schedule is correct, but it takes", "正しいことは証明されましたが"),
        (lambda: star(8), "the schedule is correct, but it takes", "正しいことは証明されましたが"),
        (lambda: tree(8), "the schedule is correct, but it takes", "正しいことは証明されましたが"),
        (lambda: hierarchical(8, groups=(A, B)), "the schedule is correct, but it takes", "正しいことは証明され"),
        (lambda: halving_doubling(8), "the schedule is correct, but it takes", "正しいことは証明されましたが"),
        (lambda: over_and_back()[:3], "the contribution|no transfer ever", "寄与が|何も"),
    ],
    "10-8": [
        (lambda: cube(TURNS[:1]), "takes 21 µs in 6 steps, although 7 µs would be enough", "6 ステップで 21"),
        (lambda: cube(TURNS[:2]), "takes 10.5 µs in 6 steps", "6 ステップで 10.5 µs"),
        (lambda: cube([TURNS[0]] * 3), "takes 21 µs in 6 steps", "6 ステップで 21 µs"),
        (lambda: cube(TURNS, parts=1), "written and read|more than once", "書いて読んで|重複"),
        (lambda: cube(TURNS)[:3], "the contribution|no transfer ever", "寄与が|何も"),
        (lambda: ring(8), "there is no link from 1 to 2", "1 から 2 へのリンク"),
        (lambda: ring(8).placed((0, 1, 3, 2, 6, 7, 5, 4)), "takes 21 µs in 14", "14 ステップで 21"),
        (lambda: [[(r, r ^ 1, 0, ADD) for r in range(8)]], "written and read", "書いて読んで"),
        (lambda: cube(TURNS)[::-1], "is lost|more than once", "失われます|重複"),
    ],
}  # fmt: skip

RIGHT = {
    "10-1": [
        by_halves,
        lambda: ([[s, d, np.int64(c), op] for s, d, c, op in step] for step in by_halves()),
        lambda: [[(r, r ^ bit, 0, COPY) for r in range(bit)] for bit in (1, 2, 4)],
    ],
    "10-2": [lambda: along_the_line(6), lambda: [tuple(map(tuple, step)) for step in along_the_line(6)]],
    "10-3": [
        to_the_left,
        lambda: gather((1, 2, 4)),
        # first from two places on, then the pair from four on, then what is left
        lambda: [
            [((r + 2) % 5, r, (r + 2) % 5, COPY) for r in range(5)],
            [((r + 4) % 5, r, (r + 4 + n) % 5, COPY) for r in range(5) for n in (0, 2)],
            [((r + 3) % 5, r, (r + 3) % 5, COPY) for r in range(5)],
        ],
    ],
    "10-4": [mirrored, lambda: iter(both_ways())],
    "10-5": [lambda: in_and_out(3), lambda: [[], *in_and_out(3)]],
    "10-6": [lambda: by_hubs(3, 2), lambda: by_hubs(2, 3, 3, 2)],
    "10-7": [
        put_together_afterwards,
        lambda: [
            [tuple((r + 4) % 8 if i < 2 else r for i, r in enumerate(t)) for t in step]
            for step in put_together_afterwards()
        ],
    ],
    "10-8": [lambda: cube(OTHER_TURNS), six_turns],
}
