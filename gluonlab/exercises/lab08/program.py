"""08-2: a program for many processes, after one on a slide, with six faults."""

from __future__ import annotations

import contextlib
import io
from itertools import combinations
from typing import Any, List

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.faults import message_of, place_of
from gluonlab.exercises.lab08.distributed import Distributed, Images, Program, some_images
from gluonlab.exercises.lab08.ranks import Hang
from gluonlab.exercises.shared.counterexamples import Case

STILL = Case("a fault is left", "まだ直っていません")


@exercise("08-2")
def main(answer: Program) -> None:
    """A program whose processes share the images, shuffle them, and speak with one voice."""
    randint = draws(82).randint
    cases = [(16, 2, 3), (21, 4, 2), (int(randint(24, 60)), int(randint(2, 6)), 3)]
    for size, world_size, epochs in cases:
        dist, test_set = Distributed(), some_images(9, 1)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                answer(dist, some_images(size, 0), test_set, world_size, epochs)
            except Exception as error:  # whatever a student's code raises
                raise _stopped(dist, error) from None
        case = Case(
            f"{STILL.en}: {world_size} processes, {size} images, {epochs} epochs",
            f"{STILL.ja}: {world_size} プロセス、画像 {size} 枚、{epochs} エポック",
        )
        _check_group(case, dist, world_size)
        _check_images(case, dist, size, epochs)
        _check_model(case, dist)
        _check_voices(case, dist, test_set, epochs)


def _stopped(dist: Distributed, error: Exception) -> Wrong:
    """The error of the first rank that raised one, and the line of the program."""
    ranks = [rank for rank, each in enumerate(dist.outcomes) if each.error is not None]
    others = [rank for rank in ranks if not isinstance(dist.outcomes[rank].error, Hang)]
    en, ja = "", ""
    if others:
        error, rank = dist.outcomes[others[0]].error, others[0]  # type: ignore[assignment]
        en, ja = f"rank {rank}: ", f"ランク {rank}: "
    place = place_of(error, main)
    if isinstance(error, Hang):
        said_ja = (
            f"ランク {error.rank} が、すでに終わったランク {error.ended} を待っています。"
            "実際のプロセスなら永久に待ちます"
        )
        return STILL.wrong(f"{error}: real processes would wait for ever", said_ja)
    line = f"\nin line {place.line} of its cell: `{place.source}`" if place else ""
    line_ja = f"\nセルの {place.line} 行目: `{place.source}`" if place else ""
    return STILL.wrong(f"{en}{message_of(error)}{line}", f"{ja}{message_of(error)}{line_ja}")


def _check_group(case: Case, dist: Distributed, world_size: int) -> None:
    """There are as many processes as there should be, and each has said which one it is."""
    count = len(dist.notes)
    joined = [notes.joined for notes in dist.notes]
    wrong = [rank for rank, each in enumerate(joined) if each != [(rank, world_size)]]
    first = wrong[0] if wrong else 0
    given = _line(joined[first]) if wrong and joined[first] else "-"
    case.check(
        (count != world_size,
         f"processes that were started: {count}", f"起動されたプロセスは {count} 個です"),
        (wrong,
         f"rank {first} joins the group with (rank, world_size) = {given}, expected once, with "
         f"({first}, {world_size})",
         f"ランク {first} がグループに参加するときの (rank, world_size) が {given} です。"
         f"({first}, {world_size}) で 1 回のはずです"),
    )  # fmt: skip


def _check_images(case: Case, dist: Distributed, size: int, epochs: int) -> None:
    """In each epoch all ranks together train on all images, each epoch in another order."""
    for rank, notes in enumerate(dist.notes):
        case.check(
            (len(notes.orders) != epochs,
             f"rank {rank} goes through its images {len(notes.orders)} times",
             f"ランク {rank} が自分の画像で学習した回数は {len(notes.orders)} 回です"),
        )  # fmt: skip
    share = -(-size // len(dist.notes))
    for epoch in range(epochs):
        orders = [notes.orders[epoch] for notes in dist.notes]
        missing = sorted(set(range(size)) - {image for order in orders for image in order})
        odd = next((rank for rank, order in enumerate(orders) if len(order) != share), None)
        told = [notes.epochs[epoch] for notes in dist.notes]
        other = next((rank for rank, each in enumerate(told) if each != told[0]), None)
        twin = orders.index(orders[0], 1) if orders[0] in orders[1:] else None
        case.check(
            (missing and other is not None and None not in told,
             f"in epoch {epoch} the sampler of rank 0 has been told epoch {told[0]}, that of rank "
             f"{other} epoch {told[other or 0]}: they draw different permutations, and image "
             f"{missing[:1] and missing[0]} is in no rank's share",
             f"エポック {epoch} で、ランク 0 のサンプラーのエポックは {told[0]}、"
             f"ランク {other} では {told[other or 0]} です。並べ替えが食い違い、"
             f"画像 {missing[:1] and missing[0]} がどのランクの担当にもなりません"),
            (missing and twin is not None,
             f"in epoch {epoch} ranks 0 and {twin} train on the same images",
             f"エポック {epoch} でランク 0 と {twin} が同じ画像を使っています"),
            (missing,
             f"in epoch {epoch} no rank trains on image {missing[:1] and missing[0]}",
             f"エポック {epoch} で画像 {missing[:1] and missing[0]} を使うランクがありません"),
            (odd is not None,
             f"in epoch {epoch} rank {odd} trains on {len(orders[odd or 0])} images, expected "
             f"its share, {share}",
             f"エポック {epoch} でランク {odd} が {len(orders[odd or 0])} 枚を使っています。"
             f"担当分の {share} 枚のはずです"),
        )  # fmt: skip
    own = dist.notes[0].orders
    for a, b in combinations(range(epochs), 2):
        case.check(
            (own[a] == own[b],
             f"rank 0 has the images {_line(own[a][:4])}, ... in epoch {a}, and in epoch {b} the "
             "same ones in the same order",
             f"ランク 0 の画像はエポック {a} で {_line(own[a][:4])}, … で、"
             f"エポック {b} でも同じ画像が同じ順序です"),
        )  # fmt: skip


def _check_model(case: Case, dist: Distributed) -> None:
    """All ranks have the same weights in the end, and they have moved."""
    weights = [notes.weight for notes in dist.notes]
    first = weights[0]
    apart = next(
        (rank for rank, each in enumerate(weights) if each is None or (each != first).any()), None
    )
    case.check(
        (first is None, "no rank has updated a model", "モデルを更新したランクがありません"),
        (apart is not None,
         f"ranks 0 and {apart} have different weights in the end: their replicas have drifted "
         "apart",
         f"最後にランク 0 と {apart} の重みが違います。レプリカがずれてしまいました"),
    )  # fmt: skip
    sums, updates = dist.notes[0].sums, dist.notes[0].updates
    case.check(
        (sums != updates,
         f"rank 0 computes {sums} gradients and makes {updates} updates, expected one after each",
         f"ランク 0 が勾配を {sums} 回計算し、更新を {updates} 回行っています。"
         "勾配 1 回につき更新 1 回のはずです"),
    )  # fmt: skip


def _check_voices(case: Case, dist: Distributed, test_set: Images, epochs: int) -> None:
    """Rank 0 alone evaluates and prints, once an epoch, by the test images."""
    evaluations = [len(notes.evaluated) for notes in dist.notes]
    lines = [len(notes.lines) for notes in dist.notes]
    others = any(not np.array_equal(images.xs, test_set.xs) for images in dist.notes[0].evaluated)
    case.check(
        (not evaluations[0] and any(evaluations),
         f"rank {_first(evaluations)} evaluates, expected rank 0",
         f"評価しているのがランク {_first(evaluations)} です。ランク 0 のはずです"),
        (any(evaluations[1:]),
         f"the same test images are evaluated by {sum(map(bool, evaluations))} ranks",
         f"同じテスト画像を {sum(map(bool, evaluations))} 個のランクが評価しています"),
        (others,
         "rank 0 evaluates on other images than those of `test_set`",
         "ランク 0 が `test_set` ではない画像で評価しています"),
        (not lines[0] and any(lines),
         f"rank {_first(lines)} prints, expected rank 0",
         f"表示しているのがランク {_first(lines)} です。ランク 0 のはずです"),
        (any(lines[1:]),
         f"{sum(lines)} lines are printed, by {sum(map(bool, lines))} ranks, expected {epochs}",
         f"{sum(map(bool, lines))} 個のランクが合わせて {sum(lines)} 行を表示しています。"
         f"{epochs} 行のはずです"),
        (evaluations[0] != epochs,
         f"rank 0 evaluates {evaluations[0]} times, expected once an epoch",
         f"ランク 0 の評価が {evaluations[0]} 回です。エポックごとに 1 回のはずです"),
        (lines[0] != epochs,
         f"rank 0 prints {lines[0]} lines with `dist.log`, expected one an epoch",
         f"ランク 0 が `dist.log` で表示した行が {lines[0]} 行です。エポックごとに 1 行のはずです"),
    )  # fmt: skip


def _first(counts: List[int]) -> int:
    """The first rank whose count is not 0; 0: there is none."""
    return next((rank for rank, count in enumerate(counts) if count), 0)


def _line(values: List[Any]) -> str:
    return ", ".join(map(str, values))
